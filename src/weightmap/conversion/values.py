"""Two tensors of one shape, value by value, in flat memory, however each file stores them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.arguments import as_float
from weightmap.dtypes import DTYPES, numpy_dtype
from weightmap.quant.pieces import in_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.index.table import Row
    from weightmap.quant import TensorRef

__all__ = ["Tolerance", "apart", "distances", "has_numbers", "pairs"]

# Elements of quantised tensors that are decoded at once.
_PIECE = 1 << 18
_NUMBERS = "biufcV"  # V: the types of ml_dtypes


class Tolerance(NamedTuple):
    """How far two values may be apart: up to ``atol + rtol * abs(b)``, as in `numpy.isclose`."""

    rtol: float = 0.0
    atol: float = 0.0

    @classmethod
    def of(cls, rtol: float | None, atol: float | None) -> Tolerance:
        """Return the tolerance of these options; raises ValueError for one that is negative or not finite."""
        for name, given in (("rtol", rtol), ("atol", atol)):
            if given is not None and not 0 <= as_float(name, given) < math.inf:
                msg = f"{name} is {given}, expected a finite number of at least 0"
                raise ValueError(msg)
        return cls(rtol or 0.0, atol or 0.0)


def has_numbers(row: Row) -> bool:
    """Say whether a tensor holds numbers that can be compared: any but packed ones, texts and records."""
    dtype = row.dtype
    if dtype.quantized:
        return True
    return dtype.name in DTYPES and not dtype.packed and numpy_dtype(DTYPES[dtype.name]).kind in _NUMBERS


def pairs(a: TensorRef, b: TensorRef) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the values of two tensors of one shape, some at a time, as many of each.

    Floating-point and decoded values are float64, complex ones complex128; integers keep their type.
    """
    left_over = math.prod(a.row.shape)
    left = right = np.empty(0)
    lefts, rights = _values(a), _values(b)
    while left_over:
        left, right = left if left.size else next(lefts), right if right.size else next(rights)
        count = min(left.size, right.size)
        yield left[:count], right[:count]
        left, right, left_over = left[count:], right[count:], left_over - count


def _values(place: TensorRef) -> Iterator[NDArray[Any]]:
    if place.row.dtype.quantized:
        for tensor in in_pieces(place):
            for values in tensor.in_runs(_PIECE):
                yield values.astype(np.float64)
        return
    stored = numpy_dtype(DTYPES[place.row.dtype.name])
    wide: np.dtype[Any] = np.dtype(np.complex128 if stored.kind == "c" else np.float64)
    for chunk in place.chunks():
        values = np.frombuffer(chunk, stored)
        yield values if stored.kind in "biu" else values.astype(wide)


def distances(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Return the absolute differences of values that `pairs` yields; those of integers are exact before rounding."""
    kinds = one.dtype.kind + other.dtype.kind
    if set(kinds) <= set("biu"):
        common = np.result_type(one.dtype, other.dtype, np.int64 if "i" in kinds else np.uint64)
        if common.kind in "iu":
            left, right = one.astype(common), other.astype(common)
            # The difference of two int64 may not fit into one; as uint64 it does.
            exact = (np.maximum(left, right) - np.minimum(left, right)).view(np.uint64)
            wide: NDArray[np.float64] = exact.astype(np.float64)
            return wide
        one, other = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        found: NDArray[np.float64] = np.abs(one - other).astype(np.float64)
    return found


def apart(
    one: NDArray[Any], other: NDArray[Any], distance: NDArray[np.float64], tolerance: Tolerance
) -> NDArray[np.bool_]:
    """Say which values differ by more than the tolerance; NaNs are equal, an infinity equals only itself."""
    close = distance == 0
    if tolerance != (0, 0):
        with np.errstate(invalid="ignore", over="ignore"):
            close |= np.isfinite(distance) & (distance <= tolerance.atol + tolerance.rtol * np.abs(other))
    differ: NDArray[np.bool_] = ~(close | (one == other) | (np.isnan(one) & np.isnan(other)))
    return differ
