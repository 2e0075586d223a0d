"""GGUF, the format of llama.cpp: ``"GGUF" | u32 version | u64 tensor_count | u64 metadata_kv_count``.

Key-values and tensor infos follow, then zeros up to a multiple of the alignment, then the data section.

Encoding
--------
* Key-value: ``key | u32 value_type | value``. Types: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool (a byte 0
  or 1), 8 string, 9 array, 10 u64, 11 i64, 12 f64. Keys are strings: a u64 length and UTF-8. An array is
  ``u32 type | u64 count | items``; items may be arrays. A key has at most 65,535 bytes and occurs once.
* Tensor info: ``name | u32 n_dimensions (0 to 4) | u64 x n_dimensions | u32 type | u64 offset``. The fastest dimension
  comes first: numpy's shapes are reversed. Offsets count from the beginning of the data section.
* ``general.alignment``, a u32 and a multiple of 8, by default 32, aligns the data section and every offset.
* Tensors have gguf-py's types, see `TYPES`. A row of a block type consists of whole blocks.
* Version 2 is the same as version 3; version 1 has u32 lengths, counts and dimensions. If the low 16 bits of the
  version are 0, the file is big-endian: the bytes of every number behind the magic are swapped.
* ``split.no`` and ``split.count`` number the parts of a model in several files, ``x-00001-of-00003.gguf``. If a file is
  the first part, by these numbers or by its name, opening it opens all parts; any other part opens alone, with a
  warning. For shards, `save` and `convert` write these two keys, as u16, and ``split.tensors.count``, an i32: the
  number of tensors in all parts.

Our choices, where the specification is silent or implementations differ
------------------------------------------------------------------------
* Each tensor begins at the first multiple of the alignment after the one before. The header may list tensors in any
  order; iteration follows the order of their data. Padding is zero, which `verify` checks.
* A file ends with its last tensor or the padding of this tensor. A file without tensors may end with its header;
  writing pads it to at most 4,096 bytes. The place of an empty tensor also lies within the file.
* ``general.alignment`` describes the layout of a file: `convert` takes it only from GGUF files.
* Schemes have the names of types in lower case, such as "q4_k". Nothing decodes Q8_1 and Q8_K: they are listed, copied
  to other GGUF files, and returned as bytes.
* ``comfy.gguf.orig_shape.NAME``, i32 or i64, is the shape of a tensor before ComfyUI's converter laid it out in rows of
  whole blocks: the tensor has this shape, and blocks may reach from one row into the next. A shape with another number
  of elements is refused; ``strict=False`` keeps the stored shape. Tensors whose rows are not whole blocks are written
  in this way.
* A tensor with more than four dimensions is refused, as in llama.cpp. ``strict=False`` reads up to 64, as gguf-py does:
  ComfyUI adds convolution weights with five dimensions to files of video models.
* A type that is not in the list is refused. ``strict=False`` shows tensors of such types, at most 128 types, as bytes,
  up to the next tensor or the end of the file. Their dtype is "gguf_" and the number of the type.
* Arrays of big-endian files are big-endian. In such files, looking up blocks, or bfloat16, which has no byte order in
  numpy, raises an `UnsupportedError`.
* Arrays nest at most 64 deep. Strings in arrays are checked for UTF-8 on use, and by `verify`; all other strings when
  the file is opened.
* Metadata are plain values; an array of numbers is a read-only ndarray, and an array of strings is a sequence that
  decodes on use. `convert`, and `save` with ``f.metadata``, its copy or ``f.metadata | {...}``, keep the types of
  values that were read. New values may be bool, str, int (i32, else i64, else u64), float (f32 if exact, else f64) and
  lists of one of these; numpy's scalars and arrays keep their types. An empty list becomes an array of i32.
* To formats without types, `convert` also writes an entry with the types, and restores them on the way back: see
  `weightmap.conversion.metadata`.
* `vocab` reads ``tokenizer.ggml.tokens``, if it is an array of strings; a repeated token has the id of its first
  place. Special ids are ``tokenizer.ggml.{bos,eos,unknown,padding,separator,cls,mask}_token_id`` (also "seperator",
  gguf-py's spelling), under the names bos, eos, unk, pad, sep, cls and mask.
* `save` writes version 3, little-endian, with tensors in the given order; the last tensor is padded.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, overload

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes.open_source import called
from weightmap.core.dtypes import DECLARED, DTYPES, GGML_SCHEMES, NUMPY_MAX_NDIM, SCHEMES, DType
from weightmap.core.faults import cut_off, nonzero_padding, too_many
from weightmap.core.formats._base import TYPED, Content, Format, new_vocabulary, trailing
from weightmap.core.hooks import later
from weightmap.core.native import access, checksums, scans
from weightmap.core.table import Rules, StringTable
from weightmap.core.table.columns import ColumnTable
from weightmap.errors import FormatError, LayoutError, LimitError, Remedy, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification
    from weightmap.core.formats._writing import NumberedPart
    from weightmap.core.quant.blocks import QuantizedTensor
    from weightmap.core.table.table import Row, Table
    from weightmap.core.table.vocabulary import Vocabulary

# Imported late: only parts of a model, and look-ups of tensors, need these.
_numbered_part: Callable[..., NumberedPart] = later("weightmap.core.formats._writing", "NumberedPart")
_ggml_tensor: Callable[..., QuantizedTensor] = later("weightmap.core.quant.ggml", "GgmlTensor")

# Turns faults of the GGUF scan into errors with a message.

# The remedy by kind of fault and expected value; none if ``strict=False`` is set already.
_REMEDIES = {
    ("TABLE_DTYPE", 0): Remedy("{} reads the other tensors, and shows the bytes of this one", "strict", value=False),
    ("TABLE_NDIM", 4): Remedy("{} reads up to 64, and ComfyUI writes 5", "strict", value=False),
}
# For each kind of fault: the class of the error, the fault, its field (if any), and the expected value.
_WORDS: dict[str, tuple[type[FormatError], str, str, str]] = {
    "GGUF_KEY": (FormatError, "length of its key", "key", "at most {}"),
    "GGUF_KEY_UTF8": (FormatError, "its key is not UTF-8", "key", ""),
    "GGUF_TYPE": (UnsupportedError, "type of a value", "value_type", "less than {}"),
    "GGUF_BOOL": (FormatError, "a bool", "value", "0 or 1"),
    "GGUF_UTF8": (FormatError, "its value is not UTF-8", "value", ""),
    "GGUF_DEPTH": (LimitError, "depth of nested arrays", "value", "at most {}"),
    "GGUF_BLOCK": (LayoutError, "its first dimension", "dimensions", "a multiple of {}, the elements of a block"),
    "TABLE_NDIM": (FormatError, "n_dimensions", "n_dimensions", "0 to {}"),
    "TABLE_DTYPE": (UnsupportedError, "type", "type", "one of {types}"),
    "TABLE_OVERFLOW": (LayoutError, "the product of its shape exceeds 2**63 - 1 bytes", "dimensions", ""),
    "TABLE_RANGE": (LayoutError, "offset", "offset", "at most {}, or the end of the tensor overflows"),
}


def check(
    fault: access.Fault,
    scan: scans.GGUFHeader,
    data: bytes | bytearray,
    source: Source,
    options: Options,
    types: Mapping[int, str],
    *,
    of_tensors: bool,
) -> None:
    """Raise the error for a fault of a scan that knows `types`, by their codes.

    Keys with colliding hashes are compared first, because they may differ.
    """
    kind, at, actual, expected = fault.kind, fault.at, fault.actual, fault.expected
    if kind == "NAME_FLOOD":
        first, second = _repeated(data, scan)
        if second < 0:
            return
        raise _twice(data, scan, first, second)
    if kind == "NAME_DUPLICATE":
        raise _twice(data, scan, expected, fault.row)
    if kind in ("GGUF_END", "GGUF_COUNT"):
        needed = at + (expected if kind == "GGUF_END" else actual)
        if scan.limit < source.size and needed <= source.size:
            # A count gives only the least size of the items: the header needs at least one byte above the limit.
            nbytes = max(needed, scan.limit + 1)
            options.limits.check("max_header_bytes", nbytes, "size of the header (or more)", offset=at)
            raise LimitError(
                "size of the header", offset=at, actual=nbytes, expected=f"at most {scan.limit}, for 32-bit positions"
            )
    label = f"tensor info {fault.row}" if of_tensors else _label(data, scan, fault)
    codes = ", ".join(f"{code} {name}" for code, name in types.items())
    raise _error(fault, label, source.size, codes, field="tensor_infos" if of_tensors else "metadata_kv")


def _error(fault: access.Fault, label: str, size: int, types: str, field: str) -> FormatError:
    if fault.kind == "GGUF_END":
        return cut_off(label, size, fault.at + fault.expected, field=field)
    if fault.kind == "GGUF_COUNT":
        what = f"the file ends within {label} (was the download complete?): a count or length"
        return too_many(what, fault.actual, fault.expected, field=field, offset=fault.at)
    cls, what, its_field, expected = _WORDS.get(fault.kind, (FormatError, "the header is damaged", "", ""))
    error = cls(f"{label}: {what}", field=its_field or field, offset=fault.at)
    if expected:
        error.actual, error.expected = fault.actual, expected.format(fault.expected, types=types)
    error.remedy = _REMEDIES.get((fault.kind, fault.expected))
    if fault.kind == "TABLE_DTYPE" and fault.expected:  # not strict, and more unknown types than a table can number
        error.expected = f"one of {types}, or of at most {fault.expected} others"
    return error


def _label(data: bytes | bytearray, scan: scans.GGUFHeader, fault: access.Fault) -> str:
    """Name a key-value by its number, and by its key if the key can be read."""
    label = f"key-value {fault.row}"
    width = 4 if scan.version == 1 else 8
    begin = scan.pos + width
    length = int.from_bytes(data[scan.pos : begin], "big" if scan.big else "little")
    if fault.at < begin + length:
        return label
    return f"{label}, {quoted(data[begin : begin + length].decode(errors='replace'))}"


def _repeated(data: bytes | bytearray, scan: scans.GGUFHeader) -> tuple[int, int]:
    """Return the numbers of the first two equal keys, or (-1, -1); a file cannot make Python's hashes collide."""
    row_of: dict[bytes, int] = {}
    for row, (first, last) in enumerate(scan.keys().tolist()):
        other = row_of.setdefault(bytes(data[first:last]), row)
        if other != row:
            return other, row
    return -1, -1


def _twice(data: bytes | bytearray, scan: scans.GGUFHeader, first: int, second: int) -> LayoutError:
    begin, end = scan.keys()[second].tolist()
    key = quoted(bytes(data[begin:end]).decode(errors="replace"))
    what = f"key-values {first} and {second} both have the key {key}"
    return LayoutError(what, field="key", offset=begin - (4 if scan.version == 1 else 8))


# ----------------------------------------------------------------------------------------------------
# Reads the header of a GGUF file, whose end only a scan (in C) can find, and its key-values.

MAGIC = b"GGUF"
U32, STRING, ARRAY = 4, 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Codes of types, by the names of dtypes and of schemes. Nothing decodes the opaque ones.
_DENSE = ("float32", "float16", "int8", "int16", "int32", "int64", "float64", "bfloat16")
DENSE = dict(zip(_DENSE, (0, 1, 24, 25, 26, 27, 28, 30), strict=True))
OPAQUE = {"q8_1": 9, "q8_k": 15}
CODES = DENSE | OPAQUE | GGML_SCHEMES
TYPES = {code: name for name, code in CODES.items()}
# Elements and bytes of a block, by type.
BLOCKS = {name: scans.ggml_block(code) for name, code in GGML_SCHEMES.items()}
BLOCKS |= {"q8_1": (32, 40), "q8_k": (256, 292)}
DEFAULT_ALIGNMENT, ALIGNMENT_UNIT = 32, 8
ALIGNMENT = "general.alignment"
SHAPE_OF = "comfy.gguf.orig_shape."
_SHAPES = ((ARRAY, 5), (ARRAY, 11))
TOKENS = "tokenizer.ggml.tokens"
SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
# The keys of special ids, by our names. gguf-py misspells "separator".
_IDS = {"unk": ("unknown",), "pad": ("padding",), "sep": ("separator", "seperator")}
SPECIAL_IDS: dict[str, tuple[str, ...]] = {
    name: tuple(f"tokenizer.ggml.{word}_token_id" for word in _IDS.get(name, (name,)))
    for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
}
VERSIONS = (1, 2, 3)
# Bytes of the second read, if the first page does not hold the header; each further read doubles the total.
_FIRST = 1 << 16
_POSITIONS = access.U32_MAX - 1
_NATIVE = scans.gguf_types(
    [(code, *BLOCKS[name]) if name in BLOCKS else (code, 1, DTYPES[name].bits >> 3) for code, name in TYPES.items()]
)


def aligned(size: int, alignment: int) -> int:
    """Round `size` up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


class Header:
    """A header in private bytes.

    Attributes
    ----------
    path : str
        Name of the file, for messages.
    data : bytes or bytearray
        The file from its beginning, at least to the end of the header.
    scan : GGUFHeader
        Result of the scan.
    order : str
        Byte order of numbers, as `struct` spells it: "<" or ">".
    alignment : int
    end, base : int
        End of the header, and beginning of the data section.
    """

    __slots__ = ("_octets", "alignment", "base", "data", "end", "order", "path", "scan", "version")

    def __init__(self, path: str, data: bytes | bytearray, scan: scans.GGUFHeader, version: int) -> None:
        self.path: str = path
        self.data: bytes | bytearray = data
        self.scan: scans.GGUFHeader = scan
        self.version: int = version
        self.order = ">" if scan.big else "<"
        self.end: int = scan.end
        self._octets: NDArray[np.uint8] | None = None
        self.alignment: int = self._find_alignment()
        self.base: int = aligned(self.end, self.alignment)

    @property
    def octets(self) -> NDArray[np.uint8]:
        """The bytes as a read-only array."""
        octets = self._octets
        if octets is None:
            octets = self._octets = np.frombuffer(self.data, np.uint8)
            octets.flags.writeable = False
        return octets

    @property
    def width(self) -> int:
        """Bytes of a length or count."""
        return 4 if self.version == 1 else 8

    def find(self, key: str) -> int:
        """Return the position of the value (its type) of a key, or -1."""
        return self.scan.find(self.data, key.encode())

    def u32(self, at: int) -> int:
        """Return the u32 at position `at`, such as a type."""
        return int(struct.unpack_from(f"{self.order}I", self.data, at)[0])

    def count(self, at: int) -> int:
        """Return the length or count at position `at`."""
        return int(struct.unpack_from(f"{self.order}{'I' if self.version == 1 else 'Q'}", self.data, at)[0])

    def array(self, at: int) -> tuple[int, int, int]:
        """Return type, number and position of the items of an array, whose item type is at `at`."""
        return self.u32(at), self.count(at + 4), at + 4 + self.width

    def _find_alignment(self) -> int:
        at = self.find(ALIGNMENT)
        if at < 0:
            return DEFAULT_ALIGNMENT
        kind = self.u32(at)
        if kind != U32:
            raise FormatError(
                f"value_type of {ALIGNMENT}", field=ALIGNMENT, offset=at, actual=kind, expected=f"{U32}, u32"
            )
        value = self.u32(at + 4)
        if not value or value % ALIGNMENT_UNIT:
            expected = f"a multiple of {ALIGNMENT_UNIT}"
            raise FormatError(ALIGNMENT, field=ALIGNMENT, offset=at + 4, actual=value, expected=expected)
        return value


def read_header(source: Source, head: bytes, options: Options) -> tuple[Header, scans.Columns]:
    """Read the header of a file; return it, and the columns of its tensor infos."""
    version, big, n_tensors, n_values, at = _beginning(source, head, options)
    limit = min(source.size, options.limits.max_header_bytes, _POSITIONS)
    scan = scans.GGUFHeader(limit, at, n_values, n_tensors, version, big=big, lax=not options.strict)
    data: bytes | bytearray = head[:limit]
    while (end := scan.values(data)) is False:
        data = _extended(source, data, scan.needed, limit)
    if end is not True:
        check(end, scan, data, source, options, TYPES, of_tensors=False)
    columns, end = scan.tensors(data, _NATIVE, n_tensors)
    while end is False:
        data = _extended(source, data, scan.needed, limit)
        columns, end = scan.tensors(data, _NATIVE, n_tensors)
    if end is not True:
        check(end, scan, data, source, options, TYPES, of_tensors=True)
    if type(data) is bytearray:
        del data[scan.end :]
    return Header(source.name, data, scan, version), columns


def _beginning(source: Source, head: bytes, options: Options) -> tuple[int, bool, int, int, int]:
    """Return the version, whether big-endian, the counts of tensors and key-values, and the first one's position."""
    if head[:4] != MAGIC:
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=repr(MAGIC))
    version, big = int.from_bytes(head[4:8], "little"), False
    if version & 0xFFFF == 0:
        version, big = int.from_bytes(head[4:8], "big"), True
    if len(head) >= 8 and version not in VERSIONS:
        raise UnsupportedError("version", field="version", offset=4, actual=version, expected="1, 2 or 3")
    counts = struct.Struct(f"{'>' if big else '<'}{'II' if version == 1 else 'QQ'}")
    at = 8 + counts.size
    if len(head) < at:
        raise cut_off("tensor_count and metadata_kv_count", source.size, at)
    n_tensors, n_values = counts.unpack_from(head, 8)
    options.limits.check("max_tensors", n_tensors, "tensor_count", offset=8)
    for count, item_nbytes, field, offset in (
        (n_values, scans.MIN_GGUF_VALUE, "metadata_kv_count", 8 + counts.size // 2),
        (n_tensors, scans.MIN_GGUF_TENSOR, "tensor_count", 8),
    ):
        max_count = (source.size - at) // item_nbytes
        if count > max_count:
            what = f"the file ends within its header (was the download complete?): {field}"
            raise too_many(what, count, max_count, field=field, offset=offset)
    return version, big, n_tensors, n_values, at


def _extended(source: Source, data: bytes | bytearray, nbytes: int, limit: int) -> bytearray:
    """Read more of the file: at least up to `nbytes`, and at least twice as much as before."""
    size = min(limit, max(nbytes, 2 * len(data), _FIRST))
    grown = data if type(data) is bytearray else bytearray(data)
    grown += source.pread(len(grown), size - len(grown))
    return grown


def locate(header: Header, row: int) -> int | None:
    """Return the position of a tensor info, for messages, by scanning again."""
    place = header.scan.tensors(header.data, _NATIVE, row)[1]
    return place.at if isinstance(place, access.Fault) else None


def number(header: Header, at: int) -> Any:
    """Return the number whose type is at `at`; None for a string or an array."""
    code = _NUMBERS.get(header.u32(at))
    return None if code is None else struct.unpack_from(header.order + code, header.data, at + 4)[0]


def integer(header: Header, keys: Sequence[str]) -> int | None:
    """Return the value of the first of these keys that exists; None if none does or the value is not an integer."""
    at = next((at for key in keys if (at := header.find(key)) >= 0), None)
    value = None if at is None else number(header, at)
    return value if type(value) is int else None


# ----------------------------------------------------------------------------------------------------
# Turns the key-values of a GGUF file into metadata: plain values, arrays, and strings decoded on use.

# numpy's codes by GGUF's codes. A bool is a byte; the scan has checked that it is 0 or 1.
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

    # Another format's metadata must allow these kinds to take this: see `weightmap.conversion.metadata`.
    kinds: ClassVar[frozenset[str]] = frozenset({"list", "text"})

    def __init__(self, load: Callable[[], StringTable], count: int) -> None:
        self._load = load
        self._count = count
        self._table: StringTable | None = None

    @classmethod
    def of(cls, texts: Sequence[str]) -> Strings:
        """Return these texts as an array in memory."""
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
    """The metadata of a file, which remember the types of their values.

    ``TensorFile.metadata`` is a read-only view of an instance. Its ``copy()`` and ``f.metadata | {...}`` keep the types
    of unchanged values; any other mapping holds new values.
    """

    __slots__ = ("_header", "_read")

    def __init__(self, content: Mapping[str, Any], header: Header, read: Mapping[str, tuple[Any, int]]) -> None:
        super().__init__(content)
        self._header = header
        self._read = read

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> KeyValues | None:
        """Return the `KeyValues` behind a mapping, or None."""
        copy = metadata.copy() if isinstance(metadata, MappingProxyType) else metadata
        return copy if isinstance(copy, cls) else None

    @property
    def types(self) -> dict[str, str]:
        """The types of unchanged values, spelt as in gguf-dump: "UINT32", "[STRING]"."""
        return {key: _type_name(self._header, at) for key, (value, at) in self._read.items() if self.get(key) is value}

    def stored(self, key: str) -> bytes | None:
        """Return the type and an unchanged value, encoded for version 3, little-endian; None for a new value."""
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
    """Return the name of the type at `at`; for an array, its item type in brackets."""
    kind = header.u32(at)
    return _array_name(header, at + 4) if kind == ARRAY else _TYPE_NAMES[kind]


def _array_name(header: Header, at: int) -> str:
    """Return the name of an array's type, given the position of its item type; the first of nested arrays counts."""
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
    value = number(header, at)
    if value is not None:
        return value
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
    """Return the type at `at` and its value, encoded for version 3, little-endian."""
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


# ----------------------------------------------------------------------------------------------------
# Checks of `TensorFile.verify` for GGUF: the parts of a file that opening does not read.


def verify(header: Header, table: Table, load_vocab: Callable[[], Vocabulary] | None, run: Verification) -> None:
    """Check the whole file: header unchanged, texts, padding, and that every byte can be read."""
    run.unchanged(run.read(0, header.end), checksums.crc32(header.octets[: header.end]), "the header")
    run.checked("header")
    for key, value in metadata(header).items():
        _check_texts(key, value)
    if "" in table.names:
        run.warn("a tensor has an empty name")
    if load_vocab is not None:
        run.vocabulary(load_vocab())
    run.checked("key-values")
    end = header.end
    for row in (*table.rows(), None):
        # The end of the file may also be padding. Overlapping tensors, which strict=False allows, have no padding.
        begin = run.source.size if row is None else row.offset
        if end < begin:
            run.until(end)
            if begin - end < header.alignment and any(run.read(end, begin - end)):
                run.tolerate(nonzero_padding("between tensors", end))
        if row is not None:
            end = max(end, row.offset + row.nbytes)
    run.checked("padding is zero")
    run.finish()


def _check_texts(key: str, value: Any) -> None:
    """Raise a `FormatError` for the first string in an array that is not UTF-8."""
    for inner in value if isinstance(value, list) else (value,):
        if isinstance(inner, list):
            _check_texts(key, inner)
        elif isinstance(inner, Strings):
            bad = inner.table.not_utf8()
            if bad >= 0:
                inner[bad]  # raises an error that names it


# The name of a file among several. A single part is a whole model.
_PART = r"(?si)(.*)-([0-9]{5})(-of-([0-9]{5})\.gguf)"
_FEWEST = 2


def _dtype(name: str, *, big: bool) -> DType:
    """Return the type of this name in a file of either byte order."""
    if name in OPAQUE:
        return DType(name, DECLARED, quantized=big)  # look-ups refuse big-endian ones, like blocks
    dense = DTYPES.get(name)
    if dense is None:
        return SCHEMES[name]
    if not big or dense.bits == 8:
        return dense
    # numpy has no big-endian bfloat16: look-ups refuse it, like blocks.
    code = dense.code
    return DType(name, dense.bits, None if code is None else code.replace("<", ">"), quantized=code is None)


def _dtypes(others: tuple[int, ...] = (), *, big: bool) -> tuple[DType | None, ...]:
    dtypes = [_dtype(TYPES[code], big=big) if code in TYPES else None for code in range(scans.GGUF_TYPES)]
    return (*dtypes, *(DType(f"gguf_{code}", DECLARED) for code in others))


class _Rules(Rules):
    __slots__ = ()
    dtypes = _dtypes(big=False)
    alignment, max_gap = 32, 31
    fields = MappingProxyType({"data_offset": ("offset", 0), "shape": ("dimensions", 0), "dtype": ("type", 0)})


@functools.lru_cache(maxsize=16)
def _rules(alignment: int, others: tuple[int, ...], *, big: bool) -> type[Rules]:
    """Return the rules of files with this alignment and byte order, and with types of the codes `others`."""
    if alignment == _Rules.alignment and not others and not big:
        return _Rules
    return _Rules.varied(dtypes=_dtypes(others, big=big), alignment=alignment, max_gap=alignment - 1)


class GGUFContent(Content):
    """The content of a GGUF file.

    Attributes
    ----------
    header : Header
        For `weightmap.compat.gguf` and the command line, which show its raw values.
    """

    header: Header


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header and return the table of tensors."""
    header, columns = read_header(source, head, options)
    scan, others, warnings = header.scan, header.scan.others, list[str]()
    ordered = scan.ordered or columns.count < 2
    rules = _rules(header.alignment, others, big=bool(scan.big))(header.base, source.size, lax=not options.strict)
    if columns.count and not scan.data_end and source.size < header.base:  # look-ups of empty tensors would fail
        raise cut_off("the padding behind its header", source.size, header.base, field="size")
    order = None if ordered else columns.order()
    if order is not None:
        columns = columns.take(order)
    if others:
        scan.reach(columns, rules.room)
        codes = ", ".join(map(str, others))
        warnings.append(f"tensors of types that weightmap does not know are shown as bytes (type codes: {codes})")
    _check_end(source, header, options, warnings)
    columns = _reshaped(columns, header, options, warnings)

    def where(row: int) -> int | None:
        return locate(header, row if order is None else int(order[row]))

    table = ColumnTable(columns, rules, utf8=True, locate=where)
    if options.checked:
        table.check()
    vocab = _vocabulary(header)
    check_all = functools.partial(verify, header, table, vocab)
    content = GGUFContent("gguf", table, functools.partial(metadata, header), check_all, warnings)
    content.header = header
    content.load_vocab = vocab
    content.part = _part(source, header)
    table.quantized = _swapped if scan.big else _BLOCKS
    return content


def _reshaped(columns: scans.Columns, header: Header, options: Options, warnings: list[str]) -> scans.Columns:
    """Return the columns with the shapes from key-values."""
    data, prefix, shapes = header.data, SHAPE_OF.encode(), dict[int, list[int]]()
    places = {bytes(data[i:j]): j for i, j in header.scan.keys().tolist() if data.startswith(prefix, i)}
    for row in range(columns.count) if places else ():
        key = prefix + columns.name(row)
        if (at := places.get(key, -1)) < 0:
            continue
        kinds, ndim = (header.u32(at), header.u32(at + 4)), header.count(at + 8)
        shape = array_at(header, at + 4).tolist() if kinds in _SHAPES and ndim <= NUMPY_MAX_NDIM else [-1]
        count = math.prod(columns.dims[columns.dim_bounds[row] : columns.dim_bounds[row + 1]])
        if min(shape, default=0) >= 0 and math.prod(shape) == count:
            shapes[row] = shape
        else:
            what, expected = quoted(key.decode(errors="replace")), f"an array of integers whose product is {count}"
            options.tolerate(LayoutError(what, field="metadata_kv", offset=at, expected=expected), warnings)
    return columns.with_shapes(shapes) if shapes else columns


def _check_end(source: Source, header: Header, options: Options, warnings: list[str]) -> None:
    """Check that the file ends with its last tensor, or with the padding of this tensor."""
    data_end = header.scan.data_end
    end = header.base + data_end if data_end else header.end
    padded = aligned(end, header.alignment)
    if end < source.size < padded:
        if any(source.pread(end, source.size - end)):
            padded = end
        else:
            options.tolerate(cut_off("the padding of its last tensor", source.size, padded, field="size"), warnings)
            return
    trailing(source, padded, options, warnings)


def _part(source: Source, header: Header) -> NumberedPart | None:
    """Return the number of this part of a model in several files; None for a whole model."""
    number, count = integer(header, (SPLIT_NO,)), integer(header, (SPLIT_COUNT,))
    if number is None or count is None or count < _FEWEST:
        return None
    match = re.fullmatch(_PART, called(source.path or ""))
    names: tuple[str, ...] = ()
    if match is not None and int(match[4]) == count and (number == 0 or int(match[2]) == 1):
        numbers = (i for i in range(1, count + 1) if i != int(match[2]))
        names = tuple(f"{match[1]}-{i:05}{match[3]}" for i in numbers)
    keys = frozenset((SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS))
    return _numbered_part(number, count, integer(header, (SPLIT_TENSORS,)), names, keys)


def _vocabulary(header: Header) -> Callable[[], Vocabulary] | None:
    at = header.find(TOKENS)
    if at < 0 or header.u32(at) != ARRAY:
        return None
    kind, count, _ = header.array(at + 4)
    if kind != STRING:
        return None

    def load() -> StringTable:
        return string_table(header, at, "token")

    def special_ids() -> dict[str, int]:
        ids = {name: integer(header, keys) for name, keys in SPECIAL_IDS.items()}
        return {name: i for name, i in ids.items() if i is not None}

    return lambda: new_vocabulary(load, count, special_ids)


class _Blocks:
    """Quantised tensors of little-endian files: see `Table.quantized`."""

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        return _ggml_tensor(row.dtype.name, row.shape, octets)

    def layout(self, row: Row, head: bytes) -> tuple[int, int, str]:
        """Return the payload's offset, the elements of a block, and the type of scales."""
        del head
        return 0, BLOCKS[row.dtype.name][0], _scale_type(row.dtype.name)

    def glance(self, row: Row, source: Source) -> tuple[int, int, str]:
        """Return the same as `layout`: blocks have no header to check."""
        del source
        return self.layout(row, b"")


@functools.cache
def _scale_type(scheme: str) -> str:
    return _ggml_tensor(scheme, (0, BLOCKS[scheme][0]), b"").scale_type


_BLOCKS = _Blocks()


def _swapped(row: Row, octets: NDArray[np.uint8]) -> NoReturn:
    del octets
    what = f"big-endian data of type {row.dtype.name}"
    raise UnsupportedError(what, field="type", offset=row.offset, expected="a little-endian file for this type")


FORMAT = Format(
    name="gguf",
    title="GGUF",
    suffixes=(".gguf",),
    layouts=("gguf",),
    parse=parse,
    plan=later(f"{__name__}.writing", "plan"),
    carries={"gguf": frozenset({"metadata", "vocab", "special_ids"})},
    dtypes={"gguf": frozenset(DENSE | OPAQUE)},
    schemes={"gguf": frozenset(GGML_SCHEMES)},
    magic=MAGIC,
    metadata_kinds=TYPED,
    vocab_keys={TOKENS: None, **{key: name for name, keys in SPECIAL_IDS.items() for key in keys}},
    own_keys=frozenset({ALIGNMENT}),
    special_ids=frozenset(SPECIAL_IDS),
    aligns={"gguf": 4096},
    numbered=True,
    program="llama.cpp",
    expected_keys={"general.architecture": "llama.cpp will not load this file; tensors keep the names of the source"},
)
