"""Turns the key-values of a GGUF file into metadata: plain values, arrays, and strings decoded on use."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from weightmap.formats.gguf.header import ARRAY, STRING, Header, number
from weightmap.index.strings import StringTable
from weightmap.lazy import np

if TYPE_CHECKING:
    from typing import overload

    from numpy.typing import NDArray

# numpy's codes by those of GGUF. A bool is a byte, which the scan has found to be 0 or 1.
NUMBERS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
_TYPE_NAMES = (
    *("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32", "BOOL", "STRING", "ARRAY"),
    *("UINT64", "INT64", "FLOAT64"),
)


class Strings(Sequence[str]):
    """An array of strings: a sequence that decodes each item on access.

    It equals every sequence of the same strings. `tolist` decodes all of them.

    Parameters
    ----------
    load : callable
        Returns the `StringTable`; called at the first use.
    count : int
    """

    __slots__ = ("_count", "_load", "_table")

    # The kinds that the metadata of another format must allow to take this: see `weightmap.formats._metadata`.
    kinds: ClassVar[frozenset[str]] = frozenset({"list", "text"})

    def __init__(self, load: Callable[[], StringTable], count: int) -> None:
        self._load = load
        self._count = count
        self._table: StringTable | None = None

    @classmethod
    def of(cls, texts: Sequence[str]) -> Strings:
        """Return an array of these texts, in memory."""
        return cls(lambda: StringTable.of(texts, "string"), len(texts))

    @property
    def table(self) -> StringTable:
        """The strings themselves."""
        table = self._table
        if table is None:
            table = self._table = self._load()
        return table

    def __len__(self) -> int:
        return self._count

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, i: int) -> str: ...
        @overload
        def __getitem__(self, i: slice) -> list[str]: ...

    def __getitem__(self, i: int | slice) -> str | list[str]:
        numbers = range(self._count)[i]
        return self.table[numbers] if isinstance(numbers, int) else [self.table[k] for k in numbers]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __contains__(self, text: object) -> bool:
        return self.table.find(text) >= 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (str, bytes)) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def tolist(self) -> list[str]:
        """Return the strings as a list."""
        return list(self)

    def __repr__(self) -> str:
        if self._count <= _SHOWN:
            return repr(self.tolist())
        return f"[{', '.join(map(repr, self[:_SHOWN]))}, ... {self._count:,} strings]"

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self.tolist(),)


_SHOWN = 6


class KeyValues(dict[str, Any]):
    """The metadata of a file, which remember the types that they were read with.

    ``TensorFile.metadata`` is a read-only view of one. Its ``copy()`` and ``f.metadata | {...}`` keep the types of
    unchanged values; any other mapping holds new values.
    """

    __slots__ = ("_header", "_read")

    def __init__(self, content: Mapping[str, Any], header: Header, read: Mapping[str, tuple[Any, int]]) -> None:
        super().__init__(content)
        self._header = header
        self._read = read

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> KeyValues | None:
        """Return the `KeyValues` behind a mapping, or None."""
        own = metadata.copy() if isinstance(metadata, MappingProxyType) else metadata
        return own if isinstance(own, cls) else None

    @property
    def types(self) -> dict[str, str]:
        """The types of unchanged values, as gguf-dump spells them: "UINT32", "[STRING]"."""
        return {key: _type_name(self._header, at) for key, (value, at) in self._read.items() if self.get(key) is value}

    def stored(self, key: str) -> bytes | None:
        """Return an unchanged value encoded for version 3, little-endian, behind its type; None for a new value."""
        value, at = self._read.get(key, (None, -1))
        return None if at < 0 or self[key] is not value else native(self._header, at)

    def copy(self) -> KeyValues:
        """Return a copy that remembers the same types."""
        return KeyValues(self, self._header, self._read)

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        return KeyValues({**self, **other}, self._header, self._read)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _type_name(header: Header, at: int) -> str:
    """Return the name of the type at `at`; for an array its item type, in brackets."""
    kind = header.u32(at)
    return _array_name(header, at + 4) if kind == ARRAY else _TYPE_NAMES[kind]


def _array_name(header: Header, at: int) -> str:
    """Return the name of an array's type, its item type being at `at`; of nested arrays the first one counts."""
    inner, count, begin = header.array(at)
    return f"[{_array_name(header, begin) if inner == ARRAY and count else _TYPE_NAMES[inner]}]"


def metadata(header: Header) -> KeyValues:
    """Return all key-values."""
    data = header.data
    read: dict[str, tuple[Any, int]] = {}
    for first, last in header.scan.keys().tolist():
        read[str(data[first:last], "utf-8")] = _value(header, last), last
    return KeyValues({key: value for key, (value, _) in read.items()}, header, read)


def string_table(header: Header, at: int, what: str) -> StringTable:
    """Return the strings of the array value at `at`."""
    _, count, begin = header.array(at + 4)
    return _table(header, count, begin, what)


def _table(header: Header, count: int, begin: int, what: str) -> StringTable:
    octets = header.octets[begin:]
    bounds, size = header.scan.strings(octets, count)
    table = StringTable(octets[:size], bounds, header.width, what)
    table.end = begin + size
    table.path, table.format = header.path, "gguf"
    return table


def _value(header: Header, at: int) -> Any:
    """Return the value whose type is at `at`."""
    found = number(header, at)
    if found is not None:
        return found
    if header.u32(at) == STRING:
        return str(_octets(header, at + 4), "utf-8")
    return array_at(header, at + 4)


def _octets(header: Header, at: int) -> bytes:
    """Return the bytes of the string whose length is at `at`."""
    begin = at + header.width
    return bytes(header.data[begin : begin + header.count(at)])


def array_at(header: Header, at: int) -> Any:
    """Return the array whose item type is at `at`."""
    kind, count, begin = header.array(at)
    if kind == STRING:
        return Strings(lambda: _table(header, count, begin, "string"), count)
    if kind == ARRAY:
        return [array_at(header, inner) for inner in _inner(header, count, begin)]
    return _numbers(header, kind, count, begin)


def _numbers(header: Header, kind: int, count: int, begin: int) -> NDArray[Any]:
    dtype = np.dtype(header.order + NUMBERS[kind])
    array = np.frombuffer(header.data, dtype, count, begin).astype(dtype.newbyteorder("="))
    array.flags.writeable = False
    return array


def _inner(header: Header, count: int, begin: int) -> Iterator[int]:
    """Yield the position of each array in an array."""
    for _ in range(count):
        yield begin
        begin = header.scan.skip(header.data, begin)


def native(header: Header, at: int) -> bytes:
    """Return the value whose type is at `at`, encoded for version 3, little-endian, behind its type."""
    kind = header.u32(at)
    tag = struct.pack("<I", kind)
    if kind == ARRAY:
        return tag + _native_array(header, at + 4)
    if kind == STRING:
        return tag + encode_string(_octets(header, at + 4))
    return tag + np.array(_value(header, at), f"<{NUMBERS[kind]}").tobytes()


def _native_array(header: Header, at: int) -> bytes:
    """Return the array whose item type is at `at`, encoded for version 3."""
    kind, count, begin = header.array(at)
    parts = [struct.pack("<IQ", kind, count)]
    if kind == STRING:
        table = _table(header, count, begin, "string")
        if header.order == "<" and header.width == 8:
            parts.append(bytes(header.octets[begin : table.end]))
        else:
            parts += (encode_string(table.raw(i)) for i in range(count))
    elif kind == ARRAY:
        parts += (_native_array(header, inner) for inner in _inner(header, count, begin))
    else:
        parts.append(_numbers(header, kind, count, begin).astype(f"<{NUMBERS[kind]}").tobytes())
    return b"".join(parts)


def encode_string(octets: bytes) -> bytes:
    """Encode a string for version 3."""
    return struct.pack("<Q", len(octets)) + octets
