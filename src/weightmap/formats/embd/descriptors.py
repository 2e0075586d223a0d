"""The rules and the check of EMBD's tensor descriptors, at opening and in `verify`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from weightmap.formats.embd.layout import ALIGNMENT, DESCRIPTOR, DTYPE_LIST, MAX_NDIM, TENSORS_ALIGNED, check_gap
from weightmap.index.rules import Rules

if TYPE_CHECKING:
    from weightmap.index.records import RecordTable
    from weightmap.options import Options

__all__ = ["check_table", "record_rules"]

# The byte of each field in a descriptor.
_OFFSETS = {"name_hash": 0, "dtype": 4, "ndim": 5, "name_length": 6, "shape": 8, "data_offset": 24}


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST
    min_ndim, max_ndim = 1, MAX_NDIM
    fields = MappingProxyType({field: (field, at) for field, at in _OFFSETS.items()})


class _Aligned(_Rules):
    __slots__ = ()
    alignment, max_gap = ALIGNMENT, ALIGNMENT - 1


def record_rules(flags: int, base: int, size: int, file_size: int, options: Options) -> Rules:
    """Return the rules for a file whose data section has `size` bytes from `base` on."""
    kind = _Aligned if flags & TENSORS_ALIGNED else _Rules
    return kind(base, file_size, size, lax=not options.strict)


def check_table(table: RecordTable, start: int, data: int) -> None:
    """Check the descriptors, their names, and that only padding lies between the names and the data.

    `start` is the offset of the index, `data` that of the data.
    """
    table.check()
    end = start + DESCRIPTOR.size * table.count + table.names_size
    if data - end >= ALIGNMENT:
        check_gap("tensor_data_offset", end, data)
