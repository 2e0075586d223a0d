"""The fields of both layouts of EMBD, its metadata and its vocabulary, and the errors about them."""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap import native
from weightmap.dtypes import DTYPES
from weightmap.errors import FormatError, LayoutError, TruncatedError
from weightmap.formats._base import new_vocabulary, take
from weightmap.index import Rules
from weightmap.index.columns import RecordTable
from weightmap.index.strings import StringTable
from weightmap.lazy import Record, np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from numpy.typing import NDArray

    from weightmap.dtypes import DType
    from weightmap.embeddings.vocabulary import Vocabulary
    from weightmap.io.source import Source
    from weightmap.options import Options


MAGIC, MAGIC_END = b"EMBD", b"DBME"
DTYPE_NAMES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8")
HEADER = struct.Struct("<4s2H8I2Q2I")
FOOTER = struct.Struct("<2I4sI")
DESCRIPTOR = RecordTable.RECORD
VOCAB_HEADER = struct.Struct("<3I")
SPECIAL = struct.Struct("<5I")
PAIR = struct.Struct("<2I")
ALIGNMENT = 64
VOCAB_EMBEDDED, TENSORS_ALIGNED, CHECKSUM_ENABLED, COMPRESSED = 1, 2, 4, 8
MAX_NDIM = 4
SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")
NO_ID = 0xFFFFFFFF
U16_MAX, U32_MAX = 0xFFFF, 0xFFFFFFFF
REQUIRED_KEYS = (
    "model_name",
    "model_version",
    "embedding_dim",
    "vocab_size",
    "num_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "max_position_emb",
    "created_at",
)
DTYPE_LIST: tuple[DType, ...] = tuple(DTYPES[name] for name in DTYPE_NAMES)


class Header(Record):
    """The fields of the header, in their order."""

    magic: bytes
    version_major: int
    version_minor: int
    flags: int
    metadata_offset: int
    metadata_size: int
    vocab_offset: int
    vocab_size: int
    tensor_index_offset: int
    tensor_index_count: int
    tensor_data_offset: int
    tensor_data_size: int
    total_file_size: int
    header_checksum: int
    reserved: int

    def packed(self) -> bytes:
        """Return its bytes."""
        return HEADER.pack(*self.values())


# The offset of each field, for messages.
OFFSETS = dict(zip(Header.__annotations__, (0, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 60), strict=True))
# Index of a field in the plain tuple that opening uses, which is faster than a `Header`.
TOTAL_FILE_SIZE = list(OFFSETS).index("total_file_size")


def field_error(cls: type[FormatError], field: str, actual: Any, expected: Any, what: str | None = None) -> FormatError:
    """Return an error about a field of the header."""
    return cls(what or field, field=field, offset=OFFSETS[field], actual=actual, expected=expected)


def check_gap(field: str, end: int, start: int) -> None:
    """Check that at most 63 bytes of padding lie between two sections."""
    if start - end >= ALIGNMENT:
        expected = f"at most {end + ALIGNMENT - 1}: the section before it ends at {end}"
        raise field_error(LayoutError, field, start, expected, f"there is a hole before a section: {field}")


# The byte of each field in a descriptor.
_FIELDS_AT = {"name_hash": 0, "dtype": 4, "ndim": 5, "name_length": 6, "shape": 8, "data_offset": 24}


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST
    min_ndim, max_ndim = 1, MAX_NDIM
    fields = MappingProxyType({field: (field, at) for field, at in _FIELDS_AT.items()})


class _Aligned(_Rules):
    __slots__ = ()
    alignment, max_gap = ALIGNMENT, ALIGNMENT - 1


def record_rules(flags: int, base: int, size: int, file_size: int, options: Options) -> Rules:
    """Return the rules for a file whose data section has `size` bytes from `base` on."""
    kind = _Aligned if flags & TENSORS_ALIGNED else _Rules
    return kind(base, file_size, size, lax=not options.strict)


def check_table(table: RecordTable, start: int, data: int) -> None:
    """Check the descriptors, their names, and that only padding lies between the names and the data.

    `start` is the offset of the index, `data` that of the data.
    """
    table.check()
    end = start + DESCRIPTOR.size * table.count + table.names_size
    if data - end >= ALIGNMENT:
        check_gap("tensor_data_offset", end, data)


def check_metadata(raw: bytes, offset: int, warnings: list[str]) -> None:
    """Check the structure of the metadata section, its UTF-8 and the uniqueness of its keys."""
    if not raw:
        return
    if len(raw) < PAIR.size:
        expected = "at least 8, the counts that the section begins with"
        raise field_error(LayoutError, "metadata_size", len(raw), expected)
    count, total = PAIR.unpack_from(raw)
    fault = native.pairs_check(raw[PAIR.size :], count)
    if fault is not None and fault.kind == "NAME_FLOOD":
        # All else is checked. Somebody made the hashes collide, or there are very many keys: a set is bounded for any
        # keys, because a secret keys its hash.
        keys: set[bytes] = set()
        for number, (key, _) in enumerate(_pairs(raw)):
            if key in keys:
                raise _repeated(number, offset)
            keys.add(key)
    elif fault is not None:
        raise _metadata_error(fault, count, raw, offset)
    if total != len(raw) - PAIR.size:
        expected = f"expected {len(raw) - PAIR.size} (at byte {offset + 4})"
        warnings.append(f"total_size of the metadata is {total}, {expected}")


def _metadata_error(fault: native.Fault, count: int, raw: bytes, offset: int) -> FormatError:
    at = offset + PAIR.size + fault.at
    if fault.kind == "NAME_UTF8":
        return FormatError(f"metadata entry {fault.row} is not UTF-8", field="metadata", offset=at)
    if fault.kind == "NAME_RANGE" and fault.row == count:
        expected = f"{fault.at + PAIR.size}: the {count} entries end there"
        return field_error(LayoutError, "metadata_size", len(raw), expected)
    if fault.kind == "NAME_RANGE":
        expected = f"fewer, or a section longer than {len(raw)} bytes: entry {fault.row} runs past its end"
        what = "metadata entry_count"
        return TruncatedError(what, field="entry_count", offset=offset, actual=count, expected=expected)
    return _repeated(fault.row, offset)


def _repeated(number: int, offset: int) -> FormatError:
    msg = f"metadata entry {number} repeats the key of an earlier entry"
    return LayoutError(msg, field="metadata", offset=offset)


def _pairs(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of the entries, after their structure was checked."""
    at = PAIR.size
    while at < len(raw):
        key, value = struct.unpack_from("<2H", raw, at)
        middle = at + 4 + key
        yield raw[at + 4 : middle], raw[middle : middle + value]
        at = middle + value


def load_metadata(raw: bytes, offset: int) -> dict[str, Any]:
    """Return the entries, in file order."""
    check_metadata(raw, offset, [])
    return {str(key, "utf-8"): str(value, "utf-8") for key, value in _pairs(raw)}


def vocabulary(source: Source, head: bytes, header: Header) -> Callable[[], Vocabulary]:
    """Read the sub-header, and return what makes the vocabulary; special ids and tokens are read at the first use."""
    start, size = header.vocab_offset, header.vocab_size
    least = VOCAB_HEADER.size + SPECIAL.size
    if size < least:
        raise field_error(TruncatedError, "vocab_size", size, f"at least {least}")
    count, total, special = VOCAB_HEADER.unpack(take(source, head, start, VOCAB_HEADER.size))
    if count > (size - least) // 2:
        what, expected = "vocabulary token_count", f"at most {(size - least) // 2}: a token takes 2 bytes or more"
        raise TruncatedError(what, field="token_count", offset=start, actual=count, expected=expected)
    if total != size - least:
        cls = TruncatedError if total > size - least else LayoutError
        what, expected = "vocabulary total_size", f"{size - least}, from vocab_size"
        raise cls(what, field="total_size", offset=start + 4, actual=total, expected=expected)
    # Absolute when that lies within the vocabulary, else relative to it.
    behind, before = start + size - SPECIAL.size, start + VOCAB_HEADER.size
    at = special if start <= special <= behind else start + special
    if at not in (behind, before):
        what, expected = "vocabulary special_tokens", f"{behind} or {before}: the ids lie behind or before the tokens"
        raise LayoutError(what, field="special_tokens", offset=start + 8, actual=special, expected=expected)
    first = before if at == behind else before + SPECIAL.size

    def load() -> StringTable:
        return string_table(source.section(first, first + total), count, first, 2)

    def special_ids() -> dict[str, int]:
        ids = SPECIAL.unpack(source.pread(at, SPECIAL.size))
        return {name: i for name, i in zip(SPECIAL_NAMES, ids, strict=True) if i != NO_ID}

    return lambda: new_vocabulary(load, count, special_ids)


def string_table(data: NDArray[np.uint8] | bytes, count: int, at: int, width: int) -> StringTable:
    """Return the table of tokens. Raises `LayoutError` when they do not fill their section exactly."""
    bounds = np.empty(count + 1, np.uint32)
    walked = native.walk_strings(data, count, width, bounds)
    if walked != len(data):
        what = f"token {-1 - walked} runs past the end of the vocabulary"
        if walked >= 0:
            what = f"the {count} tokens end before the vocabulary does"
        raise LayoutError(what, field="vocabulary", offset=at + max(walked, 0))
    table = StringTable(data, bounds, width, "token")
    table.end = at + len(data)
    return table
