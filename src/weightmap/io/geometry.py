"""`Geometry`: the layout of a tensor whose elements do not follow one another in its file.

A row with a geometry asks it for the array that a look-up gives. Whatever reads, converts or compares uses `Row.dense`,
and so needs to know nothing of geometries: the source of that row is a `Derived` one, which has the bytes of the tensor
in row-major order at the same offset. Plans ask a geometry which bytes hold a part, and for the part of these.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

from weightmap.errors import ChecksumError, FormatError, TruncatedError
from weightmap.io.descriptor import aligned
from weightmap.io.source import Source
from weightmap.lazy import np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.options import Limits

    # An index, axis by axis: begin, step, number, and whether the result keeps the axis.
    Axes = Sequence[tuple[int, int, int, bool]]

# Bytes inflated at once
_INFLATED = 1 << 18
# Bytes put into row-major order at once: the memory that reading a transposed tensor takes.
_GROUP = 32 << 20
# Bytes of the file read at once for a group
_WINDOW = 1 << 20
# Gaps longer than this, and four times as long as the data between them, are skipped.
_GAP = 1 << 14


def ascending(axes: Axes) -> tuple[slice, ...]:
    """Return the index of the same elements in the order of the file, with every axis."""
    found = []
    for start, step, size, _ in axes:
        first, last = sorted((start, start + step * (size - 1))) if size else (0, -1)
        found.append(slice(first, last + 1, abs(step)))
    return tuple(found)


class Geometry:
    """How the elements of a tensor lie in its file. The methods take its `Row`."""

    __slots__ = ()

    def array(self, row: Any) -> NDArray[Any]:
        """Return the tensor, a view of the mapping where that is possible."""
        raise NotImplementedError

    def dense(self, row: Any) -> Source:
        """Return a source that has the bytes of the tensor in row-major order, from the offset of the row on."""
        raise NotImplementedError

    def extent(self, row: Any, axes: Axes) -> tuple[int, int]:
        """Return begin and end of the bytes of the file that hold the part that an index selects."""
        raise NotImplementedError

    def part(self, row: Any, axes: Axes, octets: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the selected elements, each axis in the order of the file, over the bytes of their `extent`."""
        raise NotImplementedError

    def reads(self, row: Any) -> Iterator[tuple[Source, int, int]]:
        """Yield the ranges (source, begin, end) that `array` reads, in order."""
        yield row.source, *row.extent

    def reading(self, row: Any, ahead: Mapping[Source, Source]) -> Any:
        """Return the row over other sources of the same bytes."""
        return row._replace(source=row.source.reading(ahead))


class Strided(Geometry):
    """Elements `strides` bytes apart: a tensor that is transposed, stepped or expanded.

    Attributes
    ----------
    strides : tuple of int
        None of them is negative.
    """

    __slots__ = ("strides",)

    def __init__(self, strides: tuple[int, ...]) -> None:
        self.strides: tuple[int, ...] = strides

    def array(self, row: Any) -> NDArray[Any]:
        """Return a view of the mapping."""
        source: Source = row.source
        dtype, shape = row.viewed
        return source.strided(dtype, shape, self.strides, row.offset)

    def dense(self, row: Any) -> Source:
        """Return a source of the bytes in row-major order."""
        dtype, shape = row.viewed
        return StridedSource(row.source, row.offset, row.nbytes, shape, self.strides, dtype.itemsize)

    def extent(self, row: Any, axes: Axes) -> tuple[int, int]:
        """Return where the first selected element begins, and where the last one ends."""
        first = last = row.offset
        for (start, step, size, _), stride in zip(axes, self.strides, strict=True):
            if not size:
                return row.offset, row.offset
            ends = start, start + step * (size - 1)
            first += min(ends) * stride
            last += max(ends) * stride
        return first, last + row.viewed[0].itemsize

    def part(self, row: Any, axes: Axes, octets: NDArray[np.uint8]) -> NDArray[Any]:
        """Return a view of these bytes."""
        dtype, shape = row.viewed[0], tuple(size for _, _, size, _ in axes)
        if not len(octets):
            return np.empty(shape, dtype)
        steps = tuple(abs(step) * stride for (_, step, _, _), stride in zip(axes, self.strides, strict=True))
        return np.ndarray(shape, dtype, octets, 0, steps)


class Deflated(Geometry):
    """A tensor in a deflated member of an archive: inflated whenever it is used, within the limits.

    Parameters
    ----------
    name : str
        Name of the member, for messages.
    stored, size, crc : int
        Bytes in the file, bytes when inflated, and the CRC-32 of these.
    skip : int
        Bytes of the member before the tensor.
    strides : tuple of int or None
        None for row-major order.
    limits : Limits
    """

    __slots__ = ("crc", "limits", "name", "size", "skip", "stored", "strides")

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

    def array(self, row: Any) -> NDArray[Any]:
        """Return the tensor in private memory."""
        self.limits.check("max_copy_bytes", self.size, f"size of {self.name}")
        data, at = aligned(row.nbytes), 0
        for piece in self.inflated(row.source, row.offset):
            data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        data.flags.writeable = row.source.mode in ("cow", "copy")
        dtype, shape = row.viewed
        return np.ndarray(shape, dtype, data, 0, self.strides)

    def dense(self, row: Any) -> Source:
        """Return a source of the inflated bytes in row-major order."""
        return _InflatedSource(row, self)

    def extent(self, row: Any, axes: Axes) -> tuple[int, int]:  # noqa: ARG002 - any part needs all before it
        """Return the range of the stored member."""
        return row.offset, row.offset + self.stored

    def part(self, row: Any, axes: Axes, octets: NDArray[np.uint8]) -> NDArray[Any]:
        """Inflate these bytes."""
        whole = self.array(row._replace(source=_Fetched(row.source, row.offset, octets)))
        return whole[ascending(axes)]

    def inflated(self, source: Source, offset: int) -> Iterator[bytes]:
        """Yield the inflated bytes of the tensor, checked when the last one has been taken."""
        skip = self.skip
        for piece in inflate(source, offset, self.stored, self.size, self.crc, self.name):
            if skip < len(piece):
                yield piece[skip:]
            skip -= min(skip, len(piece))


class Decoded(Geometry):
    """A tensor whose bytes are decoded at each use.

    Parameters
    ----------
    stored : int
        Bytes in the file.
    limits : Limits
    """

    __slots__ = ("limits", "stored")

    def __init__(self, stored: int, limits: Limits) -> None:
        self.stored: int = stored
        self.limits: Limits = limits

    def fill(self, row: Any, out: NDArray[np.uint8]) -> None:
        """Decode to `out`, the bytes of the tensor, shape (row.nbytes,), or raise a `FormatError`."""
        raise NotImplementedError

    def array(self, row: Any) -> NDArray[Any]:
        """Return the tensor in private memory."""
        dtype, shape = row.viewed
        data = self.octets(row)
        data.flags.writeable = row.source.mode in ("cow", "copy")
        return np.ndarray(shape, dtype, data)

    def octets(self, row: Any) -> NDArray[np.uint8]:
        """Return the bytes of the tensor, row-major."""
        self.limits.check("max_copy_bytes", row.nbytes, "bytes of a tensor")
        data = aligned(row.nbytes)
        try:
            self.fill(row, data)
        except FormatError as error:
            raise error.located(path=row.source.name) from None
        return data

    def dense(self, row: Any) -> Source:
        """Return a source of these bytes."""
        return DecodedSource(row, self)

    def extent(self, row: Any, axes: Axes) -> tuple[int, int]:  # noqa: ARG002 - where an element lies is unknown
        """Return the range of the stored tensor."""
        return row.offset, row.offset + self.stored

    def part(self, row: Any, axes: Axes, octets: NDArray[np.uint8]) -> NDArray[Any]:
        """Decode the tensor of these bytes."""
        return self.array(row._replace(source=_Fetched(row.source, row.offset, octets)))[ascending(axes)]


class Made(Decoded):
    """A tensor stored in another form, such as numbers of variable length.

    Parameters
    ----------
    stored : int
        Bytes in the file.
    make : callable
        ``make(row, data, out)`` decodes the bytes in the file to `out`, the bytes of the tensor, shape (row.nbytes,),
        or raises a `FormatError`. A format compares the bytes of the tensor with `stored` when it opens the file:
        memory for it is allocated before they are read.
    limits : Limits
    """

    __slots__ = ("make",)

    def __init__(self, stored: int, make: Callable[[Any, bytes, NDArray[np.uint8]], None], limits: Limits) -> None:
        super().__init__(stored, limits)
        self.make: Callable[[Any, bytes, NDArray[np.uint8]], None] = make

    def fill(self, row: Any, out: NDArray[np.uint8]) -> None:
        """Implement `Decoded.fill`."""
        self.make(row, row.source.pread(row.offset, self.stored), out)


class Derived(Source):
    """The bytes of one tensor in row-major order, at the offset of its row.

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
        # `Source.__init__` would look for a file.
        self.path, self.name, self.mode, self.size = parent.path, parent.name, parent.mode, base + size
        self._parent, self._base = parent, base

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:  # noqa: ARG002 - unknown here
        """Implement `Source.reads`; yields nothing where the order is not known before."""
        return iter(())

    def stretches(self, begin: int, end: int) -> Sequence[tuple[Source, int, int]]:  # noqa: ARG002 - see `Source`
        """Implement `Source.stretches`: the bytes are made."""
        return ()

    def check_size(self, what: str, nbytes: int) -> None:
        """Implement `Source.check_size`, for the file."""
        self._parent.check_size(what, nbytes)

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
        """Implement `Source.chunks`: pieces of exactly `size` bytes, but for the last, and none in the buffer."""
        self.check_size("a tensor", count)
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
        """Implement `Source.pread`."""
        return b"".join(map(bytes, self.chunks(offset, count)))

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Implement `Source.read_into`."""
        at = 0
        for chunk in self.chunks(offset, len(target)):
            target[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
            at += len(chunk)

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Bring in the part of the file that the tensor lies in."""
        parent = self._parent
        parent.prefetch((offset, min(count, parent.size - offset)) for offset, count in ranges)

    def check_unchanged(self) -> None:
        """Implement `Source.check_unchanged`, for the file."""
        self._parent.check_unchanged()


class _Fetched(Derived):
    """Bytes of a file that were read to memory, for a geometry to make an array of.

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


class Given(Derived):
    """An array as the bytes of a tensor that no file has, beside one that a file has.

    Parameters
    ----------
    parent, base
        As those of `Derived`, for the tensor that the file has.
    array : ndarray
    """

    def __init__(self, parent: Source, base: int, array: NDArray[Any]) -> None:
        super().__init__(parent, base, array.nbytes)
        self._array = array.view(np.uint8)

    def check_size(self, what: str, nbytes: int) -> None:
        """Implement `Source.check_size`: it is there."""

    def reading(self, ahead: Mapping[Source, Source]) -> Source:  # noqa: ARG002 - nothing is read
        """Implement `Source.reading`."""
        return self

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        yield self._array[start:stop]


class StridedSource(Derived):
    """Elements of `itemsize` bytes, `strides` bytes apart, in row-major order."""

    def __init__(
        self, parent: Source, base: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> None:
        super().__init__(parent, base, size)
        self._shape, self._strides, self._itemsize = shape, strides, itemsize

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:
        """Implement `Source.reads`, where the first axis is the outermost one in the file, too."""
        if not self._shape or begin == end:
            return
        inner = sum((n - 1) * step for n, step in zip(self._shape[1:], self._strides[1:], strict=True)) + self._itemsize
        if self._strides[0] < inner:
            return
        each = (self.size - self._base) // self._shape[0]
        for i in range((begin - self._base) // each, -(-(end - self._base) // each)):
            at = self._base + i * self._strides[0]
            yield from self._parent.reads(at, at + inner)

    def reading(self, ahead: Mapping[Source, Source]) -> Source:
        """Implement `Source.reading`."""
        size = self.size - self._base
        parent = self._parent.reading(ahead)
        return StridedSource(parent, self._base, size, self._shape, self._strides, self._itemsize)

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Put groups of rows into order that are contiguous in the result."""
        if start == stop:
            return
        shape, strides, itemsize = self._shape, self._strides, self._itemsize
        # A row spans the last axes: as many of them as fit into a group.
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


class _WholeSource(Derived):
    """The elements of a tensor of which every part needs all stored bytes; `row` is its row."""

    def __init__(self, row: Any, how: Any) -> None:
        super().__init__(row.source, row.offset, row.nbytes)
        self._row, self._how = row, how

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:  # noqa: ARG002 - any part needs all
        """Implement `Source.reads`."""
        yield self._parent, *self._row.extent

    def reading(self, ahead: Mapping[Source, Source]) -> Source:
        """Implement `Source.reading`."""
        return type(self)(self._how.reading(self._row, ahead), self._how)


class _InflatedSource(_WholeSource):
    """The elements of a `Deflated` tensor in row-major order."""

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        how, parent, base = self._how, self._parent, self._base
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
    """The elements of a `Decoded` tensor."""

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        yield self._how.octets(self._row)[start:stop]


def inflate(
    source: Source, offset: int, stored: int, size: int, crc: int, name: str, window: int = _INFLATED
) -> Iterator[bytes]:
    """Inflate `stored` bytes from `offset` on; yield the `size` resulting ones, and check them once all were taken.

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
