"""Tensors that do not lie in the file one element after another: views of them, and their bytes in row-major order.

A table gives such a tensor a data type with a `Placement`. ``f[name]`` asks it for an array. Whatever reads, converts
or compares asks it for a `Derived` source, which has the bytes of the tensor in row-major order where the row says
that they lie, and so needs to know nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap.errors import ChecksumError, FormatError, TruncatedError
from weightmap.io.descriptor import aligned
from weightmap.lazy import later

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.io.source import Source
    from weightmap.options import Limits

__all__ = ["Deflated", "Strided"]

# Bytes that are inflated at once.
_INFLATED = 1 << 18
_strided_source = later("weightmap.io.derived", "StridedSource")
_inflated_source = later("weightmap.io.derived", "InflatedSource")


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
        derived: Source = _strided_source(source, offset, nbytes, shape, self.strides, dtype.itemsize)
        return derived


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
        derived: Source = _inflated_source(source, offset, nbytes, self, dtype, shape)
        return derived

    def inflated(self, source: Source, offset: int) -> Iterator[bytes]:
        """Yield the inflated bytes of the tensor, checked when the last one has been taken."""
        skip = self.skip
        for piece in inflate(source, offset, self.stored, self.size, self.crc, self.name):
            if skip < len(piece):
                yield piece[skip:]
            skip -= min(skip, len(piece))


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
