"""Casts values to a floating-point type, and counts those that it cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.dtypes import DTYPES, numpy_dtype
from weightmap.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.dtypes import DType

__all__ = ["Overflow", "overflow_note"]

# Integers of the same size, which compare faster than the types of ml_dtypes.
_INTEGERS: dict[int, tuple[type[Any], type[Any]]] = {
    1: (np.uint8, np.int8),
    2: (np.uint16, np.int16),
    4: (np.uint32, np.int32),
    8: (np.uint64, np.int64),
}


class Overflow:
    """The values that one file's conversion to another type makes infinite or NaN, by tensor."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    @property
    def total(self) -> tuple[int, int]:
        """The number of such values, and of tensors that have some."""
        return sum(self._counts.values()), len(self._counts)

    def cast(self, name: str, pieces: Iterable[NDArray[Any]], wanted: DType) -> Iterator[memoryview]:
        """Yield the bytes of a tensor, given in pieces of one type, as `wanted`."""
        target = numpy_dtype(wanted)
        # A type of sign and magnitude: larger magnitudes than that of its largest number are infinity and NaN. The
        # largest signed integer is the largest positive magnitude, the largest unsigned one that of a negative number.
        unsigned, signed = _INTEGERS[target.itemsize]
        limit = _largest(target)
        largest, lowest = (int(np.array(end, target).view(unsigned)) for end in (limit, -limit))
        self._counts.pop(name, None)
        for values in pieces:
            with np.errstate(over="ignore", invalid="ignore"):
                cast = values.astype(target)
            narrower = _largest(values.dtype) > limit
            if narrower and cast.size and (cast.view(signed).max() > largest or cast.view(unsigned).max() > lowest):
                count = int(np.count_nonzero(np.isfinite(values) & ~np.isfinite(cast)))
                if count:
                    self._counts[name] = self._counts.get(name, 0) + count
            yield memoryview(cast.view(np.uint8))


def _largest(dtype: np.dtype[Any]) -> float:
    """Return the largest number of a floating-point type."""
    import ml_dtypes  # noqa: PLC0415 - 5 ms, for conversions to another type alone

    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def overflow_note(values: int, tensors: int, dtype: str | None) -> list[str]:
    """Return a line about values that a conversion to this type made infinite or NaN, if there are any."""
    if not values or dtype is None:
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        beyond = np.array(np.inf).astype(numpy_dtype(DTYPES[dtype]))
    became = "infinite" if np.isinf(beyond) else "NaN"
    what = f"{counted(values, 'value')} of {counted(tensors, 'tensor')}"
    are, they = ("is", "it") if values == 1 else ("are", "they")
    return [f"{what} {are} out of the range of {dtype}: {they} became {became}"]
