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
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import details
import results
import targets
from results import digits, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from results import Run
    from targets import Outcome

ROOT = Path(__file__).resolve().parent.parent
UNEXPLAINED = "**No explanation yet.**"
HEAD = """# Benchmarks

<!-- Written by `make bench report`, with all times in build/benchmarks/. -->

How long opening, loading and decoding take, beside the libraries that do the same work. 2 × is half the time.
Contenders take turns, and medians are compared; files lie in the page cache unless a row says otherwise.
"""
# The description of a plot, for users.
CAPTIONS = {
    "opening": "Header and index are checked, nothing else is read.",
    "loading": "Ours are views of the file.",
    "decoding": "To float32, by one thread.",
}
FIGURES = """## Figures

The *limit* is the best of this machine in the same run: C loops (`benchmarks/limits.c`) over as many bytes, or the
system calls that every reader needs. Of several sizes the worst counts, in brackets. † falls short of its target:
[benchmarks/MISSED.md](../benchmarks/MISSED.md) says why. It also has the figures of kernels, limits and threads.
"""
HEADING = "## Whole workflows"
WORKFLOWS = """

What users run (`make workflows`), beside the fastest rival: times as fast; in brackets anonymous memory, as a share of
the rival's, where it is half or more. Large files have {mib:,} MiB; opening is 20 times in a row, decoding 3 times.
Medians of {turns} turns on {machine[cpu]}, {machine[cores]} cores, {date}.
"""
# Questions that share a table: the names of its rows and columns.
GRIDS = (
    r"(?P<column>(?:open|one tensor|all tensors) of )(?P<row>.+)(?P<more>, (?:MiniLM|large))",
    r"causal model(?P<column>.*): (?P<row>.+)",
    r"Hugging Face to GGUF (?P<column>\w+): (?P<row>.+)",
    r"(?P<row>quantise to|decode) (?P<column>q\w+|mxfp4)",
)
BEHIND = "## Whole workflows that are behind"
# Turns of one tree differ by less.
LEVEL = 0.97
# Less anonymous memory, in MiB, is not compared.
LITTLE = 8
# A smaller share of the rival's is not shown.
SHOWN = 0.5
MISSED = """# Details, and what was missed

<!-- Written by `make report` from the results of `make bench` and `tried` in targets.toml. -->

Figures of kernels, limits and threads; all others, and the machine, are in [docs/benchmarks.md](../docs/benchmarks.md).
"With AVX2" leaves AVX-512 out, by `use_isa("avx2")`; the rivals keep it.
"""
# Sections of figures that explain others, or that the table of whole workflows has for users.
DETAILS = {
    "Limits, threads, memory",
    "CRC-32",
    "FNV-1a",
    "float16 to float32",
    "int4 and int5 to float32",
    "Blocks of ggml to float32",
    "Loading",
    "Quantising, comparing",
    "Saving, converting",
    "Quantised checkpoints",
    "Models that were signed",
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


def figures(outcomes: list[Outcome], *, detailed: bool) -> Iterator[str]:
    """Yield one table for each section of figures: details, which also have figures with AVX2, or the others."""
    head, form = ["", "weightmap", "compared with", "times as fast"], " > >"
    if detailed:
        head, form = [*head, "with AVX2"], f"{form}>"
    for section in dict.fromkeys(outcome.figure.section for outcome in outcomes):
        rows = [
            [outcome.figure.question, *outcome.cells, outcome.format(outcome.avx2)][: len(head)]
            for outcome in outcomes
            if outcome.figure.section == section
            and outcome.value is not None
            and (section in DETAILS or outcome.figure.detail) == detailed
        ]
        if rows:
            yield f"### {section}"
            yield ""
            yield from table(head, rows, form)


def missed(outcomes: list[Outcome], slower: Iterable[str]) -> Iterator[str]:
    """Yield the lines of MISSED.md: details, reasons for missed figures, and figures that this run did not measure.

    `slower` is the section of workflows.
    """
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
    yield from slower


def page(run: Run, outcomes: list[Outcome], drawn: Mapping[str, str], whole: Iterable[str]) -> Iterator[str]:
    """Yield the lines of docs/benchmarks.md; `drawn` are {path from the page: description}, `whole` a section."""
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
    yield from whole
    yield FIGURES
    yield from figures(outcomes, detailed=False)
    yield from about(run)


def kept(page: Path, begin: str, end: str = "") -> Iterator[str]:
    """Yield the section of a page that begins with a line, up to another one or to the end, if there is one."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if begin in text:
        yield text[text.index(begin) : text.index(end) if end else None].rstrip() + "\n"


def workflows(found: Path, page: Path) -> Iterator[str]:
    """Yield the section of whole work: from the results of ``make workflows``, or as the page has it."""
    if not found.exists():
        yield from kept(page, HEADING, FIGURES[: FIGURES.index("\n")])
        return
    results = json.loads(found.read_text(encoding="utf-8"))
    yield HEADING + WORKFLOWS.format(**results)
    others, left = [], list(compared(results["rows"]))
    for pattern in GRIDS:
        grid: dict[str, dict[str, str]] = {}
        for question, rival, ratio in left:
            if about := re.fullmatch(pattern, question):
                named = about.groupdict("")
                column = (named["column"].replace(" of ", "") + named.get("more", "")).strip(", ") or "warm"
                grid.setdefault(f"{named['row']}, {rival}", {})[column] = ratio
            else:
                others.append([question, rival, ratio])
        left, others = others, []
        columns = list(dict.fromkeys(column for ratios in grid.values() for column in ratios))
        lines = [[row, *(ratios.get(column, "") for column in columns)] for row, ratios in grid.items()]
        yield from table(["", *columns], lines, " " + ">" * len(columns)) if grid else ()
    yield from table(["", "beside", "times as fast"], left, "  >")


def compared(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield for each question and each of our contenders: the question, the fastest rival, and the ratio."""
    for question in dict.fromkeys(row["question"] for row in rows):
        here = [row for row in rows if row["question"] == question]
        rivals = [row for row in here if not row["who"].startswith("weightmap")]
        best = min(rivals, key=lambda row: row["seconds"], default=None)
        for ours in here if best else ():
            if ours in rivals:
                continue
            ratio = digits(best["seconds"] / ours["seconds"])
            share = max(ours["anonymous"], 0) / max(best["anonymous"], 1)
            if max(ours["anonymous"], best["anonymous"]) >= LITTLE and share >= SHOWN:
                ratio += f" ({digits(share)})"
            way = ours["who"].removeprefix("weightmap").strip(" ,")
            yield [f"{question}: {way}" if way else question, best["who"], ratio]


def behind(found: Path, page: Path) -> Iterator[str]:
    """Yield the section on slower workflows and the reasons, from their results or from the page."""
    if not found.exists():
        yield from kept(page, BEHIND)
        return
    yield BEHIND
    yield ""
    reasons = targets.reasons()
    for question, rival, ratio in compared(json.loads(found.read_text(encoding="utf-8"))["rows"]):
        if float(ratio.split()[0].replace(",", "")) < LEVEL:
            why = next((why for pattern, why in reasons.items() if re.fullmatch(pattern, question)), UNEXPLAINED)
            yield f"- **{question}** ({ratio} × {rival}). {why}"


def put_workflows(found: Path, page: Path, reasons: Path) -> None:
    """Write the section of whole work above the figures of kernels, and the slower workflows into `reasons`."""
    text = page.read_text(encoding="utf-8")
    figures = text.index(FIGURES[: FIGURES.index("\n")])
    begin = text.index(HEADING) if HEADING in text else figures
    page.write_text(text[:begin] + "\n".join(workflows(found, page)) + "\n" + text[figures:], encoding="utf-8")
    text = reasons.read_text(encoding="utf-8").partition(BEHIND)[0].rstrip()
    write(reasons, iter([text, "", *behind(found, reasons)]))


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
    parser.add_argument("--only-workflows", action="store_true", help="write the section of whole work alone")
    options = parser.parse_args(arguments)
    if options.only_workflows:
        put_workflows(options.workflows, options.into, options.missed)
        return 0
    run = results.load(*options.results)
    outcomes = [targets.evaluate(figure, run) for figure in targets.load()]
    drawn: dict[str, str] = {}
    summary: dict[str, str] = {}
    if not options.no_plots:
        import plots

        drawn = plots.save(plots.plots(run), options.details)
        summary = plots.save(plots.summary(outcomes), options.into.parent)
    write(options.into, page(run, outcomes, summary, list(workflows(options.workflows, options.into))))
    write(options.missed, missed(outcomes, list(behind(options.workflows, options.missed))))
    write(options.details / "details.md", details.page(run, drawn))
    for outcome in outcomes:
        if outcome.verdict == "missed" and not outcome.figure.tried:
            sys.stderr.write(f"{outcome.figure.id} is missed, and targets.toml does not say what was tried\n")
        if outcome.verdict == "not measured":
            sys.stderr.write(f"{outcome.figure.id} is not measured: {'; '.join(outcome.absent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
