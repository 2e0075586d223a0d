"""The content of a report on two models: how far apart the values of each tensor are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightmap.conversion.tensor_diffs import both, distances, has_numbers, pairs
from weightmap.core.model.internals import check_unchanged, detach_index
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row


class Pair(NamedTuple):
    """A tensor that both models have.

    Attributes
    ----------
    name : str
    a, b : str
        Dtype and shape in each.
    nbytes : int
        In the first.
    largest, rms, relative, cosine : float or None
        Largest absolute difference, root mean square of the differences, the same relative to the first tensor's root
        mean square, and the cosine of the two as vectors; over elements finite in both. None where shapes differ or
        there are no numbers.
    odd : int
        Elements that are NaN or infinite in one of them.
    odd_apart : int
        Those of them that differ between the two: 0 where both have the same NaN and infinities.
    problem : str or None
    """

    name: str
    a: str
    b: str
    nbytes: int
    largest: float | None
    rms: float | None
    relative: float | None
    cosine: float | None
    odd: int
    odd_apart: int
    problem: str | None

    @property
    def equal(self) -> bool:
        """Whether every element has the same value in both, NaN for NaN."""
        return self.largest == 0 and not self.odd_apart


class Comparison(NamedTuple):
    """The result of `comparison`."""

    pairs: tuple[Pair, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]


def comparison(a: TensorFile, b: TensorFile, progress: Callable[[int, int], None] | None) -> Comparison:
    """Compare all tensors that two models share, by value, with flat memory."""
    for file in (a, b):
        check_unchanged(file)
        detach_index(file)
    others = set(b)
    common = [info for info in a.infos() if info.name in others]
    whole, done, pairs = sum(info.nbytes for info in common), 0, []
    for info, places in zip(common, both(a, b, (info.name for info in common)), strict=True):
        pairs.append(_pair(*places))
        done += info.nbytes
        if progress is not None:
            progress(done, whole)
    names_a = set(a)
    only_in_a, only_in_b = tuple(n for n in a if n not in others), tuple(n for n in b if n not in names_a)
    return Comparison(tuple(pairs), only_in_a, only_in_b)


def _pair(name: str, a: Row, b: Row) -> Pair:
    text_a, text_b = (f"{place.dtype.name} {list(place.shape)}" for place in (a, b))
    pair = Pair(name, text_a, text_b, a.nbytes, None, None, None, None, 0, 0, None)
    if a.shape != b.shape:
        return pair._replace(problem="the shapes differ")
    if not (has_numbers(a) and has_numbers(b)):
        return pair._replace(problem="holds no numbers")
    try:
        largest, rms, relative, cosine, odd, odd_apart = _measures(a, b)
    except TensorFileError as error:
        return pair._replace(problem=str(error))
    pair = pair._replace(largest=largest, rms=rms, relative=relative, cosine=cosine)
    return pair._replace(odd=odd, odd_apart=odd_apart)


def _measures(a: Row, b: Row) -> tuple[float, float, float, float, int, int]:
    largest, odd, odd_apart, count = 0.0, 0, 0, 0
    sums = np.zeros(4)  # of squared differences, of products, of squares in a and in b
    with np.errstate(over="ignore", invalid="ignore"):
        for one, other in pairs(a, b):
            good = np.isfinite(one) & np.isfinite(other)
            first, right = one, other
            if not good.all():
                first, right = one[good], other[good]
                odd += len(one) - len(first)
                bad_one, bad_other = one[~good], other[~good]
                same = (bad_one == bad_other) | (np.isnan(bad_one) & np.isnan(bad_other))
                odd_apart += len(same) - int(same.sum())
            count += len(first)
            metrics = distances(first, right)
            largest = max(largest, float(metrics.max(initial=0)))
            if first.dtype.kind != "c" and right.dtype.kind != "c":
                first, right = first.astype(np.float64), right.astype(np.float64)
            products = np.vdot(first, right), np.vdot(first, first), np.vdot(right, right)
            sums += np.array([metrics @ metrics, *(product.real for product in products)])
    apart_2, product, a_2, b_2 = sums.tolist()
    rms = math.sqrt(apart_2 / count) if count else 0.0
    relative = math.sqrt(apart_2 / a_2) if a_2 else (0.0 if not apart_2 else math.inf)
    both = math.sqrt(a_2) * math.sqrt(b_2)
    cosine = min(max(product / both, -1.0), 1.0) if both else (1.0 if a_2 == b_2 else 0.0)
    if not largest:  # equal tensors, whatever rounding gives
        cosine = 1.0
    return largest, rms, relative, cosine, odd, odd_apart
