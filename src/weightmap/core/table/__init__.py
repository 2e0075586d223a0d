"""Names, shapes and places of tensors. Every range that a file declares is validated here and nowhere else.

`Rules` holds a format's demands on every row; csrc/core/table.c checks them.
"""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from weightmap._messages import quoted
from weightmap.core.dtypes import DECLARED, NUMPY_MAX_NDIM, DType
from weightmap.core.faults import cut_off, trailing_bytes
from weightmap.core.native import access, checksums, scans
from weightmap.errors import ChecksumError, FormatError, LayoutError, LimitError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    class _Described(Protocol):
        """The part of `weightmap.core.table.table.Table` that messages need."""

        @property
        def rules(self) -> Rules: ...
        @property
        def names(self) -> StringTable: ...
        def position(self, row: int) -> int | None: ...
        def label(self, row: int) -> str: ...
        def __len__(self) -> int: ...


_PIECE = 4096  # strings

# Tables of strings over bytes of a file, which decode a string at each access.
#
# A table is the bytes and a private array `bounds`: string i is ``data[bounds[i] : bounds[i + 1] - gap]``, where `gap`
# is the width of the length before each string (0 for strings back to back). The first look-up by text builds a hash
# index over the bytes in C. Bounds take four bytes a string, the index at most eleven.


class StringTable:
    """Strings in a buffer.

    Parameters
    ----------
    data : bytes or ndarray of uint8
        May be mapped and change at any time: bounds are private, and every access stays within them.
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
        # For messages, if known: the file, and the offset in it at which the bytes end.
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
        """Return some of the strings as a new table, back to back."""
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
        """Return the offset in the file of string i, or None if it is unknown."""
        return None if self.end is None else self.end - len(self._data) + int(self._bounds[i])

    def __iter__(self) -> Iterator[str]:
        # Decode piece by piece: a Python list of a million strings is larger than their bytes.
        return itertools.chain.from_iterable(map(self._piece, range(0, len(self), _PIECE)))

    def _piece(self, first: int) -> list[str]:
        """Return a piece of the strings, from number `first` on."""
        bounds = self._bounds[first : first + _PIECE + 1].tolist()
        start, gap = bounds[0], self._gap
        blob = bytes(self._data[start : bounds[-1]])
        places = [(low - start, high - gap - start) for low, high in itertools.pairwise(bounds)]
        if blob.isascii():  # a byte is a character
            text = str(blob, "ascii")
            return [text[low:high] for low, high in places]
        return [self._decode(blob[low:high], i) for i, (low, high) in enumerate(places, first)]

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
        """Function from a text to the number of the first equal string, or -1. The first use builds the index."""
        if self._find is None:
            self._build()
        assert self._find is not None  # noqa: S101 - for the type checker
        return self._find

    @property
    def index(self) -> tuple[Any, NDArray[np.uint32], int, NDArray[np.uint32]] | None:
        """Data, bounds, gap and slots of the hash index, for C; None if too many hashes collide for an index."""
        if self._find is None:
            self._build()
        return None if self._slots is None else (self._data, self.bounds, self._gap, self._slots)

    def find(self, text: object) -> int:
        """Return the number of the first string equal to `text`, or -1. The first call builds the index."""
        return (self._find or self.finder)(text)

    def find_many(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of many strings, -1 for a missing one, shape (len(texts),)."""
        packed = checksums.pack_texts(texts)
        return np.array(list(map(self.finder, texts)), np.int64) if packed is None else self.find_spans(*packed)

    def find_spans(self, data: bytes, bounds: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the numbers of the strings equal to data[bounds[i] : bounds[i + 1]], -1 for a missing one."""
        find = self.finder
        if self._slots is None:
            spans = itertools.pairwise(bounds.tolist())
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
        # Too many hashes collide, as in an attack. A dict is safe, because its hash has a secret key.
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
        """Return the count of strings that equal an earlier one, and the numbers of the first such and its original."""
        return self._build()

    def not_utf8(self) -> int:
        """Return the number of the first string that is not strict UTF-8, or -1."""
        return scans.utf8_strings(self._data, self.bounds, self._gap)


# Errors for faults that a scan in C finds in a table of tensors.

# The names of these fields in messages, for formats without names of their own.
_WORDS = (("data_offset", ("data offset", 0)), ("data_size", ("bytes of data", 0)))


def table_error(table: _Described, fault: access.Fault) -> FormatError:
    """Return the error for a fault, with the tensor's name if it can be read.

    Field and offset refer to the format's own field, if its rules name it.
    """
    error = _describe(table, fault)
    named = table.rules.fields.get(error.field or "")
    if named is not None:
        error.field, within = named
        if error.offset is not None and fault.kind != "TABLE_TRUNCATED":  # whose offset is the end of the file
            error.offset += within
    return error


def _describe(table: _Described, fault: access.Fault) -> FormatError:  # noqa: PLR0911 - one return for each kind of fault
    kind = fault.kind
    rules, row = table.rules, fault.row
    at = table.position(row)
    if kind == "TABLE_HOLE" and row == len(table):
        at = rules.base + fault.expected
        return trailing_bytes(fault.actual, fault.expected, field="data", offset=at, whole="the data section")
    label = table.label(row) if not kind.startswith("NAME_") else f"tensor {row}"
    if kind == "TABLE_DTYPE":
        codes = ", ".join(f"{code} {dtype.name}" for code, dtype in enumerate(rules.dtypes) if dtype is not None)
        return UnsupportedError(
            f"{label}: dtype code", field="dtype", offset=at, actual=fault.actual, expected=f"one of {codes}"
        )
    if kind == "TABLE_NDIM":
        what, expected = f"{label}: number of dimensions", f"{rules.min_ndim} to {rules.max_ndim}"
        error = LimitError if rules.max_ndim == NUMPY_MAX_NDIM else FormatError
        return error(what, field="ndim", offset=at, actual=fault.actual, expected=expected)
    if kind == "TABLE_UNUSED_DIM":
        return FormatError(f"{label}: unused dimension", field="shape", offset=at, actual=fault.actual, expected=0)
    if kind == "TABLE_OVERFLOW":
        return LayoutError(f"{label}: the product of its shape exceeds 2**63 - 1 bytes", field="shape", offset=at)
    # Offsets and sizes, in the words and units of the format.
    actual, bound = fault.actual // rules.unit, fault.expected // rules.unit
    offset_word, size_word = _words(rules)
    if kind in ("TABLE_RANGE", "TABLE_TRUNCATED"):
        whole = row == len(table)
        return _out_of_range(kind, "the data section" if whole else label, rules, at, actual, bound)
    if kind == "TABLE_ALIGN":
        what, expected = f"{label}: {offset_word}", f"a multiple of {bound}"
        return LayoutError(what, field="data_offset", offset=at, actual=actual, expected=expected)
    if kind in ("TABLE_OVERLAP", "TABLE_HOLE"):
        problem = "overlaps the tensor before it" if kind == "TABLE_OVERLAP" else "leaves a hole before it"
        what, expected = f"{label} {problem}: {offset_word}", f"{bound}, where the tensor before it ends"
        return LayoutError(what, field="data_offset", offset=at, actual=actual, expected=expected)
    if kind == "TABLE_SIZE" and fault.actual > INT64_MAX:
        return LayoutError(f"{label} ends before it begins", field="data_offset", offset=at)
    if kind == "TABLE_SIZE":
        what, expected = f"{label}: {size_word}", f"{bound} by its shape and dtype"
        return LayoutError(what, field="data_size", offset=at, actual=actual, expected=expected)
    if kind == "NAME_HASH":
        what = f"{label}: stored FNV-1a hash of its name"
        return ChecksumError(
            what, field="name_hash", offset=at, actual=f"{fault.actual:#010x}", expected=f"{fault.expected:#010x}"
        )
    if kind == "NAME_DUPLICATE":
        what = f"tensors {fault.expected} and {row} are both called {_name(table, row)}"
        return LayoutError(what, field="name", offset=at)
    if kind == "NAME_UTF8":
        return FormatError(f"name of {label} is not UTF-8", field="name", offset=at)
    if kind == "NAME_RANGE":
        whole = row == len(table)
        what = "tensor names: the sum of their lengths" if whole else f"{label}: end of its name"
        extent = "the size of their section" if whole else "the end of all names"
        expected = f"{'' if whole else 'at most '}{fault.expected}, {extent}"
        return LayoutError(what, field="name_length", offset=at, actual=fault.actual, expected=expected)
    return FormatError(f"{label}: the index is damaged ({kind or fault.code})", offset=at)


def _out_of_range(kind: str, label: str, rules: Rules, at: int | None, actual: int, bound: int) -> FormatError:
    if kind == "TABLE_RANGE":
        what, expected = f"{label}: end of its data", f"at most {bound}, the size of the data section"
        return LayoutError(what, field="data_offset", offset=at, actual=actual, expected=expected)
    # Use bytes from the beginning of the file, whatever the format counts from.
    return cut_off(label, rules.base + rules.room, rules.base + actual * rules.unit, field="data_offset")


def _words(rules: Rules) -> tuple[str, str]:
    """Return the format's names for the offset and the size of a tensor's data."""
    offset, size = (rules.fields.get(*pair)[0] for pair in _WORDS)
    return offset, _WORDS[1][1][0] if size == offset else size  # a field for both does not name the size


def _name(table: _Described, row: int) -> str:
    try:
        return quoted(table.names[row])
    except (FormatError, IndexError, ValueError):
        return f"the name of tensor {row}"


INT64_MAX, U64_MAX = (1 << 63) - 1, (1 << 64) - 1
ANY_GAP = U64_MAX


class Rules:
    """A format's rules for every row, the same for both kinds of table.

    A format's subclass holds the rules for all its files; the parameters come from a single file.

    Parameters
    ----------
    base : int
        Position of the data in the file; offsets in rows count from there.
    file_size : int
    declared : int, optional
        Size of the data section, if the format declares it.
    lax : bool
        Whether order, overlap and holes stay unchecked.

    Attributes
    ----------
    dtypes : tuple of DType or None
        By the format's code; None for an unused code. The tuple may end at the last used code.
    min_ndim, max_ndim : int
    alignment : int
        A power of two that divides every offset.
    max_gap : int
        Bytes of padding allowed before a tensor and after the last one; `ANY_GAP` if the format checks gaps itself.
    scattered : bool
        Whether tensors may lie anywhere in the data section, in any order, and share bytes.
    room : int
        Bytes of the file from `base` on. A row that ends past `room` raises `TruncatedError`, a row that ends past
        `declared` raises `LayoutError`.
    data_size : int
        Bytes that rows may occupy: the lesser of `room` and `declared`.
    fields : mapping of str to (str, int)
        For messages: maps our names "data_offset", "data_size", "dtype", "name", "ndim", "shape" to the format's name
        of the field, and to its offset within the entry of a row. A missing field keeps our name.
    unit : int
        Bytes of the unit in which the format counts offsets and sizes; for messages.

    Notes
    -----
    `Table.check` checks everything. Each use checks a single row again, but not for alignment, order, overlap and
    holes: none of these makes an array reach out of the file.
    """

    # Only the values of one file, so that setting a rule of the class on an instance raises instead of doing nothing.
    __slots__ = ("base", "data_size", "declared", "lax", "room")
    dtypes: Sequence[DType | None] = ()
    bits: bytes = b""
    sized: Sequence[int] = ()  # codes of schemes, whose rows declare their bytes
    min_ndim = 0
    max_ndim = NUMPY_MAX_NDIM
    ndims: frozenset[int] = frozenset(range(NUMPY_MAX_NDIM + 1))
    alignment = 1
    max_gap = 0
    fields: Mapping[str, tuple[str, int]] = MappingProxyType({})
    unit = 1
    scattered = False
    native: Any = None  # a wm_rules

    def __init_subclass__(cls) -> None:
        if "__slots__" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} needs __slots__ = (): its rules are class attributes")
        cls.native = None

    @classmethod
    def _complete(cls) -> None:
        """Derive further attributes at the first file of a format, not when the format is imported."""
        # An entry for each value of a byte, so that a look-up needs no length check.
        cls.dtypes = (*cls.dtypes, *(None,) * (256 - len(cls.dtypes)))
        cls.bits = bytes([0 if dtype is None else dtype.bits for dtype in cls.dtypes])
        cls.sized = [code for code, count in enumerate(cls.bits) if count == DECLARED]
        cls.ndims = frozenset(range(cls.min_ndim, cls.max_ndim + 1))  # faster than a range
        cls.native = scans.row_rules(cls)

    def __init__(self, base: int, file_size: int, declared: int = U64_MAX, *, lax: bool = False) -> None:
        if self.native is None:
            self._complete()
        self.base: int = base
        room = file_size - base
        if room < 0:  # noqa: PLR1730 - half the time; the padding before the data is cut off
            room = 0
        self.room: int = room
        self.declared: int = declared
        self.data_size: int = declared if declared < room else room  # noqa: FURB136 - half the time
        self.lax: bool = lax

    @classmethod
    def varied(cls, **attributes: Any) -> type[Self]:
        """Return rules with other `attributes`, for a file that declares its own, such as the alignment."""
        return type(cls.__name__, (cls,), {"__slots__": (), **attributes})
