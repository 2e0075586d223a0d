"""A tensor that is decoded when it is asked for: what is the same of all schemes, decoding into arrays and indexing."""

from __future__ import annotations

import contextlib
import math
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np

from weightmap import kernels
from weightmap.dtypes import dtype_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

__all__ = ["Decodable", "check_out"]

# Elements that are decoded at once on their way to a type that kernels do not write: 1 MiB of float32.
_PIECE = 1 << 18
# Where there are no blocks, rows are decoded together that lie in the same so many elements, or the next.
_RUN = 64


def check_out(out: object, shape: tuple[int, ...], what: str) -> None:
    """Raise TypeError or ValueError when `out` is no array of this shape, that of `what`, or cannot be written."""
    array = kernels.given_array(out)
    if array.shape != shape:
        msg = f"out has shape {array.shape}, {what} has {shape}"
        raise ValueError(msg)
    if not array.flags.writeable:
        msg = "out is read-only"
        raise ValueError(msg)


class Decodable:
    """What decodes any range of its elements, and so can be indexed like an array.

    Attributes
    ----------
    shape : tuple of int
    size : int
        Number of elements.
    block_size : int
        Elements that are decoded together; 0 where there are no blocks.
    """

    __slots__ = ("__weakref__", "block_size", "shape", "size")

    # What `_decode_to` can write; on the way to another type there is a buffer of float32.
    _direct: ClassVar[tuple[np.dtype[Any], ...]] = (np.dtype(np.float32), np.dtype(np.float16))

    shape: tuple[int, ...]
    size: int
    block_size: int

    # Each scheme supplies these.
    def _decode_to(self, start: int, stop: int, out: NDArray[Any], threads: int) -> None:
        """Write the values from `start` to `stop` to a contiguous, aligned array of one of the direct types."""
        raise NotImplementedError

    def _check_scales(self) -> None:
        """Raise `QuantError` for a scale that is no number."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------------- decoding
    def dequantize(
        self,
        dtype: DTypeLike = np.float32,
        *,
        out: NDArray[Any] | None = None,
        threads: int | None = None,
        strict: bool = False,
    ) -> NDArray[Any]:
        """Return the values as a dense array.

        Parameters
        ----------
        dtype : dtype_like
            Of the result; ignored when `out` is given. float32 holds the values exactly; for other types they are then
            converted as `numpy.ndarray.astype` converts them.
        out : ndarray, optional
            Filled in place and returned; of the tensor's shape, of any dtype and strides.
        threads : int, optional
            At most this many threads share the work; one when not given.
        strict : bool
            Refuse scales that are NaN or infinite. Otherwise their blocks decode to NaN and infinity.

        Returns
        -------
        ndarray, the tensor's shape

        Raises
        ------
        QuantError
            With ``strict``, for a scale that is no number: it names the block.
        ValueError, TypeError
            When `out` has another shape or cannot be written, or is no array.
        """
        if strict:
            self._check_scales()
        if out is None:
            target = kernels.empty(self.shape, dtype_named(dtype))
        else:
            check_out(out, self.shape, "the tensor")
            target = out
        # Not through a matrix, which stays two-dimensional whatever it is asked for.
        self._decode(0, self.size, np.asarray(target), 1 if threads is None else threads)
        return target

    def _decode(self, start: int, stop: int, target: NDArray[Any], threads: int) -> None:
        """Write the values from `start` to `stop` to an array of as many elements."""
        if target.dtype in self._direct and target.flags.c_contiguous and target.flags.aligned:
            self._decode_to(start, stop, target, threads)
            return
        if target.flags.c_contiguous:
            flat = target.reshape(-1)
            room = np.empty(min(stop - start, _PIECE), np.float32)
            for first in range(start, stop, _PIECE):
                piece = room[: min(_PIECE, stop - first)]
                self._decode_to(first, first + len(piece), piece, threads)
                flat[first - start : first - start + len(piece)] = piece
            return
        dense = kernels.empty(target.shape, target.dtype if target.dtype in self._direct else np.float32)
        self._decode_to(start, stop, dense, threads)
        target[...] = dense

    def flat(self, start: int, stop: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return elements `start` to `stop` of the flattened tensor, decoding no other blocks than theirs.

        Raises ValueError when they do not lie within it.
        """
        if not 0 <= start <= stop <= self.size:
            msg = f"elements {start} to {stop} do not lie within {self.size}"
            raise ValueError(msg)
        part = kernels.empty(stop - start, dtype_named(dtype))
        self._decode(start, stop, part, 1)
        return part

    def in_runs(self, most: int) -> Iterator[NDArray[np.float32]]:
        """Yield the elements of the flattened tensor, at most `most` at a time."""
        for start in range(0, self.size, most):
            yield self.flat(start, min(start + most, self.size))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 - numpy's protocol
        if copy is False:
            msg = "a quantised tensor is decoded into a new array: copy=False is impossible"
            raise ValueError(msg)
        return self.dequantize(np.float32 if dtype is None else dtype)

    # -------------------------------------------------------------------------------------------------- indexing
    def __len__(self) -> int:
        if not self.shape:
            msg = "a quantised tensor without dimensions has no length"
            raise TypeError(msg)
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """Return what numpy would return for the decoded tensor, float32; only the blocks needed are decoded.

        What the first axis is indexed by decides which blocks: an integer, a slice, or a list or array of integers or
        of truth values. Anything else that numpy understands decodes all of it.
        """
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if not self.shape or any(isinstance(part, (list, np.ndarray)) for part in rest):
            return self.dequantize()[key]
        if isinstance(first, slice):
            rows = range(*first.indices(self.shape[0]))
            if not self.size:  # of which there may be many
                part = np.empty((len(rows), *self.shape[1:]), np.float32)
            elif rows.step == 1:
                part = self._rows(rows.start, rows.stop)
            else:
                part = self._gather(np.asarray(rows, np.intp))
            return part[(slice(None), *rest)]
        if isinstance(first, (list, np.ndarray)):
            picked = np.asarray(first)
            if picked.dtype.kind in "iu" and picked.ndim and not rest:
                return self._gather(self._row_numbers(picked.reshape(-1))).reshape(*picked.shape, *self.shape[1:])
            if picked.dtype.kind == "b" and picked.shape == self.shape[:1] and not rest:
                return self._gather(np.flatnonzero(picked))
        elif hasattr(first, "__index__") and not isinstance(first, (bool, np.bool_)):
            with contextlib.suppress(TypeError):  # an array of another library says that it may be an integer
                row = self._row_number(first)
                return self._rows(row, row + 1)[(0, *rest)]
        return self.dequantize()[key]

    def _row_number(self, key: SupportsIndex) -> int:
        count, row = self.shape[0], index(key)
        if not -count <= row < count:
            msg = f"index {row} is out of bounds for axis 0 with size {count}"
            raise IndexError(msg)
        return row + count if row < 0 else row

    def _row_numbers(self, picked: NDArray[Any]) -> NDArray[np.intp]:
        count = self.shape[0]
        rows = picked.astype(np.intp)
        rows[rows < 0] += count
        bad = np.flatnonzero((rows < 0) | (rows >= count))
        if len(bad):
            msg = f"index {picked[bad[0]]} is out of bounds for axis 0 with size {count}"
            raise IndexError(msg)
        return rows

    def _rows(self, start: int, stop: int) -> NDArray[np.float32]:
        stop = max(start, stop)
        width = math.prod(self.shape[1:])
        part = kernels.empty((stop - start, *self.shape[1:]), np.float32)
        self._decode(start * width, stop * width, part, 1)
        return part

    def _gather(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return these rows, in this order. Each is decoded once, and rows without a block between them together."""
        width = math.prod(self.shape[1:])
        part = kernels.empty((len(rows), *self.shape[1:]), np.float32)
        if not part.size:
            return part
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        block = self.block_size or _RUN
        ends = ((ordered + 1) * width - 1) // block
        cuts = np.flatnonzero(ordered[1:] * width // block > ends[:-1] + 1) + 1
        for run in np.split(np.arange(len(rows)), cuts):
            start = int(ordered[run[0]])
            decoded = self._rows(start, int(ordered[run[-1]]) + 1)
            part[order[run]] = decoded[ordered[run] - start]
        return part
