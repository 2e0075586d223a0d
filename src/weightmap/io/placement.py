"""Tensors that do not lie in the file one element after another: views of them, and their bytes in row-major order.

A table gives such a tensor a data type with a `Placement`. ``f[name]`` asks it for an array. Whatever reads, converts
or compares asks it for a `Derived` source, which has the bytes of the tensor in row-major order where the row says
that they lie, and so needs to know nothing of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap.errors import ChecksumError, FormatError, LimitError, TruncatedError
from weightmap.io.descriptor import aligned
from weightmap.io.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.options import Limits

__all__ = ["INFLATION", "Deflated", "Derived", "Fetched", "Strided"]

# A deflated byte makes at most so many. What a tensor takes that is expanded is bounded likewise, with bytes to spare.
INFLATION = 1032
_SPARE = 64 << 20
# Bytes of a tensor that are put into row-major order at once: what reading one that is transposed keeps in memory.
_GROUP = 32 << 20
# Bytes of the file that are read at once for it.
_WINDOW = 1 << 20
# Bytes that are inflated at once.
_INFLATED = 1 << 18
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


class Strided:
    """Elements `strides` bytes apart: a tensor that is transposed, stepped or expanded.

    Attributes
    ----------
    strides : tuple of int
        None of them is negative.
    """

    __slots__ = ("strides",)
    in_place = True

    def __init__(self, strides: tuple[int, ...]) -> None:
        self.strides: tuple[int, ...] = strides

    def array(
        self, source: Source, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, _nbytes: int
    ) -> NDArray[Any]:
        """Return a view of the mapping."""
        return source.strided(dtype, shape, self.strides, offset)

    def derived(self, source: Source, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int) -> Source:
        """Return a source of the bytes in row-major order."""
        return _StridedSource(source, offset, nbytes, shape, self.strides, dtype.itemsize)


class _StridedSource(Derived):
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


class Deflated:
    """A tensor in a deflated member of an archive: inflated whenever it is used, within the limits.

    Parameters
    ----------
    name : str
        Of the member, for messages.
    stored, size, crc : int
        Bytes in the file, bytes when inflated, and the CRC-32 of these.
    skip : int
        Bytes of the member before the tensor.
    strides : tuple of int or None
        None for row-major order.
    limits : Limits
    """

    __slots__ = ("crc", "limits", "name", "size", "skip", "stored", "strides")
    in_place = False

    def __init__(
        self, name: str, stored: int, size: int, crc: int, skip: int, strides: tuple[int, ...] | None, limits: Limits
    ) -> None:
        self.name: str = name
        self.stored: int = stored
        self.size: int = size
        self.crc: int = crc
        self.skip: int = skip
        self.strides: tuple[int, ...] | None = strides
        self.limits: Limits = limits

    def array(
        self, source: Source, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int
    ) -> NDArray[Any]:
        """Return the tensor in private memory."""
        self.limits.check("max_copy_bytes", self.size, f"size of {self.name}")
        data, at = aligned(nbytes), 0
        for piece in self.inflated(source, offset):
            data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        data.flags.writeable = source.mode in ("cow", "copy")
        return np.ndarray(shape, dtype, data, 0, self.strides)

    def derived(self, source: Source, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int) -> Source:
        """Return a source of the inflated bytes in row-major order."""
        return _InflatedSource(source, offset, nbytes, self, dtype, shape)

    def inflated(self, source: Source, offset: int) -> Iterator[bytes]:
        """Yield the inflated bytes of the tensor, checked when the last one has been taken."""
        skip = self.skip
        for piece in inflate(source, offset, self.stored, self.size, self.crc, self.name):
            if skip < len(piece):
                yield piece[skip:]
            skip -= min(skip, len(piece))


class _InflatedSource(Derived):
    def __init__(
        self, parent: Source, base: int, size: int, how: Deflated, dtype: np.dtype[Any], shape: tuple[int, ...]
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


def inflate(
    source: Source, offset: int, stored: int, size: int, crc: int, name: str, window: int = _INFLATED
) -> Iterator[bytes]:
    """Yield the `size` bytes that the `stored` deflated ones from `offset` on are; check them when all were taken.

    Pieces have at most `window` bytes.

    Raises `FormatError` where they are not deflated, `TruncatedError` or `ChecksumError` where they inflate to others.
    """
    import zlib  # noqa: PLC0415 - needed by few files

    engine, found, seen = zlib.decompressobj(-zlib.MAX_WBITS), 0, 0

    def refuse(error: FormatError) -> NoReturn:
        raise error.located(path=source.name)

    for chunk in source.chunks(offset, stored):
        left: bytes | memoryview = chunk
        while len(left) and not engine.eof:
            try:
                piece = engine.decompress(left, window)
            except zlib.error:
                refuse(FormatError(f"{name} is not deflated as its archive says", field="method", offset=offset))
            left = engine.unconsumed_tail
            seen, found = seen + len(piece), zlib.crc32(piece, found)
            if seen > size:
                what = f"{name} inflates to more than its size"
                refuse(FormatError(what, field="size", offset=offset, expected=f"{size} bytes"))
            if piece:
                yield piece
            elif not left:
                break
    if not engine.eof or seen != size:
        refuse(TruncatedError(f"inflated size of {name}", field="size", offset=offset, actual=seen, expected=size))
    if found != crc:
        what = f"CRC-32 of {name}"
        refuse(ChecksumError(what, field="crc", offset=offset, actual=f"{found:#010x}", expected=f"{crc:#010x}"))
