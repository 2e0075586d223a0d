"""Where the tensors of a model lie, as columns: what plans are made of, without an object for each tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from weightmap.errors import TensorFileError
from weightmap.model.parts import SHARD, check_index, detach_index, files_of, not_found, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.quant import TensorRef

__all__ = ["Spans", "spans_of"]


class _Columns:
    """The columns of a `Spans`. They know no handle, so that they can be kept as long as one lives, and no longer."""

    file: NDArray[np.int32]
    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def __init__(self, model: Any) -> None:
        files = files_of(model)
        counts = [len(file) for file in files]
        self.base: NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        spans = [_spans_of_file(file) for file in files]
        nothing: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        self.file = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.row = np.arange(self.base[-1], dtype=np.int64) - self.base[self.file]
        self.begin = np.concatenate([begins for begins, _ in spans] or nothing)
        self.nbytes = np.concatenate([sizes for _, sizes in spans] or nothing)
        # The number of each tensor, by its row behind those of the files before; None where the two are equal.
        self.number: NDArray[np.int64] | None = None
        # What `Spans` makes at the first use.
        self.along: dict[int, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = {}
        self.apart: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
        self._arrange(_unlisted(model))

    def _arrange(self, unlisted: Sequence[tuple[int, int]]) -> None:
        """Sort by offset within each file, and leave out rows that the index of shards does not list."""
        order = None
        if len(self.begin) > 1 and bool(((self.begin[1:] < self.begin[:-1]) & (self.file[1:] == self.file[:-1])).any()):
            order = np.lexsort((self.begin, self.file))
        if unlisted:
            left_out = self.base[[file for file, _ in unlisted]] + [row for _, row in unlisted]
            order = np.arange(len(self.begin)) if order is None else order
            order = order[~np.isin(order, left_out)]
        if order is not None:
            self.number = np.full(len(self.begin), -1, np.int64)
            self.number[order] = np.arange(len(order))
            self.file, self.row = self.file[order], self.row[order]
            self.begin, self.nbytes = self.begin[order], self.nbytes[order]


class Spans:
    """The places of all tensors of a model, in file order: file by file, and by offset within one.

    A tensor is a number here, from 0 to ``len(spans) - 1``. The columns are never changed.

    Attributes
    ----------
    files : sequence of TensorFile
        Those of a model in several files, or the one.
    file : ndarray of int32
        The number of the file of each tensor.
    row : ndarray of int64
        Its row in the table of that file.
    begin, nbytes : ndarray of int64
        Of its data, in that file.
    """

    file: NDArray[np.int32]
    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def __init__(self, model: Any, columns: _Columns) -> None:
        self.files: Sequence[Any] = tuple(files_of(model))
        self.file, self.row, self.begin, self.nbytes = columns.file, columns.row, columns.begin, columns.nbytes
        self._base, self._number = columns.base, columns.number
        self._columns = columns

    @property
    def apart(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Where groups of tensors begin that share no byte with others, and where among all bytes their middles lie.

        The first ends with the number of tensors; the second goes from 0 to 1.
        """
        found = self._columns.apart
        if found is None:
            # As if all files lay one behind another.
            ends = self.begin + self.nbytes
            sizes = np.zeros(len(self.files), np.int64)
            np.maximum.at(sizes, self.file, ends)
            base = np.concatenate([[0], np.cumsum(sizes)])[self.file]
            begins, reached = base + self.begin, np.maximum.accumulate(base + ends)
            first = np.flatnonzero(np.concatenate([[True], begins[1:] >= reached[:-1]]))
            bounds = np.append(first, len(self))
            nbytes = reached[bounds[1:] - 1] - begins[first]
            middles = (np.cumsum(nbytes) - nbytes / 2) / max(int(nbytes.sum()), 1)
            found = self._columns.apart = bounds, middles
        return found

    def along(self, dim: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return `Table.along` of each tensor."""
        found = self._columns.along.get(dim)
        if found is None:
            rows = self._base[self.file] + self.row
            columns = zip(*(parts_of(file)[1].table.along(dim) for file in self.files), strict=True)
            outer, size, plain = (np.concatenate(column)[rows] for column in columns)
            found = self._columns.along[dim] = outer, size, plain
        return found

    def __len__(self) -> int:
        return len(self.begin)

    def name(self, number: int) -> str:
        """Return the name of a tensor."""
        file = self.files[self.file[number]]
        check_index(file)
        name: str = parts_of(file)[1].table.names[int(self.row[number])]
        return name

    def names(self, numbers: NDArray[np.int64]) -> Iterator[str]:
        """Yield the names of these tensors; cheaper than one by one where they are all."""
        if len(numbers) == len(self) and self._number is None:
            for file in self.files:
                yield from file
            return
        for number in numbers.tolist():
            yield self.name(number)

    def ref(self, number: int) -> TensorRef:
        """Return where a tensor lies."""
        file = self.files[self.file[number]]
        check_index(file)
        source, content, _ = parts_of(file)
        try:
            ref: TensorRef = content.ref(source, int(self.row[number]))
        except TensorFileError as error:
            raise error.located(path=source.name, format=file.format) from None
        return ref

    def outwards(self, file: int, begin: int, end: int) -> tuple[int, int]:
        """Return a range of a file with what lies before its first tensor, or behind its last one, where it has that.

        The system keeps headers and footers in one unit with the tensors beside them.
        """
        low, high = np.searchsorted(self.file, [file, file + 1]).tolist()
        begin = 0 if begin <= self.begin[low] else begin
        last = int((self.begin[low:high] + self.nbytes[low:high]).max())
        return begin, parts_of(self.files[file])[0].size if end >= last else end

    def find(self, model: Any, name: str) -> int:
        """Return the number of the tensor called `name`. Raises `TensorNotFoundError`."""
        check_index(model)
        found = parts_of(model)[1].table.find(name)
        if found < 0:
            raise not_found(model, name)
        file, row = divmod(found, SHARD)  # of a single file, the first is 0
        number = int(self._base[file]) + row
        return number if self._number is None else int(self._number[number])


def _spans_of_file(file: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    detach_index(file)
    source, content, _ = parts_of(file)
    source.check_unchanged()
    try:
        spans: tuple[NDArray[np.int64], NDArray[np.int64]] = content.table.spans()
    except TensorFileError as error:
        raise error.located(path=source.name, format=file.format) from None
    return spans


def _unlisted(model: Any) -> list[tuple[int, int]]:
    """Return file and row of the tensors that an index of shards does not list."""
    files = model.shards
    if sum(map(len, files.values())) == len(model) or not files:
        return []
    return [
        (number, row)
        for number, file in enumerate(files.values())
        for row, name in enumerate(file)
        if name not in model
    ]


# What many plans of one handle share: 28 bytes for each tensor, and 17 for each dimension that slices divide.
_known: WeakKeyDictionary[Any, _Columns] = WeakKeyDictionary()


def spans_of(model: Any) -> Spans:
    """Return the places of all tensors of a handle; the columns are made once."""
    check_index(model)
    columns = _known.get(model)
    if columns is None:
        columns = _known[model] = _Columns(model)
    return Spans(model, columns)
