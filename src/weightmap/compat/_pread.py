"""Reading a tensor, or part of one, without mapping the file: what ``backend="pread"`` does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.dtypes import numpy_dtype
from weightmap.core.model.internals import dense_row, parts_of
from weightmap.core.native import access
from weightmap.core.quant.places import Heads
from weightmap.core.ranges import Range
from weightmap.errors import PlanError, quoted
from weightmap.plans.part import PartReader, Runs
from weightmap.plans.wants import Axis, axes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.core.model.file import TensorFile

# Bytes between two runs that are read with them: a read of its own would take as long.
_GAP = 64 << 10
# Bytes read at once.
_CHUNK = 16 << 20


def read_whole(file: TensorFile, name: str) -> NDArray[Any]:
    """Return a tensor in private memory: quantised ones as float32, those packed below the byte as bytes."""
    row = dense_row(file, name)
    if not row.dtype.packed:
        return file.read(name, np.float32 if row.dtype.quantized else numpy_dtype(row.dtype))
    octets = access.empty(row.nbytes, np.uint8)
    row.source.read_into(row.offset, octets)
    return octets


def read_part(file: TensorFile, name: str, index: tuple[Any, ...]) -> NDArray[Any]:
    """Return ``array[index]`` of a tensor; `index` has an ellipsis.

    Where it consists of integers and slices, only its elements are read, and what lies between them where that is
    little; of few rows of a quantised tensor, their blocks. Any other index reads the whole tensor. Raises IndexError
    as numpy does.
    """
    row = dense_row(file, name)
    key = tuple(part for part in index if part is not None)
    if not is_plain(key):
        return np.asarray((row.decoder() if row.dtype.quantized else read_whole(file, name))[index])
    what = f"tensor {quoted(name)}"
    try:
        axes = axes_of(key, row.shape, what)
    except PlanError:
        np.broadcast_to(np.uint8(0), row.shape)[index]  # raises what numpy raises
        raise
    row.source.check_unchanged()
    if row.dtype.quantized:
        partial = row.shape and 2 * axes[0].size <= row.shape[0]  # rows are what is decoded without the others
        reader = PartReader(row.source, chunk=_CHUNK, gap=_GAP, max_over_read=math.inf)
        return np.asarray((reader.quantized(row, key, name, Heads(), 0) if partial else row.decoder())[index])
    stored = numpy_dtype(row.dtype)
    box = _box(axes, row.shape, stored.itemsize)
    runs = Runs(row, box, what)
    parts_of(file)[2].limits.check("max_copy_bytes", runs.nbytes, f"size of a part of {what}")
    row.source.check_size(f"a part of {what}", runs.nbytes)
    read = access.empty(tuple([axis.size for axis in box]), stored)
    source = row.source.ahead(Range(start, start + runs.length) for start in runs.starts.tolist())
    # Neighbours were joined in the box.
    PartReader(source, chunk=_CHUNK, gap=0, max_over_read=1).gather(runs, read.reshape(-1).view(np.uint8))
    part: NDArray[Any] = read[(*map(_within, axes, box), ...)]
    return part if len(key) == len(index) else part[_axes_added(index)]


def is_plain(index: tuple[Any, ...]) -> bool:
    """Whether an index consists of integers, slices and an ellipsis, which plans take."""
    plain = (int, np.integer, slice, type(Ellipsis))
    return all(isinstance(part, plain) and not isinstance(part, bool) for part in index)


def _box(axes: list[Axis], shape: tuple[int, ...], itemsize: int) -> list[Axis]:
    """Return the part of each axis to read, ascending; neighbours with few bytes between them are joined."""
    box = []
    stride, whole = itemsize, True  # bytes from one position to the next; whether all inner axes are read in full
    for dim in range(len(axes) - 1, -1, -1):
        (start, step, count, _), size = axes[dim], shape[dim]
        if count:
            start, last = sorted((start, start + step * (count - 1)))
            step = abs(step) if count > 1 else 1
            if (step - 1) * stride < _GAP:
                step, count = 1, last - start + 1
            if dim and whole and (size - count) * stride < _GAP:
                start, step, count = 0, 1, size  # so that the runs of all rows become one
        box.append(Axis(start, step, count, stays=True))
        whole = whole and count == size
        stride *= size
    return box[::-1]


def _within(axis: Axis, read: Axis) -> int | slice:
    """Return the index of the part of an axis in an array that has only what was read of it."""
    if not axis.size:
        return slice(0)
    first, step = (axis.start - read.start) // read.step, axis.step // read.step
    stop = first + step * axis.size
    return slice(first, None if stop < 0 else stop, step) if axis.stays else first


def _axes_added(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index that adds the axes of each None in another index to its result."""
    return tuple(
        part if part is None or part is Ellipsis else slice(None)
        for part in index
        if part is None or part is Ellipsis or isinstance(part, slice)
    )
