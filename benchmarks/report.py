"""Writes docs/benchmarks.md and benchmarks/MISSED.md from the results of ``make bench``.

::

    make report
    python benchmarks/report.py [benchmark.json [later.json ...]] [--into docs/benchmarks.md] [--no-plots]

The page has three plots (opening, loading, decoding) and a row for each figure of `targets.toml`. MISSED.md has
details, and explains the figures that fell short. build/benchmarks/ gets all times, the limits of the machine,
memory, and plots by size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import details
import results
import targets
from results import digits, span, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from results import Run
    from targets import Outcome

ROOT = Path(__file__).resolve().parent.parent
UNEXPLAINED = "**No explanation yet.**"
HEAD = """# Benchmarks

<!-- Written by `make report` from the results of `make bench`: change benchmarks/, not this page. -->

How long opening, loading and decoding take, beside the libraries that do the same work. 2 × is half the time.
Contenders take turns, and medians are compared; files lie in the page cache unless a row says otherwise.
"""
# What a plot shows, for users.
CAPTIONS = {
    "opening": "From a path to a model that finds tensors by name: header and index are checked, nothing else is read.",
    "loading": "From a path to the bytes of every tensor. Ours are views of the file.",
    "decoding": "From stored halves, integers and blocks to float32, by one thread.",
}
FIGURES = """## Figures

The *limit* is the best that this machine does in the same run: C loops (`benchmarks/limits.c`) that read, write or copy
as many bytes, or the system calls that every reader needs. A row over several sizes shows the worst, in brackets. †
falls short of its target: [benchmarks/MISSED.md](../benchmarks/MISSED.md) says by how much, and why. It also has the
figures of kernels, limits and threads.
"""
WORKFLOWS = """## Whole workflows

What users run from beginning to end (`make workflows`): each turn is a process of its own, {turns} turns in
alternation, medians; large files have {mib:,} MiB. Memory is the most anonymous memory beyond that before. *Cold*: no
file is in the page cache. Measured on {machine[cpu]}, {machine[cores]} cores.
"""
MISSED = """# Details, and what was missed

<!-- Written by `make report` from the results of `make bench` and `tried` in targets.toml. -->

Figures of kernels, limits and threads; all others, and the machine, are in [docs/benchmarks.md](../docs/benchmarks.md).
"With AVX2" leaves AVX-512 out, by `use_isa("avx2")`; the rivals keep it.
"""
# Sections of figures that explain others.
DETAILS = {
    "Limits, threads, memory",
    "CRC-32",
    "FNV-1a",
    "float16 to float32",
    "int4 and int5 to float32",
    "Blocks of ggml to float32",
}


def about(run: Run) -> Iterator[str]:
    """Yield machine, versions, date and commit."""
    machine = run.machine
    caches = ", ".join(f"{level} {size}" for level, size in machine.get("caches", {}).items())
    yield "## Machine and versions"
    yield ""
    yield (
        f"Measured on {run.date}, at commit {run.commit}: {machine.get('cpu')}, {machine.get('cores')} cores "
        f"({caches}), {machine.get('memory_gib')} GiB of memory, {machine.get('kernel')}, transparent huge pages "
        f"`{machine.get('huge_pages')}`. weightmap's instruction sets: {', '.join(machine.get('isas', ()))}."
    )
    yield ""
    versions: Mapping[str, str] = machine.get("versions", {})
    yield "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    yield ""
    yield (
        "`make bench` times every contender; `make report` writes this page, and all times and plots by size into "
        "`build/benchmarks/`."
    )


def figures(outcomes: list[Outcome], *, detailed: bool) -> Iterator[str]:
    """Yield one table for each section of figures: details, which also have figures with AVX2, or the others."""
    head, form = ["", "weightmap", "compared with", "times as fast"], " > >"
    if detailed:
        head, form = [*head, "with AVX2"], f"{form}>"
    for section in dict.fromkeys(outcome.figure.section for outcome in outcomes):
        rows = [
            [outcome.figure.question, *outcome.cells, outcome.format(outcome.avx2)][: len(head)]
            for outcome in outcomes
            if outcome.figure.section == section and outcome.value is not None
        ]
        if rows and (section in DETAILS) == detailed:
            yield f"### {section}"
            yield ""
            yield from table(head, rows, form)


def missed(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the lines of MISSED.md: details, why figures fell short, and which ones this run did not measure."""
    yield MISSED
    yield from figures(outcomes, detailed=True)
    yield "## What was missed"
    yield ""
    counts = Counter(outcome.verdict for outcome in outcomes)
    yield f"{counts['missed']} of {counts['missed'] + counts['reached']} figures fall short of their targets."
    yield ""
    for outcome in outcomes:
        figure = outcome.figure
        if outcome.verdict == "missed":
            measured = f"{outcome.format(outcome.value)}, target {figure.asked}"
            yield f"- **{figure.question}** ({measured}). {figure.tried.strip() or UNEXPLAINED}"
    yield ""
    if absent := [outcome for outcome in outcomes if outcome.verdict == "not measured"]:
        yield "## Figures without a result"
        yield ""
        yield from (f"- {outcome.figure.question}: {'; '.join(outcome.absent)}" for outcome in absent)
        yield ""


def page(run: Run, outcomes: list[Outcome], drawn: Mapping[str, str], whole: Path) -> Iterator[str]:
    """Yield the lines of docs/benchmarks.md; `drawn` are {path from the page: description}, `whole` workflows.json."""
    yield HEAD
    yield (
        f"Measured on {run.machine.get('cpu')}, {run.machine.get('cores')} cores, on {run.date} "
        "([more](#machine-and-versions))."
    )
    yield ""
    for path, description in drawn.items():
        kind = path.removeprefix("benchmarks-").removesuffix(".svg")
        yield f"## {kind.capitalize()}"
        yield ""
        yield CAPTIONS[kind]
        yield ""
        yield f"![{description}]({path})"
        yield ""
    yield from workflows(whole)
    yield FIGURES
    yield from figures(outcomes, detailed=False)
    yield from about(run)


def workflows(path: Path) -> Iterator[str]:
    """Yield the table of whole work, from the results of ``make workflows`` where there are any."""
    if not path.exists():
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    yield WORKFLOWS.format(machine=found["machine"], turns=found["turns"], mib=found["mib"])
    rows = []
    for question in dict.fromkeys(row["question"] for row in found["rows"]):
        here = [row for row in found["rows"] if row["question"] == question]
        ours = [row for row in here if row["who"].startswith("weightmap")]
        for mine, other in itertools.product(ours, [row for row in here if row not in ours]):
            cells = [f"{span(row['seconds'])}, {max(row['anonymous'], 0):.0f} MiB" for row in (mine, other)]
            ratio = f"{digits(other['seconds'] / mine['seconds'])} ×"
            rows.append([f"{question}: `{mine['who']}`", cells[0], f"{cells[1]}, {other['who']}", ratio])
    yield from table(["", "weightmap", "compared with", "times as fast"], rows, " > >")


def write(path: Path, lines: Iterator[str]) -> None:
    """Write a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write the page and the details; warn of figures that the page cannot judge or explain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, default=[ROOT / "benchmark.json"], metavar="JSON")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "benchmarks.md", metavar="FILE")
    parser.add_argument("--missed", type=Path, default=ROOT / "benchmarks" / "MISSED.md", metavar="FILE")
    parser.add_argument("--details", type=Path, default=ROOT / "build" / "benchmarks", metavar="FOLDER")
    parser.add_argument("--workflows", type=Path, default=ROOT / "workflows.json", metavar="JSON")
    parser.add_argument("--no-plots", action="store_true", help="without the plots, which need matplotlib")
    options = parser.parse_args(arguments)
    run = results.load(*options.results)
    outcomes = [targets.evaluate(figure, run) for figure in targets.load()]
    drawn: dict[str, str] = {}
    summary: dict[str, str] = {}
    if not options.no_plots:
        import plots

        drawn = plots.save(plots.plots(run), options.details)
        summary = plots.save(plots.summary(outcomes), options.into.parent)
    write(options.into, page(run, outcomes, summary, options.workflows))
    write(options.missed, missed(outcomes))
    write(options.details / "details.md", details.page(run, drawn))
    for outcome in outcomes:
        if outcome.verdict == "missed" and not outcome.figure.tried:
            sys.stderr.write(f"{outcome.figure.id} is missed, and targets.toml does not say what was tried\n")
        if outcome.verdict == "not measured":
            sys.stderr.write(f"{outcome.figure.id} is not measured: {'; '.join(outcome.absent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
