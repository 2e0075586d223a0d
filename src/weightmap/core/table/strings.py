"""Tables of strings over bytes of a file, which decode a string when it is asked for.

A table is the bytes and the private array `bounds`: string i is ``data[bounds[i] : bounds[i + 1] - gap]``, where `gap`
is the width of the length prefix before each string (0 for strings back to back). The first look-up by text builds a
hash index over the bytes in C. Bounds take four bytes a string, the index at most eleven.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.native import checksums, scans
from weightmap.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray


class StringTable:
    """Strings in a buffer.

    Parameters
    ----------
    data : bytes or ndarray of uint8
        May be mapped and change underneath: bounds are private, and every access stays within them.
    bounds : ndarray or memoryview of uint32, shape (n + 1,)
        See the module.
    gap : int
        Width of the length before each string: 0, 2, 4 or 8.
    what : str
        The name of a string in messages, such as "tensor name".
    """

    __slots__ = ("_bounds", "_data", "_find", "_gap", "_slots", "_what", "end", "format", "path")

    def __init__(self, data: Any, bounds: NDArray[np.uint32] | memoryview[int], gap: int, what: str) -> None:
        self._data = data
        self._bounds: Any = bounds
        self._gap = gap
        self._what = what
        self._find: Callable[[object], int] | None = None
        self._slots: NDArray[np.uint32] | None = None
        # For messages, where known: the file, and the offset in it at which the bytes end.
        self.path: str | None = None
        self.format: str | None = None
        self.end: int | None = None

    @classmethod
    def of(cls, texts: Sequence[str], what: str) -> StringTable:
        """Return a table of `texts`. Raises UnicodeEncodeError for lone surrogates."""
        raws = [text.encode() for text in texts]
        return cls(b"".join(raws), np.cumsum([0, *map(len, raws)]).astype(np.uint32), 0, what)

    @classmethod
    def joined(cls, tables: Iterable[StringTable], what: str) -> StringTable:
        """Return the strings of tables as one table of less than 4 GiB, back to back."""
        lengths = [np.zeros(1, np.uint32)]
        data = bytearray()  # grows in place: joining pieces would take twice the memory
        for table in tables:
            bounds, gap = table.bounds, table._gap  # noqa: SLF001 - the same class
            lengths.append(bounds[1:] - bounds[:-1] - np.uint32(gap))
            if gap:
                data += b"".join(table.raws())
            else:
                data += bytes(table._data[bounds[0] : bounds[-1]])  # noqa: SLF001 - the same class
        return cls(data, np.cumsum(np.concatenate(lengths), dtype=np.uint32), 0, what)

    def take(self, numbers: NDArray[np.int64]) -> StringTable:
        """Return some of the strings as a table of their own, back to back."""
        raws = [self.raw(number) for number in numbers.tolist()]
        return StringTable(b"".join(raws), np.cumsum([0, *map(len, raws)]).astype(np.uint32), 0, self._what)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def raw(self, i: int) -> bytes:
        """Return the bytes of string i, 0 <= i < n."""
        first, last = self._bounds[i : i + 2].tolist()
        return bytes(self._data[first : last - self._gap])

    def raws(self) -> Iterator[bytes]:
        """Yield the bytes of every string."""
        return map(self.raw, range(len(self)))

    def __getitem__(self, i: int) -> str:
        return self._decode(self.raw(i), i)

    def _decode(self, raw: bytes, i: int) -> str:
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            msg = f"{self._what} {i} is not UTF-8: {raw[:40]!r} ({error.reason})"
            at = self._offset(i)
            raise FormatError(msg, path=self.path, format=self.format, field=self._what, offset=at) from None

    def _offset(self, i: int) -> int | None:
        """Return the offset in the file of string i, or None where it is unknown."""
        return None if self.end is None else self.end - len(self._data) + int(self._bounds[i])

    def __iter__(self) -> Iterator[str]:
        # Piece by piece: a Python list of a million integers is larger than the strings.
        for first in range(0, len(self), 4096):
            bounds = self._bounds[first : first + 4097].tolist()
            start = bounds[0]
            blob = bytes(self._data[start : bounds[-1]])
            if blob.isascii():  # a byte is a character
                text = str(blob, "ascii")
                for i in range(len(bounds) - 1):
                    yield text[bounds[i] - start : bounds[i + 1] - self._gap - start]
            else:
                for i in range(len(bounds) - 1):
                    yield self._decode(blob[bounds[i] - start : bounds[i + 1] - self._gap - start], first + i)

    @property
    def bounds(self) -> NDArray[np.uint32]:
        """The bounds of the strings: see the module."""
        return np.frombuffer(self._bounds, np.uint32)

    @property
    def text(self) -> Any:
        """The buffer, to the end of the last string."""
        return self._data[: self.nbytes]

    @property
    def nbytes(self) -> int:
        """Bytes from the beginning of the buffer to the end of the last string."""
        return int(self._bounds[-1])

    @property
    def text_nbytes(self) -> int:
        """Bytes of the strings themselves."""
        return int(self._bounds[-1]) - int(self._bounds[0]) - self._gap * len(self)

    @property
    def finder(self) -> Callable[[object], int]:
        """Function from a text to the number of the first string equal to it, or -1. The first use builds the index."""
        if self._find is None:
            self._build()
        assert self._find is not None  # noqa: S101 - for the type checker
        return self._find

    @property
    def index(self) -> tuple[Any, NDArray[np.uint32], int, NDArray[np.uint32]] | None:
        """Data, bounds, gap and slots of the hash index, for C. None when too many hashes collide for an index."""
        if self._find is None:
            self._build()
        return None if self._slots is None else (self._data, self.bounds, self._gap, self._slots)

    def find(self, text: object) -> int:
        """Return the number of the first string equal to `text`, or -1. The first call builds the index."""
        return (self._find or self.finder)(text)

    def find_many(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of many strings, -1 for a missing one, shape (len(texts),)."""
        find = self.finder
        packed = None if self._slots is None else checksums.pack_texts(texts)
        if packed is None or self._slots is None:
            return np.array([find(text) for text in texts], np.int64)
        return scans.index_find_many(self._data, self.bounds, self._gap, self._slots, *packed)

    def find_spans(self, data: bytes, bounds: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the numbers of the strings equal to data[bounds[i] : bounds[i + 1]], -1 for a missing one."""
        if self._find is None:
            self._build()
        if self._slots is None:
            find, spans = self.finder, itertools.pairwise(bounds.tolist())
            return np.array([find(data[a:b].decode(errors="surrogateescape")) for a, b in spans], np.int64)
        return scans.index_find_many(self._data, self.bounds, self._gap, self._slots, data, bounds)

    def _build(self) -> tuple[int, int, int]:
        capacity = 16
        while capacity < len(self) + len(self) // 3 + 1:
            capacity *= 2
        slots = np.empty(capacity, np.uint32)
        bounds = self.bounds
        duplicate = scans.index_build(self._data, bounds, self._gap, slots)
        if duplicate[0] >= 0:
            self._slots = slots
            self._find = scans.index_finder(self._data, bounds, self._gap, slots)
            return duplicate
        # Too many hashes collide, as in an attack. A dict is safe: its hash has a secret key.
        rows: dict[str, int] = {}
        repeated = 0
        first = (0, 0)
        for i in range(len(self)):
            original = rows.setdefault(self.raw(i).decode(errors="surrogateescape"), i)
            if original != i:
                first = first if repeated else (i, original)
                repeated += 1
        self._find = lambda text: rows.get(text, -1) if isinstance(text, str) else -1
        return repeated, *first

    def duplicates(self) -> tuple[int, int, int]:
        """Return how many strings equal an earlier one, then the numbers of the first such string and its original."""
        return self._build()

    def not_utf8(self) -> int:
        """Return the number of the first string that is not strict UTF-8, or -1."""
        return scans.utf8_strings(self._data, self.bounds, self._gap)
