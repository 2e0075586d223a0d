"""Both kinds of table: columns filled by a scan, and records used in place."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from weightmap.core.native import access, scans
from weightmap.core.table import Rules
from weightmap.core.table.strings import StringTable
from weightmap.core.table.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.core.bytes.geometry import Geometry
    from weightmap.core.dtypes import DType
    from weightmap.core.table import Rules

    Index = bytes | NDArray[np.uint8]


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
        ``typed(row, shape)`` returns dtype and `Geometry` (or None) of a row whose bytes the file declares, if its code
        alone does not determine them.
    """

    def __init__(
        self,
        columns: scans.Columns,
        rules: Rules,
        *,
        utf8: bool,
        locate: Callable[[int], int | None] | None = None,
        typed: Callable[[int, tuple[int, ...]], tuple[DType, Geometry | None]] | None = None,
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
        return StringTable(columns.text(), columns.words(columns.bounds, self.count + 1), 0, "tensor name")

    def _load_rows(self) -> scans.Rows:
        return scans.Rows(self.rules, self.count, self._columns)

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


class RecordTable(Table):
    """A table of EMBD's fixed-size descriptors, used in place.

    Parameters
    ----------
    load : callable
        Called at the first use; returns the index as bytes or an array of uint8, with ``private=True`` outside of any
        mapping. It holds `count` records of 32 bytes (u32 name_hash, u8 dtype, u8 ndim, u16 name_length, 4 x u32 shape,
        u64 offset), then the names back to back in the order of the records, and perhaps padding.
    count : int
    start : int
        Offset of the index in the file, for messages.
    rules : Rules
    loaded : bytes, optional
        The index, where it was read already.
    """

    RECORD = struct.Struct("<I2BH4IQ")
    names_size: int = 0
    _bytes: Index | None = None
    is_mapped: bool = True

    def __init__(
        self, load: Callable[..., Index], count: int, start: int, rules: Rules, loaded: bytes | None = None
    ) -> None:
        self.count = count
        self.rules = rules
        self._load = load
        self._start = start
        if loaded is not None:
            self._bytes = loaded
            self.is_mapped = False

    @property
    def _index(self) -> Index:
        index = self._bytes
        if index is None:
            index = self._bytes = self._load()
            self.is_mapped = type(index) is not bytes
        return index

    def detach_index(self) -> None:
        """Replace a mapped index by a private copy, and drop the hash index and names built over it."""
        if self.is_mapped:
            self._bytes = self._load(private=True)
            self._names = None
            self._checker = self._usual = None
            self.__dict__.pop("find", None)
            self.is_mapped = False

    def _load_names(self) -> StringTable:
        count, size = self.count, self.RECORD.size
        index = self._index
        end, bounds = scans.records_bounds(index, count)
        names = index[count * size :]
        if end > min(len(names), access.U32_MAX):
            self.refuse("NAME_RANGE", count, end, len(names))
        return StringTable(names, bounds, 0, "tensor name")

    def _scan(self, name: bytes) -> int:
        return scans.records_find(self._index, self.count, name)

    def _load_rows(self) -> scans.Rows:
        return scans.Rows(self.rules, self.count, None, self._index)

    def position(self, row: int) -> int | None:
        """Return the offset of a record in the file."""
        return self._start + row * self.RECORD.size if row < self.count else None

    def check(self) -> None:
        """Check every record and name by one call into C: ranges, UTF-8, stored hashes, uniqueness."""
        rules = self.rules
        index = self._bytes
        fault = scans.records_check(
            self._index if index is None else index, self.count, rules.native, rules.declared, rules.room, lax=rules.lax
        )
        if isinstance(fault, int):
            self.names_size = fault
        elif fault.kind == "NAME_FLOOD":
            self.check_names()
            self.names_size = self.names.nbytes
        else:
            self.fail(fault)
