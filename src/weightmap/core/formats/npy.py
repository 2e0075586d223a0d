"""numpy's `.npy`, read only: one array, called "".

See `weightmap.core.formats._npy` for the header. The data follows it, to the end of the file. The array is a view of
the mapping, in the order and type in which it was saved: also Fortran order, big-endian, structured. numpy saves types
of ml_dtypes as bytes without a type, "<V2" for bfloat16: ``f.read("", dtype="bfloat16")`` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.core.bytes.geometry import Strided
from weightmap.core.formats import is_npy
from weightmap.core.formats._base import Content, Format, take, trailing
from weightmap.core.formats._npy import FIRST, MAGIC, ArrayRules, read_header
from weightmap.core.native import checksums, scans
from weightmap.core.table.columns import ColumnTable

if TYPE_CHECKING:
    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header and return the table of the one array."""

    def read(count: int) -> bytes:
        return take(source, head, 0, min(source.size, count))

    dtype, shape, strides, data = read_header(read(FIRST), read, "the array", 0)
    options.limits.check("max_tensors", 1, "number of tensors", offset=0)
    warnings: list[str] = []
    bounds = np.array([0, 0], np.uint32), np.array([0, len(shape)], np.uint32)
    begin, end, dims = np.array([data.begin], np.uint64), np.array([data.end], np.uint64), np.array(shape, np.uint64)
    columns = scans.Columns(b"", bounds[0], np.zeros(1, np.uint8), dims, bounds[1], begin, end)
    typed = dtype, None if strides is None else Strided(strides)
    table = ColumnTable(columns, ArrayRules(0, source.size), utf8=True, typed=lambda _row, _shape: typed)
    table.check()  # a look at one array
    trailing(source, data.end, options, warnings)
    crc = checksums.crc32(take(source, head, 0, data.begin))

    def verify(run: Verification) -> None:
        run.unchanged(run.read(0, data.begin), crc, "the header")
        run.checked("header")
        run.finish()

    return Content("npy", table, dict, verify, warnings)


FORMAT = Format(
    name="npy", title="numpy .npy", suffixes=(".npy",), layouts=("npy",), parse=parse, sniff=is_npy, leads=MAGIC[:1]
)
