"""Pools marks: neighbours share one where a chart lacks room for each."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Most marks side by side in a chart: a screen has hardly more columns of pixels.
_MARKS = 1000
# Fields by which bars of a map look different
_LOOKS = ("file", "type", "align", "resident")


def runs(count: int, most: int) -> Iterator[slice]:
    """Yield runs of neighbours: `most` of them at most, of equal length but for the last."""
    step = max(-(-count // most), 1)
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
    alike = itertools.groupby(columns, lambda bars: [_longest(bars)[field] for field in _LOOKS])
    return [_joined([bar for bars in several for bar in bars]) for _, several in alike]


def _longest(bars: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return max(bars, key=lambda bar: bar["end"] - bar["begin"])


def _joined(bars: Sequence[dict[str, Any]]) -> dict[str, Any]:
    place = {"begin": bars[0]["begin"], "end": max(bar["end"] for bar in bars)}
    name, nbytes = span([bar["name"] for bar in bars]), sum(bar["nbytes"] for bar in bars)
    return _longest(bars) | place | {"name": name, "nbytes": nbytes}
