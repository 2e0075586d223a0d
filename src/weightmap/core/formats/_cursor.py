"""Reads headers: field by field with bounds, and as a whole behind its length."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.faults import cut_off, too_many
from weightmap.core.native import checksums
from weightmap.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification
    from weightmap.core.options import Limits, Options
    from weightmap.core.table.table import Table

LENGTH = struct.Struct("<Q")
# Positions in a header take 32 bits.
_HEADER_MOST = 0xFFFFFFFE


def read_header(source: Source, head: bytes, options: Options) -> bytes:
    """Return the header as private bytes, its length bounded before it is read."""
    if len(head) < LENGTH.size:
        raise cut_off("the length of its header", len(head), LENGTH.size)
    (length,) = LENGTH.unpack_from(head)
    options.limits.check("max_header_bytes", length, "length of the header", offset=0)
    if length > _HEADER_MOST:
        expected = f"at most {_HEADER_MOST}"
        raise FormatError("length of the header", field="n", offset=0, actual=length, expected=expected)
    base = LENGTH.size + length
    if base > source.size:
        raise cut_off("its header", source.size, base, field="n")
    return head[8:base] if base <= len(head) else source.pread(8, length)


def verifier(header: bytes, table: Table) -> Callable[[Verification], None]:
    """Return the function that verifies such a file. It keeps only a checksum of the header."""
    base, crc = LENGTH.size + len(header), checksums.crc32(header)

    def verify(run: Verification) -> None:
        run.unchanged(run.read(0, base)[LENGTH.size :], crc, "the header")
        run.checked("header")
        if "" in table.names:
            run.warn("a tensor has an empty name")
        run.rest()

    return verify


# Bytes read at once from a source.
_WINDOW = 4096
_NUMBERS = {
    kind: struct.Struct(f"<{code}")
    for kind, code in zip(
        ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64"), "BbHhIiQqfd", strict=True
    )
}


class Cursor:
    """A position in private bytes of a file; every read moves it on.

    Each method takes the `field` and its name in messages. It raises `TruncatedError` when the field does not fit,
    before it allocates anything.

    Parameters
    ----------
    data : bytes
        The header, or with a `source` the beginning of it.
    source : Source, optional
        Supplies the bytes behind `data`, a window at a time.
    limits : Limits, optional
        With a source: bounds a field by ``max_header_bytes``.
    start : int
        Offset of `data` in the file.
    whole : str
        Name of the data in messages: "header" or "file".

    Attributes
    ----------
    position, end : int
        Offsets in the file: of the next field, and of the end.
    """

    __slots__ = ("_data", "_limits", "_source", "_start", "_whole", "end", "position")

    def __init__(
        self,
        data: bytes,
        source: Source | None = None,
        limits: Limits | None = None,
        *,
        start: int = 0,
        whole: str = "file",
    ) -> None:
        self._data = data
        self._source = source
        self._limits = limits
        self._start = self.position = start
        self._whole = whole
        self.end = start + len(data) if source is None else source.size

    @property
    def left(self) -> int:
        """Bytes from the position to the end."""
        return self.end - self.position

    def take(self, count: int, field: str, what: str) -> bytes:
        """Return the next `count` bytes."""
        at, end = self.position - self._start, self.position + count
        if end > self.end:
            raise cut_off(what, self.end, end, field=field, whole=f"the {self._whole}")
        if self._source is not None and not 0 <= at <= len(self._data) - count:
            if self._limits is not None:
                self._limits.check("max_header_bytes", count, f"size of {what}", offset=self.position)
            size = min(max(count, _WINDOW), self.left)
            self._data, self._start, at = self._source.pread(self.position, size), self.position, 0
        self.position = end
        return self._data[at : at + count]

    def skip(self, count: int) -> None:
        """Step over bytes known to exist, such as the data of a tensor."""
        self.position += count

    def number(self, kind: str, field: str, what: str) -> Any:
        """Return the next number, of kind u8, i8, ... u64, i64, f32 or f64."""
        number = _NUMBERS[kind]
        return number.unpack(self.take(number.size, field, what))[0]

    def count(self, kind: str, item_nbytes: int, field: str, what: str, limit: str | None = None) -> int:
        """Return the next number, a count of items that follow, of at least `item_nbytes` bytes each.

        Raises `LimitError` when it exceeds the attribute `limit` of `Limits`.
        """
        offset = self.position
        count: int = self.number(kind, field, f"the {what}")
        if limit is not None and self._limits is not None:
            self._limits.check(limit, count, what, offset=offset)
        maximum = self.left // item_nbytes
        if count > maximum:
            raise too_many(what, count, maximum, field=field, offset=offset)
        return count

    def text(self, kind: str, field: str, what: str) -> str:
        """Return the next string: its length in bytes, a number of `kind`, then strict UTF-8."""
        length: int = self.number(kind, field, f"the length of {what}")
        at = self.position
        try:
            return self.take(length, field, what).decode()
        except UnicodeDecodeError as error:
            msg = f"{what} is not UTF-8 ({error.reason})"
            raise FormatError(msg, field=field, offset=at + error.start) from None

    def array(self, dtype: str, count: int, field: str, what: str) -> NDArray[Any]:
        """Return the next `count` numbers of a numpy dtype, shape (count,)."""
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize, field, what), dtype)
