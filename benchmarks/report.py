"""Makes docs/benchmarks.md, and its pictures, of what ``make bench`` has recorded.

::

    make report
    python benchmarks/report.py [benchmark.json [later.json ...]] [--into docs/benchmarks.md] [--no-plots]

Everything on the page comes from the recorded run, from `targets.toml` and from here: it is written anew each time.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
import targets
from results import digits, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from results import Entry, Run
    from targets import Outcome

ROOT = Path(__file__).resolve().parent.parent
NOT_TOLD = "**Not yet told.**"
HEAD = """# Benchmarks

<!-- Made by `make report` of what `make bench` recorded: change benchmarks/, not this page. -->

Every contender for a question is timed in the same rounds, in turns, so that what a shared machine does to one it does
to all; what is compared are medians. Ratios say how many times as fast: 2 × is half the time. The *limit* is what the
machine itself can do at best, measured in the same rounds: reading, writing or copying that many bytes with as many
threads (the fastest of several loops in C, `benchmarks/limits.c`), or the system calls that no reader does without.
"""
REACH = """## What was to be reached

Each figure was set beforehand, as a ratio or a time. "With AVX2" is the same figure with `use_isa("avx2")`, for those
who have no AVX-512. Of several sizes the worst counts, and is named.
"""
LIMITS = """## What the machine can do

GB/s, the fastest of several loops. Copying counts the bytes that are copied, once.
"""
MEMORY = """## Memory

Each file is loaded in a process of its own. *Anonymous* memory is what the process has for itself; *file-backed* pages
are shared between processes and given up when memory is wanted. Told is what came on top of the process that had
imported the library, after opening and after all was read, and how long it took from the opening on until a byte of
every page had been read, and until every byte had. The files lie in the page cache.
"""
RATIOS = """## Beside the best rival, and beside the limit

Each line is one question. Who the best rival is, is found anew for each.
"""
EVERYBODY = """## Everybody

All times, by question: the median of a call, and what it is in GB/s or a million items a second.
"""


def table(head: Iterable[str], rows: Iterable[Iterable[object]], right: str = "") -> Iterator[str]:
    """Yield a table; `right` has a mark for each column whose contents stand on the right."""
    heads = list(head)
    yield f"| {' | '.join(heads)} |"
    yield "|" + "|".join("--:" if right[i : i + 1] == ">" else "---" for i in range(len(heads))) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""


def about(run: Run) -> Iterator[str]:
    """Yield machine, versions, date and command."""
    machine = run.machine
    caches = ", ".join(f"{level} {size}" for level, size in machine.get("caches", {}).items())
    yield (
        f"Measured on {run.date}, at commit {run.commit}: {machine.get('cpu')}, {machine.get('cores')} cores "
        f"({caches}), {machine.get('memory_gib')} GiB of memory, {machine.get('kernel')}, transparent huge pages "
        f"`{machine.get('huge_pages')}`. Instruction sets of weightmap there: {', '.join(machine.get('isas', ()))}."
    )
    yield ""
    versions: Mapping[str, str] = machine.get("versions", {})
    yield "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    yield ""
    yield f"The command was `{machine.get('command')}`, which `make bench` runs; `make report` made this page."
    yield ""
    for group, commit in run.again.items():
        yield f"Measured once more afterwards, by a run of its own at commit {commit}: {group}."
        yield ""


def reached(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the table of what was to be reached, and what was tried for what was not."""
    yield REACH
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
                measured = outcome.told(outcome.value) + where
                rows.append([figure.question, figure.asked, measured, outcome.told(outcome.avx2), verdict])
        yield from table(["", "asked", "measured", "with AVX2", "verdict"], rows, "  >> ")
    missed = [outcome for outcome in outcomes if outcome.verdict == "missed"]
    if missed:
        yield "### Missed, and what was tried"
        yield ""
        for outcome in missed:
            figure = outcome.figure
            measured = f"{outcome.told(outcome.value)} where {figure.asked} was asked"
            yield f"- **{figure.question}** ({measured}). {figure.tried.strip() or NOT_TOLD}"
        yield ""
    absent = [outcome for outcome in outcomes if outcome.verdict == "not measured"]
    if absent:
        yield "### Not measured in this run"
        yield ""
        yield from (f"- {outcome.figure.question}: {'; '.join(outcome.absent)}" for outcome in absent)
        yield ""


def limits(run: Run) -> Iterator[str]:
    """Yield what the machine can do."""
    cases = [name.removeprefix("limits/").split(" ", 1) for name in run.groups if name.startswith("limits/")]
    if not cases:
        return
    places = list(dict.fromkeys(place for _, place in cases))
    rows = []
    for what in dict.fromkeys(what for what, _ in cases):
        for threads in (1, 2):
            best = [run.limit(f"limits/{what} {place}", threads) for place in places]
            cells = [digits(e.info["bytes"] / e.median / 1e9) if e else "" for e in best]
            rows.append([f"{what}, {threads} thread{'s' if threads > 1 else ''}", *cells])
    yield LIMITS
    yield from table(["", *places], rows, " >>>")


def memory(run: Run) -> Iterator[str]:
    """Yield the memory of loading, by model."""
    groups = [name for name in run.groups if name.startswith("memory/")]
    if groups:
        yield MEMORY
    for group in groups:
        yield f"### {group.removeprefix('memory/')}"
        yield ""
        keys = ["anonymous MiB after opening", "anonymous MiB after use", "file-backed MiB after use", "peak MiB"]
        rows = [
            [
                entry.who,
                *(digits(max(0.0, round(entry.info[key], 2))) for key in keys),
                span(entry.median),
                span(entry.info["seconds to read all bytes"]),
            ]
            for entry in run.groups[group].values()
        ]
        head = ["", "anonymous MiB, opened", "used", "file-backed MiB", "peak MiB", "pages touched", "all bytes"]
        yield from table(head, rows, " >>>>>>")


def ratio(other: Entry | None, entry: Entry | None) -> str:
    """Return how many times as fast an entry is, or nothing."""
    return f"{digits(other.median / entry.median)} ×" if other and entry else ""


def ratios(run: Run) -> Iterator[str]:
    """Yield a line for each question and each of ours that is not another one's with another instruction set."""
    yield RATIOS
    rows = []
    for group, there in run.groups.items():
        rival = run.best_rival(group)
        for entry in there.values():
            if entry.role != "ours" or any(entry.who.endswith(f", {isa}") for isa in run.machine.get("isas", ())):
                continue
            limit = run.limit(group, entry.threads)
            slower = there.get(f"{entry.who}, avx2")
            if rival is None and limit is None:
                continue
            rows.append([
                f"{group}: {entry.who}", span(entry.median), rival.who if rival else "", ratio(rival, entry),
                ratio(rival, slower), ratio(limit, entry), ratio(limit, slower),
            ])  # fmt: skip
    head = ["", "time", "best rival", "beside it", "with AVX2", "beside the limit", "with AVX2"]
    yield from table(head, rows, " > >>>>")


def rate(info: Mapping[str, Any], median: float) -> str:
    """Return what a median makes of bytes or items."""
    if "bytes" in info:
        return f"{digits(info['bytes'] / median / 1e9)} GB/s"
    return f"{digits(info['items'] / median / 1e6)} M/s" if "items" in info else ""


def everybody(run: Run) -> Iterator[str]:
    """Yield all times, folded by the first word of the questions."""
    yield EVERYBODY
    topics: dict[str, list[str]] = {}
    for group in run.groups:
        topics.setdefault(group.partition("/")[0], []).append(group)
    for topic, groups in topics.items():
        rows = [
            [group.partition("/")[2], entry.who, entry.role, span(entry.median), rate(entry.info, entry.median)]
            for group in groups
            for entry in sorted(run.groups[group].values(), key=lambda entry: entry.median)
        ]
        yield f"<details><summary>{topic}</summary>"
        yield ""
        yield from table(["", "who", "", "time", ""], rows, "   >>")
        yield "</details>"
        yield ""


def page(run: Run, outcomes: list[Outcome], plots: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the page; `plots` are {path from the page: description}."""
    yield HEAD
    yield from about(run)
    yield from reached(outcomes)
    if plots:
        yield "## Pictures"
        yield ""
        for path, description in plots.items():
            yield f"![{description}]({path})"
            yield ""
    yield from limits(run)
    yield from memory(run)
    yield from ratios(run)
    yield from everybody(run)


def main(arguments: list[str] | None = None) -> int:
    """Write the page; say what it lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", nargs="*", type=Path, default=[ROOT / "benchmark.json"], metavar="JSON")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "benchmarks.md", metavar="FILE")
    parser.add_argument("--no-plots", action="store_true", help="without the pictures, which need matplotlib")
    options = parser.parse_args(arguments)
    run = results.load(*options.recorded)
    outcomes = [targets.evaluate(figure, run) for figure in targets.load()]
    into: Path = options.into
    plots: dict[str, str] = {}
    if not options.no_plots:
        import plots as pictures

        folder = into.with_suffix("")
        plots = {f"{folder.name}/{name}": text for name, text in pictures.save_all(run, folder).items()}
    text = "\n".join(page(run, outcomes, plots))
    into.write_text(text.rstrip() + "\n", encoding="utf-8")
    for outcome in outcomes:
        if outcome.verdict == "missed" and not outcome.figure.tried:
            sys.stderr.write(f"{outcome.figure.id} is missed, and targets.toml does not tell what was tried\n")
        if outcome.verdict == "not measured":
            sys.stderr.write(f"{outcome.figure.id} is not measured: {'; '.join(outcome.absent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
