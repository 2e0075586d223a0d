"""The results of a run of the benchmarks, by group and contender, and how they are printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Entry(NamedTuple):
    """One contender of one group; `median` in seconds a call."""

    group: str
    who: str
    role: str
    threads: int
    median: float
    info: dict[str, Any]


class Run(NamedTuple):
    """All entries by group and contender, in the order of the run, with its machine, date and commit."""

    groups: dict[str, dict[str, Entry]]
    machine: dict[str, Any]
    date: str
    commit: str

    def limit(self, group: str, threads: int) -> Entry | None:
        """Return the fastest limit of a group for this number of threads."""
        there = [e for e in self.groups[group].values() if e.role == "limit" and e.threads == threads]
        return min(there, key=lambda entry: entry.median, default=None)

    def best_rival(self, group: str) -> Entry | None:
        """Return the fastest rival of a group."""
        there = [e for e in self.groups[group].values() if e.role == "rival"]
        return min(there, key=lambda entry: entry.median, default=None)


def load(path: Path, *later: Path) -> Run:
    """Read the file that ``make bench`` wrote; groups of `later` runs replace those of the first."""
    run = _load(path)
    for other in map(_load, later):
        run = run._replace(groups=run.groups | other.groups)
    return run


def _load(path: Path) -> Run:
    document = json.loads(path.read_text(encoding="utf-8"))
    groups: dict[str, dict[str, Entry]] = {}
    for one in document["benchmarks"]:
        info = one["extra_info"]
        entry = Entry(one["group"], info["who"], info["role"], info.get("threads", 1), one["stats"]["median"], info)
        groups.setdefault(entry.group, {})[entry.who] = entry
    commit = document.get("commit_info") or {}
    label = (commit.get("id") or "unknown")[:12] + (", with changes" if commit.get("dirty") else "")
    return Run(groups, document["machine_info"].get("weightmap", {}), document["datetime"][:10], label)


def span(seconds: float) -> str:
    """Format a time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{digits(seconds / size)} {unit}"
    return f"{digits(seconds * 1e9)} ns"


def digits(number: float) -> str:
    """Format a number with three significant digits, or two below 1."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    if abs(number) >= 10:
        return f"{number:.1f}"
    return f"{number:.2f}" if abs(number) >= 0.1 else f"{number:.2g}"


def table(head: Iterable[str], rows: Iterable[Iterable[object]], right: str = "") -> Iterator[str]:
    """Yield a Markdown table; `right` has ">" at the place of each right-aligned column."""
    heads = list(head)
    yield f"| {' | '.join(heads)} |"
    yield "|" + "|".join("--:" if right[i : i + 1] == ">" else "---" for i in range(len(heads))) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""
