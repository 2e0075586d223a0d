"""`Derived`: sources whose bytes are made from a file's: put in another order, inflated, or decoded.

`geometry` imports this module at its first use.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.bytes import Range
from weightmap.core.bytes.source import CHUNK, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

# Bytes put into row-major order at once, the memory for reading a transposed tensor.
_GROUP = 32 << 20
# Bytes of the file read at once for a group
_WINDOW = 1 << 20
# Gaps longer than this, and four times as long as the data between them, are skipped.
_GAP = 1 << 14


class Derived(Source):
    """The bytes of one tensor in row-major order, at the offset of its row.

    Parameters
    ----------
    parent : Source
        The file's, or one over it.
    base, size : int
        Offset and bytes of the tensor.

    Attributes
    ----------
    parent : Source
    """

    parent: Source
    path: str | None
    name: str
    mode: str
    size: int

    def __init__(self, parent: Source, base: int, size: int) -> None:
        # `Source.__init__` would look for a file.
        self.path, self.name, self.mode, self.size = parent.path, parent.name, parent.mode, base + size
        self.parent, self._base = parent, base

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:  # noqa: ARG002 - unknown here
        """Implement `Source.reads`; yields nothing if the order is not known in advance."""
        return iter(())

    def stretches(self, begin: int, end: int) -> Sequence[tuple[Source, int, int]]:  # noqa: ARG002 - see `Source`
        """Implement `Source.stretches`: the bytes are made."""
        return ()

    def check_size(self, what: str, nbytes: int) -> None:
        """Implement `Source.check_size`, for the file."""
        self.parent.check_size(what, nbytes)

    @property
    def in_memory(self) -> bool:
        """False: the bytes are made when they are read."""
        return False

    @property
    def c_random_input(self) -> None:
        """None: the bytes are made when they are read."""
        return

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes `start` to `stop` of the tensor, in pieces of any size."""
        raise NotImplementedError

    def chunks(self, offset: int, count: int, size: int = CHUNK) -> Iterator[memoryview]:
        """Implement `Source.chunks`: pieces of exactly `size` bytes, except the last."""
        self.check_size("a tensor", count)
        start = offset - self._base
        pending, remaining = bytearray(), count
        for piece in self._pieces(start, start + count):
            view = memoryview(piece)
            at = 0
            if pending:
                at = min(size - len(pending), len(view))
                pending += view[:at]
                if len(pending) < min(size, remaining):
                    continue
                yield memoryview(pending).toreadonly()
                remaining -= len(pending)
                pending = bytearray()
            while remaining and len(view) - at >= min(size, remaining):
                count_taken = min(size, remaining)
                yield view[at : at + count_taken].toreadonly()
                at += count_taken
                remaining -= count_taken
            pending += view[at:]

    def pread(self, offset: int, count: int) -> bytes:
        """Implement `Source.pread`."""
        return b"".join(map(bytes, self.chunks(offset, count)))

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Implement `Source.read_into`."""
        at = 0
        for chunk in self.chunks(offset, len(target)):
            target[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
            at += len(chunk)

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Prefetch the part of the file that holds the tensor."""
        parent = self.parent
        parent.prefetch(Range(begin, min(end, parent.size)) for begin, end in ranges)

    def check_unchanged(self) -> None:
        """Implement `Source.check_unchanged`, for the file."""
        self.parent.check_unchanged()


class Fetched(Derived):
    """Bytes in memory: read from a file, for a geometry to make an array of, or of a tensor that no file has.

    Parameters
    ----------
    parent : Source
        The file's.
    base : int
        Offset of the bytes in the file, or of the tensor beside this one.
    octets : ndarray of uint8
    """

    def __init__(self, parent: Source, base: int, octets: NDArray[np.uint8]) -> None:
        super().__init__(parent, base, len(octets))
        self._fetched = octets

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        yield self._fetched[start:stop]


class StridedSource(Derived):
    """Elements of `itemsize` bytes, `strides` bytes apart, in row-major order."""

    def __init__(
        self, parent: Source, base: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> None:
        super().__init__(parent, base, size)
        self._shape, self._strides, self._itemsize = shape, strides, itemsize

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:
        """Implement `Source.reads`, if the first axis is also the outermost one in the file."""
        if not self._shape or begin == end:
            return
        inner = sum((n - 1) * step for n, step in zip(self._shape[1:], self._strides[1:], strict=True)) + self._itemsize
        if self._strides[0] < inner:
            return
        each = (self.size - self._base) // self._shape[0]
        for i in range((begin - self._base) // each, -(-(end - self._base) // each)):
            at = self._base + i * self._strides[0]
            yield from self.parent.reads(at, at + inner)

    def reading(self, ahead: Mapping[Source, Source]) -> Source:
        """Implement `Source.reading`."""
        size = self.size - self._base
        parent = self.parent.reading(ahead)
        return StridedSource(parent, self._base, size, self._shape, self._strides, self._itemsize)

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Put groups of rows, contiguous in the result, into order."""
        if start == stop:
            return
        shape, strides, itemsize = self._shape, self._strides, self._itemsize
        # A row spans as many of the last axes as fit into a group.
        axis = next(
            (k for k in range(len(shape)) if math.prod(shape[k + 1 :]) * itemsize <= _GROUP), max(len(shape) - 1, 0)
        )
        inner = math.prod(shape[axis + 1 :]) * itemsize
        max_rows = max(_GROUP // inner, 1)
        dim, step = (shape[axis], strides[axis]) if shape else (1, 0)
        row, end = start // inner, -(-stop // inner)
        while row < end:
            outer, i = divmod(row, dim)
            count = min(max_rows, dim - i, end - row)
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
        unit_axes = tuple(k for k in range(out.ndim) if out.shape[k] == 1)
        first: Any = (..., *(0 for _ in unit_axes))
        ordered = out.transpose((*axes, *unit_axes))[first]
        self._fill(ordered, at, tuple(strides[k] for k in axes))

    def _fill(self, out: NDArray[Any], at: int, strides: tuple[int, ...]) -> None:
        """Fill an array whose axes are in the order of their strides, the largest first."""
        shape, itemsize = out.shape, self._itemsize
        extents = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
        span = sum(extents) + itemsize
        if span <= _WINDOW or not shape:
            out[...] = np.ndarray(shape, out.dtype, self.parent.pread(at, span), 0, strides)
            return
        step, inner = strides[0], span - extents[0]
        if inner > _WINDOW or step > max(_GAP, 4 * inner):
            for i in range(shape[0]):
                self._fill(out[i, ...], at + i * step, strides[1:])
            return
        group = (_WINDOW - inner) // step + 1
        for i in range(0, shape[0], group):
            part = out[i : i + group]
            raw = self.parent.pread(at + i * step, (len(part) - 1) * step + inner)
            part[...] = np.ndarray(part.shape, out.dtype, raw, 0, strides)


class _WholeSource(Derived):
    """The elements of a tensor that can only be decoded as a whole; `row` is its row."""

    def __init__(self, row: Any, how: Any) -> None:
        super().__init__(row.source, row.offset, row.nbytes)
        self._row, self._how = row, how

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:  # noqa: ARG002 - any part needs all
        """Implement `Source.reads`."""
        yield self.parent, *self._row.extent

    def reading(self, ahead: Mapping[Source, Source]) -> Source:
        """Implement `Source.reading`."""
        return type(self)(self._how.reading(self._row, ahead), self._how)


class InflatedSource(_WholeSource):
    """The elements of a `Deflated` tensor in row-major order."""

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        how, parent, base = self._how, self.parent, self._base
        if how.strides is not None:
            whole = np.ascontiguousarray(how.array(self._row))
            yield whole.reshape(-1).view(np.uint8)[start:stop]
            return
        how.limits.check("max_copy_bytes", how.size, f"size of {how.name}")
        at = 0
        for piece in how.inflated(parent, base):
            part = piece[max(start - at, 0) : max(stop - at, 0)]
            at += len(piece)
            if part:
                yield np.frombuffer(part, np.uint8)


class DecodedSource(_WholeSource):
    """The elements of a `DecodedOnUse` tensor."""

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        yield self._how.octets(self._row)[start:stop]
