"""The charts of a report, as specifications of Vega-Lite; the page draws them, and has the same numbers in tables.

No specification holds text of a file: these texts are data, in fields named here.
"""

from __future__ import annotations

from typing import Any

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
            "scale": {"scheme": "viridis", "reverse": True},
        },
        "in memory": {
            "field": "resident",
            "type": "quantitative",
            "title": "in memory",
            "scale": {"scheme": "blues", "domain": [0, 1]},
            "legend": {"format": ".0%"},
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
            # Headers and padding have a type, and nothing else.
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
    # Vega-Lite follows the page's width for single charts only: here the page sets it.
    return {
        "$schema": _SCHEMA,
        "data": {"name": "map"},
        "description": "Where each tensor lies in its file, by type, alignment and share in memory.",
        "spacing": 12,
        "resolve": {"scale": {"color": "independent", "x": "shared"}},
        "vconcat": tracks,
    }


def histogram() -> dict[str, Any]:
    """Return the histogram of the tensor chosen by the reader."""
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
            # A range without length has no line. (A filter that leaves nothing makes Vega warn of an empty scale.)
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
    """Return error against size of the whole model, by scheme."""
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
            # Schemes of equal size lie one above another: names to the left of the points and to the right.
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
    """Return a heat map of layers by the tensors within them, of a measure chosen by the reader.

    Zero is blank, so that every other value shows; infinity and NaN have a colour of their own.

    Parameters
    ----------
    data : str
        Its data set: rows with "layer", "slot", and a field for each measure.
    title : str
    measures : dict of str to str
        Fields, and what to call them.
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
        mark={"type": "rect", "invalid": None},  # which takes no cell away
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
