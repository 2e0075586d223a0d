"""Residency, prefetching and release of tensors, behind the methods of `TensorFile`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from weightmap.core.arguments import mistyped
from weightmap.core.bytes import Range
from weightmap.core.model import internals
from weightmap.core.model.reports import Residency
from weightmap.errors import TensorFileError
from weightmap.plans.pages import give_back, resident_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row

# Most bytes of padding between tensors to release with them.
_MAX_PADDING = 4096


class _Columns:
    """The columns of a `Spans`. They hold no handle, so caching them does not keep it open."""

    file: NDArray[np.int32]
    begin: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def __init__(self, model: Any) -> None:
        internals.detach_index(model)
        source, content, _ = internals.parts_of(model)
        try:
            internals.check_unchanged(model)
            self.begin, self.nbytes = content.table.spans()
            numbers = dict(zip(internals.sources_of(model), count(), strict=False))
            self.file = content.table.owners(numbers)
        except TensorFileError as error:
            raise error.located(path=source.name, format=model.format) from None
        self.row: NDArray[np.int64] = np.arange(len(self.begin))
        # By row of the table, the number of its tensor; None if they are equal.
        self.number: NDArray[np.int64] | None = None
        backwards, same_file = self.begin[1:] < self.begin[:-1], self.file[1:] == self.file[:-1]
        if bool((self.file[1:] < self.file[:-1]).any()) or bool((backwards & same_file).any()):
            self.row = np.lexsort((self.begin, self.file))
            self.number = np.empty(len(self.row), np.int64)
            self.number[self.row] = np.arange(len(self.row))
            self.file, self.begin, self.nbytes = self.file[self.row], self.begin[self.row], self.nbytes[self.row]
        # Made by `Spans` at the first use.
        self.dim_layouts: dict[int, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = {}
        self.disjoint: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None


class Spans:
    """The places of all tensors of a model, in file order: file by file, and by offset within one.

    A tensor is a number here, from 0 to ``len(spans) - 1``. The columns are never changed.

    Attributes
    ----------
    model : TensorFile
    sources : tuple of Source
        The files of the model.
    file : ndarray of int32
        The number of the source of each tensor.
    row : ndarray of int64
        Its row in the table of the model.
    begin, nbytes : ndarray of int64
        Of its data, in that file.
    """

    file: NDArray[np.int32]
    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def __init__(self, model: Any, columns: _Columns) -> None:
        self.model: Any = model
        self._columns, self._table = columns, internals.parts_of(model)[1].table
        self._names: dict[int, str] = {}  # of tensors that were looked up by name
        self.sources: tuple[Source, ...] = internals.sources_of(model)
        self.file, self.row, self.begin, self.nbytes = columns.file, columns.row, columns.begin, columns.nbytes

    @property
    def disjoint(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The groups of tensors that share no bytes with other groups: their bounds, and their middles.

        Bounds are the number of each group's first tensor, and the number of all tensors. Middles go from 0, the first
        of all bytes, to 1, the last.
        """
        groups = self._columns.disjoint
        if groups is None:
            # Treat the files as if they followed one another.
            ends = self.begin + self.nbytes
            sizes = np.zeros(len(self.sources), np.int64)
            np.maximum.at(sizes, self.file, ends)
            base = np.concatenate([[0], np.cumsum(sizes)])[self.file]
            begins, reached = base + self.begin, np.maximum.accumulate(base + ends)
            first = np.flatnonzero(np.concatenate([[True], begins[1:] >= reached[:-1]]))
            bounds = np.append(first, len(self))
            nbytes = reached[bounds[1:] - 1] - begins[first]
            middles = (np.cumsum(nbytes) - nbytes / 2) / max(int(nbytes.sum()), 1)
            groups = self._columns.disjoint = bounds, middles
        return groups

    def side_ranges(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `Table.side_ranges` of tensors: number of the source, begin and end, shape (n, 3), in order."""
        ranges = self._table.side_ranges(self.row[numbers])
        if not ranges:
            return np.empty((0, 3), np.int64)
        places = {source: number for number, source in enumerate(self.sources)}
        rows = sorted([(places[source], *part) for source, part in ranges])
        return np.array(rows, np.int64).reshape(-1, 3)

    def dim_layout(self, dim: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return `Table.dim_layout` of each tensor."""
        layout = self._columns.dim_layouts.get(dim)
        if layout is None:
            outer, size, plain = self._table.dim_layout(dim)
            layout = self._columns.dim_layouts[dim] = outer[self.row], size[self.row], plain[self.row]
        return layout

    def __len__(self) -> int:
        return len(self.begin)

    def name(self, number: int) -> str:
        """Return the name of a tensor."""
        name = self._names.get(number)
        if name is None:
            name = self._table.names[int(self.row[number])]
        return name

    def names(self, numbers: NDArray[np.int64]) -> Iterator[str]:
        """Yield the names of these tensors; cheaper than one by one if these are all tensors."""
        if len(numbers) == len(self) and self._columns.number is None:
            yield from self.model
            return
        for number in numbers.tolist():
            yield self.name(number)

    def of(self, number: int) -> Row:
        """Return the row of a tensor, from the private copy of the index."""
        try:
            row: Row = self._table.row(int(self.row[number]))
        except TensorFileError as error:
            raise error.located(path=self.sources[self.file[number]].name, format=self.model.format) from None
        return row

    def with_edges(self, file: int, part: Range) -> Range:
        """Return a range of a file, widened to the header or footer if it holds the first or last tensor.

        The system keeps headers and footers in a unit with the neighbouring tensors.
        """
        low, high = np.searchsorted(self.file, [file, file + 1]).tolist()
        last = int((self.begin[low:high] + self.nbytes[low:high]).max())
        begin = 0 if part.begin <= self.begin[low] else part.begin
        return Range(begin, self.sources[file].size if part.end >= last else part.end)

    def by_file(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield each file with some of these tensors, and their numbers, which ascend."""
        bounds = np.searchsorted(self.file[numbers], np.arange(len(self.sources) + 1)).tolist()
        for file, (low, high) in enumerate(pairwise(bounds)):
            if low < high:
                yield file, numbers[low:high]

    def find(self, name: str) -> int:
        """Return the number of the tensor called `name`. Raises `TensorNotFoundError`."""
        row: int = self._table.find(name)
        if row < 0:
            raise internals.not_found(self.model, name)
        number = row if self._columns.number is None else int(self._columns.number[row])
        self._names[number] = name
        return number


# Columns shared by the plans of a handle: 28 bytes a tensor, and 17 for each dimension that slices divide. Programs
# that plan or release tensor by tensor would wait 1 ms for the columns of 100,000 tensors each time.
_columns_of_models: WeakKeyDictionary[Any, _Columns] = WeakKeyDictionary()


def spans_of(model: Any) -> Spans:
    """Return the places of all tensors of a handle; the columns are made once."""
    columns = _columns_of_models.get(model)
    if columns is None:
        columns = _columns_of_models[model] = _Columns(model)
    else:
        internals.check_index(model)
    return Spans(model, columns)


def residency(model: Any, names: str | Sequence[str] | None) -> dict[str, Residency]:
    """Implement `TensorFile.residency`."""
    internals.check_unchanged(model)
    spans, numbers = _chosen(model, names)
    columns = (spans.names(numbers), resident_bytes(spans, numbers).tolist(), spans.nbytes[numbers].tolist())
    return {name: Residency(there, nbytes) for name, there, nbytes in zip(*columns, strict=True)}


def resident_bytes(spans: Spans, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the resident bytes of each of these tensors."""
    resident = [np.empty(0, np.int64)]
    for file, some in spans.by_file(numbers):
        resident.append(resident_in(spans.sources[file], spans.begin[some], spans.nbytes[some]))
    return np.concatenate(resident)


def prefetch(model: Any, names: str | Sequence[str] | None) -> None:
    """Implement `TensorFile.prefetch`."""
    internals.check_open(model)
    spans, numbers = _chosen(model, names)
    for file, some in spans.by_file(numbers):
        begins, ends = spans.begin[some], spans.begin[some] + spans.nbytes[some]
        spans.sources[file].prefetch(map(Range, begins.tolist(), ends.tolist()))


def release(model: Any, names: str | Sequence[str] | None) -> int:
    """Implement `TensorFile.release`."""
    internals.check_unchanged(model)
    spans, numbers = _chosen(model, names)
    before = _resident_or_none(spans, numbers)
    for file, some in spans.by_file(numbers):
        begins, sizes = spans.begin[some], spans.nbytes[some]
        cuts = np.flatnonzero(begins[1:] > begins[:-1] + sizes[:-1] + _MAX_PADDING) + 1
        runs = zip(np.split(begins, cuts), np.split(begins + sizes, cuts), strict=True)
        ranges = [spans.with_edges(file, Range(int(starts[0]), int(stops.max()))) for starts, stops in runs]
        give_back(spans.sources[file], ranges)
    after = _resident_or_none(spans, numbers)
    return 0 if before is None or after is None else max(0, before - after)


def _chosen(model: Any, names: str | Sequence[str] | None) -> tuple[Spans, NDArray[np.int64]]:
    """Return the places of all tensors, and the numbers of those with these names, by default all."""
    spans = spans_of(model)
    if names is None:
        return spans, np.arange(len(spans), dtype=np.int64)
    if not isinstance(names, Iterable):
        raise mistyped("names", names, "a name or a sequence of them")
    numbers = {spans.find(name) for name in ([names] if isinstance(names, str) else names)}
    return spans, np.array(sorted(numbers), np.int64)


def _resident_or_none(spans: Spans, numbers: NDArray[np.int64]) -> int | None:
    """Return the bytes of these tensors that are in memory; None if the system does not tell."""
    try:
        return int(resident_bytes(spans, numbers).sum())
    except TensorFileError:
        raise
    except OSError:
        return None
