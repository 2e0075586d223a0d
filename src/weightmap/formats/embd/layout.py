"""The fields of both layouts of EMBD, and the errors about them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.dtypes import DTYPES
from weightmap.errors import FormatError, LayoutError
from weightmap.formats.embd import DTYPE_NAMES
from weightmap.index.records import RecordTable

if TYPE_CHECKING:
    from weightmap.dtypes import DType

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


class Header(NamedTuple):
    """The header, field by field: ``Header._make(HEADER.unpack_from(raw))``."""

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
