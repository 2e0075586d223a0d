"""The tensor index of EMBD, and what is asked of its descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.formats.embd.layout import (
    ALIGNMENT,
    DESCRIPTOR,
    DTYPE_BITS,
    DTYPE_LIST,
    MAX_NDIM,
    TENSORS_ALIGNED,
    Header,
    check_gap,
)
from weightmap.table import Rules

if TYPE_CHECKING:
    from weightmap.formats._base import Options
    from weightmap.records import RecordTable

# Where each field lies in a descriptor.
_FIELDS = {
    "name_hash": ("name_hash", 0),
    "dtype": ("dtype", 4),
    "ndim": ("ndim", 5),
    "name_length": ("name_length", 6),
    "shape": ("shape", 8),
    "data_offset": ("data_offset", 24),
}


def record_rules(header: Header, options: Options) -> Rules:
    """Return what is asked of every descriptor."""
    aligned = header.flags & TENSORS_ALIGNED
    base, size = header.tensor_data_offset, header.tensor_data_size
    alignment, gap = (ALIGNMENT, ALIGNMENT - 1) if aligned else (1, 0)
    lax = not options.strict
    return Rules(DTYPE_LIST, DTYPE_BITS, base, size, 1, MAX_NDIM, alignment, gap, lax=lax, fields=_FIELDS)


def check_table(table: RecordTable, header: Header) -> None:
    """Check the descriptors, their names, and that nothing but padding lies behind those."""
    table.check()
    end = header.tensor_index_offset + DESCRIPTOR.size * len(table) + table.names_size
    check_gap("tensor_data_offset", end, header.tensor_data_offset)
