"""Toy, a format that is only read: a header, then the data of the tensors, back to back, without padding.

``"TOYT" | u32 version = 1 | u32 header_size | u32 count``, and for each tensor ``u16 length | name | u8 dtype (float32
or int8) | u8 ndim (0 to 4) | ndim x u32 | u64 begin | u64 end``, little-endian, counted from the end of the header.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from weightmap.core.dtypes import DTYPES
from weightmap.core.faults import cut_off
from weightmap.core.formats._base import Content, Format, take, trailing
from weightmap.core.native import checksums, scans
from weightmap.core.table import Rules
from weightmap.core.table.columns import ColumnTable
from weightmap.errors import FormatError, LayoutError, UnsupportedError

if TYPE_CHECKING:
    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification


class _Rules(Rules):
    __slots__ = ()
    dtypes = (DTYPES["float32"], DTYPES["int8"])
    max_ndim = 4


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header and return the table of tensors."""
    if head[:4] != b"TOYT":
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=repr(b"TOYT"))
    if len(head) < 16:
        raise cut_off("its header", len(head), 16)
    version, size, count = struct.unpack_from("<3I", head, 4)
    if version != 1:
        raise UnsupportedError("version", field="version", offset=4, actual=version, expected=1)
    # Declared sizes are compared with the limits and the bytes present before anything is read for them.
    options.limits.check("max_header_bytes", size, "header_size", offset=8)
    options.limits.check("max_tensors", count, "count", offset=12)
    if size > source.size:
        raise cut_off("its header", source.size, size, field="header_size")
    header, at = take(source, head, 0, size), 16

    def part(length: int, field: str) -> bytes:
        nonlocal at
        at += length
        if at > size:
            raise cut_off(field, size, at, field=field, whole="the header")
        return header[at - length : at]

    places, names, bounds, codes, dims, dim_bounds, spans = [], [], [0], [], [], [0], []
    for _ in range(count):
        places.append(at)
        names.append(part(int.from_bytes(part(2, "length"), "little"), "name"))
        bounds.append(bounds[-1] + len(names[-1]))
        code, ndim = part(2, "dtype and ndim")
        codes.append(code)
        dims += struct.unpack(f"<{ndim}I", part(4 * ndim, "shape"))
        dim_bounds.append(len(dims))
        spans.append(struct.unpack("<2Q", part(16, "begin and end")))
    if at != size:
        raise LayoutError("header_size", field="header_size", offset=8, actual=size, expected=at)
    warnings: list[str] = []
    trailing(source, size + max((end for _, end in spans), default=0), options, warnings)
    shapes = np.array(bounds, "u4"), np.array(codes, "u1"), np.array(dims, "u8"), np.array(dim_bounds, "u4")
    columns = scans.Columns(b"".join(names), *shapes, *np.array(spans, "u8").reshape(-1, 2).T.copy())
    # The table checks names, types, shapes and ranges.
    rules = _Rules(size, source.size, lax=not options.strict)
    table = ColumnTable(columns, rules, utf8=True, locate=places.__getitem__)
    if options.checked:
        table.check()

    def verify(run: Verification) -> None:
        run.unchanged(run.read(0, size), checksums.crc32(header), "the header")
        run.checked("header")
        run.finish()

    return Content("toy", table, dict, verify, warnings)


FORMAT = Format("toy", "Toy", (".toy",), ("toy",), parse, magic=b"TOYT")
