"""Building blocks for tables of parameters, or of another program's names: views of a table, arrays as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.core.table.table import Place, Row, Run, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.core.bytes.source import Source
    from weightmap.core.table import Rules


class ViewTable(Table):
    """Tensors made from the tensors of another table. A subclass sets names and count, and supplies `row`.

    Parameters
    ----------
    stored : Table
    """

    def __init__(self, stored: Table) -> None:
        self._stored = stored
        self.rules: Rules = stored.rules
        self._looked = True  # `find` takes the index at once

    @property
    def is_mapped(self) -> bool:  # type: ignore[override]
        """Whether the table of stored tensors reads a mapping."""
        return self._stored.is_mapped

    def belongs_to(self, source: Source, format: str) -> None:
        """Set the file and format that messages name; the stored tensors know their source."""
        self.source: Source = source
        self.path: str = source.name
        self.format: str = format

    def row(self, i: int) -> Row:
        """Return row i, checked."""
        raise NotImplementedError

    def place(self, i: int) -> Place:
        """Return row i: see `Table.place`."""
        row = self.row(i)
        row.source.check_unchanged()
        return row.dtype, row.shape, row.offset, row.nbytes, row

    def rows(self) -> Iterator[Row]:
        """Yield every row, checked, in order."""
        return map(self.row, range(self.count))

    def runs(self) -> Iterator[Run]:
        """Yield every row as a run of its own: see `Table.runs`."""
        return ((self.place(i)[4], 1, 0) for i in range(self.count))  # type: ignore[misc] # it has a row

    def dtypes(self) -> set[str]:
        """Return the names of the types of all rows."""
        return {row.dtype.name for row in self.rows()}

    def detach_index(self) -> None:
        """Copy a mapped index into private memory."""
        self._stored.detach_index()

    def position(self, row: int) -> int | None:  # noqa: ARG002 - a tensor may have several entries
        """Return None: a tensor may have several entries."""
        return None

    def check(self) -> None:
        """Check every row."""
        for _ in self.rows():
            pass

    def disorder(self) -> None:
        """Do nothing: the table of stored tensors reports its own disorder."""
