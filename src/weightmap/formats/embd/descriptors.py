"""What EMBD asks of its tensor descriptors, when a file is opened and when it is verified."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from weightmap.formats.embd.layout import (
    ALIGNMENT,
    DESCRIPTOR,
    DTYPE_LIST,
    MAX_NDIM,
    TENSORS_ALIGNED,
    check_gap,
)
from weightmap.index.rules import Rules

if TYPE_CHECKING:
    from weightmap.index.records import RecordTable
    from weightmap.options import Options

__all__ = ["check_table", "record_rules"]


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST
    min_ndim, max_ndim = 1, MAX_NDIM
    # Where each field lies in a descriptor.
    fields = MappingProxyType(
        {
            "name_hash": ("name_hash", 0),
            "dtype": ("dtype", 4),
            "ndim": ("ndim", 5),
            "name_length": ("name_length", 6),
            "shape": ("shape", 8),
            "data_offset": ("data_offset", 24),
        }
    )


class _Aligned(_Rules):
    __slots__ = ()
    alignment, max_gap = ALIGNMENT, ALIGNMENT - 1


def record_rules(flags: int, base: int, size: int, file_size: int, options: Options) -> Rules:
    """Return what is asked of every descriptor of a file whose data section has `size` bytes from `base` on."""
    kind = _Aligned if flags & TENSORS_ALIGNED else _Rules
    return kind(base, file_size, size, lax=not options.strict)


def check_table(table: RecordTable, start: int, data: int) -> None:
    """Check the descriptors, their names, and that nothing but padding lies between those and the data.

    `start` is where the index lies, `data` where the data does.
    """
    table.check()
    end = start + DESCRIPTOR.size * len(table) + table.names_size
    if data - end >= ALIGNMENT:
        check_gap("tensor_data_offset", end, data)
