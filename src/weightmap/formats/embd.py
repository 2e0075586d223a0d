"""EMBD ``.weights``: the format of cpp_embedder, in the layout of its specification and in the one its converter writes.

Specification layout ("spec")
-----------------------------
Little-endian; sections in this order: header, metadata, vocabulary, tensor index, tensor data, footer.

Header, 64 bytes: ``"EMBD" | u16 major = 1 | u16 minor = 0 | u32 flags | u32 metadata_offset, metadata_size | u32 vocab_offset,
vocab_size | u32 tensor_index_offset, tensor_index_count | u32 tensor_data_offset | u64 tensor_data_size | u64 total_file_size | u32
header_checksum | u32 reserved = 0``. The checksum is the CRC-32 (as of zlib) of bytes 0 to 55.

Flags: 1 VOCAB_EMBEDDED, 2 TENSORS_ALIGNED (to 64 bytes), 4 CHECKSUM_ENABLED, 8 COMPRESSED (reserved); others are reserved.

Metadata: ``u32 entry_count, u32 total_size``, then entries ``u16 klen, u16 vlen, key, value`` in UTF-8.

Vocabulary: ``u32 token_count, u32 total_size, u32 special_tokens``, then ``u16 length, bytes`` for each id, then five u32: the ids of
the pad, unk, cls, sep and mask tokens. The sizes of both sections in the header include these sub-headers and ids.

Tensor index: descriptors of 32 bytes ``u32 name_hash | u8 dtype | u8 ndim | u16 name_length | 4 x u32 shape | u64 data_offset``,
then all names back to back. The hash is FNV-1a 32 of the name; collisions are legal. dtype: 0 float32, 1 float16, 2 bfloat16,
3 int32, 4 int16, 5 int8, 6 uint32, 7 uint16, 8 uint8. ndim is 1 to 4, unused dimensions are 0, a used dimension may be 0. The offset
counts from tensor_data_offset; data is row-major.

Footer, the last 16 bytes: ``u32 data_crc | u32 file_crc | "DBME" | u32 reserved = 0``: the CRC-32 of the tensor data section with its
padding, and of everything before the footer.

Ours, where the specification is silent or contradicts itself
-------------------------------------------------------------
* special_tokens is written as an absolute offset, behind the entries. It is read as absolute when that lies within the vocabulary,
  else relative to it. When it points right behind the sub-header, the entries begin after the ids.
* A special id of 0xFFFFFFFF means that there is no such token. An id that is not below token_count is a warning of `verify`.
* Both tensor_data_offset and every data_offset are written as multiples of 64.
* Padding between sections, between aligned tensors, and before the footer is at most 63 zero bytes; without TENSORS_ALIGNED, tensors
  lie back to back.
* With CHECKSUM_ENABLED clear the footer is there and its CRCs are 0 and not looked at. With VOCAB_EMBEDDED clear vocab_offset and
  vocab_size are 0.
* A minor version above 0, missing keys that the specification requires, a repeated token, and a wrong total_size of the metadata
  are warnings of `verify`.
* ``strict=False`` also lets pass: reserved fields, holes and overlaps of tensors.

Simple layout ("simple")
------------------------
What the upstream converter and loader really use: ``"EMBD", u32 1, u32 n``, n times ``u32 length, name, u32 ndim, ndim x u32,
float32 data``, then ``u32 vocab_count``, and for each ``u32 length, token``. It is told apart by what the other layout has at its ends:
a file is of the specification layout when it has 80 bytes or more, its size at byte 48 and "DBME" 8 bytes before its end; otherwise the
simple layout must consume it exactly. When neither fits, the error is that of the specification layout if one of its signs is
there (ours: a right header checksum is a third sign), and that of the simple layout if not.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap import kernels
from weightmap.dtypes import DTYPES
from weightmap.errors import ChecksumError, FormatError, LayoutError, TruncatedError, UnsupportedError
from weightmap.formats._base import Content, Format, Options, Payload, Plan, Request, Sink, Verification, refuse, trailing
from weightmap.strings import StringTable, Vocabulary
from weightmap.table import ColumnTable, RecordTable, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from weightmap.source import Source

MAGIC = b"EMBD"
MAGIC_END = b"DBME"
HEADER = struct.Struct("<4s2H8I2Q2I")
FOOTER = struct.Struct("<2I4sI")
DESCRIPTOR = RecordTable.RECORD
VOCAB_HEADER = struct.Struct("<3I")
SPECIAL = struct.Struct("<5I")
PAIR = struct.Struct("<2I")
ALIGNMENT = 64
VOCAB_EMBEDDED, TENSORS_ALIGNED, CHECKSUM_ENABLED, COMPRESSED = 1, 2, 4, 8
SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")
NO_ID = 0xFFFFFFFF
U16_MAX, U32_MAX = 0xFFFF, 0xFFFFFFFF
DTYPE_NAMES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8")
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
_DTYPES = tuple(DTYPES[name] for name in DTYPE_NAMES)
_CODES = {name: code for code, name in enumerate(DTYPE_NAMES)}


class Header(NamedTuple):
    """The header, field by field."""

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


# Where each field lies, for messages.
OFFSETS = dict(zip(Header._fields, (0, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 60), strict=True))


def sniff(head: bytes, size: int) -> bool:
    """Say whether the file begins with the magic bytes."""
    del size
    return head[:4] == MAGIC


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Tell the layouts apart and read the one that it is."""
    size = source.size
    if head[:4] != MAGIC:
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=repr(MAGIC))
    if size >= HEADER.size + FOOTER.size:
        header = Header._make(HEADER.unpack_from(head))
        footer = FOOTER.unpack(source.pread(size - FOOTER.size, FOOTER.size))
        sized, ended = header.total_file_size == size, footer[2] == MAGIC_END
        if sized and ended:
            return _parse_spec(source, head, header, footer, options)
        if sized or ended or header.header_checksum == kernels.crc32(head[:56]):
            _check_size(header, size)
            what = "the footer's magic is missing (was the download complete?): last bytes"
            raise TruncatedError(what, field="magic_end", offset=size - 8, actual=repr(footer[2]), expected=repr(MAGIC_END))
    return _parse_simple(source, head, options)


def _error(cls: type[FormatError], field: str, actual: Any, expected: Any, what: str | None = None) -> FormatError:
    return cls(what or field, field=field, offset=OFFSETS[field], actual=actual, expected=expected)


def _check_size(header: Header, size: int) -> None:
    if header.total_file_size > size:
        what = "the file is shorter than its header says (was the download complete?): size"
        raise _error(TruncatedError, "total_file_size", size, header.total_file_size, what)
    if header.total_file_size < size:
        what = "there are bytes after the end that the header states: size"
        raise _error(LayoutError, "total_file_size", size, header.total_file_size, what)


# ------------------------------------------------------------------------------------------- specification layout
def _parse_spec(source: Source, head: bytes, header: Header, footer: tuple[Any, ...], options: Options) -> Content:
    warnings: list[str] = []
    _check_header(source, head, header, footer, options, warnings)
    metadata_offset = header.metadata_offset
    metadata = _take(source, head, metadata_offset, header.metadata_size)
    if options.checked:
        _check_metadata(metadata, metadata_offset, warnings)
    vocab = _vocabulary(source, head, header) if header.flags & VOCAB_EMBEDDED else None
    rules = Rules(
        _DTYPES,
        header.tensor_data_offset,
        header.tensor_data_size,
        min_ndim=1,
        max_ndim=4,
        alignment=ALIGNMENT if header.flags & TENSORS_ALIGNED else 1,
        max_gap=ALIGNMENT - 1 if header.flags & TENSORS_ALIGNED else 0,
        lax=not options.strict,
    )
    # The index stays where it is mapped; each record is copied and checked again when it is used.
    index = source.octets[header.tensor_index_offset : header.tensor_data_offset]
    table = _table(index, header, rules)
    if options.checked:
        _check_table(table, header)

    def verify(run: Verification) -> None:
        _verify_spec(run, header, footer, rules, vocab)

    return Content(
        "spec",
        table,
        load_metadata=lambda: _load_metadata(metadata, metadata_offset),
        verify=verify,
        vocab=vocab,
        warnings=warnings,
    )


def _table(index: NDArray[np.uint8], header: Header, rules: Rules) -> RecordTable:
    count = header.tensor_index_count
    names_at = DESCRIPTOR.size * count
    return RecordTable(index[:names_at], count, index[names_at:], header.tensor_index_offset, rules)


def _check_table(table: RecordTable, header: Header) -> None:
    table.check()
    end = header.tensor_index_offset + DESCRIPTOR.size * len(table) + table.names_size
    _check_gap("tensor_data_offset", end, header.tensor_data_offset)


def _check_gap(field: str, end: int, start: int) -> None:
    if start - end >= ALIGNMENT:
        expected = f"at most {end + ALIGNMENT - 1}: the section before it ends at {end}"
        raise _error(LayoutError, field, start, expected, f"there is a hole before a section: {field}")


def _check_header(  # noqa: C901 - the checks stand in the order of the fields
    source: Source, head: bytes, header: Header, footer: tuple[Any, ...], options: Options, warnings: list[str]
) -> None:
    if header.version_major != 1:
        raise _error(UnsupportedError, "version_major", header.version_major, 1)
    found = kernels.crc32(head[:56])
    if found != header.header_checksum:
        raise _error(ChecksumError, "header_checksum", f"{header.header_checksum:#010x}", f"{found:#010x}, the CRC-32 of bytes 0 to 55")
    flags = header.flags
    if flags & COMPRESSED:
        raise _error(UnsupportedError, "flags", f"{flags:#x}", "no COMPRESSED (8): compressed data is reserved and not defined")
    if flags & ~0xF:
        raise _error(UnsupportedError, "flags", f"{flags:#x}", "no bits but 1, 2 and 4: the others are reserved")
    if header.version_minor:
        warnings.append(f"version_minor is {header.version_minor}: written by a newer version of the format")
    for field, value, offset in (("reserved", header.reserved, 60), ("footer reserved", footer[3], source.size - 4)):
        if value:
            error = FormatError(field, field=field, offset=offset, actual=value, expected=0)
            if options.strict:
                raise error
            warnings.append(str(error))
    # Sections: each begins where the one before it ended, or within the padding of 63 bytes after it.
    if bool(flags & VOCAB_EMBEDDED) != bool(header.vocab_size) or (not header.vocab_size and header.vocab_offset):
        expected = "set together with a vocab_size above 0; without it, vocab_offset and vocab_size are 0"
        raise _error(LayoutError, "vocab_size", header.vocab_size, expected, "the flag VOCAB_EMBEDDED contradicts vocab_size, which")
    limits, limit = options.limits, source.size - FOOTER.size
    limits.check("max_tensors", header.tensor_index_count, "tensor_index_count", offset=32)
    limits.check("max_header_bytes", header.metadata_size, "metadata_size", offset=16)
    end = HEADER.size
    if header.metadata_offset or header.metadata_size:
        end = _check_section("metadata_offset", header.metadata_offset, header.metadata_size, end, limit)
    if header.vocab_size:
        end = _check_section("vocab_offset", header.vocab_offset, header.vocab_size, end, limit)
    end = _check_section("tensor_index_offset", header.tensor_index_offset, DESCRIPTOR.size * header.tensor_index_count, end, limit)
    if header.tensor_data_offset < end or header.tensor_data_size != limit - header.tensor_data_offset:
        end = _check_section("tensor_data_offset", header.tensor_data_offset, header.tensor_data_size, end, limit, names=True)
        _check_gap("tensor_data_size", end, limit)
    limits.check("max_header_bytes", header.tensor_data_offset - header.tensor_index_offset, "size of the tensor index", offset=28)


def _check_section(field: str, start: int, size: int, end: int, limit: int, *, names: bool = False) -> int:
    """Check that a section begins at `end` or within the padding after it, and ends before `limit`; return where it ends."""
    if start < end:
        expected = f"at least {end}, the end of what lies before it"
        raise _error(LayoutError, field, start, expected, f"two sections overlap: {field}")
    if not names and start - end >= ALIGNMENT:  # names lie before the data; how long they are is known later
        _check_gap(field, end, start)
    if start > limit or size > limit - start:
        cls = TruncatedError if start + size > limit + FOOTER.size else LayoutError
        what = f"the section at {field} does not fit in the file: its end"
        raise _error(cls, field, start + size, f"at most {limit}, where the footer begins", what)
    return start + size


def _take(source: Source, head: bytes, offset: int, size: int) -> bytes:
    """Return bytes of the file, from its first page where they lie there."""
    end = offset + size
    return head[offset:end] if end <= len(head) else source.pread(offset, size)


def _check_metadata(raw: bytes, offset: int, warnings: list[str]) -> None:
    """Check the structure of the metadata section, its UTF-8 and the uniqueness of its keys."""
    if not raw:
        return
    if len(raw) < PAIR.size:
        raise _error(LayoutError, "metadata_size", len(raw), "at least 8, the counts that the section begins with")
    count, total = PAIR.unpack_from(raw)
    fault = kernels.pairs_check(raw[PAIR.size :], count)
    if fault is not None:
        raise _metadata_error(fault, count, raw, offset)
    if total != len(raw) - PAIR.size:
        warnings.append(f"total_size of the metadata is {total}, expected {len(raw) - PAIR.size} (at byte {offset + 4})")


def _metadata_error(fault: kernels.Fault, count: int, raw: bytes, offset: int) -> FormatError:
    at = offset + PAIR.size + fault.at
    if fault.code == kernels.FAULTS["NAME_UTF8"]:
        return FormatError(f"metadata entry {fault.row} is not UTF-8", field="metadata", offset=at)
    if fault.code == kernels.FAULTS["NAME_RANGE"] and fault.row == count:
        return _error(LayoutError, "metadata_size", len(raw), f"{fault.at + PAIR.size}: the {count} entries end there")
    if fault.code == kernels.FAULTS["NAME_RANGE"]:
        expected = f"fewer, or a section longer than {len(raw)} bytes: entry {fault.row} runs past its end"
        return TruncatedError("metadata entry_count", field="entry_count", offset=offset, actual=count, expected=expected)
    return LayoutError(f"metadata entry {fault.row} has a key that an entry before it has", field="metadata", offset=offset)


def _load_metadata(raw: bytes, offset: int) -> dict[str, Any]:
    """Return the entries, in file order."""
    _check_metadata(raw, offset, [])
    entries: dict[str, Any] = {}
    at = PAIR.size
    while at < len(raw):
        key, value = struct.unpack_from("<2H", raw, at)
        middle = at + 4 + key
        entries[str(raw[at + 4 : middle], "utf-8")] = str(raw[middle : middle + value], "utf-8")
        at = middle + value
    return entries


def _vocabulary(source: Source, head: bytes, header: Header) -> Vocabulary:
    """Read the sub-header. The special ids and the tokens are read at the first use."""
    start, size = header.vocab_offset, header.vocab_size
    least = VOCAB_HEADER.size + SPECIAL.size
    if size < least:
        raise _error(TruncatedError, "vocab_size", size, f"at least {least}")
    count, total, special = VOCAB_HEADER.unpack(_take(source, head, start, VOCAB_HEADER.size))
    if count > (size - least) // 2:
        what, expected = "vocabulary token_count", f"at most {(size - least) // 2}: a token takes 2 bytes or more"
        raise TruncatedError(what, field="token_count", offset=start, actual=count, expected=expected)
    if total != size - least:
        cls = TruncatedError if total > size - least else LayoutError
        what, expected = "vocabulary total_size", f"{size - least}, by vocab_size"
        raise cls(what, field="total_size", offset=start + 4, actual=total, expected=expected)
    # Absolute when that lies within the vocabulary, else relative to it.
    behind, before = start + size - SPECIAL.size, start + VOCAB_HEADER.size
    at = special if start <= special <= behind else start + special
    if at not in (behind, before):
        what, expected = "vocabulary special_tokens", f"{behind} or {before}: the ids lie behind the tokens or before them"
        raise LayoutError(what, field="special_tokens", offset=start + 8, actual=special, expected=expected)
    first = before if at == behind else before + SPECIAL.size

    def load() -> StringTable:
        return _tokens(source.octets[first : first + total], count, first, 2)

    def special_ids() -> dict[str, int]:
        ids = SPECIAL.unpack(source.octets[at : at + SPECIAL.size])
        return {name: i for name, i in zip(SPECIAL_NAMES, ids, strict=True) if i != NO_ID}

    return Vocabulary(load, count, special_ids)


def _tokens(data: NDArray[np.uint8] | bytes, count: int, at: int, width: int) -> StringTable:
    bounds = np.empty(count + 1, np.uint32)
    walked = kernels.walk_strings(data, count, width, bounds)
    if walked != len(data):
        what = f"token {-1 - walked} runs past the end of the vocabulary" if walked < 0 else f"the {count} tokens end before the vocabulary does"
        raise LayoutError(what, field="vocabulary", offset=at + max(walked, 0))
    return StringTable(data, bounds, width, "token")


def _verify_spec(run: Verification, header: Header, footer: tuple[Any, ...], rules: Rules, vocab: Vocabulary | None) -> None:
    start, size = header.tensor_data_offset, header.tensor_data_size
    run.options.limits.check("max_header_bytes", start, "size of everything before the tensor data")
    prefix = run.read(0, start)
    if Header._make(HEADER.unpack_from(prefix)) != header:
        raise LayoutError("the header changed after the file was opened", offset=0)
    run.checked("header checksum")
    # Everything again on private bytes, so that the verdict is about what was read.
    metadata = _load_metadata(prefix[header.metadata_offset :][: header.metadata_size], header.metadata_offset)
    missing = [key for key in REQUIRED_KEYS if key not in metadata]
    if missing:
        run.warn(f"metadata lacks keys that the specification requires: {', '.join(missing)}")
    run.checked("metadata")
    table = _table(np.frombuffer(prefix, np.uint8)[header.tensor_index_offset :], header, rules)
    _check_table(table, header)
    if "" in table.names:
        run.warn("a tensor has an empty name")
    run.checked("tensor index: ranges, names and their hashes")
    if vocab is not None:
        _verify_vocabulary(run, _vocabulary(_private_source(run, prefix), prefix, header))
    _verify_padding(run, prefix, header, table)

    data_crc, tail = 0, b""
    gaps = _gaps(table, size)
    position = 0
    for chunk in run.chunks(start, size):
        data_crc = kernels.crc32(chunk, data_crc)
        _verify_gaps(run, gaps, chunk, position, start)
        position += len(chunk)
    tail = run.read(start + size, run.source.size - start - size)
    if any(tail[: -FOOTER.size]):
        run.odd(LayoutError("padding before the footer is not zero", field="padding", offset=start + size))
    run.checked("padding is zero")
    if not header.flags & CHECKSUM_ENABLED:
        run.checked("no data checksums: the file has none")
        return
    if data_crc != footer[0]:
        what = "CRC-32 of the tensor data"
        raise ChecksumError(what, field="data_checksum", offset=run.source.size - 16, actual=f"{data_crc:#010x}", expected=f"{footer[0]:#010x}")
    run.checked("CRC-32 of the tensor data")
    # One pass over the data serves both checksums.
    file_crc = kernels.crc32_combine(kernels.crc32(prefix), data_crc, size)
    file_crc = kernels.crc32(tail[: -FOOTER.size], file_crc)
    if file_crc != footer[1]:
        what = "CRC-32 of the file"
        raise ChecksumError(what, field="file_checksum", offset=run.source.size - 12, actual=f"{file_crc:#010x}", expected=f"{footer[1]:#010x}")
    run.checked("CRC-32 of the file")


def _private_source(run: Verification, data: bytes) -> Source:
    return type(run.source).from_buffer(data, "mmap")


def _verify_vocabulary(run: Verification, vocab: Vocabulary) -> None:
    table = vocab.table
    bad = table.not_utf8()
    if bad >= 0:
        table[bad]  # raises, saying which
    repeated, duplicate, original = table.duplicates()
    if repeated:
        run.warn(f"{repeated} tokens stand in the vocabulary twice, the first of them {table[duplicate]!r} (ids {original} and {duplicate})")
    beyond = [f"{name} {i}" for name, i in vocab.special_ids.items() if i >= len(vocab)]
    if beyond:
        run.warn(f"special ids are not below the number of tokens, {len(vocab)}: {', '.join(beyond)}")
    run.checked("vocabulary")


def _verify_padding(run: Verification, prefix: bytes, header: Header, table: RecordTable) -> None:
    index_end = header.tensor_index_offset + DESCRIPTOR.size * len(table) + table.names_size
    ends = [(HEADER.size, header.metadata_offset or HEADER.size), (header.metadata_offset + header.metadata_size, header.vocab_offset)]
    ends += [(header.vocab_offset + header.vocab_size, header.tensor_index_offset), (index_end, header.tensor_data_offset)]
    for end, start in ends:
        if any(prefix[end:start]) and end >= HEADER.size:
            run.odd(LayoutError("padding between sections is not zero", field="padding", offset=end))


def _gaps(table: RecordTable, data_size: int) -> list[tuple[int, int]]:
    """Return begin and end of every piece of padding within the tensor data, in rising order."""
    base, previous, gaps = table.rules.base, 0, []
    for i in range(len(table)):
        row = table.row(i)
        if row.offset - base > previous:
            gaps.append((previous, row.offset - base))
        previous = row.offset - base + row.nbytes
    if data_size > previous:
        gaps.append((previous, data_size))
    gaps.reverse()
    return gaps


def _verify_gaps(run: Verification, gaps: list[tuple[int, int]], chunk: memoryview, position: int, start: int) -> None:
    """Check the padding that lies in this chunk; what reaches into the next one is left in `gaps`."""
    end = position + len(chunk)
    while gaps and gaps[-1][0] < end:
        first, last = gaps.pop()
        if any(chunk[max(first - position, 0) : last - position]):
            run.odd(LayoutError("padding between tensors is not zero", field="padding", offset=start + first))
        if last > end:
            gaps.append((end, last))
            break


# -------------------------------------------------------------------------------------------------- simple layout
class _Reader:
    """Walks the simple layout by pread: a window of the file at a time, never the tensor data."""

    WINDOW = 4096

    def __init__(self, source: Source, head: bytes) -> None:
        self.source = source
        self.position = len(MAGIC)
        self._window, self._start = head, 0

    def take(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes."""
        at, end = self.position - self._start, self.position + count
        if end > self.source.size:
            msg = f"the file ends within {what}"
            raise TruncatedError(msg, field=what, offset=self.source.size, expected=f"at least {end} bytes")
        if at < 0 or at + count > len(self._window):
            size = min(max(count, self.WINDOW), self.source.size - self.position)
            self._window, self._start, at = self.source.pread(self.position, size), self.position, 0
        self.position = end
        return self._window[at : at + count]

    def u32(self, what: str) -> int:
        """Return the next u32."""
        return int.from_bytes(self.take(4, what), "little")


def _parse_simple(source: Source, head: bytes, options: Options) -> Content:
    reader = _Reader(source, head)
    version = reader.u32("version")
    if version != 1:
        raise UnsupportedError("version", field="version", offset=4, actual=version, expected=1)
    count = reader.u32("tensor count")
    options.limits.check("max_tensors", count, "number of tensors", offset=8)
    if count > source.size // 8:
        what, expected = "number of tensors", f"at most {source.size // 8}: a tensor takes 8 bytes or more"
        raise TruncatedError(what, field="tensor_count", offset=8, actual=count, expected=expected)
    names, lengths, shapes, ndims, offsets, sizes = [], [0], [], [0], [], []
    for i in range(count):
        names.append(reader.take(_bounded(reader, options, f"length of the name of tensor {i}"), f"the name of tensor {i}"))
        lengths.append(len(names[-1]))
        ndim = reader.u32(f"the number of dimensions of tensor {i}")
        if ndim > 64:  # noqa: PLR2004 - numpy's limit
            what = f"number of dimensions of tensor {i}"
            raise FormatError(what, field="ndim", offset=reader.position - 4, actual=ndim, expected="at most 64")
        shape = struct.unpack(f"<{ndim}I", reader.take(4 * ndim, f"the shape of tensor {i}"))
        shapes.extend(shape)
        ndims.append(ndim)
        nbytes = 4
        for dim in shape:
            nbytes *= dim
        if nbytes > source.size - reader.position:
            msg = f"the file ends within the data of tensor {i}, {names[-1][:60].decode(errors='replace')!r} of shape {shape}"
            raise TruncatedError(msg, field="data", offset=source.size, expected=f"at least {reader.position + nbytes} bytes")
        offsets.append(reader.position)
        sizes.append(nbytes)
        reader.position += nbytes
    vocab = _simple_vocabulary(reader, options)
    warnings: list[str] = []
    trailing(source, reader.position, options, warnings)
    table = ColumnTable(
        StringTable(b"".join(names), np.cumsum(lengths, dtype=np.uint32), 0, "tensor name"),
        np.zeros(count, np.uint8),
        np.array(shapes, np.uint64),
        np.cumsum(ndims, dtype=np.uint32),
        np.array(offsets, np.uint64),
        np.array(sizes, np.uint64),
        # Offsets are absolute here, and the names lie between the tensors: the walk above has seen to order and holes.
        Rules(_DTYPES[:1], 0, source.size, lax=True),
    )
    if options.checked:
        table.check()
        table.check_names()

    def verify(run: Verification) -> None:
        for _ in run.chunks(0, source.size):
            pass
        run.checked("every byte is readable (the simple layout has no checksums)")
        if vocab is not None:
            _verify_vocabulary(run, vocab)

    return Content("simple", table, load_metadata=dict, verify=verify, vocab=vocab, warnings=warnings)


def _bounded(reader: _Reader, options: Options, what: str) -> int:
    length = reader.u32(what)
    options.limits.check("max_header_bytes", length, what, offset=reader.position - 4)
    return length


def _simple_vocabulary(reader: _Reader, options: Options) -> Vocabulary | None:
    at = reader.position
    count = reader.u32("the number of tokens")
    rest = reader.source.size - reader.position
    if count > rest // 4:
        what, expected = "number of tokens", f"at most {rest // 4}: a token takes 4 bytes or more"
        raise TruncatedError(what, field="vocab_count", offset=at, actual=count, expected=expected)
    if not count:
        return None
    options.limits.check("max_header_bytes", rest, "size of the vocabulary", offset=at)
    start = reader.position
    data = reader.take(rest, "the vocabulary")
    walked = kernels.walk_strings(data, count, 4)
    if walked < 0:
        msg = f"the file ends within token {-1 - walked} of {count}"
        raise TruncatedError(msg, field="vocabulary", offset=reader.source.size)
    reader.position = start + walked
    return Vocabulary(lambda: _tokens(data[:walked], count, start, 4), count)


# ------------------------------------------------------------------------------------------------------- writing
def plan(request: Request) -> Plan:
    """Lay out a file in the wanted layout."""
    return _plan_simple(request) if request.layout == "simple" else _plan_spec(request)


def _utf8(text: object, limit: int) -> bytes | None:
    """Return the text as UTF-8, or None when it is no text, no Unicode, or longer than `limit` bytes."""
    if not isinstance(text, str):
        return None
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return None
    return raw if len(raw) <= limit else None


def _check_tensors(request: Request, dtypes: Iterable[str], max_ndim: int, reasons: list[str]) -> None:
    known = frozenset(dtypes)
    least = 1 if max_ndim == 4 else 0  # noqa: PLR2004 - the specification layout
    for tensor in request.tensors:
        problems = []
        if tensor.dtype.name not in known:
            problems.append(f"dtype {tensor.dtype.name}")
        if not least <= len(tensor.shape) <= max_ndim:
            problems.append(f"{len(tensor.shape)} dimensions (it has {least} to {max_ndim})")
        if any(dim > U32_MAX for dim in tensor.shape):
            problems.append(f"shape {tensor.shape} (a dimension is below 2**32)")
        if _utf8(tensor.name, U16_MAX) is None:
            problems.append("its name (Unicode text of at most 65535 bytes)")
        if problems:
            reasons.append(f"tensor {tensor.name[:80]!r}: {', '.join(problems)}")


def _plan_spec(request: Request) -> Plan:
    reasons: list[str] = []
    _check_tensors(request, DTYPE_NAMES, 4, reasons)
    metadata = _encode_metadata(request, reasons)
    vocab = _encode_vocabulary(request, reasons)
    if reasons:
        refuse("EMBD", reasons)
    vocab_offset = HEADER.size + len(metadata)
    if vocab:
        _place_special(vocab, vocab_offset)
    index_offset = vocab_offset + len(vocab)
    names = [tensor.name.encode() for tensor in request.tensors]
    index_end = index_offset + DESCRIPTOR.size * len(names) + sum(map(len, names))
    data_offset = -(-index_end // ALIGNMENT) * ALIGNMENT
    if data_offset > U32_MAX:
        refuse("EMBD", [f"tensor data would begin at byte {data_offset}, and sections begin below 2**32"])
    hashes = kernels.fnv1a32_many(b"".join(names), [len(name) for name in names]).tolist()
    descriptors, offset, end = [], 0, 0
    for tensor, name, digest in zip(request.tensors, names, hashes, strict=True):
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        end = offset + tensor.nbytes
        shape = (*tensor.shape, 0, 0, 0)[:4]
        descriptors.append(DESCRIPTOR.pack(digest, _CODES[tensor.dtype.name], len(tensor.shape), len(name), *shape, offset))
    size = data_offset + end + FOOTER.size
    flags = TENSORS_ALIGNED | (VOCAB_EMBEDDED if vocab else 0) | (CHECKSUM_ENABLED if request.checksums else 0)
    sections = (HEADER.size, len(metadata), vocab_offset if vocab else 0, len(vocab), index_offset, len(names), data_offset)
    fields = (MAGIC, 1, 0, flags, *sections, end, size)
    checksum = kernels.crc32(HEADER.pack(*fields, 0, 0)[:56])
    prefix = b"".join((HEADER.pack(*fields, checksum, 0), metadata, bytes(vocab), *descriptors, *names, bytes(data_offset - index_end)))
    return Plan(size, lambda sink: _write_spec(sink, prefix, request, end))


def _write_spec(sink: Sink, prefix: bytes, request: Request, data_size: int) -> None:
    sink.write(prefix)
    prefix_crc = sink.crc32()
    end = 0
    for tensor in request.tensors:
        sink.pad(-end % ALIGNMENT)
        for chunk in tensor.chunks():
            sink.write(chunk)
        end = -(-end // ALIGNMENT) * ALIGNMENT + tensor.nbytes
    data_crc = sink.crc32()
    file_crc = kernels.crc32_combine(prefix_crc, data_crc, data_size)
    sink.write(FOOTER.pack(*((data_crc, file_crc) if request.checksums else (0, 0)), MAGIC_END, 0))


def _encode_metadata(request: Request, reasons: list[str]) -> bytes:
    entries = []
    for key, value in (request.metadata or {}).items():
        # Integers are decimal strings in the specification.
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        raw_key, raw_value = _utf8(key, U16_MAX), _utf8(text, U16_MAX)
        if raw_key is None or raw_value is None:
            reasons.append(f"metadata {str(key)[:80]!r}: keys and values must be strings of at most 65535 bytes of UTF-8")
            continue
        entries.append(struct.pack("<2H", len(raw_key), len(raw_value)) + raw_key + raw_value)
    total = sum(map(len, entries))
    return PAIR.pack(len(entries), total) + b"".join(entries)


def _encode_vocabulary(request: Request, reasons: list[str]) -> bytearray:
    if request.vocab is None:
        if request.special_ids:
            reasons.append("special_ids without a vocabulary")
        return bytearray()
    ids = _special(request.special_ids, request.vocab, reasons)
    tokens = _encode_tokens(request.vocab, "<H", U16_MAX, reasons)
    return bytearray(VOCAB_HEADER.pack(len(request.vocab), len(tokens), 0) + tokens + SPECIAL.pack(*ids))


def _place_special(vocab: bytearray, offset: int) -> None:
    struct.pack_into("<I", vocab, 8, offset + len(vocab) - SPECIAL.size)


def _special(given: Any, vocab: Sequence[str], reasons: list[str]) -> list[int]:
    """Return the five ids: as given, else by the token's usual name, else "none"."""
    known = dict(given) if given is not None else {}
    if given is None:
        for i, token in enumerate(vocab):
            if token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
                known.setdefault(token[1:-1].lower(), i)
    for name, value in known.items():
        if name not in SPECIAL_NAMES or not isinstance(value, int) or not 0 <= value <= NO_ID:
            reasons.append(f"special id {name!r}: {value!r} (it has {', '.join(SPECIAL_NAMES)}, each below 2**32)")
    return [known.get(name, NO_ID) for name in SPECIAL_NAMES]


def _encode_tokens(vocab: Sequence[str], prefix: str, limit: int, reasons: list[str]) -> bytes:
    length = struct.Struct(prefix)
    parts = []
    for i, token in enumerate(vocab):
        raw = _utf8(token, limit)
        if raw is None:
            reasons.append(f"token {i}: a token is Unicode text of at most {limit} bytes")
            continue
        parts += [length.pack(len(raw)), raw]
    return b"".join(parts)


def _plan_simple(request: Request) -> Plan:
    reasons: list[str] = []
    _check_tensors(request, ("float32",), 64, reasons)
    if request.metadata:
        reasons.append("metadata")
    if request.special_ids:
        reasons.append("special ids")
    tokens = _encode_tokens(request.vocab or (), "<I", U32_MAX, reasons)
    if len(request.tensors) > U32_MAX:
        reasons.append(f"{len(request.tensors)} tensors")
    if reasons:
        refuse("the simple layout of EMBD", reasons)
    start = MAGIC + struct.pack("<2I", 1, len(request.tensors))
    end = struct.pack("<I", len(request.vocab or ())) + tokens
    heads = [_simple_head(tensor) for tensor in request.tensors]
    size = len(start) + sum(map(len, heads)) + sum(tensor.nbytes for tensor in request.tensors) + len(end)
    return Plan(size, lambda sink: _write_simple(sink, start, heads, request.tensors, end))


def _simple_head(tensor: Payload) -> bytes:
    name = tensor.name.encode()
    return struct.pack("<I", len(name)) + name + struct.pack(f"<{1 + len(tensor.shape)}I", len(tensor.shape), *tensor.shape)


def _write_simple(sink: Sink, start: bytes, heads: Sequence[bytes], tensors: Sequence[Payload], end: bytes) -> None:
    sink.write(start)
    for head, tensor in zip(heads, tensors, strict=True):
        sink.write(head)
        for chunk in tensor.chunks():
            sink.write(chunk)
    sink.write(end)


FORMAT = Format(
    name="embd",
    title="EMBD (cpp_embedder)",
    suffixes=(".weights",),
    layouts=("spec", "simple"),
    sniff=sniff,
    parse=parse,
    plan=plan,
    carries={"spec": frozenset({"metadata", "vocab", "special_ids"}), "simple": frozenset({"vocab"})},
    dtypes={"spec": frozenset(DTYPE_NAMES), "simple": frozenset({"float32"})},
)
