"""The table of tensors of a file: where each lies, and the ONLY place where tensor ranges are validated.

Two kinds of table share one interface. `ColumnTable` (see columns.py) holds private columns, which a scan of a header
has filled. `RecordTable` (see records.py) leaves fixed-size records where they lie, and keeps nothing per tensor; since
a mapped file may change underneath, it copies each record and checks it again every time that it is used. Both are
checked as a whole by one pass in C when the file is opened (`Table.check`), and both make no Python object per tensor
until one is asked for.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap import kernels
from weightmap.dtypes import DECLARED
from weightmap.errors import FormatError, LayoutError, quoted
from weightmap.index.rules import INT64_MAX, U64_MAX, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from weightmap.dtypes import DType
    from weightmap.index.strings import StringTable

    Place = tuple[DType, tuple[int, ...], int, int]
    Run = tuple[DType, tuple[int, ...], int, int, int, int]

__all__ = ["Row", "Table"]

# Rows that are turned into Python objects at once, when all are asked for.
_BATCH = 4096


class Row(tuple["DType", "tuple[int, ...]", int, int]):
    """One row of a table, checked: dtype, shape, offset and bytes of data that lie within the file."""

    __slots__ = ()

    # A named tuple, written out: making the class takes a tenth of the time of `NamedTuple`, and every import makes it.
    def __new__(cls, dtype: DType, shape: tuple[int, ...], offset: int, nbytes: int) -> Self:  # noqa: D102
        return tuple.__new__(cls, (dtype, shape, offset, nbytes))

    dtype: DType = property(itemgetter(0))  # type: ignore[assignment]
    shape: tuple[int, ...] = property(itemgetter(1))  # type: ignore[assignment]
    offset: int = property(itemgetter(2))  # type: ignore[assignment]
    nbytes: int = property(itemgetter(3))  # type: ignore[assignment]


def _starts(codes: Any, ndims: Any, dims: Any, offsets: Any, declared: Sequence[int]) -> NDArray[np.intp]:
    """Return where runs begin: where dtype or shape changes, or the distance to the row before does.

    Rows of the codes in `declared`, whose bytes do not follow from their shape, are runs of their own.
    """
    breaks = np.ones(len(codes), np.bool_)
    if len(codes) > 1:
        alike = (codes[1:] == codes[:-1]) & (ndims[1:] == ndims[:-1]) & (dims[1:] == dims[:-1]).all(1)
        # Backwards is not a run: distances are unsigned here, and rows may be in any order in lax mode.
        alike &= offsets[1:] >= offsets[:-1]
        if declared:
            alike &= ~np.isin(codes[1:], declared)
        steps = offsets[1:] - offsets[:-1]
        breaks[1:] = ~alike
        breaks[2:] |= alike[1:] & alike[:-1] & (steps[1:] != steps[:-1])
    return np.flatnonzero(breaks)


class Table:
    """What both kinds of table have in common.

    Attributes
    ----------
    count : int
        Number of tensors.
    rules : Rules
    path, format : str or None
        Of the file, for messages, once they are known.
    is_mapped : bool
        Whether it looks into the mapping of the file; not any more after `detach_index`.
    """

    count: int
    rules: Rules
    path: str | None = None
    format: str | None = None
    is_mapped = False
    _names: StringTable | None = None
    _looked = False

    # Each kind supplies these, and `check`.
    def _load_names(self) -> StringTable:
        raise NotImplementedError

    def place(self, i: int) -> Place:
        """Return dtype, shape, offset and bytes of row i, checked."""
        raise NotImplementedError

    def row(self, i: int) -> Row:
        """Return row i, checked: `place` with names."""
        return tuple.__new__(Row, self.place(i))

    def _batch(self, first: int, last: int) -> tuple[Any, Any, Any, Any]:
        """Return columns of rows first to last - 1, copied: codes, ndims, dims (padded with 0), offsets."""
        raise NotImplementedError

    def position(self, row: int) -> int | None:
        """Return where the entry of a row lies in the file, for messages; None where that is not known."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.count

    def detach_index(self) -> None:
        """Hold in memory of our own what may still lie in a mapping, where touching it is a fault once the file shrank.

        Raises what `Source.pread` raises.
        """

    def belongs_to(self, path: str | None, format: str) -> None:
        """Tell the table what file it is of, for messages."""
        self.path, self.format = path, format
        if self._names is not None:
            self._names.path, self._names.format = path, format

    @property
    def names(self) -> StringTable:
        """The names, in file order."""
        names = self._names
        if names is None:
            names = self._names = self._load_names()
            names.path, names.format = self.path, self.format
        return names

    def _scan(self, name: bytes) -> int:
        """Return the row of the tensor called `name`, or -1, without an index."""
        raise NotImplementedError

    def find(self, name: object) -> int:
        """Return the row of the tensor called `name`, or -1.

        The first look-up is one pass over the names, which costs a fraction of building an index; the second builds it.
        """
        if not self._looked and isinstance(name, str):
            self._looked = True
            return self._scan(name.encode(errors="surrogatepass"))
        # From now on the index answers itself: a call less is a tenth of a look-up.
        finder = self.find = self.names.finder  # type: ignore[assignment, method-assign]
        return finder(name)

    def runs(self) -> Iterator[Run]:
        """Yield all rows, checked, in file order: at once those of one dtype and shape at equal distances.

        Each run is dtype, shape, offset and bytes of its first row, the number of its rows, and the bytes from one to
        the next.
        """
        declared = [code for code, bits in enumerate(self.rules.bits) if bits == DECLARED]
        for first in range(0, self.count, _BATCH):
            codes, ndims, dims, offsets = self._batch(first, min(first + _BATCH, self.count))
            starts = _starts(codes, ndims, dims, offsets, declared)
            count = len(codes)
            columns = (part[starts].tolist() for part in (codes, ndims, dims, offsets))
            for start, end, code, ndim, shape, offset in zip(
                starts.tolist(), [*starts[1:].tolist(), count], *columns, strict=True
            ):
                last = offsets.item(end - 1)
                yield self._run(first + start, end - start, code, tuple(shape[:ndim]), offset, last)

    def _run(self, i: int, count: int, code: int, shape: tuple[int, ...], offset: int, last: int) -> Run:
        """Check the rows from i on that lie from `offset` to `last`."""
        rules = self.rules
        dtype = self._dtype(code, i)
        nbytes = self._declared(i) if dtype.quantized else (math.prod(shape) * dtype.bits + 7) >> 3
        if not nbytes or len(shape) not in rules.ndims or dtype.quantized:
            self._check_shape(i, shape, dtype)
        step = (last - offset) // (count - 1) if count > 1 else 0
        left = rules.data_size - nbytes - offset
        if last - offset > left:
            first = max(0, left // step + 1) if step else 0
            self._out_of_range(i + first, offset + first * step + nbytes)
        return dtype, shape, rules.base + offset, nbytes, count, step

    def _declared(self, i: int) -> int:
        """Return the bytes that row i has by its own statement. Only a table that knows schemes is asked."""
        raise NotImplementedError

    def _out_of_range(self, i: int, end: int) -> NoReturn:
        """Refuse row i, which reaches to `end`: past its section, or past the file."""
        rules = self.rules
        if min(end, U64_MAX) > rules.declared:
            self.fail(kernels.Fault(kernels.FAULTS["TABLE_RANGE"], i, 0, end, rules.declared))
        self.fail(kernels.Fault(kernels.FAULTS["TABLE_TRUNCATED"], i, 0, end, rules.room))

    def _check_shape(self, i: int, shape: tuple[int, ...], dtype: DType) -> None:
        """Refuse what numpy refuses, where the table was not checked as a whole: its errors are not of our tree."""
        if len(shape) not in self.rules.ndims:
            self.fail(kernels.Fault(kernels.FAULTS["TABLE_NDIM"], i, 0, len(shape), self.rules.max_ndim))
        # An empty tensor takes no bytes, and its dimensions other than 0 must still have a product below 2^63.
        if (math.prod(dim or 1 for dim in shape) * dtype.bits + 7) >> 3 > INT64_MAX:
            self.fail(kernels.Fault(kernels.FAULTS["TABLE_OVERFLOW"], i, 0, 0, INT64_MAX))

    def rows(self) -> Iterator[Row]:
        """Yield every row, checked, in file order."""
        for dtype, shape, offset, nbytes, count, step in self.runs():
            for k in range(count):
                yield Row(dtype, shape, offset + k * step, nbytes)

    # ------------------------------------------------------------------------------------------------- checking
    def check(self) -> None:
        """Check every row, and that names are unique, by one call. Raises the error that the first bad row deserves."""
        raise NotImplementedError

    def disorder(self) -> LayoutError | None:
        """Return the first overlap or hole, where the rules let them pass; None when there is none."""
        if not self.rules.lax:
            return None
        import copy  # noqa: PLC0415 - needed by `verify` alone

        strict = copy.copy(self)
        strict.path = None  # what verify lists is about one file
        strict.rules = copy.copy(self.rules)
        strict.rules.lax = False
        try:
            strict.check()
        except LayoutError as error:
            return error
        return None

    def check_names(self) -> None:
        """Check that every name is UTF-8 and that no two are equal, however their hashes collide."""
        names = self.names
        bad = names.not_utf8()
        if bad >= 0:
            self.fail(kernels.Fault(kernels.FAULTS["NAME_UTF8"], bad, 0, 0, 0))
        count, duplicate, original = names.duplicates()
        if count:
            self.fail(kernels.Fault(kernels.FAULTS["NAME_DUPLICATE"], duplicate, 0, 0, original))

    def label(self, row: int) -> str:
        """Call a row by its name, where that can be read."""
        try:
            return f"tensor {quoted(self.names[row])}"
        except (FormatError, IndexError, ValueError):
            return f"tensor {row}"

    def _dtype(self, code: int, row: int) -> DType:
        dtype = self.rules.dtypes[code]
        if dtype is None:
            self.fail(kernels.Fault(kernels.FAULTS["TABLE_DTYPE"], row, 0, code, 0))
        return dtype

    def fail(self, fault: kernels.Fault) -> NoReturn:
        """Raise the error for a fault that a scan in C found."""
        from weightmap.index.messages import table_error  # noqa: PLC0415 - files that are in order need none of it

        raise table_error(self, fault).located(path=self.path, format=self.format)
