"""The fields of both layouts of EMBD, and the errors about them."""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap.dtypes import DTYPES
from weightmap.errors import FormatError, LayoutError
from weightmap.formats.embd import DTYPE_NAMES
from weightmap.index.records import RecordTable
from weightmap.index.rules import Rules
from weightmap.lazy import Named

if TYPE_CHECKING:
    from weightmap.dtypes import DType
    from weightmap.options import Options

MAGIC_END = b"DBME"
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


class Header(Named):
    """The fields of the header, in their order."""

    __slots__ = ()

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


# Where opening a file, which has no time for more than the tuple of the fields, finds one of them.
TOTAL_FILE_SIZE = Header._fields.index("total_file_size")
# The offset of each field, for messages.
OFFSETS = dict(zip(Header._fields, (0, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 60), strict=True))


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
