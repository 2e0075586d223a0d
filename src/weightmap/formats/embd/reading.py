"""Reading EMBD: tells the two layouts apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap import kernels
from weightmap.errors import FormatError, LayoutError, TruncatedError
from weightmap.formats.embd import MAGIC
from weightmap.formats.embd.layout import FOOTER, HEADER, MAGIC_END, TOTAL_FILE_SIZE, Header, field_error
from weightmap.formats.embd.simple import parse_simple
from weightmap.formats.embd.spec import parse_spec

if TYPE_CHECKING:
    from weightmap.formats._base import Content
    from weightmap.io.source import Source
    from weightmap.options import Options


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Return the content of a file in either layout."""
    size = source.size
    if head[:4] != MAGIC:
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=repr(MAGIC))
    if size >= HEADER.size + FOOTER.size:
        fields = HEADER.unpack_from(head)
        footer = FOOTER.unpack(source.pread(size - FOOTER.size, FOOTER.size))
        sized, ended = fields[TOTAL_FILE_SIZE] == size, footer[2] == MAGIC_END
        if sized and ended:
            return parse_spec(source, head, fields, footer, options)
        header = Header._make(fields)
        if sized or ended or header.header_checksum == kernels.crc32(head[:56]):
            try:
                return parse_simple(source, head, options)
            except FormatError:
                raise _one_sign(header, footer, size) from None
    return parse_simple(source, head, options)


def _one_sign(header: Header, footer: tuple[Any, ...], size: int) -> FormatError:
    """Return the error for a file with only some of the signs of the specification layout."""
    if header.total_file_size > size:
        what = "the file is shorter than its header says (was the download complete?): size"
        return field_error(TruncatedError, "total_file_size", size, header.total_file_size, what)
    if header.total_file_size < size:
        what = "there are bytes after the end that the header declares: size"
        return field_error(LayoutError, "total_file_size", size, header.total_file_size, what)
    what = "the footer's magic is missing (was the download complete?): magic_end"
    return TruncatedError(what, field="magic_end", offset=size - 8, actual=repr(footer[2]), expected=repr(MAGIC_END))
