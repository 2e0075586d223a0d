"""Gathers measures of tensors by the layer that they are part of, for heat maps."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from weightmap.report.page import short

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HUGE", "by_layer"]

_NUMBER = re.compile(r"(?<![^./])\d+(?![^./])")
# The number at the end of the name of a layer, short enough to be one.
_DIGITS = re.compile(r"\d{1,18}$", re.ASCII)
# Values that JSON and a colour scale can take.
HUGE = 1e300


def _place_of(name: str) -> tuple[str, str]:
    """Return the layer that a tensor is part of, and its place there: further numbers become a star."""
    match = _NUMBER.search(name)
    if match is None:
        return "", name
    rest = name[match.end() :].lstrip("./")
    return name[: match.end()], _NUMBER.sub("*", rest) or "(itself)"


def by_layer(rows: Iterable[tuple[str, dict[str, float | None]]]) -> list[dict[str, Any]]:
    """Return one row for each layer and place in it: of several tensors there, the largest value of each measure.

    Layers come in the order of their numbers, 2 before 10, wherever they lie in the file.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, measures in rows:
        layer, slot = _place_of(name)
        if not layer:  # outside of all layers: a row of its own would have a column of its own, too
            continue
        row = found.setdefault((layer, slot), {"layer": short(layer), "slot": short(slot)})
        for measure, value in measures.items():
            if value is not None and math.isfinite(value):
                row[measure] = max(row.get(measure, 0.0), min(value, HUGE))
    return sorted(found.values(), key=lambda row: _in_order(row["layer"]))


def _in_order(layer: str) -> tuple[str, int]:
    """Return what sorts layers of one kind by their numbers; any other kind by its name."""
    digits = _DIGITS.search(layer)
    return (layer[: digits.start()], int(digits[0])) if digits else (layer, 0)
