"""Sources of the bytes of tensors that have a placement (`weightmap.io.placement`), in row-major order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import LimitError
from weightmap.io.source import Source
from weightmap.options import INFLATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = ["Derived", "Fetched", "InflatedSource", "StridedSource"]

# Bytes to spare beside `INFLATION`: what a tensor takes that is expanded is bounded likewise.
_SPARE = 64 << 20
# Bytes of a tensor that are put into row-major order at once: what reading one that is transposed keeps in memory.
_GROUP = 32 << 20
# Bytes of the file that are read at once for it.
_WINDOW = 1 << 20
# Gaps that are larger than this, and four times as large as what lies between them, are not read.
_GAP = 1 << 14


class Derived(Source):
    """The bytes of one tensor in row-major order, at the place where its row says that it lies.

    Parameters
    ----------
    parent : Source
        Of the file.
    base, size : int
        Where the tensor begins, and how many bytes it has.
    """

    path: str | None
    name: str
    mode: str
    size: int

    def __init__(self, parent: Source, base: int, size: int) -> None:
        # No file of its own is looked at, as `Source` does.
        self.path, self.name, self.mode, self.size = parent.path, parent.name, parent.mode, base + size
        self._parent, self._base = parent, base

    def check_size(self, what: str) -> None:
        """Raise `LimitError` for a tensor that a small file makes very large, unless `max_copy_bytes` has a bound."""
        limits = self._parent.limits
        if limits is None or limits.max_copy_bytes is None:
            most, nbytes = INFLATION * self._parent.size + _SPARE, self.size - self._base
            if nbytes > most:
                expected = f"at most {most}, by the size of its file, or Limits.max_copy_bytes"
                raise LimitError(f"size of {what}", field="max_copy_bytes", actual=nbytes, expected=expected)

    @property
    def in_memory(self) -> bool:
        """False: the bytes are made when they are read."""
        return False

    @property
    def direct(self) -> None:
        """None: the bytes are made when they are read."""
        return

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes `start` to `stop` of the tensor, in pieces of any size."""
        raise NotImplementedError

    def chunks(
        self,
        offset: int,
        count: int,
        size: int = 1 << 18,
        buffer: bytearray | None = None,  # noqa: ARG002 - the pieces are made, not read
    ) -> Iterator[memoryview]:
        """Do what `Source.chunks` does: pieces of exactly `size` bytes, but for the last, and none in the buffer."""
        start = offset - self._base
        held, left = bytearray(), count
        for piece in self._pieces(start, start + count):
            view = memoryview(piece)
            at = 0
            if held:
                at = min(size - len(held), len(view))
                held += view[:at]
                if len(held) < min(size, left):
                    continue
                yield memoryview(held).toreadonly()
                left -= len(held)
                held = bytearray()
            while left and len(view) - at >= min(size, left):
                taken = min(size, left)
                yield view[at : at + taken].toreadonly()
                at += taken
                left -= taken
            held += view[at:]

    def pread(self, offset: int, count: int) -> bytes:
        """Do what `Source.pread` does."""
        return b"".join(map(bytes, self.chunks(offset, count)))

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Bring in the part of the file that the tensor lies in."""
        parent = self._parent
        parent.prefetch((offset, min(count, parent.size - offset)) for offset, count in ranges)

    def check_unchanged(self) -> None:
        """Do what `Source.check_unchanged` does, for the file."""
        self._parent.check_unchanged()


class Fetched(Derived):
    """Bytes of a file that were read to memory, for a placement to make an array of.

    Parameters
    ----------
    parent : Source
        Of the file.
    base : int
        Where the bytes lie in it.
    octets : ndarray of uint8
    """

    def __init__(self, parent: Source, base: int, octets: NDArray[np.uint8]) -> None:
        super().__init__(parent, base, len(octets))
        self._fetched = octets

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        yield self._fetched[start:stop]


class StridedSource(Derived):
    """The elements of a `Strided` tensor in row-major order."""

    def __init__(
        self, parent: Source, base: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> None:
        super().__init__(parent, base, size)
        self._shape, self._strides, self._itemsize = shape, strides, itemsize

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Put groups of rows into order that are contiguous in the result."""
        if start == stop:
            return
        shape, strides, itemsize = self._shape, self._strides, self._itemsize
        # The rows are what lies behind the first axes, so many of them that a row is no larger than a group.
        axis = next(
            (k for k in range(len(shape)) if math.prod(shape[k + 1 :]) * itemsize <= _GROUP), max(len(shape) - 1, 0)
        )
        inner = math.prod(shape[axis + 1 :]) * itemsize
        most = max(_GROUP // inner, 1)
        dim, step = (shape[axis], strides[axis]) if shape else (1, 0)
        row, end = start // inner, -(-stop // inner)
        while row < end:
            outer, i = divmod(row, dim)
            count = min(most, dim - i, end - row)
            at = self._base + i * step
            for k in range(axis - 1, -1, -1):
                outer, index = divmod(outer, shape[k])
                at += index * strides[k]
            block = np.empty((count, *shape[axis + 1 :]), f"V{itemsize}")
            self._gather(block, at, (step, *strides[axis + 1 :]))
            piece = block.reshape(-1).view(np.uint8)
            yield piece[max(start - row * inner, 0) : stop - row * inner]
            row += count

    def _gather(self, out: NDArray[Any], at: int, strides: tuple[int, ...]) -> None:
        """Fill an array with the elements of the file that begin at `at`."""
        axes = sorted((k for k in range(out.ndim) if out.shape[k] > 1), key=lambda k: -strides[k])
        rest = tuple(k for k in range(out.ndim) if out.shape[k] == 1)
        first: Any = (..., *(0 for _ in rest))
        ordered = out.transpose((*axes, *rest))[first]
        self._fill(ordered, at, tuple(strides[k] for k in axes))

    def _fill(self, out: NDArray[Any], at: int, strides: tuple[int, ...]) -> None:
        """Fill an array whose axes are in the order of their strides, the largest first."""
        shape, itemsize = out.shape, self._itemsize
        extents = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
        span = sum(extents) + itemsize
        if span <= _WINDOW or not shape:
            out[...] = np.ndarray(shape, out.dtype, self._parent.pread(at, span), 0, strides)
            return
        step, inner = strides[0], span - extents[0]
        if inner > _WINDOW or step > max(_GAP, 4 * inner):
            for i in range(shape[0]):
                self._fill(out[i, ...], at + i * step, strides[1:])
            return
        group = (_WINDOW - inner) // step + 1
        for i in range(0, shape[0], group):
            part = out[i : i + group]
            raw = self._parent.pread(at + i * step, (len(part) - 1) * step + inner)
            part[...] = np.ndarray(part.shape, out.dtype, raw, 0, strides)


class InflatedSource(Derived):
    """The elements of a tensor in row-major order that is deflated; `how` is its `Deflated`."""

    def __init__(
        self, parent: Source, base: int, size: int, how: Any, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        super().__init__(parent, base, size)
        self._how, self._dtype, self._shape = how, dtype, shape

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        how, parent, base = self._how, self._parent, self._base
        if how.strides is not None:
            whole = np.ascontiguousarray(how.array(parent, self._dtype, self._shape, base, self.size - base))
            yield whole.reshape(-1).view(np.uint8)[start:stop]
            return
        how.limits.check("max_copy_bytes", how.size, f"size of {how.name}")
        at = 0
        for piece in how.inflated(parent, base):
            part = piece[max(start - at, 0) : max(stop - at, 0)]
            at += len(piece)
            if part:
                yield np.frombuffer(part, np.uint8)
