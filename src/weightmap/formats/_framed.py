"""The common part of formats with a header behind its length: ``u64 n | header of n bytes | data``, no checksums."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from weightmap import kernels
from weightmap.errors import FormatError, TruncatedError
from weightmap.formats._base import MAX_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.formats._verifying import Verification
    from weightmap.index.table import Table
    from weightmap.io.source import Source
    from weightmap.options import Options

__all__ = ["LENGTH", "read_header", "verifier"]

LENGTH = struct.Struct("<Q")


def read_header(source: Source, head: bytes, options: Options) -> bytes:
    """Return the header as private bytes, its length bounded before it is read."""
    if len(head) < LENGTH.size:
        msg = "the file ends within the length of its header"
        raise TruncatedError(msg, offset=len(head), expected="at least 8 bytes")
    (length,) = LENGTH.unpack_from(head)
    options.limits.check("max_header_bytes", length, "length of the header", offset=0)
    if length > MAX_HEADER:
        raise FormatError("length of the header", field="n", offset=0, actual=length, expected=f"at most {MAX_HEADER}")
    base = LENGTH.size + length
    if base > source.size:
        msg = "the file ends within its header: its size"
        raise TruncatedError(msg, field="n", offset=source.size, actual=source.size, expected=f"at least {base}")
    return head[8:base] if base <= len(head) else source.pread(8, length)


def verifier(header: bytes, table: Table) -> Callable[[Verification], None]:
    """Return the function that verifies such a file. It keeps only a checksum of the header."""
    base, crc = LENGTH.size + len(header), kernels.crc32(header)

    def verify(run: Verification) -> None:
        run.unchanged(run.read(0, base)[LENGTH.size :], crc, "the header")
        run.checked("header")
        if "" in table.names:
            run.warn("a tensor has an empty name")
        run.rest()

    return verify
