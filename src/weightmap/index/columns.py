"""A table of tensors in private columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.index.rules import U64_MAX, Rules
from weightmap.index.strings import StringTable
from weightmap.index.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap import kernels
    from weightmap.dtypes import DType
    from weightmap.index.table import Place

__all__ = ["ColumnTable"]


class ColumnTable(Table):
    """A table in private columns, filled by a scan of a header.

    Parameters
    ----------
    columns : Columns
    rules : Rules
    utf8 : bool
        Whether `check` checks names for UTF-8.
    locate : callable, optional
        Returns the offset in the file of a row's entry, for messages, or None where it is unknown.
    typed : callable, optional
        ``typed(row, dtype, shape)`` returns the data type of a row whose bytes the file declares, where the code of the
        row does not say it all: with a placement, for a tensor that does not lie row-major in the file.
    """

    def __init__(
        self,
        columns: kernels.Columns,
        rules: Rules,
        *,
        utf8: bool,
        locate: Callable[[int], int | None] | None = None,
        typed: Callable[[int, DType, tuple[int, ...]], DType] | None = None,
    ) -> None:
        self.count: int = columns.count
        self.rules = rules
        self._columns = columns
        self._utf8 = utf8
        self._locate = locate
        self._typed = typed

    def position(self, row: int) -> int | None:
        """Return the offset in the file of a row's entry, or None where it is unknown."""
        return self._locate(row) if self._locate is not None and row < self.count else None

    def _scan(self, name: bytes) -> int:
        return self._columns.find(name)

    def _load_names(self) -> StringTable:
        columns = self._columns
        return StringTable(columns.text(), columns.array(columns.bounds, self.count + 1, "<u4"), 0, "tensor name")

    def place(self, i: int) -> Place:
        """Check row i, and return its dtype, shape, offset and bytes."""
        code, shape, offset = self._columns.raw(i)
        rules = self.rules
        dtype = rules.dtypes[code]
        if dtype is None:
            dtype = self._dtype(code, i)
        if dtype.declared:
            return self._place_declared(i, dtype, shape, offset)
        nbytes = (math.prod(shape) * dtype.bits + 7) >> 3
        if offset > rules.data_size - nbytes:
            self._out_of_range(i, offset + nbytes)
        if not nbytes or len(shape) not in rules.ndims:
            self._check_shape(i, shape, dtype)
        return dtype, shape, rules.base + offset, nbytes

    def _place_declared(self, i: int, dtype: DType, shape: tuple[int, ...], offset: int) -> Place:
        dtype, shape, offset, nbytes = super()._place_declared(i, dtype, shape, offset)
        if self._typed is not None:
            dtype = self._typed(i, dtype, shape)
            if dtype.placement is not None:
                nbytes = math.prod(shape) * dtype.bits // 8
        return dtype, shape, offset, nbytes

    def _declared(self, i: int) -> int:
        columns = self._columns
        if not columns.end:  # a mistake of the format, whose scheme needs ends
            self.refuse("COLUMN", i)
        nbytes: int = columns.end[i] - columns.begin[i]
        if nbytes < 0:
            self.refuse("TABLE_SIZE", i, nbytes % (U64_MAX + 1))
        return nbytes

    def _all_declared(self, first: int, last: int) -> Any:
        columns, count = self._columns, last - first
        if not columns.end:
            self.refuse("COLUMN", first)
        return columns.array(columns.end + first, count, "<u8") - columns.array(columns.begin + first, count, "<u8")

    def _batch(self, first: int, last: int) -> tuple[Any, Any, Any, Any]:
        columns, count = self._columns, last - first
        bounds = columns.array(columns.dim_bounds + first, count + 1, "<u4")
        ndims = np.diff(bounds)
        dims = np.zeros((count, int(ndims.max(initial=0))), np.uint64)
        start, end = int(bounds[0]), int(bounds[-1])
        dims[np.arange(dims.shape[1]) < ndims[:, None]] = columns.array(columns.dims + start, end - start, "<u8")
        return (
            columns.array(columns.dtype + first, count, "u1"),
            ndims,
            dims,
            columns.array(columns.begin + first, count, "<u8"),
        )

    def check(self) -> None:
        """Check every row, and that names are unique, by one call into C."""
        rules = self.rules
        lax = rules.lax or rules.scattered
        fault = self._columns.check(rules.native, rules.declared, rules.room, lax=lax, utf8=self._utf8)
        if fault is None:
            return
        if fault.kind != "NAME_FLOOD":
            self.fail(fault)
        self.check_names()
