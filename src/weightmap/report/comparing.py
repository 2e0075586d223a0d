"""The content of a report on two models: the differences between the values of each tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightmap._messages import counted
from weightmap.conversion.compare import differ_in_type
from weightmap.conversion.tensor_diffs import both, distances, has_numbers, pairs
from weightmap.core.arguments import brief
from weightmap.core.model.codes import check_computable
from weightmap.core.model.internals import check_unchanged, detach_index
from weightmap.errors import TensorFileError
from weightmap.report import charts
from weightmap.report.page import Cell, Figures, Section, document, message, named, number, table, text, titles
from weightmap.report.page import pairs as definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row

# The measures of the map, with their labels on the page.
_MEASURES = {
    "relative": "RMS difference by RMS of A",
    "rms": "RMS difference",
    "largest": "largest difference",
    "angle": "1 - cosine",
    "odd": "elements NaN or infinite in one only",
}


def pair_page(names: Sequence[str], sizes: Sequence[int], result: Comparison) -> bytes:
    """Return the page that compares two models with these names and sizes."""
    figures = Figures()
    same = sum(pair.equal for pair in result.pairs)
    rows = [(side, f"{text(name)}, {brief(nbytes)}") for side, name, nbytes in zip("AB", names, sizes, strict=True)]
    rows += [
        ("tensors in both", f"{len(result.pairs):,}, of equal values {same:,}"),
        ("only in A", f"{len(result.only_in_a):,}"),
        ("only in B", f"{len(result.only_in_b):,}"),
    ]
    sections = [("summary", "What is compared", definitions(rows)), _differences(result.pairs, figures)]
    sections.append(("only", "Only in one", _only_in_one(result)))
    return document(" beside ".join(titles(names)), sections, figures)


def _differences(compared: Sequence[Pair], figures: Figures) -> Section:
    if not compared:
        none = "<p>No tensor has the same name in both: first convert one of them with the names of the other.</p>"
        return "differences", "Differences", none
    heat = charts.by_layer((pair.name, _measured(pair)) for pair in compared)
    content = "<p>All values are equal.</p>"
    if any(value for row in heat for measure, value in row.items() if measure in _MEASURES):
        layers = len({row["layer"] for row in heat})
        spec = charts.heat("heat", "How far the two are apart, by layer and tensor.", _MEASURES, layers, zero=True)
        content = (
            '<p class="script">Blank: no difference. Red: an element became NaN or infinite, or the other way round; '
            "the difference is infinite; or the two cannot be compared. Where several tensors share a cell, it has the "
            "largest value.</p>" + figures.add("heat", spec, "differences-of", heat)
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
        for pair in sorted(compared, key=_difference, reverse=True)
    ]
    columns = [("tensor", False), ("in A", False), ("in B", False), ("largest", True), ("RMS", True)]
    columns += [("relative", True), ("cosine", True), ("NaN, infinite", True), ("note", False)]
    caption = "Differences of each tensor, the largest first, over elements finite in both"
    content += table("differences-of", caption, columns, rows)
    return "differences", "Differences", content


def _measured(pair: Pair) -> dict[str, float | None]:
    """Return a tensor's measures for the map; NaN, which the map paints red, stands for a missing measure."""
    if pair.problem is not None:
        return dict.fromkeys(_MEASURES, math.nan)
    if pair.odd_apart:
        return {**dict.fromkeys(_MEASURES, math.nan), "odd": pair.odd_apart}
    angle = None if pair.cosine is None else 1 - pair.cosine
    return {"relative": pair.relative, "rms": pair.rms, "largest": pair.largest, "angle": angle, "odd": 0}


def _difference(pair: Pair) -> tuple[bool, float, float]:
    """Return the key that sorts tensors: first whether measures are missing, then the relative difference."""
    has_measure = pair.problem is None and not pair.odd_apart
    return not has_measure, pair.relative or 0.0, pair.largest or 0.0


def _note(pair: Pair) -> str:
    if pair.problem is not None:
        return message(pair.problem)
    if pair.odd_apart:
        return f'<span class="bad">{counted(pair.odd_apart, "element")} NaN or infinite in one only</span>'
    return ""


def _only_in_one(result: Comparison) -> str:
    rows = [[Cell(named(name)), Cell("A")] for name in result.only_in_a]
    rows += [[Cell(named(name)), Cell("B")] for name in result.only_in_b]
    if not rows:
        return "<p>Both have the same tensors.</p>"
    return table("alone", "Tensors of one model only", [("tensor", False), ("in", False)], rows, kinds="AB")


class Pair(NamedTuple):
    """A tensor that both models have.

    Attributes
    ----------
    name : str
    a, b : str
        Dtype and shape in each model.
    nbytes : int
        Bytes in the first model.
    largest, rms, relative, cosine : float or None
        Largest absolute difference, root mean square of the differences, the same divided by the first tensor's root
        mean square, and the cosine between the two as vectors; all over elements that are finite in both. None if
        shapes differ or there are no numbers.
    odd : int
        The number of elements that are NaN or infinite in either.
    odd_apart : int
        The number of such elements that differ: 0 if both have the same NaN and infinities.
    problem : str or None
    """

    name: str
    a: str
    b: str
    nbytes: int
    largest: float | None = None
    rms: float | None = None
    relative: float | None = None
    cosine: float | None = None
    odd: int = 0
    odd_apart: int = 0
    problem: str | None = None

    @property
    def equal(self) -> bool:
        """Whether every element has the same value in both; NaN equals NaN."""
        return self.largest == 0 and not self.odd_apart


class Comparison(NamedTuple):
    """The result of `comparison`."""

    pairs: tuple[Pair, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]


def comparison(a: TensorFile, b: TensorFile, progress: Callable[[int, int], None] | None) -> Comparison:
    """Compare the values of all tensors that two models share, in flat memory."""
    for file in (a, b):
        check_unchanged(file)
        detach_index(file)
        check_computable(file, lambda name: differ_in_type(a, b, name), "comparing by value")
    common = [info for info in a.infos() if info.name in b]
    total, done, compared = sum(info.nbytes for info in common), 0, []
    for info, places in zip(common, both(a, b, (info.name for info in common)), strict=True):
        compared.append(_pair(*places))
        done += info.nbytes
        if progress is not None:
            progress(done, total)
    only_in_a, only_in_b = tuple(name for name in a if name not in b), tuple(name for name in b if name not in a)
    return Comparison(tuple(compared), only_in_a, only_in_b)


def _pair(name: str, a: Row, b: Row) -> Pair:
    text_a, text_b = (f"{place.dtype.name} {list(place.shape)}" for place in (a, b))
    pair = Pair(name, text_a, text_b, a.nbytes)
    if a.shape != b.shape:
        return pair._replace(problem="the shapes differ")
    if not (has_numbers(a) and has_numbers(b)):
        return pair._replace(problem="holds no numbers")
    try:
        return _compared(pair, a, b)
    except TensorFileError as error:
        return pair._replace(problem=str(error))


def _compared(pair: Pair, a: Row, b: Row) -> Pair:
    """Return a pair with the measures of its values."""
    largest, odd, odd_apart, count = 0.0, 0, 0, 0
    sums = np.zeros(4)  # of squared differences, of products, of squares in a and in b
    with np.errstate(over="ignore", invalid="ignore"):
        for one, other in pairs(a, b):
            finite = np.isfinite(one) & np.isfinite(other)
            if not finite.all():
                odd_one, odd_other = one[~finite], other[~finite]
                one, other = one[finite], other[finite]  # noqa: PLW2901
                same = (odd_one == odd_other) | (np.isnan(odd_one) & np.isnan(odd_other))
                odd += len(same)
                odd_apart += len(same) - int(same.sum())
            count += len(one)
            errors = distances(one, other)
            largest = max(largest, float(errors.max(initial=0)))
            if one.dtype.kind != "c" and other.dtype.kind != "c":
                one, other = one.astype(np.float64), other.astype(np.float64)  # noqa: PLW2901
            products = np.vdot(one, other), np.vdot(one, one), np.vdot(other, other)
            sums += np.array([errors @ errors, *(product.real for product in products)])
    error_2, product, a_2, b_2 = sums.tolist()
    rms = math.sqrt(error_2 / count) if count else 0.0
    relative = math.sqrt(error_2 / a_2) if a_2 else (0.0 if not error_2 else math.inf)
    norms = math.sqrt(a_2) * math.sqrt(b_2)
    cosine = min(max(product / norms, -1.0), 1.0) if norms else (1.0 if a_2 == b_2 else 0.0)
    if not largest:  # equal tensors, whatever rounding says
        cosine = 1.0
    pair = pair._replace(largest=largest, rms=rms, relative=relative, cosine=cosine)
    return pair._replace(odd=odd, odd_apart=odd_apart)
