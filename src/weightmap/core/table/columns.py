"""Both kinds of table: columns filled by a scan, and records used in place."""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weightmap.core.native import access, scans
from weightmap.core.table import Rules, StringTable
from weightmap.core.table.table import Place, Row, Run, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.geometry import Geometry
    from weightmap.core.bytes.source import Source
    from weightmap.core.dtypes import DType
    from weightmap.errors import LayoutError

# The index of an EMBD file
Index: TypeAlias = "bytes | NDArray[np.uint8]"


class ColumnTable(Table):
    """A table in private columns, filled by a scan of a header.

    Parameters
    ----------
    columns : Columns
    rules : Rules
    utf8 : bool
        Whether `check` checks names for UTF-8.
    locate : callable, optional
        Returns the offset in the file of a row's entry, for messages, or None if it is unknown.
    typed : callable, optional
        ``typed(row, shape)`` returns dtype and `Geometry` (or None) of a row whose bytes the file declares, if the code
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
        """Return the offset in the file of a row's entry, or None if it is unknown."""
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
        The index, if it has been read already.
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


# ----------------------------------------------------------------------------------------------------
# `JoinedTable`: the tables of several files as one, for models in several files and files with side files.


class JoinedTable(Table):
    """Tables of several files as one; each checks its own rows.

    A table without a source gets the opened file's source; a format sets the sources of side files.

    Parameters
    ----------
    tables : sequence of Table
    order : ndarray of int64, optional
        The rows, in order, as numbers in the concatenated tables; by default all rows.
    names : StringTable, optional
        The names of these rows, if known.
    """

    def __init__(
        self, tables: Sequence[Table], order: NDArray[np.int64] | None = None, names: StringTable | None = None
    ) -> None:
        self._tables = tables
        self._first = list(accumulate(map(len, tables), initial=0))
        self._order = order
        self.count: int = self._first[-1] if order is None else len(order)
        self._names = names
        self.rules: Rules = tables[0].rules if tables else Rules(0, 0)  # for messages
        self._looked = True  # `find` takes the index at once

    @property
    def is_mapped(self) -> bool:  # type: ignore[override]
        """Whether one of the tables looks into a mapping."""
        return any(table.is_mapped for table in self._tables)

    def belongs_to(self, source: Source, format: str) -> None:
        """Set the file that was opened, and the format that messages name."""
        super().belongs_to(source, format)
        for table in self._tables:
            if table.source is None:
                table.belongs_to(source, format)

    def _load_names(self) -> StringTable:
        names = StringTable.joined((table.read_names() for table in self._tables), "tensor name")
        return names if self._order is None else names.take(self._order)

    def _table_of(self, i: int) -> tuple[Table, int]:
        """Return the table of row i, and its number there."""
        among = i if self._order is None else int(self._order[i])
        number = bisect_right(self._first, among) - 1
        return self._tables[number], among - self._first[number]

    def place(self, i: int) -> Place:
        """Return row i: see `Table.place`. Raises `FileChangedError` if its file has changed."""
        table, number = self._table_of(i)
        table.source.check_unchanged()
        row = table.row(number)
        return row.dtype, row.shape, row.offset, row.nbytes, row

    def row(self, i: int) -> Row:
        """Return row i, checked."""
        table, number = self._table_of(i)
        if table.is_mapped:
            table.source.check_unchanged()
        return table.row(number)

    def runs(self) -> Iterator[Run]:
        """Yield all rows as runs: see `Table.runs`. Raises `FileChangedError` if their file has changed."""
        if self._order is not None:
            yield from ((self.place(i)[4], 1, 0) for i in range(self.count))  # type: ignore[misc] # it has a row
            return
        for table in self._tables:
            table.source.check_unchanged()
            yield from table.runs()

    def rows(self) -> Iterator[Row]:
        """Yield every row, checked, in order."""
        if self._order is not None:
            yield from map(self.row, range(self.count))
            return
        for table in self._tables:
            yield from table.rows()

    def _columns(self, parts: Iterable[Sequence[NDArray[Any]]], *dtypes: Any) -> list[NDArray[Any]]:
        """Return the joined columns of all tables, for the rows of this one."""
        empty = [np.empty(0, dtype) for dtype in dtypes]
        joined = [np.concatenate(column, dtype=column[0].dtype) for column in zip(empty, *parts, strict=True)]
        return joined if self._order is None else [column[self._order] for column in joined]

    def owners(self, numbers: Mapping[Source, int]) -> NDArray[np.int32]:
        """Return the number of the source of each row."""
        return self._columns(([table.owners(numbers)] for table in self._tables), np.int32)[0]

    def spans(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offset of each row's data in its file, and its size: see `Table.spans`."""
        begins, sizes = self._columns((table.spans() for table in self._tables), np.int64, np.int64)
        return begins, sizes

    def dtypes(self) -> set[str]:
        """Return the names of the types of all rows of its tables."""
        return {name for table in self._tables for name in table.dtypes()}

    def dim_layout(self, dim: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Implement `Table.dim_layout` for each row."""
        parts = (table.dim_layout(dim) for table in self._tables)
        outer, size, plain = self._columns(parts, np.int64, np.int64, np.bool_)
        return outer, size, plain

    def detach_index(self) -> None:
        """Copy mapped indexes into private memory."""
        for table in self._tables:
            if table.is_mapped:
                table.source.check_unchanged()
                table.detach_index()

    def position(self, row: int) -> int | None:
        """Return the offset in its file of a row's entry, or None if it is unknown."""
        table, number = self._table_of(row)
        return table.position(number)

    def check(self) -> None:
        """Check every row, and that names are unique among all."""
        for table in self._tables:
            table.check()
        repeated, duplicate, original = self.names.duplicates()
        if repeated:
            self.refuse("NAME_DUPLICATE", duplicate, 0, original)

    def disorder(self) -> LayoutError | None:
        """Return the first overlap or hole that lax rules tolerated; None when there is none."""
        return next(filter(None, (table.disorder() for table in self._tables)), None)
