"""Tensors that do not lie row-major in their file: which of its bytes hold a part, and the part out of these bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.dtypes import numpy_dtype
from weightmap.errors import quoted
from weightmap.io.derived import Fetched
from weightmap.model.parts import parts_of
from weightmap.plans.indices import Shard, arranged, axes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.model.spans import Spans

__all__ = ["Placed"]


class Placed:
    """A tensor that does not lie row-major in its file, or the part of it that an index selects.

    Attributes
    ----------
    begin, end : int
        The bytes of the file that hold it: from its first element to its last one, or all of a deflated tensor.
    """

    def __init__(self, spans: Spans, number: int, key: Any = ...) -> None:
        self._source, content, _ = parts_of(spans.files[spans.file[number]])
        self._row = row = content.table.row(int(spans.row[number]))
        self._dtype = numpy_dtype(row.dtype)
        self._key, self._axes = key, axes_of(key, row.shape, f"tensor {quoted(spans.name(number))}")
        self.begin: int = row.offset
        self.end: int = row.offset + int(spans.nbytes[number])
        assert row.dtype.placement is not None  # noqa: S101 - that is which tensors these are
        self._placement = row.dtype.placement
        self._strides = self._placement.strides if self._placement.in_place else None
        if self._strides is not None:
            self.begin, self.end = self._extent(row.offset, self._strides)

    def _extent(self, offset: int, strides: tuple[int, ...]) -> tuple[int, int]:
        """Return where the first selected element begins, and where the last one ends."""
        if any(not axis.size for axis in self._axes):
            return offset, offset
        first = last = offset
        for axis, stride in zip(self._axes, strides, strict=True):
            ends = axis.start, axis.start + axis.step * (axis.size - 1)
            first += min(ends) * stride
            last += max(ends) * stride
        return first, last + self._dtype.itemsize

    def array(self, octets: NDArray[np.uint8]) -> Any:
        """Return the array that the index gives, over the bytes of the file from `begin` to `end`."""
        row, key = self._row, self._key
        if self._strides is None:
            whole = self._placement.array(
                Fetched(self._source, self.begin, octets), self._dtype, row.shape, row.offset, row.nbytes
            )
            return whole[key.of(row.shape) if isinstance(key, Shard) else key]
        shape = tuple(axis.size for axis in self._axes)
        steps = tuple(abs(axis.step) * stride for axis, stride in zip(self._axes, self._strides, strict=True))
        held = octets if len(octets) else np.empty(0, np.uint8)
        elements = np.ndarray(shape, self._dtype, held, 0, steps) if len(octets) else np.empty(shape, self._dtype)
        return arranged(elements, self._axes, key)
