"""The details of a run: the limits of the machine, memory, ratios and all times. `report.py` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from results import digits, span, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from results import Entry, Run

LIMITS = """## Limits of the machine

GB/s of the fastest of several loops. A copied byte counts once.
"""
MEMORY = """## Memory

A process of its own loads each file from the page cache. The table shows what loading adds to a process that has
imported the library. *Anonymous* memory belongs to the process alone. Processes share *file-backed* pages, and the
system takes them back when memory runs short. The two times run from opening until a byte of every page was read, and
until every byte was.
"""
RATIOS = """## Ratios to the fastest rival and to the limit

One line a question. The fastest rival is chosen for each question.
"""
TIMES = """## All times

The median of a call, and the rate in GB/s or in millions of items a second.
"""


def limits(run: Run) -> Iterator[str]:
    """Yield the limits of the machine."""
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
        head = ["", "anonymous MiB, opened", "used", "file-backed MiB", "peak MiB", "every page", "every byte"]
        yield from table(head, rows, " >>>>>>")


def ratio(other: Entry | None, entry: Entry | None) -> str:
    """Return how many times as fast an entry is, or nothing."""
    return f"{digits(other.median / entry.median)} ×" if other and entry else ""


def ratios(run: Run) -> Iterator[str]:
    """Yield a line for each question and each contender of ours with the best instruction set."""
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
    head = ["", "time", "fastest rival", "ratio to it", "with AVX2", "ratio to the limit", "with AVX2"]
    yield from table(head, rows, " > >>>>")


def rate(info: Mapping[str, Any], median: float) -> str:
    """Return the rate in bytes or items."""
    if "bytes" in info:
        return f"{digits(info['bytes'] / median / 1e9)} GB/s"
    return f"{digits(info['items'] / median / 1e6)} M/s" if "items" in info else ""


def times(run: Run) -> Iterator[str]:
    """Yield all times, folded by the first word of the questions."""
    yield TIMES
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


def page(run: Run, plots: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the details; `plots` are {path from the page: description}."""
    yield f"# Benchmarks of {run.date}, commit {run.commit}: details"
    yield ""
    for path, description in plots.items():
        yield f"![{description}]({path})"
        yield ""
    yield from limits(run)
    yield from memory(run)
    yield from ratios(run)
    yield from times(run)
