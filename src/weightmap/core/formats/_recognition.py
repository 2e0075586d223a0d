"""What recognises a file of each format by its first bytes or its suffix, without importing the format.

A format that is not listed here, in a file that somebody added to this folder, is imported with this package, and its
record says the same. A test compares this table with the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

# The longest header that reference implementations of length-prefixed formats allow.
MAX_HEADER = 100_000_000
# Four printable characters are at least this number, little-endian.
_PRINTABLE = 0x20202020
# The beginning of an archive without entries: its end record.
EMPTY_ARCHIVE = b"PK\5\6"
TORCH_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_CHECKPOINT_MEMBERS = (
    b"data.pkl",
    b"archive_format",
    b"archive_version",
    b"byteorder",
    b"version",
    b".format_version",
    b".storage_alignment",
    b"constants.pkl",
)
# The first member of an archive of torch.export, in one of its layouts.
TORCH_EXPORT = b"serialized_exported_program.json"
NPY_MAGIC = b"\x93NUMPY"


def never(_head: bytes, _size: int) -> bool:
    """Recognise nothing: the signs of a format that has magic bytes."""
    return False


class Signs(NamedTuple):
    """The signs of one format: the fields of these names in its record, and `written`, whether it has a `plan`."""

    suffixes: tuple[str, ...]
    written: bool
    magic: bytes = b""
    leads: bytes = b""
    sniff: Callable[[bytes, int], bool] = never


def first_name(head: bytes) -> bytes | None:
    """Return the name of the first entry of an archive that begins with these bytes; None for anything else."""
    if head[:4] == EMPTY_ARCHIVE:
        return b""
    if head[:4] != b"PK\3\4" or len(head) < 30:
        return None
    return head[30 : 30 + int.from_bytes(head[26:28], "little")]


def is_bintensors(head: bytes, size: int) -> bool:
    """Whether this looks like BinTensors: a plausible length, then the tag of an optional value."""
    return size >= 10 and head[8] <= 1 and 2 <= int.from_bytes(head[:8], "little") < _PRINTABLE


def is_npy(head: bytes, _size: int) -> bool:
    """Whether this is an array of `numpy.save`."""
    return head.startswith(NPY_MAGIC)


def is_npz(head: bytes, _size: int) -> bool:
    """Whether this is an archive of arrays, by its first entry."""
    name = first_name(head)
    return name is not None and (name.endswith(b".npy") or head[:4] == EMPTY_ARCHIVE)


def is_safetensors(head: bytes, size: int) -> bool:
    """Whether this looks like safetensors: a plausible length, then a JSON object."""
    if size < 10 or head[8:9] != b"{" or head[9:10] not in b'"} \t\n\r':
        return False
    return 2 <= int.from_bytes(head[:8], "little") <= max(MAX_HEADER, size - 8)


def is_torch(head: bytes, _size: int) -> bool:
    """Whether this is a checkpoint of PyTorch: an archive by its first entry, a legacy file by its number."""
    name = first_name(head)
    if name is not None:
        _, slash, member = name.partition(b"/")
        inside = member in _CHECKPOINT_MEMBERS or member.startswith((b"data/", b"code/", b"models/", b".data/"))
        return name == TORCH_EXPORT or (slash == b"/" and inside)
    # Protocols 4 and 5 put the number into a frame.
    return head[:1] == b"\x80" and (
        head.startswith(TORCH_MAGIC, 2) or (head[2:3] == b"\x95" and head.startswith(TORCH_MAGIC, 11))
    )


# ----------------------------------------------------------------------------------------------------------- ONNX
# The wire types of protobuf, and by the fields of a model before its graph the one that each has.
_VARINT, _BYTES, _VARINT_BITS = 0, 2, 64
_ONNX_FIELDS = {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, 8: _BYTES}
_IR_VERSION, _DOC_STRING, _GRAPH = 1, 6, 7
_MAX_IR_VERSION = 255


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place of a message, and its end. Raises IndexError for an unterminated one."""
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << _VARINT_BITS) - 1, at
    raise IndexError


def is_onnx(head: bytes, _size: int) -> bool:
    """Whether this is a model of ONNX, by its first fields, up to the graph or to a long text before it."""
    if head[4:8] == bytes(4):  # the length of a header
        return False
    tag = at = 0
    try:
        while True:
            first = not at
            tag, at = varint(head, at)
            field, kind = tag >> 3, tag & 7
            if (field, kind) == (_GRAPH, _BYTES) or first != (tag == _IR_VERSION << 3):
                return field == _GRAPH and not first
            value, at = varint(head, at)
            if _ONNX_FIELDS.get(field) != kind or (first and not 0 < value <= _MAX_IR_VERSION):
                return False
            at += value if kind == _BYTES else 0
    except IndexError:
        return tag >> 3 == _DOC_STRING and at > len(head)


SIGNS = {
    "amb": Signs((".amb",), written=True, magic=b"AMBEE"),
    "bintensors": Signs((".bt",), written=True, sniff=is_bintensors),
    "cnn_v2": Signs((".bin",), written=True, magic=b"CNN2"),
    "embd": Signs((".weights",), written=True, magic=b"EMBD"),
    "finalfusion": Signs((".fifu",), written=True, magic=b"FiFu"),
    "gguf": Signs((".gguf",), written=True, magic=b"GGUF"),
    "npy": Signs((".npy",), written=False, leads=NPY_MAGIC[:1], sniff=is_npy),
    "npz": Signs((".npz",), written=False, leads=b"P", sniff=is_npz),
    "onnx": Signs((".onnx",), written=False, leads=b"\x08", sniff=is_onnx),
    "safetensors": Signs((".safetensors",), written=True, sniff=is_safetensors),
    "torch": Signs((".pt", ".pth", ".bin", ".ckpt"), written=False, leads=b"P\x80", sniff=is_torch),
}
