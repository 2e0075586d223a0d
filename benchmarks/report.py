"""Writes docs/benchmarks.md from the results of ``make bench``, and every table and plot into build/benchmarks/.

::

    make report
    python benchmarks/report.py [benchmark.json [later.json ...]] [--into docs/benchmarks.md] [--no-plots]

The page has one line for each figure of `targets.toml`. The details have all times, the limits of the machine and
memory.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import details
import results
import targets
from results import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from results import Run
    from targets import Outcome

ROOT = Path(__file__).resolve().parent.parent
UNEXPLAINED = "**No explanation yet.**"
HEAD = """# Benchmarks

<!-- Written by `make report` from the results of `make bench`: change benchmarks/, not this page. -->

All contenders for a question are timed in turns, in the same rounds, so that a busy machine slows all of them alike.
The page compares medians. A ratio says how many times as fast weightmap is: 2 × is half the time. The *limit* is the
best that the machine can do, measured in the same rounds: the fastest of several C loops (`benchmarks/limits.c`) that
read, write or copy as many bytes with as many threads, or the system calls that every reader needs.

`make bench` times every contender. `make report` writes this page, and all times, memory and plots into
`build/benchmarks/`.
"""
FIGURES = """## Figures

Each figure was set before it was measured. "With AVX2" is the same figure on a CPU without AVX-512, set by
`use_isa("avx2")`; the others keep AVX-512 (zlib-ng folds 512 bits at once, which 256 cannot equal: 30 GB/s here). A
figure for several sizes shows the worst of them.
"""


def about(run: Run) -> Iterator[str]:
    """Yield machine, versions, date and command."""
    machine = run.machine
    caches = ", ".join(f"{level} {size}" for level, size in machine.get("caches", {}).items())
    yield "## Machine and command"
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
    yield f"Command, as `make bench` runs it: `{machine.get('command')}`."
    yield ""
    again: dict[str, list[str]] = {}
    for group, commit in run.again.items():
        again.setdefault(commit, []).append(group)
    for commit, groups in again.items():
        yield f"Measured again in later runs, at commit {commit}: {'; '.join(groups)}."
        yield ""


def figures(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield one table for each section of figures."""
    yield FIGURES
    counts = Counter(outcome.verdict for outcome in outcomes)
    yield "In short: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) + "."
    yield ""
    for section in dict.fromkeys(outcome.figure.section for outcome in outcomes):
        yield f"### {section}"
        yield ""
        rows = []
        for outcome in outcomes:
            figure = outcome.figure
            if figure.section == section:
                where = f" ({outcome.where.partition('/')[2]})" if len(figure.groups) > 1 and outcome.where else ""
                verdict = f"**{outcome.verdict}**" if outcome.verdict == "missed" else outcome.verdict
                measured = outcome.format(outcome.value) + where
                rows.append(
                    [figure.question, figure.asked, measured, outcome.times, outcome.format(outcome.avx2), verdict]
                )
        yield from table(["", "asked", "measured", "ours, other", "with AVX2", "verdict"], rows, "  >>> ")


def missed(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield what was tried for each missed figure, and which figures this run has no results for."""
    if missed := [outcome for outcome in outcomes if outcome.verdict == "missed"]:
        yield "## Missed figures"
        yield ""
        for outcome in missed:
            figure = outcome.figure
            measured = f"{outcome.format(outcome.value)}, asked {figure.asked}"
            yield f"- **{figure.question}** ({measured}). {figure.tried.strip() or UNEXPLAINED}"
        yield ""
    if absent := [outcome for outcome in outcomes if outcome.verdict == "not measured"]:
        yield "## Figures without a result"
        yield ""
        yield from (f"- {outcome.figure.question}: {'; '.join(outcome.absent)}" for outcome in absent)
        yield ""


def page(run: Run, outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the lines of docs/benchmarks.md."""
    yield HEAD
    yield from about(run)
    yield from figures(outcomes)
    yield from missed(outcomes)


def write(path: Path, lines: Iterator[str]) -> None:
    """Write a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write the page and the details; warn of figures that the page cannot judge or explain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, default=[ROOT / "benchmark.json"], metavar="JSON")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "benchmarks.md", metavar="FILE")
    parser.add_argument("--details", type=Path, default=ROOT / "build" / "benchmarks", metavar="FOLDER")
    parser.add_argument("--no-plots", action="store_true", help="without the plots, which need matplotlib")
    options = parser.parse_args(arguments)
    run = results.load(*options.results)
    outcomes = [targets.evaluate(figure, run) for figure in targets.load()]
    drawn: dict[str, str] = {}
    if not options.no_plots:
        import plots

        drawn = plots.save_all(run, options.details)
    write(options.into, page(run, outcomes))
    write(options.details / "details.md", details.page(run, drawn))
    for outcome in outcomes:
        if outcome.verdict == "missed" and not outcome.figure.tried:
            sys.stderr.write(f"{outcome.figure.id} is missed, and targets.toml does not say what was tried\n")
        if outcome.verdict == "not measured":
            sys.stderr.write(f"{outcome.figure.id} is not measured: {'; '.join(outcome.absent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
