"""Reading the specification layout of EMBD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap import kernels
from weightmap.errors import ChecksumError, FormatError, LayoutError, TruncatedError, UnsupportedError
from weightmap.formats._base import Content, Options, Verification, take
from weightmap.formats.embd.index import check_table, record_rules
from weightmap.formats.embd.layout import (
    ALIGNMENT,
    COMPRESSED,
    DESCRIPTOR,
    FOOTER,
    HEADER,
    VOCAB_EMBEDDED,
    Header,
    check_gap,
    field_error,
)
from weightmap.formats.embd.metadata import check_metadata, load_metadata
from weightmap.formats.embd.vocabulary import vocabulary
from weightmap.records import RecordTable

if TYPE_CHECKING:
    from weightmap.source import Source

# A small index is read: that is cheaper than mapping it. A large one is checked and stays where it is mapped; each
# record is copied and checked again when it is used.
READ_INDEX = 1 << 16
# The field that says how large a section is, by that of its beginning.
_SIZES = {
    "metadata_offset": "metadata_size",
    "vocab_offset": "vocab_size",
    "tensor_index_offset": "tensor_index_count",
    "tensor_data_offset": "tensor_data_size",
}


def parse_spec(source: Source, head: bytes, header: Header, footer: tuple[Any, ...], options: Options) -> Content:
    """Check header and index, and return the content."""
    warnings: list[str] = []
    raw = head[: HEADER.size]
    check_header(source, head, header, footer, options, warnings)
    metadata_offset, start = header.metadata_offset, header.tensor_index_offset
    metadata = take(source, head, metadata_offset, header.metadata_size)
    vocab = vocabulary(source, head, header) if header.flags & VOCAB_EMBEDDED else None
    size = header.tensor_data_offset - start
    index = take(source, head, start, size) if size <= READ_INDEX else source.octets[start : start + size]
    table = RecordTable(index, header.tensor_index_count, start, record_rules(header, options))
    if options.checked:
        check_metadata(metadata, metadata_offset, warnings)
        check_table(table, header)

    def verify(run: Verification) -> None:
        from weightmap.formats.embd.verify import verify_spec  # noqa: PLC0415 - not needed to open

        verify_spec(run, raw, header, footer)

    def load() -> dict[str, Any]:
        return load_metadata(metadata, metadata_offset)

    return Content("spec", table, load_metadata=load, verify=verify, vocab=vocab, warnings=warnings)


def check_header(
    source: Source, head: bytes, header: Header, footer: tuple[Any, ...], options: Options, warnings: list[str]
) -> None:
    """Check the header field by field."""
    if header.version_major != 1:
        raise field_error(UnsupportedError, "version_major", header.version_major, 1)
    found = kernels.crc32(head[:56])
    if found != header.header_checksum:
        expected = f"{found:#010x}, the CRC-32 of bytes 0 to 55"
        raise field_error(ChecksumError, "header_checksum", f"{header.header_checksum:#010x}", expected)
    flags = header.flags
    if flags >= COMPRESSED:
        expected = "no bits but 1, 2 and 4: COMPRESSED (8) and the others are reserved"
        raise field_error(UnsupportedError, "flags", f"{flags:#x}", expected)
    if header.version_minor or header.reserved or footer[3]:
        _check_odd(source, header, footer, options, warnings)
    # Sections: each begins where the one before it ended, or within the padding of 63 bytes after it.
    if bool(flags & VOCAB_EMBEDDED) != bool(header.vocab_size) or (not header.vocab_size and header.vocab_offset):
        what = "the flag VOCAB_EMBEDDED contradicts vocab_size, which"
        expected = "set together with a vocab_size above 0; without it, vocab_offset and vocab_size are 0"
        raise field_error(LayoutError, "vocab_size", header.vocab_size, expected, what)
    limits, count = options.limits, header.tensor_index_count
    if count > limits.max_tensors:
        limits.check("max_tensors", count, "tensor_index_count", offset=32)
    if header.metadata_size > limits.max_header_bytes:
        limits.check("max_header_bytes", header.metadata_size, "metadata_size", offset=16)
    limit = source.size - FOOTER.size
    end = HEADER.size
    if header.metadata_offset or header.metadata_size:
        end = _check_section("metadata_offset", header.metadata_offset, header.metadata_size, end, limit)
    if header.vocab_size:
        end = _check_section("vocab_offset", header.vocab_offset, header.vocab_size, end, limit)
    end = _check_section("tensor_index_offset", header.tensor_index_offset, DESCRIPTOR.size * count, end, limit)
    data, size = header.tensor_data_offset, header.tensor_data_size
    if data < end or size != limit - data:
        end = _check_section("tensor_data_offset", data, size, end, limit, names=True)
        check_gap("tensor_data_size", end, limit)
    if data - header.tensor_index_offset > limits.max_header_bytes:
        limits.check("max_header_bytes", data - header.tensor_index_offset, "size of the tensor index", offset=28)


def _check_odd(source: Source, header: Header, footer: tuple[Any, ...], options: Options, warnings: list[str]) -> None:
    """Let a newer minor version pass, and reserved fields only in lax mode."""
    if header.version_minor:
        warnings.append(f"version_minor is {header.version_minor}: written by a newer version of the format")
    for field, value, offset in (("reserved", header.reserved, 60), ("footer reserved", footer[3], source.size - 4)):
        if value:
            options.odd(FormatError(field, field=field, offset=offset, actual=value, expected=0), warnings)


def _check_section(field: str, start: int, size: int, end: int, limit: int, *, names: bool = False) -> int:
    """Check that a section begins at `end` or within the padding after it, and ends before `limit`; return its end."""
    if start < end:
        expected = f"at least {end}, the end of what lies before it"
        raise field_error(LayoutError, field, start, expected, f"two sections overlap: {field}")
    if not names and start - end >= ALIGNMENT:  # names lie before the data; how long they are is known later
        check_gap(field, end, start)
    if start > limit:
        what = f"a section begins past the end of the file: {field}"
        raise field_error(LayoutError, field, start, f"at most {limit}, where the footer begins", what)
    if size > limit - start:
        cls = TruncatedError if start + size > limit + FOOTER.size else LayoutError
        what = f"the section at {field} does not fit in the file: its end"
        raise field_error(cls, _SIZES[field], start + size, f"at most {limit}, where the footer begins", what)
    return start + size
