"""The page that compares two models."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from weightmap.core.amounts import brief
from weightmap.errors import counted
from weightmap.report import charts
from weightmap.report.layers import by_layer
from weightmap.report.page import Cell, document, figure, message, named, number, pairs, table, text, titles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightmap.report.comparing import Comparison, Pair
    from weightmap.report.page import Section

# Measures of the map, and what the page calls them
_MEASURES = {
    "relative": "RMS difference by RMS of A",
    "rms": "RMS difference",
    "largest": "largest difference",
    "angle": "1 - cosine",
    "odd": "elements NaN or infinite in one only",
}


def pair_page(names: Sequence[str], sizes: Sequence[int], found: Comparison) -> bytes:
    """Return the page that compares two models of these names and sizes."""
    specs: dict[str, Any] = {}
    sets: dict[str, list[dict[str, Any]]] = {}
    known = [pair for pair in found.pairs if pair.rms is not None]
    same = sum(pair.equal for pair in known)
    rows = [(side, f"{text(name)}, {brief(nbytes)}") for side, name, nbytes in zip("AB", names, sizes, strict=True)]
    rows += [
        ("tensors in both", f"{len(found.pairs):,}, of equal values {same:,}"),
        ("only in A", f"{len(found.only_in_a):,}"),
        ("only in B", f"{len(found.only_in_b):,}"),
    ]
    sections = [("summary", "What is compared", pairs(rows)), _differences(found.pairs, specs, sets)]
    sections.append(("only", "Only in one", _alone(found)))
    return document(" beside ".join(titles(names)), sections, specs, {"sets": sets, "tensors": [], "first": 0})


def _differences(found: Sequence[Pair], specs: dict[str, Any], sets: dict[str, list[dict[str, Any]]]) -> Section:
    heat = by_layer((pair.name, _measures(pair)) for pair in found)
    content = "<p>All values are equal.</p>" if found else "<p>No tensor is in both.</p>"
    if any(value for row in heat for measure, value in row.items() if measure in _MEASURES):
        sets["heat"] = heat
        layers = len({row["layer"] for row in heat})
        specs["heat"] = charts.heat(
            "heat", "How far the two are apart, by layer and tensor.", _MEASURES, layers, zero=True
        )
        content = (
            '<p class="script">Blank: no difference. Red: an element became NaN or infinite, or the other way round; '
            "the difference is infinite; or the two cannot be compared. Where several tensors share a cell, it has the "
            "largest value.</p>" + figure("heat", specs["heat"], "differences-of")
        )
    rows = [
        [
            Cell(named(pair.name)),
            Cell(text(pair.a)),
            Cell(text(pair.b if pair.b != pair.a else "the same")),
            *(number(value) for value in (pair.largest, pair.rms, pair.relative)),
            number(pair.cosine, ".6f"),
            number(pair.odd, ",d"),
            Cell(_note(pair)),
        ]
        for pair in sorted(found, key=_difference, reverse=True)
    ]
    columns = [("tensor", False), ("in A", False), ("in B", False), ("largest", True), ("RMS", True)]
    columns += [("relative", True), ("cosine", True), ("NaN, infinite", True), ("note", False)]
    caption = "Differences of each tensor, the largest first, over elements finite in both"
    content += table("differences-of", caption, columns, rows)
    return "differences", "Differences", content


def _measures(pair: Pair) -> dict[str, float | None]:
    """Return what the map shows of a tensor: NaN, which it shows as red, where there is no measure."""
    if pair.problem is not None:
        return dict.fromkeys(_MEASURES, math.nan)
    if pair.odd_apart:
        return {**dict.fromkeys(_MEASURES, math.nan), "odd": pair.odd_apart}
    angle = None if pair.cosine is None else 1 - pair.cosine
    return {"relative": pair.relative, "rms": pair.rms, "largest": pair.largest, "angle": angle, "odd": 0}


def _measurable(pair: Pair) -> bool:
    return pair.problem is None and not pair.odd_apart


def _difference(pair: Pair) -> tuple[bool, float, float]:
    """Return what tensors are sorted by: those without a measure, then the relative difference."""
    relative, largest = pair.relative or 0.0, pair.largest or 0.0
    return not _measurable(pair), relative, largest


def _note(pair: Pair) -> str:
    if pair.problem is not None:
        return message(pair.problem)
    if pair.odd_apart:
        return f'<span class="bad">{counted(pair.odd_apart, "element")} NaN or infinite in one only</span>'
    return ""


def _alone(found: Comparison) -> str:
    rows = [[Cell(named(name)), Cell("A")] for name in found.only_in_a]
    rows += [[Cell(named(name)), Cell("B")] for name in found.only_in_b]
    if not rows:
        return "<p>Both have the same tensors.</p>"
    return table("alone", "Tensors of one model only", [("tensor", False), ("in", False)], rows, kinds="AB")
