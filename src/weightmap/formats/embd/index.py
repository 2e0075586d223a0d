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


class _Rules(Rules):
    dtypes = DTYPE_LIST
    bits = DTYPE_BITS
    min_ndim, max_ndim = 1, MAX_NDIM


def record_rules(header: Header, options: Options) -> Rules:
    """Return what is asked of every descriptor."""
    rules = _Rules(header.tensor_data_offset, header.tensor_data_size)
    if header.flags & TENSORS_ALIGNED:
        rules.alignment, rules.max_gap = ALIGNMENT, ALIGNMENT - 1
    rules.lax = not options.strict
    return rules


def check_table(table: RecordTable, header: Header) -> None:
    """Check the descriptors, their names, and that nothing but padding lies behind those."""
    table.check()
    end = header.tensor_index_offset + DESCRIPTOR.size * len(table) + table.names_size
    check_gap("tensor_data_offset", end, header.tensor_data_offset)
