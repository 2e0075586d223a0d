"""Reads the header of a GGUF file, whose end only a scan (in C) can find, and finds its key-values."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from weightmap import native
from weightmap.dtypes import DTYPES, GGML_SCHEMES
from weightmap.errors import FormatError, UnsupportedError, cut_off, too_many
from weightmap.lazy import later, np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightmap.io.source import Source
    from weightmap.options import Options

_check = later("weightmap.formats.gguf.faults", "check")
MAGIC = b"GGUF"
U32, STRING, ARRAY = 4, 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Codes of types, by the names of dtypes and of schemes. Nothing decodes the opaque ones.
DENSE = {
    "float32": 0,
    "float16": 1,
    "int8": 24,
    "int16": 25,
    "int32": 26,
    "int64": 27,
    "float64": 28,
    "bfloat16": 30,
}
OPAQUE = {"q8_1": 9, "q8_k": 15}
CODES = DENSE | OPAQUE | GGML_SCHEMES
TYPES = {code: name for name, code in CODES.items()}
# Types in blocks: elements and bytes of one.
BLOCKS = {name: native.ggml_block(code) for name, code in GGML_SCHEMES.items()}
BLOCKS |= {"q8_1": (32, 40), "q8_k": (256, 292)}
DEFAULT_ALIGNMENT, ALIGNMENT_UNIT = 32, 8
ALIGNMENT = "general.alignment"
TOKENS = "tokenizer.ggml.tokens"
SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
# The keys of each special id, by our names. gguf-py misspells "separator".
SPECIAL_IDS: dict[str, tuple[str, ...]] = {
    "bos": ("tokenizer.ggml.bos_token_id",),
    "eos": ("tokenizer.ggml.eos_token_id",),
    "unk": ("tokenizer.ggml.unknown_token_id",),
    "pad": ("tokenizer.ggml.padding_token_id",),
    "sep": ("tokenizer.ggml.separator_token_id", "tokenizer.ggml.seperator_token_id"),
    "cls": ("tokenizer.ggml.cls_token_id",),
    "mask": ("tokenizer.ggml.mask_token_id",),
}
VERSIONS = (1, 2, 3)
# Bytes of the second read, if the first page does not hold the header; each further read doubles the total.
_FIRST = 1 << 16
_POSITIONS = native.U32_MAX - 1
_NATIVE = native.gguf_types(
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

    def __init__(self, path: str, data: bytes | bytearray, scan: native.GGUFHeader, version: int) -> None:
        self.path: str = path
        self.data: bytes | bytearray = data
        self.scan: native.GGUFHeader = scan
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
        """Return type, number and first position of the items of the array whose item type is at `at`."""
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


def read_header(source: Source, head: bytes, options: Options) -> tuple[Header, native.Columns]:
    """Read the header of a file; return it, and the columns of its tensor infos."""
    version, big, n_tensors, n_values, at = _beginning(source, head, options)
    limit = min(source.size, options.limits.max_header_bytes, _POSITIONS)
    scan = native.GGUFHeader(limit, at, n_values, n_tensors, version, big=big, lax=not options.strict)
    data: bytes | bytearray = head[:limit]
    while (found := scan.values(data)) is False:
        data = _extended(source, data, scan.wanted, limit)
    if found is not True:
        _check(found, scan, data, source, options, TYPES, of_tensors=False)
    columns, found = scan.tensors(data, _NATIVE, n_tensors)
    while found is False:
        data = _extended(source, data, scan.wanted, limit)
        columns, found = scan.tensors(data, _NATIVE, n_tensors)
    if found is not True:
        _check(found, scan, data, source, options, TYPES, of_tensors=True)
    if type(data) is bytearray:
        del data[scan.end :]
    return Header(source.name, data, scan, version), columns


def _beginning(source: Source, head: bytes, options: Options) -> tuple[int, bool, int, int, int]:
    """Return version, whether big-endian, counts of tensors and key-values, and position of the first key-value."""
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
    for count, least, field, offset in (
        (n_values, native.GGUF_VALUE_LEAST, "metadata_kv_count", 8 + counts.size // 2),
        (n_tensors, native.GGUF_TENSOR_LEAST, "tensor_count", 8),
    ):
        most = (source.size - at) // least
        if count > most:
            what = f"the file ends within its header (was the download complete?): {field}"
            raise too_many(what, count, most, field=field, offset=offset)
    return version, big, n_tensors, n_values, at


def _extended(source: Source, data: bytes | bytearray, wanted: int, limit: int) -> bytearray:
    """Read more of the file: at least up to `wanted`, and at least twice as much as before."""
    size = min(limit, max(wanted, 2 * len(data), _FIRST))
    grown = data if type(data) is bytearray else bytearray(data)
    grown += source.pread(len(grown), size - len(grown))
    return grown


def locate(header: Header, row: int) -> int | None:
    """Return the position of a tensor info, for messages, by scanning again."""
    found = header.scan.tensors(header.data, _NATIVE, row)[1]
    return found.at if isinstance(found, native.Fault) else None


def number(header: Header, at: int) -> Any:
    """Return the number whose type is at `at`; None for a string or an array."""
    code = _NUMBERS.get(header.u32(at))
    return None if code is None else struct.unpack_from(header.order + code, header.data, at + 4)[0]


def integer(header: Header, keys: Sequence[str]) -> int | None:
    """Return the value of the first of these keys that exists; None if none does or the value is not an integer."""
    at = next((at for key in keys if (at := header.find(key)) >= 0), None)
    found = None if at is None else number(header, at)
    return found if type(found) is int else None
