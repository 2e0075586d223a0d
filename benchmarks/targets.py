"""The target figures of weightmap (`targets.toml`), and the outcome of each in a run."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from results import digits, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from results import Entry, Run

FILE = Path(__file__).with_name("targets.toml")
SECONDS = {"s": 1.0, "ms": 1e3, "µs": 1e6}  # units in a second


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure, as `targets.toml` explains it."""

    id: str
    question: str
    groups: list[str]
    ours: str
    section: str
    tried: str
    label: str = ""
    detail: bool = False
    beside: str | list[str] = ""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    info: str = ""
    unless: str = ""

    @property
    def rivals(self) -> list[str]:
        """Return the names of the contenders beside ours."""
        return [self.beside] if isinstance(self.beside, str) else self.beside

    @property
    def asked(self) -> str:
        """Return the bound, for people."""
        if self.at_least is None:
            return f"at most {self.at_most:g} {self.unit}".rstrip()
        return f"{self.at_least:g} × {self.whom}"

    @property
    def whom(self) -> str:
        """Return the other side of the comparison, for people."""
        if self.beside == "limit":
            return "the limit"
        return self.beside if isinstance(self.beside, str) else f"the fastest of {', '.join(self.beside)}"

    def reached(self, value: float) -> bool:
        """Tell whether a value keeps the bound."""
        if self.at_least is None:
            assert self.at_most is not None
            return value <= self.at_most
        return value >= self.at_least


@dataclass(frozen=True)
class Outcome:
    """A measured figure: the `value` of its worst group, `where` names the group, and the compared entries."""

    figure: Figure
    value: float | None = None
    where: str = ""
    ours: Entry | None = None
    other: Entry | None = None
    avx2: float | None = None
    absent: list[str] = field(default_factory=list)
    pointless: bool = False

    @property
    def verdict(self) -> str:
        """Return "reached", "missed", "not measured" or "does not apply"."""
        if self.pointless:
            return "does not apply"
        if self.value is None:
            return "not measured"
        return "reached" if self.figure.reached(self.value) else "missed"

    @property
    def cells(self) -> list[str]:
        """Return ours, the other and the ratio of a measured figure, for people; or only one of them."""
        measured = self.format(self.value) + (" †" if self.verdict == "missed" else "")
        if not self.ours or not self.other:
            return [measured, "", ""]
        where = f" ({self.where.partition('/')[2]})" if len(self.figure.groups) > 1 else ""
        return [span(self.ours.median), f"{span(self.other.median)}, {self.figure.whom}", measured + where]

    def format(self, value: float | None) -> str:
        """Return a value with its unit."""
        if value is None:
            return ""
        return f"{digits(value)} {'×' if self.figure.at_least is not None else self.figure.unit}".rstrip()


def load(path: Path = FILE) -> list[Figure]:
    """Read the figures."""
    return [Figure(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["figure"]]


def reasons(path: Path = FILE) -> dict[str, str]:
    """Read why workflows are behind, by an expression for their questions."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["workflow"]
    return {entry["question"]: entry["why"].strip() for entry in entries}


def evaluate(figure: Figure, run: Run) -> Outcome:
    """Find the outcome of a figure in a run."""
    if figure.unless and figure.unless in run.machine.get("isas", ()):
        return Outcome(figure, pointless=True)
    absent = [
        f"{group}: {who}"
        for group in figure.groups
        for who in (figure.ours, *(name for name in figure.rivals if name and name != "limit"))
        if who not in run.groups.get(group, {})
    ]
    if absent:
        return Outcome(figure, absent=absent)
    worst: Callable[..., Measured] = min if figure.at_least is not None else max
    found = [measure(figure, run, group, figure.ours) for group in figure.groups]
    value, ours, other = worst(found, key=lambda one: one.value)
    slower = f"{figure.ours}, avx2"
    avx2 = None
    if all(slower in run.groups[group] for group in figure.groups):
        avx2 = worst([measure(figure, run, group, slower) for group in figure.groups], key=lambda one: one.value).value
    return Outcome(figure, value, ours.group, ours, other, avx2)


class Measured(NamedTuple):
    """A figure for one group: its value, and the entries that it compares."""

    value: float
    ours: Entry
    other: Entry | None = None


def measure(figure: Figure, run: Run, group: str, ours: str) -> Measured:
    """Measure one of ours in one group."""
    entry = run.groups[group][ours]
    if figure.info:
        unit = run.groups[group][figure.rivals[0]].info[figure.info] if figure.beside else 1
        return Measured(float(entry.info[figure.info]) / unit, entry)
    if figure.at_least is None:
        return Measured(entry.median * SECONDS[figure.unit], entry)
    other = beside(figure, run, entry)
    return Measured(other.median / entry.median, entry, other)


def beside(figure: Figure, run: Run, entry: Entry) -> Entry:
    """Return the fastest contender beside an entry."""
    if figure.beside == "limit":
        limit = run.limit(entry.group, entry.threads)
        assert limit is not None, f"{entry.group} has no limit for {entry.threads} threads"
        return limit
    # If ours runs with AVX2, so does int4, the measure for int5.
    twins = [name + entry.who.removeprefix(figure.ours) for name in figure.rivals]
    there = run.groups[entry.group]
    return min((there.get(twin, there[name]) for twin, name in zip(twins, figure.rivals, strict=True)),
               key=lambda other: other.median)  # fmt: skip
