"""The formats: discovered in this folder, recognised by content.

Every module here (or folder) that does not begin with an underscore defines one record called ``FORMAT``: see `_base`.
To add a format, add a file; no registration is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from weightmap.core.formats._base import CONSOLIDATE, HEAD, LOOK, Content, Format, module_names
from weightmap.core.hooks import on_demand
from weightmap.errors import EncodeError, FormatError, Remedy, TruncatedError, UnknownFormatError, UnsupportedError

if TYPE_CHECKING:
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification
    from weightmap.core.formats._writing import Filled, Importer, Payload, Request, Tensors, check_names, listed, refuse

__all__ = [
    "FORMATS",
    "HEAD",
    "Content",
    "Filled",
    "Format",
    "Importer",
    "Payload",
    "Request",
    "Tensors",
    "Verification",
    "by_name",
    "by_suffix",
    "check_names",
    "formats",
    "identify",
    "listed",
    "mistaken",
    "of_ranks",
    "refuse",
]

_WRITING = dict.fromkeys(
    ("Filled", "Importer", "Payload", "Request", "Tensors", "check_names", "listed", "refuse"), "_writing"
)
__getattr__, __dir__ = on_demand(__name__, globals(), _WRITING | {"Verification": "_verification"})

# ----------------------------------------------------------------------------------------------------
# Kinds of files that are not models, by their first bytes, for messages

_PICKLE = "this is a Python pickle, and not one of torch.save, or a damaged one: pickles are programs, and not run here"
# First bytes of files often mistaken for models, in lower case, and the message for each.
_HINTS = (
    (b"version https://git-lfs", "this is a Git LFS pointer: the file itself was never fetched (git lfs pull)"),
    (b"<!doctype", "this is an HTML page: a download went wrong"),
    (b"<html", "this is an HTML page: a download went wrong"),
    (b"<?xml", "this is an XML document: a download went wrong"),
    (b"\x1f\x8b\x08", "this is gzip: decompress it first"),
    (b"\x28\xb5\x2f\xfd", "this is zstd: decompress it first"),
    (b"bzh", "this is bzip2: decompress it first"),
    (b"\xfd7zxz", "this is xz: decompress it first"),
    (b"7z\xbc\xaf", "this is a 7-Zip archive: unpack it first"),
    (b"pk\x03\x04", "this is a ZIP archive, and neither a PyTorch checkpoint nor an .npz archive of numpy"),
    (b"\x80\x02", _PICKLE),
    (b"\x80\x03", _PICKLE),
    (b"\x80\x04\x95", _PICKLE),
    (b"\x80\x05\x95", _PICKLE),
    (b"\x89hdf", "this is HDF5, perhaps a Keras model: convert it to safetensors first"),
    (b"\x89png", "this is a PNG image"),
    (b"\xff\xd8\xff", "this is a JPEG image"),
    (b"%pdf", "this is a PDF document"),
    (b'{"', "this is JSON text: a configuration, or an error that a server sent in place of a file"),
    (b"{\n", "this is JSON text: a configuration, or an error that a server sent in place of a file"),
    (b"{\r\n", "this is JSON text: a configuration, or an error that a server sent in place of a file"),
    (b"dmbe", "this looks like EMBD with swapped bytes"),
    (b"2nnc", "this looks like CNN v2 with swapped bytes"),
)


# How to join the parts that the ranks of torch.distributed.checkpoint save.
DISTCP = (
    "to make one checkpoint of their folder, which weightmap opens, run"
    " python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt"
)
# Names that HuggingFaceStorageWriter gives to the files of a rank.
_RANK = r"shard-\d{5,}-model-\d{5,}-of-\d{5,}\.safetensors"
_METADATA = b"torch.distributed.checkpoint.metadata"


# Suffixes that weightmap does not write, and the alternative.
FOREIGN = {
    ".npz": ".npz is not written (numpy.savez(DST, **weightmap.load(SRC)) does that)",
    ".npy": ".npy holds one array, which weightmap export writes",
    ".pt": "PyTorch checkpoints are not written (torch.save does that)",
    ".pth": "PyTorch checkpoints are not written (torch.save does that)",
    ".ckpt": "PyTorch checkpoints are not written (torch.save does that)",
    ".onnx": "ONNX is not written",
    ".h5": "HDF5 is not written",
}
# Suffixes of word embeddings in text, and the names of these files for `convert`.
WORDS = {".txt": "text", ".vec": "textdims"}


def hint(head: bytes, min_length: int) -> UnknownFormatError | None:
    """Return the error that names a file's kind, recognised by at least `min_length` bytes; None for an unknown one."""
    start = head[:32].lower().lstrip()
    matches = (text for magic, text in _HINTS if len(magic) >= min_length and start.startswith(magic))
    text = _archive(head) or next(matches, None)
    if text is _PICKLE and _METADATA in head[:64]:
        text = f"this lists the tensors whose parts are in the .distcp files beside it: {DISTCP}"
    return None if text is None else UnknownFormatError(text, offset=0)


def of_ranks(names: Iterable[str], path: str) -> UnsupportedError | None:
    """Return the error for a directory where each file holds one rank's parts of tensors; None for other directories.

    `names` are the files that may be models, or all files if there are none.
    """
    suffixes = {
        ".distcp" if name.endswith(".distcp") else re.fullmatch(_RANK, name) and ".safetensors" for name in names
    }
    if ".distcp" in suffixes:
        what = f"the .distcp files of this directory hold parts of tensors, as ranks saved them: {DISTCP}"
    elif suffixes == {".safetensors"}:
        what = f"the files of this directory hold parts of tensors, as ranks saved them: {CONSOLIDATE}"
    else:
        return None
    return UnsupportedError(what, path=path)


def damaged(head: bytes, size: int) -> UnknownFormatError | None:
    """Return the error for a safetensors header whose length or first byte of JSON is wrong; None for other files."""
    length, available = int.from_bytes(head[:8], "little"), size - 8
    fits, begin = 2 <= length <= available, head[8:10]
    if begin == b'{"' and not fits:
        what = "this looks like a safetensors header whose length is damaged: it"
        return UnknownFormatError(what, offset=0, actual=length, expected=f"2 to {available}")
    if not fits or not (begin.startswith(b"{") or begin.endswith(b'"')):
        return None
    what = "this looks like a safetensors header whose JSON is damaged: its beginning"
    return UnknownFormatError(what, offset=8, actual=repr(head[8:24]), expected="""'{"'""")


def _archive(head: bytes) -> str | None:
    """Return the message for an archive, from the name of its first file; `head` may end before that."""
    if head.startswith(b"PK\3\4") and (len(head) < 30 or len(head) < 30 + int.from_bytes(head[26:28], "little") < HEAD):
        return "this is a ZIP archive that ends within the header of its first file: was the download complete?"
    if head[257:262] == b"ustar":
        return "this is a tar archive: unpack it first"
    return None


# ----------------------------------------------------------------------------------------------------
# Signs of each format: its suffixes and what recognises its first bytes, without importing the format

# Bytes of the longest header that reference implementations of length-prefixed formats allow.
MAX_HEADER = 100_000_000
# The smallest little-endian number of four printable characters.
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
    """The signs of one format: copies of these fields of its record, and `written`, whether it has a `plan`."""

    suffixes: tuple[str, ...]
    written: bool
    magic: bytes = b""
    leads: bytes = b""
    sniff: Callable[[bytes, int], bool] = never


def first_name(head: bytes) -> bytes | None:
    """Return the name of the first file of an archive that begins with these bytes; None for anything else.

    Skips entries of folders, which programs such as ``zip -r`` put before it.
    """
    name, at = b"" if head[:4] == EMPTY_ARCHIVE else None, 0
    while head[at : at + 4] == b"PK\3\4" and len(head) >= at + 30 and (name is None or name.endswith(b"/")):
        length, extra = (int.from_bytes(head[at + k : at + k + 2], "little") for k in (26, 28))
        name = head[at + 30 : at + 30 + length]
        at += 30 + length + extra
    return name


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
    """Whether this is a checkpoint of PyTorch: an archive, by its first entry, or a legacy file, by its number."""
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
# The wire types of protobuf, and the wire type of each field that may precede the graph of a model.
_VARINT, _BYTES, _FIXED, _VARINT_BITS = 0, 2, {1: 8, 5: 4}, 64
_ONNX_FIELDS = {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, 8: _BYTES}
_IR_VERSION, _DOC_STRING, _GRAPH = 1, 6, 7
_MAX_IR_VERSION = 255


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at byte `at` of a message, and its end. Raises IndexError for an unterminated one."""
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << _VARINT_BITS) - 1, at
    raise IndexError


def fields(data: bytes, what: str, field: str | None = None) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message: varints, and the bytes of texts and messages.

    Raises `FormatError`, after the last sound field, if `what` is not a message.
    """
    at = 0
    try:
        while at < len(data):
            tag, at = varint(data, at)
            kind = tag & 7
            value, at = (_FIXED[kind], at) if kind in _FIXED else varint(data, at)
            if kind == _VARINT:
                yield tag >> 3, value
                continue
            at += value
            if kind == _BYTES and at <= len(data):
                yield tag >> 3, data[at - value : at]
    except IndexError:
        at = len(data) + 1
    if at > len(data):
        raise FormatError(f"{what} is not a message of protobuf", field=field)


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


# A format that is missing here, in a file added to this folder, is imported with this package for the signs in its
# record. A test compares this table with the records.
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


# ----------------------------------------------------------------------------------------------------
# The records of formats, and finding the record for a file or a name


class _Formats(Mapping[str, Format]):
    """Every format by its name. A format is imported when its record is first looked up."""

    def __init__(self, names: Iterable[str]) -> None:
        self._records: dict[str, Format | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Format:
        record = self._records[name]
        if record is None:
            record = self._records[name] = import_module(f"{__name__}.{name}").FORMAT
        return record

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def _signs_of(name: str) -> Signs:
    """Return the signs of a format; import the format if the table does not list it."""
    if name in SIGNS:
        return SIGNS[name]
    record = FORMATS[name]
    return Signs(record.suffixes, record.plan is not None, record.magic, record.leads, record.claims)


FORMATS = _Formats(module_names(__path__))
_SIGNS = {name: _signs_of(name) for name in FORMATS}
SUFFIXES = tuple(dict.fromkeys(suffix for signs in _SIGNS.values() for suffix in signs.suffixes))
_BY_MAGIC = {signs.magic[:4]: name for name, signs in _SIGNS.items() if signs.magic}
_GUESSED = tuple(name for name, signs in _SIGNS.items() if not signs.magic and not signs.leads)
# The formats without magic bytes that may claim a file, by its first byte, where these are more than `_GUESSED`.
_BY_LEAD = {
    bytes([lead]): tuple(
        name for name, signs in _SIGNS.items() if not signs.magic and (lead in signs.leads or not signs.leads)
    )
    for lead in b"".join(signs.leads for signs in _SIGNS.values())
}


def formats() -> tuple[str, ...]:
    """Return the names of the formats that can be read.

    Examples
    --------
    >>> import weightmap as wm
    >>> "embd" in wm.formats()
    True
    """
    return tuple(FORMATS)


def by_name(name: str) -> Format:
    """Return the format called `name`. Raises ValueError for an unknown name."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise ValueError(f"format is {name!r}, expected one of {', '.join(FORMATS)}") from None


def by_suffix(path: str) -> Format:
    """Return the format of files with this suffix; if there are two, the writable one.

    Raises `EncodeError` for an unknown suffix.
    """
    lower = path.lower()
    fitting = [name for name, signs in _SIGNS.items() if lower.endswith(signs.suffixes)]
    written = [name for name in fitting if _SIGNS[name].written]
    if written:
        return FORMATS[written[0]]
    suffixes = ", ".join(suffix for signs in _SIGNS.values() if signs.written for suffix in signs.suffixes)

    foreign = next((what for suffix, what in FOREIGN.items() if lower.endswith(suffix)), None)
    if foreign is not None:
        raise EncodeError(f"{foreign}; files are written with one of the suffixes {suffixes}", path=path)
    if fitting:
        return FORMATS[fitting[-1]]
    msg = f"no format has this suffix: use one of {suffixes}"
    words = next((name for suffix, name in WORDS.items() if lower.endswith(suffix)), None)
    others = " or ".join(sorted({*WORDS.values(), "word2vec"} - {words}))
    what = "or give {}" if words is None else f"for words, convert with {{}}, {others}"
    remedy = Remedy(what, "format", words)
    raise EncodeError(msg, path=path, remedy=remedy)


def mistaken(format_: Format | Importer, head: bytes) -> UnknownFormatError | None:
    """Return a better error for a file that `format_` recognised and refused, if the file is known to be another kind.

    Formats without magic bytes begin with the length of a header, and the first bytes of other files may look like one.
    """
    return hint(head, 3) if format_.name in _GUESSED else None


def identify(source: Source, head: bytes, importers: Callable[[], Iterable[Importer]] = tuple) -> Format | Importer:
    """Return the only format that recognises the file, or else the only importer.

    Raises
    ------
    TruncatedError
        When the file is empty.
    UnknownFormatError
        When none recognises the file, or more than one does.
    """
    # Magic bytes decide: formats without them begin with a length of at most 100,000,000, and four printable characters
    # are a larger number.
    name = _BY_MAGIC.get(head[:4])
    if name is not None and head.startswith(_SIGNS[name].magic):
        return FORMATS[name]
    names = [name for name in _BY_LEAD.get(head[:1], _GUESSED) if _SIGNS[name].sniff(head, source.size)]
    certain = [name for name in names if _SIGNS[name].leads]
    claims: list[Format | Importer] = [FORMATS[name] for name in certain or names]
    if not claims and head:
        look = source.pread(0, min(LOOK, source.size))
        claims += [importer for importer in importers() if importer.claims(look, source.size)]
    if len(claims) == 1:
        return claims[0]
    raise _unknown(head, source.size, claims)


def _unknown(head: bytes, size: int, claims: list[Format | Importer]) -> FormatError:
    """Return the error for a file that no format, or more than one, recognises."""
    if not head:
        return TruncatedError("the file is empty", offset=0)
    if claims:
        msg = f"more than one format recognises this file: {', '.join(claim.name for claim in claims)}"
        return UnknownFormatError(msg, remedy=Remedy("give {}", "format"))
    guess: UnknownFormatError | None = hint(head, 2) or damaged(head, size)
    if guess is not None:
        return guess
    beginning = "nothing but zero bytes" if not any(head) else repr(head[:16])
    what = "no format recognises this file: its beginning"
    titles = ", ".join(format_.title for format_ in FORMATS.values())
    return UnknownFormatError(what, offset=0, actual=beginning, expected=f"the start of {titles}")
