"""`Geometry`: the layout of a tensor whose elements do not follow one another in its file.

The geometry of a row makes the array that a look-up returns. Code that reads, converts or compares uses `Row.dense` and
need not know geometries: the source of that row is a `Derived` one, which has the bytes of the tensor in row-major
order at the same offset. Plans ask a geometry for the bytes that hold a part, and turn these bytes into the part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.bytes import Range
from weightmap.core.hooks import later
from weightmap.core.native.access import aligned
from weightmap.errors import ChecksumError, FormatError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import EllipsisType

    from numpy.typing import NDArray

    from weightmap.core.arguments import Limits
    from weightmap.core.bytes.source import Source

    # An index: for each axis begin, step, count, and whether the result keeps the axis.
    Axes = Sequence[tuple[int, int, int, bool]]

# Most bytes of an inflated piece.
_INFLATED = 1 << 18

_decoded = later("weightmap.core.bytes.derived", "DecodedSource")
_fetched = later("weightmap.core.bytes.derived", "Fetched")
_inflated = later("weightmap.core.bytes.derived", "InflatedSource")
_strided = later("weightmap.core.bytes.derived", "StridedSource")


def ascending(axes: Axes) -> tuple[slice | EllipsisType, ...]:
    """Return the index of the same elements in the order of the file, with every axis; it never makes a scalar."""
    slices = []
    for start, step, size, _ in axes:
        first, last = sorted((start, start + step * (size - 1))) if size else (0, -1)
        slices.append(slice(first, last + 1, abs(step)))
    return *slices, ...


class Geometry:
    """How the elements of a tensor lie in its file. The methods take its `Row`."""

    __slots__ = ()

    def array(self, row: Any) -> NDArray[Any]:
        """Return the tensor, if possible as a view of the mapping."""
        raise NotImplementedError

    def dense(self, row: Any) -> Source:
        """Return a source that has the bytes of the tensor in row-major order, from the offset of the row on."""
        raise NotImplementedError

    def extent(self, row: Any, axes: Axes) -> Range:
        """Return the range of the file that holds the selected elements."""
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
        Never negative.
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
        return _strided(row.source, row.offset, row.nbytes, shape, self.strides, dtype.itemsize)  # type: ignore[no-any-return]

    def extent(self, row: Any, axes: Axes) -> Range:
        """Return the range from the first selected element to the last."""
        first = last = row.offset
        for (start, step, size, _), stride in zip(axes, self.strides, strict=True):
            if not size:
                return Range(row.offset, row.offset)
            ends = start, start + step * (size - 1)
            first += min(ends) * stride
            last += max(ends) * stride
        return Range(first, last + row.viewed[0].itemsize)

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
        Bytes in the file, inflated bytes, and the CRC-32 of the inflated bytes.
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
        return _inflated(row, self)  # type: ignore[no-any-return]

    def extent(self, row: Any, axes: Axes) -> Range:  # noqa: ARG002 - any part needs all before it
        """Return the range of the stored member."""
        return Range(row.offset, row.offset + self.stored)

    def part(self, row: Any, axes: Axes, octets: NDArray[np.uint8]) -> NDArray[Any]:
        """Inflate these bytes."""
        whole = self.array(row._replace(source=_fetched(row.source, row.offset, octets)))
        return whole[ascending(axes)]

    def inflated(self, source: Source, offset: int) -> Iterator[bytes]:
        """Yield the inflated bytes of the tensor; check them after the last."""
        skip = self.skip
        for piece in inflate(source, offset, self.stored, self.size, self.crc, self.name):
            if skip < len(piece):
                yield piece[skip:]
            skip -= min(skip, len(piece))


class DecodedOnUse(Geometry):
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
        return _decoded(row, self)  # type: ignore[no-any-return]

    def extent(self, row: Any, axes: Axes) -> Range:  # noqa: ARG002 - where an element lies is unknown
        """Return the range of the stored tensor."""
        return Range(row.offset, row.offset + self.stored)

    def part(self, row: Any, axes: Axes, octets: NDArray[np.uint8]) -> NDArray[Any]:
        """Decode the tensor of these bytes."""
        return self.array(row._replace(source=_fetched(row.source, row.offset, octets)))[ascending(axes)]


class Reencoded(DecodedOnUse):
    """A tensor stored in another encoding, such as numbers of variable length.

    Parameters
    ----------
    stored : int
        Bytes in the file.
    make : callable
        ``make(row, data, out)`` decodes the bytes in the file to `out`, the bytes of the tensor, shape (row.nbytes,),
        or raises a `FormatError`. When it opens the file, the format must check the tensor's bytes against `stored`:
        memory for the tensor is allocated before the file is read.
    limits : Limits
    """

    __slots__ = ("make",)

    def __init__(self, stored: int, make: Callable[[Any, bytes, NDArray[np.uint8]], None], limits: Limits) -> None:
        super().__init__(stored, limits)
        self.make: Callable[[Any, bytes, NDArray[np.uint8]], None] = make

    def fill(self, row: Any, out: NDArray[np.uint8]) -> None:
        """Implement `DecodedOnUse.fill`."""
        self.make(row, row.source.pread(row.offset, self.stored), out)


def inflate(
    source: Source, offset: int, stored: int, size: int, crc: int, name: str, window: int = _INFLATED
) -> Iterator[bytes]:
    """Inflate `stored` bytes from `offset` on; yield the result in pieces of at most `window` bytes.

    Raises `FormatError` if the bytes are not deflated, or inflate to more than `size`; after the last piece,
    `TruncatedError` if the result is too short, and `ChecksumError` if its CRC-32 is wrong.
    """
    import zlib  # noqa: PLC0415 - needed by few files

    engine, actual_crc, position = zlib.decompressobj(-zlib.MAX_WBITS), 0, 0
    for chunk in source.chunks(offset, stored):
        pending: bytes | memoryview = chunk
        while len(pending) and not engine.eof:
            try:
                piece = engine.decompress(pending, window)
            except zlib.error:
                what = f"{name} is not deflated as its archive says"
                raise FormatError(what, path=source.name, field="method", offset=offset) from None
            pending = engine.unconsumed_tail
            position, actual_crc = position + len(piece), zlib.crc32(piece, actual_crc)
            if position > size:
                what = f"{name} inflates to more than its size"
                raise FormatError(what, path=source.name, field="size", offset=offset, expected=f"{size} bytes")
            if piece:
                yield piece
            elif not pending:
                break
    if not engine.eof or position != size:
        what = f"inflated size of {name}"
        raise TruncatedError(what, path=source.name, field="size", offset=offset, actual=position, expected=size)
    if actual_crc != crc:
        what = f"CRC-32 of {name}"
        actual, expected = f"{actual_crc:#010x}", f"{crc:#010x}"
        raise ChecksumError(what, path=source.name, field="crc", offset=offset, actual=actual, expected=expected)
