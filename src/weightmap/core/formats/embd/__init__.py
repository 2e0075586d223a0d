"""EMBD ``.weights``, the format of cpp_embedder: its specification's layout, and the layout that its converter writes.

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
* special_tokens is written as an absolute offset, after the entries. It is read as absolute if it then lies within the
  vocabulary, else as relative to it. If it points right after the sub-header, the entries begin after the ids.
* A special id of 0xFFFFFFFF means "no such token". `verify` warns of an id that is not below token_count.
* tensor_data_offset and every data_offset are written as multiples of 64.
* Padding between sections, between aligned tensors, and before the footer is at most 63 zero bytes; without
  TENSORS_ALIGNED, tensors lie back to back.
* Without CHECKSUM_ENABLED, the footer's CRCs are written as 0 and not read, and a header checksum of 0 means none, of
  which `verify` warns. Any other wrong header checksum is an error, with or without the flag. The header checksum is
  always written. Without VOCAB_EMBEDDED, vocab_offset and vocab_size are 0.
* `verify` warns of a minor version above 0, a repeated token, a wrong total_size of the metadata, and missing keys that
  the specification requires. If all of these keys are missing, it says so among its checks instead.
* ``weightmap.types`` in the metadata, from `convert`, records the types of texts before: see `conversion.metadata`.
* Metadata without entries may also lack the sub-header: metadata_size is then 0.
* ``strict=False`` also tolerates reserved fields that are not 0, and holes and overlaps of tensors.

Simple layout ("simple")
------------------------
The layout that the upstream converter and loader really use: ``"EMBD", u32 1, u32 n``, n times ``u32 length, name, u32
ndim, ndim x u32, float32 data``, then ``u32 vocab_count``, and for each token ``u32 length, token``. A file has the
specification layout if it has 80 bytes or more, its size at byte 48 and "DBME" 8 bytes before its end; otherwise the
simple layout must consume it exactly. If neither fits, the error is about the specification layout if the file has one
of its signs (ours: a right header checksum is a third sign), else about the simple layout.
"""

from __future__ import annotations

import math
import struct
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from weightmap.core.bytes.open_source import from_buffer
from weightmap.core.dtypes import DTYPES, DType
from weightmap.core.faults import cut_off, nonzero_padding, trailing_bytes
from weightmap.core.formats._base import TEXT, Content, Cursor, Format, new_vocabulary, take, trailing
from weightmap.core.hooks import later
from weightmap.core.native import access, checksums, scans
from weightmap.core.table import ANY_GAP, Rules, StringTable
from weightmap.core.table.columns import ColumnTable, RecordTable
from weightmap.errors import ChecksumError, FormatError, LayoutError, TruncatedError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Sum, Verification
    from weightmap.core.table.vocabulary import Vocabulary

# The fields of both layouts of EMBD, metadata and vocabulary, and errors about them.

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
# Only verification needs it.
_sum: Callable[..., Sum] = later("weightmap.core.formats._verification", "Sum")
DTYPE_LIST: tuple[DType, ...] = tuple(DTYPES[name] for name in DTYPE_NAMES)


class Header(NamedTuple):
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
        return HEADER.pack(*self)


# The offset of each field, for messages.
OFFSETS = dict(zip(Header.__annotations__, (0, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 60), strict=True))
# Index of a field in the plain tuple that opening uses, because it is faster than a `Header`.
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


class _SpecRules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST
    min_ndim, max_ndim = 1, MAX_NDIM
    fields = MappingProxyType({field: (field, at) for field, at in _FIELDS_AT.items()})


class _Aligned(_SpecRules):
    __slots__ = ()
    alignment, max_gap = ALIGNMENT, ALIGNMENT - 1


def record_rules(flags: int, base: int, size: int, file_size: int, options: Options) -> Rules:
    """Return the rules for a file whose data section has `size` bytes from `base` on."""
    kind = _Aligned if flags & TENSORS_ALIGNED else _SpecRules
    return kind(base, file_size, size, lax=not options.strict)


def check_table(table: RecordTable, start: int, data: int) -> None:
    """Check the descriptors, their names, and that only padding lies between the names and the data.

    `start` is the offset of the index, `data` the offset of the data.
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
    fault = scans.pairs_check(raw[PAIR.size :], count)
    if fault is not None and fault.kind == "NAME_FLOOD":
        # All else is checked. Either hashes were made to collide, or there are very many keys. A set takes linear time
        # for any keys, because its hash has a secret key.
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


def _metadata_error(fault: access.Fault, count: int, raw: bytes, offset: int) -> FormatError:
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
    return LayoutError(f"metadata entry {number} repeats the key of an earlier entry", field="metadata", offset=offset)


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
    """Read the sub-header, and return the function that reads special ids and tokens at the first use."""
    start, size = header.vocab_offset, header.vocab_size
    min_nbytes = VOCAB_HEADER.size + SPECIAL.size
    if size < min_nbytes:
        raise field_error(TruncatedError, "vocab_size", size, f"at least {min_nbytes}")
    count, total, special = VOCAB_HEADER.unpack(take(source, head, start, VOCAB_HEADER.size))
    if count > (size - min_nbytes) // 2:
        what, expected = "vocabulary token_count", f"at most {(size - min_nbytes) // 2}: a token takes 2 bytes or more"
        raise TruncatedError(what, field="token_count", offset=start, actual=count, expected=expected)
    if total != size - min_nbytes:
        cls = TruncatedError if total > size - min_nbytes else LayoutError
        what, expected = "vocabulary total_size", f"{size - min_nbytes}, from vocab_size"
        raise cls(what, field="total_size", offset=start + 4, actual=total, expected=expected)
    # Absolute if it then lies within the vocabulary, else relative to it.
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


class _Unchecked(RecordTable):
    """An index that opening has not checked: a look-up compares the name with its stored hash."""

    def _scan(self, name: bytes) -> int:
        row = super()._scan(name)  # by hashes
        return row if row >= 0 else self.names.find(name.decode(errors="surrogatepass"))

    def place(self, i: int) -> Any:
        stored = self.RECORD.unpack_from(self._index, i * self.RECORD.size)[0]
        computed = checksums.fnv1a32(self.names.raw(i))
        if stored != computed:
            self.refuse("NAME_HASH", i, stored, computed)
        return super().place(i)


def string_table(data: NDArray[np.uint8] | bytes, count: int, at: int, width: int) -> StringTable:
    """Return the table of tokens. Raises `LayoutError` unless they fill their section exactly."""
    bounds = np.empty(count + 1, np.uint32)
    walked = scans.walk_strings(data, count, width, bounds)
    if walked != len(data):
        what = f"token {-1 - walked} runs past the end of the vocabulary"
        if walked >= 0:
            what = f"the {count} tokens end before the vocabulary does"
        raise LayoutError(what, field="vocabulary", offset=at + max(walked, 0))
    table = StringTable(data, bounds, width, "token")
    table.end = at + len(data)
    return table


# ----------------------------------------------------------------------------------------------------
# The checks of `TensorFile.verify` in the specification layout: everything that opening leaves unread.


def verify_spec(run: Verification, header: Header, footer: tuple[Any, ...]) -> None:
    """Check the whole file: first everything before the data again, on private bytes, then the data in one pass.

    `header` and `footer` are the fields at opening.
    """
    raw, start = header.packed(), header.tensor_data_offset
    run.options.limits.check("max_header_bytes", start, "size of everything before the tensor data")
    prefix = run.read(0, start)
    run.unchanged(prefix[: HEADER.size], checksums.crc32(raw), "the header")
    has_checksum = header.header_checksum == checksums.crc32(raw[:56])  # otherwise it is 0: opening checked it
    run.checked("header checksum" if has_checksum else "no header checksum: the file has none")
    at = header.metadata_offset
    metadata = load_metadata(prefix[at : at + header.metadata_size], at)
    missing = [key for key in REQUIRED_KEYS if key not in metadata]
    if 0 < len(missing) < len(REQUIRED_KEYS):
        run.warn(f"metadata lacks keys that the specification requires: {', '.join(missing)}")
    # A file without any of them is not meant for cpp_embedder: `save` without metadata writes such files.
    run.checked(
        "metadata" if len(missing) < len(REQUIRED_KEYS) else "metadata: none of the keys of cpp_embedder's models"
    )
    index = prefix[header.tensor_index_offset :]
    rules = record_rules(header.flags, start, header.tensor_data_size, run.source.size, run.options)
    table = RecordTable(lambda: index, header.tensor_index_count, header.tensor_index_offset, rules)
    check_table(table, header.tensor_index_offset, start)
    if "" in table.names:
        run.warn("a tensor has an empty name")
    run.checked("tensor index: ranges, names and their hashes")
    if header.flags & VOCAB_EMBEDDED:
        run.vocabulary(vocabulary(from_buffer(prefix, "mmap"), prefix, header)())
    _verify_section_padding(run, prefix, header, table)
    _verify_data(run, checksums.crc32(prefix), header, footer, table)


def _verify_data(
    run: Verification, prefix_crc: int, header: Header, footer: tuple[Any, ...], table: RecordTable
) -> None:
    """Read the data once for its padding and its CRC, and combine the file's CRC from the CRCs of its parts."""
    start, size = header.tensor_data_offset, header.tensor_data_size
    gaps = _gaps(table, start + size)
    data_crc, filled = run.crc32(start, size, gaps)
    for i in filled:
        run.tolerate(nonzero_padding("between tensors", int(gaps[i, 0])))
    end = run.source.size
    tail = run.read(start + size, end - start - size)[: -FOOTER.size]
    if any(tail):
        run.tolerate(nonzero_padding("before the footer", start + size))
    run.checked("padding is zero")
    if not header.flags & CHECKSUM_ENABLED:
        run.checked("no data checksums: the file has none")
        return
    file_crc = checksums.crc32(tail, checksums.crc32_combine(prefix_crc, data_crc, size))
    whole = _sum(0, end, footer[1], "CRC-32 of the file", "file_checksum", end - 12)
    for stored, computed in ((data_sum(header, footer, end), data_crc), (whole, file_crc)):
        stored.check(computed)
        run.checked(stored.what)


def data_sum(header: Header, footer: tuple[Any, ...], end: int) -> Sum:
    """Return the checksum of the tensor data of a file that ends at `end`."""
    start, size = header.tensor_data_offset, header.tensor_data_size
    return _sum(start, size, footer[0], "CRC-32 of the tensor data", "data_checksum", end - 16)


def _verify_section_padding(run: Verification, prefix: bytes, header: Header, table: RecordTable) -> None:
    end = HEADER.size
    sections = [(header.metadata_offset, header.metadata_size), (header.vocab_offset, header.vocab_size)]
    sections.append((header.tensor_index_offset, DESCRIPTOR.size * len(table) + table.names_size))
    sections.append((header.tensor_data_offset, 0))
    for start, size in sections:
        if start == 0:  # an absent section
            continue
        if any(prefix[end:start]):
            run.tolerate(nonzero_padding("between sections", end))
        end = start + size


def _gaps(table: RecordTable, end: int) -> NDArray[np.uint64]:
    """Return begin and end of every piece of padding in the tensor data, which ends at `end`."""
    previous, gaps = table.rules.base, []
    for row in table.rows():
        if row.offset > previous:
            gaps.append((previous, row.offset))
        previous = row.offset + row.nbytes
    if end > previous:
        gaps.append((previous, end))
    return np.array(gaps, np.uint64).reshape(-1, 2)


class _SimpleRules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST[:1]
    min_ndim, max_ndim = 1, MAX_NDIM
    # Names lie between the tensors; the walk, not the table, checks these gaps.
    max_gap = ANY_GAP


def parse_simple(source: Source, head: bytes, options: Options) -> Content:
    """Walk the file to the end of the vocabulary, which must be the end of the file."""
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
        names_size += length  # the limit applies to the sum, because all names are kept
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
        if nbytes > reader.remaining:
            label = repr(names[-1][:60].decode(errors="replace"))
            what = f"the data of tensor {i}, {label} of shape {tuple(shape)}"
            raise cut_off(what, source.size, reader.position + nbytes, field="data")
        offsets.append(reader.position)
        reader.skip(nbytes)
    vocab = _simple_vocabulary(reader, options)
    warnings: list[str] = []
    trailing(source, reader.position, options, warnings)
    columns = scans.Columns(
        b"".join(names),
        np.cumsum(lengths, dtype=np.uint32),
        np.zeros(count, np.uint8),
        np.array(shapes, np.uint64),
        np.cumsum(ndims, dtype=np.uint32),
        np.array(offsets, np.uint64),
    )
    table = ColumnTable(columns, _SimpleRules(0, source.size), utf8=True, locate=partial(_name_at, columns))
    if options.checked:
        table.check()

    def verify(run: Verification) -> None:
        run.finish()
        if vocab is not None:
            run.vocabulary(vocab())

    content = Content("simple", table, dict, verify, warnings)
    content.load_vocab = vocab
    return content


def _name_at(columns: scans.Columns, row: int) -> int:
    """Return the offset of a tensor's name, which lies before its dimensions and data."""
    names, dims = columns.bounds, columns.dim_bounds
    at: int = columns.begin[row] - 4 - 4 * (dims[row + 1] - dims[row]) - (names[row + 1] - names[row])
    return at


def _simple_vocabulary(reader: Cursor, options: Options) -> Callable[[], Vocabulary] | None:
    at = reader.position
    count = reader.count("u32", 4, "vocab_count", "number of tokens")
    if not count:
        return None
    options.limits.check("max_header_bytes", reader.remaining, "size of the vocabulary", offset=at)
    start = reader.position
    data = reader.take(reader.remaining, "vocabulary", "the vocabulary")
    walked = scans.walk_strings(data, count, 4)
    if walked < 0:
        raise cut_off(f"token {-1 - walked} of {count}", reader.end, field="vocabulary")
    reader.position = start + walked
    return lambda: new_vocabulary(lambda: string_table(data[:walked], count, start, 4), count)


# Most bytes of an index to read, which is cheaper than mapping it. A larger one is checked in the mapping and stays
# there; each use copies and checks a record again.
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
    """Check these fields of the header, and the index; return the content."""
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
    kind = RecordTable if options.checked else _Unchecked
    table = kind(index, count, start, record_rules(flags, data, data_size, source.size, options), loaded)
    if options.verify == "full":
        table.detach_index()
    if options.checked:
        check_metadata(metadata, metadata_offset, warnings)
        check_table(table, start, data)

    def verify(run: Verification) -> None:
        verify_spec(run, Header(*fields), footer)

    def sums(_: Source) -> list[Sum]:
        return [data_sum(Header(*fields), footer, source.size)]

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
    """Check the header field by field; return flags, and the places of all sections but the vocabulary."""
    _, major, minor, flags, at, metadata_size, vocab, vocab_size, index, count, data, size, _, stored, odd = fields
    if major != 1:
        raise field_error(UnsupportedError, "version_major", major, 1)
    actual = checksums.crc32(head[:56])
    if actual != stored:
        if stored or flags & CHECKSUM_ENABLED:
            expected = f"{actual:#010x}, the CRC-32 of bytes 0 to 55"
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
    limit = limits.max_header_bytes
    if count > limits.max_tensors:
        limits.check("max_tensors", count, "tensor_index_count", offset=32)
    if metadata_size > limit:
        limits.check("max_header_bytes", metadata_size, "metadata_size", offset=16)
    _check_sections(fields, source.size - FOOTER.size)
    if vocab_size > limit:
        limits.check("max_header_bytes", vocab_size, "vocab_size", offset=24)
    if data - index > limit:
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
    if data < end or size > limit - data:  # `check_table` checks the gap: it knows the length of the names
        _misplaced("tensor_data_offset", data, size, end, limit)
    if limit - data - size >= ALIGNMENT:
        what = "there is a hole behind the tensor data: tensor_data_size"
        expected = f"at least {limit - data - ALIGNMENT + 1}: the footer begins at {limit}"
        raise field_error(LayoutError, "tensor_data_size", size, expected, what)


def _check_odd(source: Source, minor: int, odd: int, end: int, options: Options, warnings: list[str]) -> None:
    """Accept a newer minor version with a warning; accept reserved fields only with ``strict=False``."""
    if minor:
        warnings.append(f"version_minor is {minor}: written by a newer version of the format")
    for field, value, offset in (("reserved", odd, 60), ("footer reserved", end, source.size - 4)):
        if value:
            options.tolerate(FormatError(field, field=field, offset=offset, actual=value, expected=0), warnings)


def _misplaced(field: str, start: int, size: int, end: int, limit: int) -> NoReturn:
    """Raise the error for a section that should begin at `end` or just after it, and end by `limit`."""
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
    if size < _MIN_NBYTES:
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
    if not (sized or ended or header.header_checksum == checksums.crc32(head[:56])):
        return parse_simple(source, head, options)
    try:
        return parse_simple(source, head, options)
    except FormatError:
        raise _one_sign(header, footer, size) from None


# Shortest file in the specification layout, in bytes
_MIN_NBYTES = HEADER.size + FOOTER.size
# Shortest file in the simple layout, in bytes: files too short for the specification layout may have it.
_MIN_SIMPLE = 16
# Places and sizes of metadata and vocabulary, and the place of the index.
_PLACES = struct.Struct("<5I")


def _begins_spec(head: bytes) -> bool:
    """Whether the index begins where the sections before it end; in the simple layout, a name lies there.

    If the header is cut off, its flags and the place of the metadata decide, as far as they are there.
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
    plausible: bool = end <= index < end + ALIGNMENT
    return plausible


def _cut_short(head: bytes, size: int) -> FormatError:
    """Return the error for a file in the specification layout that is too short to be whole."""
    at = OFFSETS["total_file_size"]
    declared = int.from_bytes(head[at : at + 8], "little") if size >= at + 8 else 0
    if declared > size:
        return _shorter(size, declared)
    error = cut_off("its header and footer", size, _MIN_NBYTES)
    if size < _MIN_SIMPLE:
        error.expected += f", or {_MIN_SIMPLE} in the simple layout"
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
