"""The figures that weightmap set out to reach (`targets.toml`), and what a run has measured of each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from results import digits

if TYPE_CHECKING:
    from collections.abc import Callable

    from results import Entry, Run

FILE = Path(__file__).with_name("targets.toml")
SECONDS = {"s": 1.0, "ms": 1e3, "µs": 1e6}  # what a second is in each unit


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure, as `targets.toml` explains it."""

    id: str
    question: str
    groups: list[str]
    ours: str
    section: str
    tried: str
    beside: str | list[str] = ""
    at_least: float | None = None
    stretch: float | None = None
    at_most: float | None = None
    unit: str = ""
    info: str = ""
    unless: str = ""

    @property
    def rivals(self) -> list[str]:
        """Return the names of those that it is compared with."""
        return [self.beside] if isinstance(self.beside, str) else self.beside

    @property
    def asked(self) -> str:
        """Return what was asked, for people."""
        if self.at_least is None:
            return f"at most {self.at_most:g} {self.unit}".rstrip()
        whom = " and ".join(self.rivals).replace("limit", "the limit")
        hoped = f" (stretch {self.stretch:g})" if self.stretch else ""
        return f"{self.at_least:g} × {whom}{hoped}"

    def reached(self, value: float, bound: float | None = None) -> bool:
        """Tell whether a value is what was asked for, or what `bound` says."""
        if self.at_least is None:
            assert self.at_most is not None
            return value <= self.at_most
        return value >= (self.at_least if bound is None else bound)


@dataclass(frozen=True)
class Outcome:
    """What was measured: `value` is the worst of the figure's groups, `where` that group, `whom` it is beside."""

    figure: Figure
    value: float | None = None
    where: str = ""
    whom: str = ""
    avx2: float | None = None
    absent: list[str] = field(default_factory=list)
    pointless: bool = False

    @property
    def verdict(self) -> str:
        """Return "reached", "stretch reached", "missed", "not measured" or "does not apply"."""
        if self.pointless:
            return "does not apply"
        if self.value is None:
            return "not measured"
        if not self.figure.reached(self.value):
            return "missed"
        if self.figure.stretch and self.figure.reached(self.value, self.figure.stretch):
            return "stretch reached"
        return "reached"

    def told(self, value: float | None) -> str:
        """Return a value for people."""
        if value is None:
            return ""
        return f"{digits(value)} {'×' if self.figure.at_least is not None else self.figure.unit}".rstrip()


def load(path: Path = FILE) -> list[Figure]:
    """Read the figures."""
    return [Figure(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["figure"]]


def evaluate(figure: Figure, run: Run) -> Outcome:
    """Find a figure among what was measured."""
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
    worst: Callable[..., tuple[float, str, str]] = min if figure.at_least is not None else max
    found = [(*measure(figure, run, group, figure.ours), group) for group in figure.groups]
    value, whom, where = worst(found, key=lambda one: one[0])
    slower = f"{figure.ours}, avx2"
    avx2 = None
    if all(slower in run.groups[group] for group in figure.groups):
        avx2 = worst([measure(figure, run, group, slower) for group in figure.groups], key=lambda one: one[0])[0]
    return Outcome(figure, value, where, whom, avx2)


def measure(figure: Figure, run: Run, group: str, ours: str) -> tuple[float, str]:
    """Return a figure for one group and one of ours, and whom it was compared with."""
    entry = run.groups[group][ours]
    if figure.info:
        return float(entry.info[figure.info]), ""
    if figure.at_least is None:
        return entry.median * SECONDS[figure.unit], ""
    other = beside(figure, run, entry)
    return other.median / entry.median, other.who


def beside(figure: Figure, run: Run, entry: Entry) -> Entry:
    """Return the fastest of those that an entry is compared with."""
    if figure.beside == "limit":
        limit = run.limit(entry.group, entry.threads)
        assert limit is not None, f"{entry.group} has no limit for {entry.threads} threads"
        return limit
    # In the rounds of AVX2, int4 has AVX2 too.
    twins = [name + entry.who.removeprefix(figure.ours) for name in figure.rivals]
    there = run.groups[entry.group]
    return min((there.get(twin, there[name]) for twin, name in zip(twins, figure.rivals, strict=True)),
               key=lambda other: other.median)  # fmt: skip
