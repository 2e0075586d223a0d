"""Reading a tensor, or part of one, without mapping the file: what ``backend="pread"`` does."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.dtypes import numpy_dtype
from weightmap.errors import quoted
from weightmap.model.parts import dense_row, parts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.index.row import Row
    from weightmap.model.file import TensorFile

# Bytes between two runs that are read with them: a read of its own would take as long.
_GAP = 64 << 10


def read_whole(file: TensorFile, name: str) -> NDArray[Any]:
    """Return a tensor in private memory: quantised ones as float32, those packed below the byte as bytes."""
    row = dense_row(file, name)
    if not row.dtype.packed:
        return file.read(name, np.float32 if row.dtype.quantized else numpy_dtype(row.dtype))
    octets = kernels.empty(row.nbytes, np.uint8)
    _fill(row, 0, octets)
    return octets


def read_part(file: TensorFile, name: str, index: tuple[Any, ...]) -> NDArray[Any]:
    """Return ``array[index]`` of a tensor; `index` has one ellipsis.

    Where it consists of integers and slices, only its elements are read, and what lies between them where that is
    little; any other index reads the whole tensor. Raises IndexError as numpy does.
    """
    row = dense_row(file, name)
    if row.dtype.quantized:
        return np.asarray(row.decoder()[index])
    if not all(part is Ellipsis or part is None or _is_integer(part) or isinstance(part, slice) for part in index):
        return np.asarray(read_whole(file, name)[index])
    dims = _dims(index, len(row.shape))
    touched = [range(size) for size in row.shape]
    for part, dim in zip(index, dims, strict=True):
        if dim is not None:
            touched[dim] = _positions(part, dim, row.shape[dim])
    stored = numpy_dtype(row.dtype)
    box = _box(touched, row.shape, stored.itemsize)
    shape = tuple(map(len, box))
    nbytes, what = math.prod(shape) * stored.itemsize, f"a part of tensor {quoted(name)}"
    parts_of(file)[2].limits.check("max_copy_bytes", nbytes, f"size of {what}")
    row.source.check_size(what, nbytes)
    read = kernels.empty(shape, stored)
    if read.size:
        row.source.check_unchanged()
        _read_box(row, box, read)
    return np.asarray(
        read[tuple(
            part if dim is None else _within(part, touched[dim], box[dim])
            for part, dim in zip(index, dims, strict=True)
        )]
    )  # fmt: skip


def _is_integer(part: Any) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def _dims(index: tuple[Any, ...], ndim: int) -> list[int | None]:
    """Return the dimension that each part of an index is for; None for an ellipsis and for axes that are added."""
    named = sum(part is not None and part is not Ellipsis for part in index)
    if named > ndim:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional, but {named} were indexed")
    found: list[int | None] = []
    at = 0
    for part in index:
        if part is None or part is Ellipsis:
            found.append(None)
            at += 0 if part is None else ndim - named
        else:
            found.append(at)
            at += 1
    return found


def _positions(part: Any, dim: int, size: int) -> range:
    """Return the positions of a dimension that an integer or a slice selects."""
    if isinstance(part, slice):
        return range(*part.indices(size))
    if not -size <= part < size:
        raise IndexError(f"index {part} is out of bounds for axis {dim} with size {size}")
    start = int(part) % size
    return range(start, start + 1)


def _within(part: Any, positions: range, read: range) -> int | slice:
    """Return an index for the same positions of an array that has only those that were read."""
    if not positions:
        return slice(0, 0)
    first, last = read.index(positions[0]), read.index(positions[-1])
    if not isinstance(part, slice):
        return first
    step = 1 if len(positions) < 2 else read.index(positions[1]) - first
    stop = last + (1 if step > 0 else -1)
    return slice(first, None if stop < 0 else stop, step)


def _box(touched: list[range], shape: tuple[int, ...], itemsize: int) -> list[range]:
    """Return the positions to read in each dimension, ascending; neighbours with few bytes between them are joined."""
    box = []
    stride, whole = itemsize, True  # of one position; whether all inner dimensions are read in full
    for dim in range(len(shape) - 1, -1, -1):
        positions, size = touched[dim], shape[dim]
        positions = positions if positions.step > 0 else positions[::-1]
        if len(positions) > 1 and (positions.step - 1) * stride < _GAP:
            positions = range(positions[0], positions[-1] + 1)
        if dim and whole and positions and (size - len(positions)) * stride < _GAP:
            positions = range(size)  # so that the runs of all rows become one
        box.append(positions)
        whole = whole and len(positions) == size
        stride *= size
    return box[::-1]


def _read_box(place: Row, box: list[range], out: NDArray[Any]) -> None:
    """Fill `out` with the elements of a box, one read for each run of neighbours."""
    shape, octets = place.shape, out.reshape(-1).view(np.uint8)
    steps = [math.prod(shape[dim + 1 :]) * out.itemsize for dim in range(len(shape))]
    outer = max((dim for dim, positions in enumerate(box) if len(positions) < shape[dim]), default=0)
    first = 0
    if shape and box[outer].step == 1:  # the last dimension of which a part is read: neighbours
        first, run = box[outer].start * steps[outer], len(box[outer]) * steps[outer]
    else:
        run = steps[outer] if shape else out.itemsize
        outer += 1
    for number, positions in enumerate(itertools.product(*box[:outer])):
        offset = first + sum(position * step for position, step in zip(positions, steps, strict=False))
        _fill(place, offset, octets[number * run : (number + 1) * run])


def _fill(place: Row, offset: int, octets: NDArray[np.uint8]) -> None:
    """Fill an array with the bytes of a tensor from `offset` on."""
    done = 0
    for piece in place.source.chunks(place.offset + offset, len(octets)):
        octets[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
