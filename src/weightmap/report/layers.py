"""Gathers measures of tensors by layer, for heat maps."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any

from weightmap.report.page import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Pools marks: neighbours share one where a chart lacks room for each.

# Most marks side by side in a chart: a screen has hardly more columns of pixels.
_MARKS = 1000
# Fields by which bars of a map look different
_LOOKS = ("file", "type", "align", "resident")


def runs(count: int, max_size: int) -> Iterator[slice]:
    """Yield runs of neighbours: `max_size` of them at most, of equal length but for the last."""
    step = max(-(-count // max_size), 1)
    return (slice(at, at + step) for at in range(0, count, step))


def span(names: Sequence[str]) -> str:
    """Return the label of neighbours sharing a mark."""
    return names[0] if names[0] == names[-1] else f"{names[0]} … {names[-1]}"


def pooled_ranges(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pool rows with "name", "low", "high", "below" and "above" until a chart has room for them."""
    return [
        {"at": run.start, "name": span([row["name"] for row in rows[run]])}
        | {field: min(row[field] for row in rows[run]) for field in ("low", "below")}
        | {field: max(row[field] for row in rows[run]) for field in ("high", "above")}
        for run in runs(len(rows), _MARKS)
    ]


def pooled_bars(rows: Sequence[dict[str, Any]], longest: int) -> list[dict[str, Any]]:
    """Pool rows of a map of files until a chart has room for them; the longest file has `longest` bytes.

    Bars that begin in one column of pixels become one, which looks like the longest of them; then neighbours that look
    the same become one, since edges between bars dilute their colours.
    """
    if len(rows) <= _MARKS:
        return list(rows)
    step = max(longest // _MARKS, 1)
    ordered = sorted(rows, key=lambda row: (row["file"], row["begin"]))
    columns = [list(bars) for _, bars in itertools.groupby(ordered, lambda row: (row["file"], row["begin"] // step))]
    groups = itertools.groupby(columns, lambda bars: [_longest(bars)[field] for field in _LOOKS])
    return [_joined([bar for bars in several for bar in bars]) for _, several in groups]


def _longest(bars: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return max(bars, key=lambda bar: bar["end"] - bar["begin"])


def _joined(bars: Sequence[dict[str, Any]]) -> dict[str, Any]:
    place = {"begin": bars[0]["begin"], "end": max(bar["end"] for bar in bars)}
    name, nbytes = span([bar["name"] for bar in bars]), sum(bar["nbytes"] for bar in bars)
    return _longest(bars) | place | {"name": name, "nbytes": nbytes}


_NUMBER = re.compile(r"(?<![^./])\d+(?![^./])")
# The number at the end of a layer's name, short enough for an integer.
_DIGITS = re.compile(r"\d{1,18}$", re.ASCII)
# Largest value that JSON and a colour scale take
HUGE = 1e300
# Name of the row for tensors outside layers
OUTSIDE = "outside layers"
# Rows and columns of a heat map: beyond these, neighbours share one. Tensors outside layers have columns of their own.
_ROWS, _COLUMNS, _OUTSIDE_COLUMNS = 200, 60, 30


def _place_of(name: str) -> tuple[str, str]:
    """Return a tensor's layer, and its place there: further numbers become a star."""
    match = _NUMBER.search(name)
    if match is None:
        return "", name
    suffix = name[match.end() :].lstrip("./")
    return name[: match.end()], _NUMBER.sub("*", suffix) or "(itself)"


def by_layer(rows: Iterable[tuple[str, dict[str, float | None]]]) -> list[dict[str, Any]]:
    """Return one row per layer and place in it: with several tensors there, the largest value of each measure.

    An infinite or NaN measure is a word, and counts as larger than any number. Tensors outside all layers come
    first; layers in the order of their numbers, 2 before 10, wherever they lie in the file.
    """
    totals: dict[tuple[str, str], dict[str, float]] = {}
    for name, measures in rows:
        _merge(totals.setdefault(_place_of(name), {}), measures)
    places = sorted(totals, key=lambda place: _in_order(place[0]))
    row_of = _shared([layer for layer, _ in places if layer], _ROWS) | {"": OUTSIDE}
    inside = _shared([slot for layer, slot in places if layer], _COLUMNS)
    outside = _shared([slot for layer, slot in places if not layer], _OUTSIDE_COLUMNS)
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for layer, slot in places:
        column = (inside if layer else outside)[slot]
        _merge(cells.setdefault((row_of[layer], column), {}), totals[layer, slot])
    return [
        {"layer": layer, "slot": slot} | {measure: _shown(value) for measure, value in measures.items()}
        for (layer, slot), measures in cells.items()
    ]


def _merge(cell: dict[str, float], measures: dict[str, float] | dict[str, float | None]) -> None:
    for measure, value in measures.items():
        if value is not None and not (math.isnan(cell.get(measure, 0.0)) or value < cell.get(measure, 0.0)):
            cell[measure] = value


def _shared(names: Sequence[str], max_names: int) -> dict[str, str]:
    """Return the label of the row or column of each name."""
    distinct = list(dict.fromkeys(names))
    shared: dict[str, str] = {}
    for run in runs(len(distinct), max_names):
        shared |= dict.fromkeys(distinct[run], span([short(name) for name in distinct[run]]))
    return shared


def _shown(value: float) -> float | str:
    if math.isnan(value):
        return "cannot be measured"
    return min(value, HUGE) if math.isfinite(value) else "infinite"


def _in_order(layer: str) -> tuple[str, int]:
    """Return the key that sorts layers of one kind by their numbers, and other kinds by name."""
    digits = _DIGITS.search(layer)
    return (layer[: digits.start()], int(digits[0])) if digits else (layer, 0)
