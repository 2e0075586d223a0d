"""The charts of a report, as Vega-Lite specifications; the page draws them, and has the same numbers in tables.

Specifications hold no text from files: such texts are data, in fields named here.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any

from weightmap.report.page import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Most marks side by side in a chart: few screens have more columns of pixels.
_MARKS = 1000
# Fields that decide how the bars of a map look.
_LOOKS = ("file", "type", "align", "resident")


def runs(count: int, max_size: int) -> Iterator[slice]:
    """Yield at most `max_size` runs of neighbours, of equal length except for the last."""
    step = max(-(-count // max_size), 1)
    return (slice(at, at + step) for at in range(0, count, step))


def span(names: Sequence[str]) -> str:
    """Return the label of neighbours that share a mark."""
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

    First, bars that begin in one column of pixels become a single bar, which looks like the longest of them. Then
    neighbours that look the same become one bar, because edges between bars dilute the colours.
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
# The largest value that JSON and a colour scale take.
HUGE = 1e300
# Name of the row for tensors outside layers
OUTSIDE = "outside layers"
# Most rows and columns of a heat map: neighbours share the rest. Tensors outside layers have their own columns.
_ROWS, _COLUMNS, _OUTSIDE_COLUMNS = 200, 60, 30


def _place_of(name: str) -> tuple[str, str]:
    """Return a tensor's layer, and its place in the layer, where a star replaces further numbers."""
    match = _NUMBER.search(name)
    if match is None:
        return "", name
    suffix = name[match.end() :].lstrip("./")
    return name[: match.end()], _NUMBER.sub("*", suffix) or "(itself)"


def by_layer(rows: Iterable[tuple[str, dict[str, float | None]]]) -> list[dict[str, Any]]:
    """Return one row per layer and place, with the largest value of each measure if several tensors share a place.

    An infinite or NaN measure becomes a word, and counts as larger than any number. Tensors outside all layers come
    first, then layers in the order of their numbers, 2 before 10, wherever they lie in the file.
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


_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name, never fetched
_NO_NUMBER = "#d03b3b"
_BYTES = {"format": ".3~s", "title": "offset in bytes"}


def _chart(data: str, description: str, **encoding: Any) -> dict[str, Any]:
    return {
        "$schema": _SCHEMA,
        "data": {"name": data},
        "description": description,
        "width": "container",
        "autosize": "fit-x",
        **encoding,
    }


def bytes_map(files: int, longest: int) -> dict[str, Any]:
    """Return the map of the files by offset, one row per file in each track; the longest file has `longest` bytes."""
    step = max(4, min(28, 240 // max(files, 1)))
    colours = {
        "type": {"field": "type", "type": "nominal", "title": "type", "scale": {"scheme": "tableau20"}},
        "alignment": {
            "field": "align",
            "type": "ordinal",
            "title": "begins at a multiple of",
        },
        "in memory": {
            "field": "resident",
            "type": "quantitative",
            "title": "in memory",
            "scale": {"domain": [0, 1]},
            "legend": {"format": ".0%", "values": [0, 0.5, 1]},
        },
    }
    tooltip = [
        {"field": "name", "title": "tensor"},
        {"field": "type"},
        {"field": "begin", "title": "offset", "format": ","},
        {"field": "nbytes", "title": "bytes", "format": ","},
        {"field": "align", "title": "aligned to"},
        {"field": "resident", "title": "in memory", "format": ".0%"},
    ]
    tracks = [
        {
            "title": {"text": title, "anchor": "start", "fontSize": 11},
            "width": 600,
            "height": {"step": step},
            # Headers and padding have a type only.
            "transform": [{"filter": "true" if at == 0 else "datum.align !== null"}],
            "mark": {"type": "bar", "clip": True, "height": {"band": 0.9}},
            "encoding": {
                "x": {
                    "field": "begin",
                    "type": "quantitative",
                    "axis": _BYTES if at == 2 else None,
                    "scale": {"domain": [0, longest], "nice": False},
                },
                "x2": {"field": "end"},
                "y": {"field": "file", "type": "nominal", "title": None, "sort": None, "axis": None},
                "color": colour,
                "tooltip": tooltip,
            },
        }
        for at, (title, colour) in enumerate(colours.items())
    ]
    # Vega-Lite follows the page's width only for single charts: the page's script sets it here.
    return {
        "$schema": _SCHEMA,
        "data": {"name": "map"},
        "description": "Where each tensor lies in its file, by type, alignment and share in memory.",
        "spacing": 12,
        "resolve": {"scale": {"color": "independent", "x": "shared"}},
        "vconcat": tracks,
    }


def histogram() -> dict[str, Any]:
    """Return the histogram of the tensor that the reader chooses."""
    return _chart(
        "bins",
        "Histogram of the elements of one tensor.",
        height=180,
        mark={"type": "bar", "binSpacing": 0},
        encoding={
            "x": {"field": "begin", "type": "quantitative", "title": "value", "bin": {"binned": True}},
            "x2": {"field": "end"},
            "y": {"field": "count", "type": "quantitative", "title": "elements"},
            "tooltip": [
                {"field": "low", "title": "from", "format": ".4~g"},
                {"field": "high", "title": "to", "format": ".4~g"},
                {"field": "count", "title": "elements", "format": ","},
            ],
        },
    )


def ranges() -> dict[str, Any]:
    """Return the range of values of every tensor, in file order."""
    order = {"nice": False, "padding": 6}
    x = {"field": "at", "type": "quantitative", "title": "tensors, in file order", "scale": order}
    tooltip = [
        {"field": "name", "title": "tensor"},
        *(
            {"field": field, "title": title, "format": ".4~g"}
            for field, title in (
                ("low", "smallest"),
                ("high", "largest"),
                ("below", "mean - deviation"),
                ("above", "mean + deviation"),
            )
        ),
    ]
    low, up = {"field": "below", "type": "quantitative"}, {"field": "above"}
    scale = {"type": "symlog", "constant": 0.01, "padding": 6}
    return _chart(
        "ranges",
        "Smallest and largest element of every tensor, and the range of one standard deviation about the mean.",
        height=240,
        layer=[
            {
                "mark": {"type": "rule", "opacity": 0.55},
                "encoding": {
                    "x": x,
                    "y": {**low, "field": "low", "title": "value", "scale": scale},
                    "y2": {"field": "high"},
                    "tooltip": tooltip,
                },
            },
            {
                "mark": {"type": "rule", "strokeWidth": 3},
                "encoding": {"x": x, "y": low, "y2": up, "tooltip": tooltip},
            },
            # A range without length has no line. (If a filter left no row, Vega would warn of an empty scale.)
            {
                "mark": {"type": "point", "filled": True, "size": 30},
                "encoding": {
                    "x": x,
                    "y": {**low, "field": "low"},
                    "opacity": {"condition": {"test": "datum.low === datum.high", "value": 1}, "value": 0},
                    "tooltip": tooltip,
                },
            },
        ],
    )


def costs() -> dict[str, Any]:
    """Return a chart of the whole model's error against its size, by scheme."""
    x = {"field": "nbytes", "type": "quantitative", "title": "bytes of the model", "axis": {"format": ".3~s"}}
    y = {
        "field": "relative",
        "type": "quantitative",
        "title": "relative RMS error",
        "axis": {"format": ".2~%"},
        "scale": {"zero": True},
    }
    tooltip = [
        {"field": "scheme"},
        {"field": "nbytes", "title": "bytes of the model", "format": ","},
        {"field": "bits", "title": "bits per weight", "format": ".3f"},
        {"field": "relative", "title": "relative RMS error", "format": ".3%"},
    ]
    return _chart(
        "costs",
        "Size of the model and relative error of its weights, by scheme of quantisation.",
        height=240,
        encoding={"x": {**x, "scale": {"zero": False, "padding": 70}}, "y": y, "tooltip": tooltip},
        layer=[
            {"mark": {"type": "point", "filled": True, "size": 90}},
            # Schemes of equal size lie one above another, so names alternate between left and right.
            *(
                {
                    "transform": [{"filter": test}],
                    "mark": {"type": "text", "dx": dx, "align": align, "fontSize": 11},
                    "encoding": {"text": {"field": "scheme"}},
                }
                for test, dx, align in (
                    ("indexof(datum.scheme, 'int') === 0", -9, "right"),
                    ("indexof(datum.scheme, 'int') !== 0", 9, "left"),
                )
            ),
        ],
    )


def heat(data: str, title: str, measures: dict[str, str], layers: int, *, zero: bool) -> dict[str, Any]:
    """Return a heat map of a measure that the reader chooses: layers by the tensors within them.

    Zero is blank, so that every other value shows; infinity and NaN have their own colour.

    Parameters
    ----------
    data : str
        The name of its data set: rows with "layer", "slot", and a field for each measure.
    title : str
    measures : dict of str to str
        Fields, and their labels.
    layers : int
    zero : bool
        Whether the colours begin at 0, or at the smallest value.
    """
    first, x_axis = next(iter(measures)), {"labelLimit": 220, "labelOverlap": True}
    tooltip = [
        {"field": "layer"},
        {"field": "slot", "title": "tensor"},
        *({"field": f"{field} in words", "title": name, "type": "nominal"} for field, name in measures.items()),
    ]
    words = [
        {
            "calculate": f"isNumber(datum['{field}']) ? format(datum['{field}'], '.4~g') : datum['{field}'] || ''",
            "as": f"{field} in words",
        }
        for field in measures
    ]
    return _chart(
        data,
        title,
        height=layers * max(5, min(20, 600 // max(layers, 1))),
        params=[
            {
                "name": "measure",
                "value": first,
                "bind": {
                    "input": "select",
                    "options": list(measures),
                    "labels": list(measures.values()),
                    "name": "measure ",
                },
            }
        ],
        transform=[{"calculate": "isNumber(datum[measure]) ? datum[measure] : null", "as": "shown"}, *words],
        mark={"type": "rect", "invalid": None},  # which removes no cell
        encoding={
            "x": {"field": "slot", "type": "nominal", "title": None, "sort": None, "axis": x_axis},
            "y": {"field": "layer", "type": "nominal", "title": "layer", "sort": None, "axis": {"labelOverlap": True}},
            "color": {
                "field": "shown",
                "type": "quantitative",
                "title": None,
                "scale": {"zero": zero},
                "legend": {"format": ".4~g"},
                "condition": [
                    {"test": "isString(datum[measure])", "value": _NO_NUMBER},
                    {"test": "!(datum.shown > 0)", "value": "transparent"},
                ],
            },
            "tooltip": tooltip,
        },
    )
