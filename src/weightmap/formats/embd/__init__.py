"""EMBD ``.weights``, the format of cpp_embedder: the layout of its specification and the one its converter writes.

Specification layout ("spec")
-----------------------------
Little-endian; sections in this order: header, metadata, vocabulary, tensor index, tensor data, footer.

Header, 64 bytes: ``"EMBD" | u16 major = 1 | u16 minor = 0 | u32 flags | u32 metadata_offset, metadata_size | u32
vocab_offset, vocab_size | u32 tensor_index_offset, tensor_index_count | u32 tensor_data_offset | u64 tensor_data_size |
u64 total_file_size | u32 header_checksum | u32 reserved = 0``. The checksum is the CRC-32 (as of zlib) of bytes 0 to
55.

Flags: 1 VOCAB_EMBEDDED, 2 TENSORS_ALIGNED (to 64 bytes), 4 CHECKSUM_ENABLED, 8 COMPRESSED (reserved); others are
reserved.

Metadata: ``u32 entry_count, u32 total_size``, then entries ``u16 klen, u16 vlen, key, value`` in UTF-8.

Vocabulary: ``u32 token_count, u32 total_size, u32 special_tokens``, then ``u16 length, bytes`` for each id, then five
u32: the ids of the pad, unk, cls, sep and mask tokens. The sizes of both sections in the header include these
sub-headers and ids.

Tensor index: descriptors of 32 bytes ``u32 name_hash | u8 dtype | u8 ndim | u16 name_length | 4 x u32 shape | u64
data_offset``, then all names back to back. The hash is FNV-1a 32 of the name; collisions are legal. dtype: 0 float32, 1
float16, 2 bfloat16, 3 int32, 4 int16, 5 int8, 6 uint32, 7 uint16, 8 uint8. ndim is 1 to 4; unused dimensions are 0, and
used ones may be. The offset counts from tensor_data_offset; data is row-major.

Footer, the last 16 bytes: ``u32 data_crc | u32 file_crc | "DBME" | u32 reserved = 0``: the CRC-32 of the tensor data
section with its padding, and of everything before the footer.

Ours, where the specification is silent or contradicts itself
-------------------------------------------------------------
* special_tokens is written as an absolute offset, behind the entries. It is read as absolute if that lies within the
  vocabulary, else as relative to it. If it points right behind the sub-header, the entries begin after the ids.
* A special id of 0xFFFFFFFF means that there is no such token. `verify` warns of an id that is not below token_count.
* tensor_data_offset and every data_offset are written as multiples of 64.
* Padding between sections, between aligned tensors, and before the footer is at most 63 zero bytes; without
  TENSORS_ALIGNED, tensors lie back to back.
* With CHECKSUM_ENABLED clear, the footer's CRCs are written as 0 and not read, and a header checksum of 0 means none,
  of which `verify` warns. Any other wrong header checksum is an error, with or without the flag. The header checksum is
  always written. With VOCAB_EMBEDDED clear, vocab_offset and vocab_size are 0.
* `verify` warns of a minor version above 0, a repeated token, a wrong total_size of the metadata, and missing keys that
  the specification requires, unless all of them are missing: then it says so among its checks.
* ``weightmap.types`` in the metadata, which `convert` writes, says what values of GGUF were: see `formats._metadata`.
* ``strict=False`` also tolerates reserved fields that are not 0, and holes and overlaps of tensors.

Simple layout ("simple")
------------------------
The layout that the upstream converter and loader really use: ``"EMBD", u32 1, u32 n``, n times ``u32 length, name, u32
ndim, ndim x u32, float32 data``, then ``u32 vocab_count``, and for each token ``u32 length, token``. A file has the
specification layout if it has 80 bytes or more, its size at byte 48 and "DBME" 8 bytes before its end; otherwise the
simple layout must consume it exactly. If neither fits, the error is that of the specification layout if one of its
signs is there (ours: a right header checksum is a third sign), else that of the simple layout.
"""

from __future__ import annotations

import math
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from weightmap import native
from weightmap.errors import (
    ChecksumError,
    FormatError,
    LayoutError,
    TruncatedError,
    UnsupportedError,
    cut_off,
    trailing_bytes,
)
from weightmap.formats._base import TEXT, Content, Format, new_vocabulary, take, trailing
from weightmap.formats._cursor import Cursor
from weightmap.formats.embd.layout import (
    ALIGNMENT,
    CHECKSUM_ENABLED,
    COMPRESSED,
    DESCRIPTOR,
    DTYPE_LIST,
    DTYPE_NAMES,
    FOOTER,
    HEADER,
    MAGIC,
    MAGIC_END,
    MAX_NDIM,
    OFFSETS,
    TOTAL_FILE_SIZE,
    VOCAB_EMBEDDED,
    Header,
    check_gap,
    check_metadata,
    check_table,
    field_error,
    load_metadata,
    record_rules,
    string_table,
    vocabulary,
)
from weightmap.index import ANY_GAP, Rules
from weightmap.index.columns import ColumnTable, RecordTable
from weightmap.lazy import later, np
from weightmap.native import late

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightmap.embeddings.vocabulary import Vocabulary
    from weightmap.formats._verification import Sum, Verification
    from weightmap.io.source import Source
    from weightmap.options import Options

_verify_spec = later(f"{__name__}.verify", "verify_spec")
_data_sum = later(f"{__name__}.verify", "data_sum")


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST[:1]
    min_ndim, max_ndim = 1, MAX_NDIM
    # Names lie between the tensors, and offsets count from the start of the file: the walk checks the gaps.
    max_gap = ANY_GAP


def parse_simple(source: Source, head: bytes, options: Options) -> Content:
    """Walk the file from its beginning to the end of the vocabulary, with which it must end."""
    reader = Cursor(head, source, options.limits)
    reader.skip(len(MAGIC))
    version = reader.number("u32", "version", "its version")
    if version != 1:
        raise UnsupportedError("version", field="version", offset=4, actual=version, expected=1)
    count = reader.count("u32", 8, "tensor_count", "number of tensors", "max_tensors")
    names: list[bytes] = []
    shapes: list[int] = []
    lengths, ndims, offsets = [0], [0], []
    names_size = 0
    for i in range(count):
        length = reader.number("u32", "name_length", f"the length of the name of tensor {i}")
        names_size += length  # the limit is for the sum, because all names are kept
        options.limits.check("max_header_bytes", names_size, "size of all names", offset=reader.position - 4)
        names.append(reader.take(length, "name", f"the name of tensor {i}"))
        lengths.append(length)
        ndim = reader.number("u32", "ndim", f"the number of dimensions of tensor {i}")
        if not 1 <= ndim <= MAX_NDIM:
            what = f"number of dimensions of tensor {i}"
            raise FormatError(what, field="ndim", offset=reader.position - 4, actual=ndim, expected=f"1 to {MAX_NDIM}")
        shape = reader.array("<u4", ndim, "shape", f"the shape of tensor {i}").tolist()
        shapes.extend(shape)
        ndims.append(ndim)
        nbytes = 4 * math.prod(shape)
        if nbytes > reader.left:
            label = repr(names[-1][:60].decode(errors="replace"))
            what = f"the data of tensor {i}, {label} of shape {tuple(shape)}"
            raise cut_off(what, source.size, reader.position + nbytes, field="data")
        offsets.append(reader.position)
        reader.skip(nbytes)
    vocab = _simple_vocabulary(reader, options)
    warnings: list[str] = []
    trailing(source, reader.position, options, warnings)
    columns = native.Columns(
        b"".join(names),
        np.cumsum(lengths, dtype=np.uint32),
        np.zeros(count, np.uint8),
        np.array(shapes, np.uint64),
        np.cumsum(ndims, dtype=np.uint32),
        np.array(offsets, np.uint64),
    )
    table = ColumnTable(columns, _Rules(0, source.size), utf8=True, locate=partial(_name_at, columns))
    if options.checked:
        table.check()

    def verify(run: Verification) -> None:
        run.rest()
        if vocab is not None:
            run.vocabulary(vocab())

    content = Content("simple", table, dict, verify, warnings)
    content.load_vocab = vocab
    return content


def _name_at(columns: native.Columns, row: int) -> int:
    """Return the offset of a tensor's name: before the number and values of its dimensions, and its data."""
    names, dims = columns.bounds, columns.dim_bounds
    at: int = columns.begin[row] - 4 - 4 * (dims[row + 1] - dims[row]) - (names[row + 1] - names[row])
    return at


def _simple_vocabulary(reader: Cursor, options: Options) -> Callable[[], Vocabulary] | None:
    at = reader.position
    count = reader.count("u32", 4, "vocab_count", "number of tokens")
    if not count:
        return None
    options.limits.check("max_header_bytes", reader.left, "size of the vocabulary", offset=at)
    start = reader.position
    data = reader.take(reader.left, "vocabulary", "the vocabulary")
    walked = native.walk_strings(data, count, 4)
    if walked < 0:
        raise cut_off(f"token {-1 - walked} of {count}", reader.end, field="vocabulary")
    reader.position = start + walked
    return lambda: new_vocabulary(lambda: string_table(data[:walked], count, start, 4), count)


# Largest index, in bytes, to read: cheaper than mapping it. A larger one is checked in the mapping and stays there;
# each use copies and checks a record again.
READ_INDEX = 1 << 16
# The field for the size of a section, by the field for its offset.
_SIZES = {
    "metadata_offset": "metadata_size",
    "vocab_offset": "vocab_size",
    "tensor_index_offset": "tensor_index_count",
    "tensor_data_offset": "tensor_data_size",
}


def parse_spec(
    source: Source, head: bytes, fields: tuple[Any, ...], footer: tuple[Any, ...], options: Options
) -> Content:
    """Check the header, which has these fields, and the index; return the content."""
    warnings: list[str] = []
    checked = _check_header(source, head, fields, footer, options, warnings)
    flags, metadata_offset, metadata_size, start, count, data, data_size = checked
    end, size = metadata_offset + metadata_size, data - start
    metadata = head[metadata_offset:end] if end <= len(head) else source.pread(metadata_offset, metadata_size)
    vocab = vocabulary(source, head, Header(*fields)) if flags & VOCAB_EMBEDDED else None

    def index(*, private: bool = False) -> bytes | NDArray[np.uint8]:
        if size <= READ_INDEX or ((private or source.private) and not source.in_memory):
            return take(source, head, start, size)
        return source.octets[start:data]

    loaded = None
    if options.checked and size <= READ_INDEX:
        loaded = head[start:data] if data <= len(head) else source.pread(start, size)
    table = RecordTable(index, count, start, record_rules(flags, data, data_size, source.size, options), loaded)
    if options.verify == "full":
        table.detach_index()
    if options.checked:
        check_metadata(metadata, metadata_offset, warnings)
        check_table(table, start, data)

    def verify(run: Verification) -> None:
        _verify_spec(run, Header(*fields), footer)

    def sums(_: Source) -> list[Sum]:
        return [_data_sum(Header(*fields), footer, source.size)]

    def load() -> dict[str, Any]:
        return load_metadata(metadata, metadata_offset)

    content = Content("spec", table, load, verify, warnings)
    content.load_vocab = vocab
    if flags & CHECKSUM_ENABLED:
        content.sums = sums
    else:
        content.checksums = False
    return content


def _check_header(
    source: Source,
    head: bytes,
    fields: tuple[Any, ...],
    footer: tuple[Any, ...],
    options: Options,
    warnings: list[str],
) -> tuple[int, ...]:
    """Check the header field by field; return flags, and where the sections other than the vocabulary lie."""
    _, major, minor, flags, at, metadata_size, vocab, vocab_size, index, count, data, size, _, stored, odd = fields
    if major != 1:
        raise field_error(UnsupportedError, "version_major", major, 1)
    found = late.crc32(head[:56])
    if found != stored:
        if stored or flags & CHECKSUM_ENABLED:
            expected = f"{found:#010x}, the CRC-32 of bytes 0 to 55"
            raise field_error(ChecksumError, "header_checksum", f"{stored:#010x}", expected)
        warnings.append("header_checksum is 0, and CHECKSUM_ENABLED is clear: the header has no checksum (at byte 56)")
    if flags >= COMPRESSED:
        expected = "no bits but 1, 2 and 4: COMPRESSED (8) and the others are reserved"
        raise field_error(UnsupportedError, "flags", f"{flags:#x}", expected)
    if minor or odd or footer[3]:
        _check_odd(source, minor, odd, footer[3], options, warnings)
    if not vocab_size if flags & VOCAB_EMBEDDED else vocab_size or vocab:
        expected = "above 0 with the flag VOCAB_EMBEDDED; 0, like vocab_offset, without it"
        raise field_error(LayoutError, "vocab_size", vocab_size, expected)
    limits = options.limits
    most = limits.max_header_bytes
    if count > limits.max_tensors:
        limits.check("max_tensors", count, "tensor_index_count", offset=32)
    if metadata_size > most:
        limits.check("max_header_bytes", metadata_size, "metadata_size", offset=16)
    _check_sections(fields, source.size - FOOTER.size)
    if vocab_size > most:
        limits.check("max_header_bytes", vocab_size, "vocab_size", offset=24)
    if data - index > most:
        limits.check("max_header_bytes", data - index, "size of the tensor index", offset=28)
    return flags, at, metadata_size, index, count, data, size


def _check_sections(fields: tuple[Any, ...], limit: int) -> None:
    """Check that each section begins at most 63 bytes after the one before it, and ends by `limit`."""
    metadata, metadata_size, vocab, vocab_size, index, count, data, size = fields[4:12]
    end = HEADER.size
    if metadata or metadata_size:
        if not end <= metadata < end + ALIGNMENT or metadata_size > limit - metadata:
            _misplaced("metadata_offset", metadata, metadata_size, end, limit)
        end = metadata + metadata_size
    if vocab_size:
        if not end <= vocab < end + ALIGNMENT or vocab_size > limit - vocab:
            _misplaced("vocab_offset", vocab, vocab_size, end, limit)
        end = vocab + vocab_size
    if not end <= index < end + ALIGNMENT or DESCRIPTOR.size * count > limit - index:
        _misplaced("tensor_index_offset", index, DESCRIPTOR.size * count, end, limit)
    end = index + DESCRIPTOR.size * count
    if data < end or size > limit - data:  # `check_table` checks the gap: it knows how long the names are
        _misplaced("tensor_data_offset", data, size, end, limit)
    if limit - data - size >= ALIGNMENT:
        what = "there is a hole behind the tensor data: tensor_data_size"
        expected = f"at least {limit - data - ALIGNMENT + 1}: the footer begins at {limit}"
        raise field_error(LayoutError, "tensor_data_size", size, expected, what)


def _check_odd(source: Source, minor: int, odd: int, end: int, options: Options, warnings: list[str]) -> None:
    """Tolerate a newer minor version, and reserved fields only in lax mode."""
    if minor:
        warnings.append(f"version_minor is {minor}: written by a newer version of the format")
    for field, value, offset in (("reserved", odd, 60), ("footer reserved", end, source.size - 4)):
        if value:
            options.tolerate(FormatError(field, field=field, offset=offset, actual=value, expected=0), warnings)


def _misplaced(field: str, start: int, size: int, end: int, limit: int) -> NoReturn:
    """Raise the error for a section that should begin at `end` or just behind it, and end by `limit`."""
    if start < end:
        expected = f"at least {end}, the end of the section before it"
        raise field_error(LayoutError, field, start, expected, f"two sections overlap: {field}")
    if field != "tensor_data_offset":
        check_gap(field, end, start)
    if start > limit:
        what = f"a section begins past the end of the file: {field}"
        raise field_error(LayoutError, field, start, f"at most {limit}, where the footer begins", what)
    cls = TruncatedError if start + size > limit + FOOTER.size else LayoutError
    what = f"the section at {field} does not fit in the file: its end"
    raise field_error(cls, _SIZES[field], start + size, f"at most {limit}, where the footer begins", what)


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Return the content of a file in either layout."""
    size = source.size
    if head[:4] != MAGIC:
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=repr(MAGIC))
    if size < _LEAST:
        try:
            return parse_simple(source, head, options)
        except TruncatedError:
            if _begins_spec(head):
                raise _cut_short(head, size) from None
            raise
    fields = HEADER.unpack_from(head)
    footer = FOOTER.unpack(source.pread(size - FOOTER.size, FOOTER.size))
    sized, ended = fields[TOTAL_FILE_SIZE] == size, footer[2] == MAGIC_END
    if sized and ended:
        return parse_spec(source, head, fields, footer, options)
    header = Header(*fields)
    if not (sized or ended or header.header_checksum == late.crc32(head[:56])):
        return parse_simple(source, head, options)
    try:
        return parse_simple(source, head, options)
    except FormatError:
        raise _one_sign(header, footer, size) from None


# Shortest file in the specification layout, in bytes
_LEAST = HEADER.size + FOOTER.size
# Shortest file in the simple layout, in bytes: files too short for the specification layout may have it.
_LEAST_SIMPLE = 16
# Places and sizes of metadata and vocabulary, and the place of the index.
_PLACES = struct.Struct("<5I")


def _begins_spec(head: bytes) -> bool:
    """Whether the index begins where the sections before it end; a name lies there in the simple layout.

    For a truncated header, flags and place of the metadata decide, as far as it reaches.
    """
    if len(head) < OFFSETS["metadata_offset"] + _PLACES.size:
        flags, place = head[OFFSETS["flags"] :][:4], head[OFFSETS["metadata_offset"] :][:4]
        metadata = int.from_bytes(place, "little")
        return (
            len(head) >= OFFSETS["flags"]
            and int.from_bytes(flags, "little") < COMPRESSED
            and (len(place) < 4 or HEADER.size <= metadata < HEADER.size + ALIGNMENT)
        )
    metadata, metadata_size, vocab, vocab_size, index = _PLACES.unpack_from(head, OFFSETS["metadata_offset"])
    end: int = HEADER.size
    for start, size in ((metadata, metadata_size), (vocab, vocab_size)):
        if size:
            if not end <= start < end + ALIGNMENT:
                return False
            end = start + size
    found: bool = end <= index < end + ALIGNMENT
    return found


def _cut_short(head: bytes, size: int) -> FormatError:
    """Return the error for a file in the specification layout that is shorter than any whole one."""
    at = OFFSETS["total_file_size"]
    declared = int.from_bytes(head[at : at + 8], "little") if size >= at + 8 else 0
    if declared > size:
        return _shorter(size, declared)
    error = cut_off("its header and footer", size, _LEAST)
    if size < _LEAST_SIMPLE:
        error.expected += f", or {_LEAST_SIMPLE} in the simple layout"
    return error


def _shorter(size: int, declared: int) -> FormatError:
    what = "the file is shorter than its header says (was the download complete?): size"
    return field_error(TruncatedError, "total_file_size", size, declared, what)


def _one_sign(header: Header, footer: tuple[Any, ...], size: int) -> FormatError:
    """Return the error for a file with only some of the signs of the specification layout."""
    if header.total_file_size > size:
        return _shorter(size, header.total_file_size)
    if header.total_file_size < size:
        return trailing_bytes(size, header.total_file_size, field="total_file_size", offset=OFFSETS["total_file_size"])
    what = "the footer's magic is missing (was the download complete?): magic_end"
    return TruncatedError(what, field="magic_end", offset=size - 8, actual=repr(footer[2]), expected=repr(MAGIC_END))


FORMAT = Format(
    name="embd",
    title="EMBD",
    suffixes=(".weights",),
    layouts=("spec", "simple"),
    parse=parse,
    plan=later(f"{__name__}.writing", "plan"),
    carries={"spec": frozenset({"metadata", "vocab", "special_ids"}), "simple": frozenset({"vocab"})},
    magic=MAGIC,
    metadata_kinds=TEXT | {"integer"},  # written as decimal strings
    metadata_most=65535,
    dtypes={"spec": frozenset(DTYPE_NAMES), "simple": frozenset({"float32"})},
    checksums=frozenset({"spec"}),
    aligns={"spec": 64},
    special_ids=frozenset({"pad", "unk", "cls", "sep", "mask"}),
)
