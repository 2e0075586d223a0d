"""The table of tensors of a file: the only place where tensor ranges are validated.

Both kinds of table (columns.py) share one interface. `ColumnTable` holds private columns, filled by a scan of a header.
`RecordTable` uses fixed-size records in place and keeps nothing per tensor; because a mapped file may change at any
time, each use copies and checks a record. `Table.check` checks either table as a whole, in one pass in C, when the file
is opened. Neither makes a Python object for a tensor before its first use.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes import Range
from weightmap.core.dtypes import DType, numpy_dtype
from weightmap.core.native import access, scans
from weightmap.core.table import Rules, StringTable, table_error
from weightmap.errors import FormatError, LayoutError, QuantError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.geometry import Geometry
    from weightmap.core.bytes.source import Source

# `Row`: a tensor's place and layout, enough to use it; `TensorInfo`: its description for users.

Place: TypeAlias = "tuple[DType, tuple[int, ...], int, int, Row | None]"
Run: TypeAlias = "tuple[Row, int, int]"

# Bytes of a piece: they stay in the L2 cache.
_PIECE = 1 << 18


class Row(NamedTuple):
    """A checked row of a table: a tensor and its place.

    Attributes
    ----------
    dtype : DType
    shape : tuple of int
    source : Source
        The file with its data.
    offset : int
        Position in that file.
    nbytes : int
        Size of the data, in bytes.
    geometry : Geometry or None
        The layout of its elements in the file; None if they follow one another, row-major.
    quantized : callable or None
        `Table.quantized` if the dtype is a scheme: it makes a tensor from ``(row, octets)``.
    """

    dtype: DType
    shape: tuple[int, ...]
    source: Source
    offset: int
    nbytes: int
    geometry: Geometry | None = None
    quantized: Callable[[Row, NDArray[np.uint8]], Any] | None = None

    def info(self, name: str) -> TensorInfo:
        """Return the description for users of the tensor, called `name`."""
        kind = PackedInfo if self.dtype.packed else TensorInfo
        return kind(name, self.dtype.name, self.shape, self.offset, self.nbytes)

    # ------------------------------------------------------------------------------------------------- as an array
    @property
    def viewed(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Dtype and shape of the array of a dense tensor; packed elements are an array of bytes."""
        return (np.dtype(np.uint8), (self.nbytes,)) if self.dtype.packed else (numpy_dtype(self.dtype), self.shape)

    def array(self) -> Any:
        """Return the result of a look-up: a view of the mapping if possible, or a quantised tensor over it."""
        if self.geometry is not None:
            return self.geometry.array(self)
        if self.dtype.quantized:
            return self.decoded(self.source.array(np.dtype(np.uint8), (self.nbytes,), self.offset, self.nbytes))
        return self.source.array(*self.viewed, self.offset, self.nbytes)

    def over(self, octets: NDArray[np.uint8]) -> Any:
        """Return the same as `array`, over bytes that the caller has read; for a row without geometry."""
        if self.dtype.quantized:
            return self.decoded(octets)
        stored, shape = self.viewed
        # An array over the memory, not a view of another array, so that ml_dtypes and unaligned addresses work.
        return np.ndarray(shape, stored, octets if len(octets) else np.empty(0, np.uint8))

    # -------------------------------------------------------------------------------------------------- as bytes
    @property
    def extent(self) -> Range:
        """The bytes of the file that hold it."""
        if self.geometry is None:
            return Range(self.offset, self.offset + self.nbytes)
        return self.geometry.extent(self, [(0, 1, size, True) for size in self.viewed[1]])

    def reads(self) -> Iterator[tuple[Source, int, int]]:
        """Yield the ranges (source, begin, end) that `array` reads from files, in order."""
        if self.geometry is None:
            return self.source.reads(self.offset, self.offset + self.nbytes)
        return self.geometry.reads(self)

    def reading(self, ahead: Mapping[Source, Source]) -> Row:
        """Return the row over other sources of the same bytes."""
        if self.geometry is None:
            return self._replace(source=self.source.reading(ahead))
        return self.geometry.reading(self, ahead)  # type: ignore[no-any-return]

    @property
    def dense(self) -> Row:
        """The row itself; with a geometry, a row whose source has the bytes row-major, at the same offset."""
        if self.geometry is None:
            return self
        return self._replace(source=self.geometry.dense(self), geometry=None)

    def chunks(self, size: int = _PIECE) -> Iterator[memoryview]:
        """Yield the bytes of a dense tensor, row-major and little-endian, in pieces of `size` bytes, a power of two.

        Each is valid until the next one.
        """
        source = self.source if self.geometry is None else self.dense.source
        pieces = source.chunks(self.offset, self.nbytes, size)
        if not self.dtype.swapped:
            return pieces
        stored = numpy_dtype(self.dtype)
        return (memoryview(np.frombuffer(piece, stored).byteswap().view(np.uint8)) for piece in pieces)

    # ------------------------------------------------------------------------------------------------- quantised
    def decoded(self, octets: NDArray[np.uint8]) -> Any:
        """Return the quantised tensor of these bytes."""
        assert self.quantized is not None  # noqa: S101 - a row with a scheme comes from a format with schemes
        try:
            return self.quantized(self, octets)
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None

    def decoder(self) -> Any:
        """Read a quantised tensor into private memory."""
        return self.decoded(np.frombuffer(self.source.pread(self.offset, self.nbytes), np.uint8))

    def layout(self) -> tuple[int, int, str] | None:
        """Return the offset of a quantised tensor's payload in its data, its block size and its type of scales.

        None for schemes other than integers with scales.
        """
        find = getattr(self.quantized, "layout", None)
        if find is None:
            return None
        try:
            start, block_size, scale_type = find(self, self.source.pread(self.offset, min(4, self.nbytes)))
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None
        return start, block_size, scale_type

    def row_parts(self) -> list[tuple[int, int]] | None:
        """Return the parts of a tensor that hold a share of every row, in order; None for other schemes.

        A part is its bytes, and the bytes of one row: 0 for a part that every row needs, such as codebooks.
        """
        find = getattr(self.quantized, "row_parts", None)
        return None if find is None else find()

    def storage(self) -> tuple[str, int, str, int]:
        """Return scheme, block size, type of scales and payload bytes of a quantised tensor.

        Reads and checks the header or mask; raises `QuantError` if it is malformed.
        """
        glance = getattr(self.quantized, "glance", None)
        if glance is None:
            return self.dtype.name, 0, "", self.nbytes
        try:
            start, block_size, scale_type = glance(self, self.source)
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None
        return self.dtype.name, block_size, scale_type, self.nbytes - start

    def payload_nbytes(self) -> int:
        """Return the bytes of codes and scales of a quantised tensor, or all its bytes if its header is malformed."""
        try:
            return self.storage()[3]
        except QuantError:
            return self.nbytes


class TensorInfo(NamedTuple):
    """A tensor's entry in the index of its file.

    Attributes
    ----------
    name : str
    dtype : str
        Canonical name, such as "float32" or "bfloat16".
    shape : tuple of int
    offset : int
        Position of the first byte in the file.
    nbytes : int
        Size of the data, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class PackedInfo(TensorInfo):
    """The entry of a tensor whose elements do not fill whole bytes: ``f[name]`` is its bytes in one dimension."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the text of a `TensorInfo`, which it is for users."""
        return repr(TensorInfo(*self))


# Rows turned into Python objects at once in a pass over all
_BATCH = 4096


def _starts(codes: Any, ndims: Any, dims: Any, offsets: Any, declared: Sequence[int]) -> NDArray[np.intp]:
    """Return the starts of runs: rows where dtype, shape or the distance to the row before changes.

    A row with a code in `declared` is its own run: its bytes do not follow from its shape.
    """
    breaks = np.ones(len(codes), np.bool_)
    if len(codes) > 1:
        same = (codes[1:] == codes[:-1]) & (ndims[1:] == ndims[:-1]) & (dims[1:] == dims[:-1]).all(1)
        # Decreasing offsets (possible in lax mode) end a run, because distances are unsigned here.
        same &= offsets[1:] >= offsets[:-1]
        if declared:
            same &= ~np.isin(codes[1:], declared)
        steps = offsets[1:] - offsets[:-1]
        breaks[1:] = ~same
        breaks[2:] |= same[1:] & same[:-1] & (steps[1:] != steps[:-1])
    return np.flatnonzero(breaks)


class Table:
    """The common interface and code of both kinds of table.

    Attributes
    ----------
    count : int
        Number of tensors.
    rules : Rules
    source : Source
        The file with the tensors, once it is open.
    quantized : callable or None
        ``quantized(row, octets)`` returns the `QuantizedTensor` of a row whose dtype is a scheme; `octets` are its
        bytes, perhaps a view of the mapping. For tensors of integers and scales it also has two methods.
        ``layout(row, head)`` finds the start of the payload, block size and type of scales in the first four bytes.
        ``glance(row, source)`` returns the same, and checks the data with few reads and without touching a mapping.
        None in formats without quantised tensors.
    path, format : str or None
        Name and format of the file, for messages, once known.
    is_mapped : bool
        Whether the table reads the mapping of the file; False after `detach_index`.
    """

    count: int
    rules: Rules
    source: Source = None  # type: ignore[assignment] # until the file is open
    quantized: Callable[[Row, NDArray[np.uint8]], Any] | None = None
    path: str | None = None
    format: str | None = None
    is_mapped = False
    _names: StringTable | None = None
    _looked = False
    _checker: scans.Rows | None = None
    _typed: Callable[[int, tuple[int, ...]], tuple[DType, Geometry | None]] | None = None
    _usual: Callable[[int], Place | None] | None = None  # C's places of usual rows, from the second look-up on

    # Subclasses define these, and `check`.
    def _load_names(self) -> StringTable:
        raise NotImplementedError

    def _load_rows(self) -> scans.Rows | None:
        """Return the rows, which C checks at each use; None for a table made of other tables."""
        return None

    @property
    def _checked(self) -> scans.Rows:
        rows = self._checker
        if rows is None:
            rows = self._checker = self._load_rows()
        assert rows is not None  # noqa: S101 - other tables do not ask
        return rows

    def place(self, i: int) -> Place:
        """Check row i; return its dtype, shape, offset and bytes, and None.

        These suffice for a dense tensor in `source` of a dtype that numpy has by now; otherwise the last value is the
        `Row`, not None.
        """
        usual = self._usual
        if usual is not None and (place := usual(i)) is not None:
            return place
        values = self._checked.row(i)
        if isinstance(values, access.Fault):
            self.fail(values)
        row = self._typed_row(i, *values)
        plain = row.geometry is None and row.dtype.loaded is not None
        return row.dtype, row.shape, row.offset, row.nbytes, None if plain else row

    def _typed_row(self, i: int, code: int, shape: tuple[int, ...], offset: int, nbytes: int) -> Row:
        """Return row i, whose numbers C has checked."""
        dtype, geometry = self.rules.dtypes[code], None
        assert dtype is not None  # noqa: S101 - C refuses other codes
        if self._typed is not None and dtype.declared:
            dtype, geometry = self._typed(i, shape)
            if geometry is not None:
                nbytes = (math.prod(shape) * dtype.bits + 7) // 8
        quantized = self.quantized if dtype.quantized else None
        return tuple.__new__(Row, (dtype, shape, self.source, offset, nbytes, geometry, quantized))

    def row(self, i: int) -> Row:
        """Return row i, checked."""
        dtype, shape, offset, nbytes, row = self.place(i)
        if row is not None:
            return row
        return Row(dtype, shape, self.source, offset, nbytes, None, self.quantized if dtype.quantized else None)

    def _batches(self) -> Iterator[tuple[int, int, tuple[NDArray[Any], ...]]]:
        """Yield first row, end and columns of all rows, a batch at a time: see `Rows.batch`."""
        for first in range(0, self.count, _BATCH):
            last = min(first + _BATCH, self.count)
            columns = self._checked.batch(first, last)
            if isinstance(columns, access.Fault):
                self.fail(columns)
            yield first, last, columns

    def position(self, row: int) -> int | None:
        """Return the offset in the file of a row's entry, or None if it is unknown; for messages."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.count

    def detach_index(self) -> None:
        """Copy a mapped index into private memory, because touching the mapping faults once the file shrinks.

        Raises as `Source.pread` does.
        """

    def belongs_to(self, source: Source, format: str) -> None:
        """Set the file, and the format that messages name."""
        path = source.name
        self.source, self.path, self.format = source, path, format
        source.format = format
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

    def read_names(self) -> StringTable:
        """Return the names, in file order, for a single use: the table keeps no copy."""
        names = self._load_names() if self._names is None else self._names
        names.path, names.format = self.path, self.format
        return names

    def _scan(self, name: bytes) -> int:
        """Return the row of the tensor called `name`, or -1, without building an index."""
        raise NotImplementedError

    def find(self, name: object) -> int:
        """Return the row of the tensor called `name`, or -1.

        The first look-up scans the names, at a fraction of an index's cost; the second builds the index.
        """
        if not self._looked and isinstance(name, str):
            self._looked = True
            return self._scan(name.encode(errors="surrogatepass"))
        # From now on the index answers directly, because a call is a tenth of a look-up.
        finder = self.find = self.names.finder  # type: ignore[assignment, method-assign]
        rows = self._checker or self._load_rows()
        self._usual = None if rows is None else rows.placer()
        return finder(name)

    def runs(self) -> Iterator[Run]:
        """Yield all rows, checked, in file order, as runs of one dtype and shape at equal distances.

        A run is its first row, the number of its rows, and the bytes from one row to the next.
        """
        for first, _, (codes, ndims, dims, offsets, sizes) in self._batches():
            starts = _starts(codes, ndims, dims, offsets, self.rules.sized)
            ends = [*starts[1:].tolist(), len(codes)]
            columns = (column[starts].tolist() for column in (codes, ndims, dims, offsets, sizes))
            for start, end, code, ndim, shape, offset, nbytes in zip(starts.tolist(), ends, *columns, strict=True):
                count = end - start
                step = (offsets.item(end - 1) - offset) // (count - 1) if count > 1 else 0
                yield self._typed_row(first + start, code, tuple(shape[:ndim]), offset, nbytes), count, step

    def owners(self, numbers: Mapping[Source, int]) -> NDArray[np.int32]:
        """Return the number of the source of each row."""
        return np.full(self.count, numbers[self.source], np.int32)

    def spans(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return offset in the file and size of each row's data, in bytes, all checked, in the order of rows."""
        begins, sizes = np.empty(self.count, np.int64), np.empty(self.count, np.int64)
        for first, last, columns in self._batches():
            *_, begins[first:last], sizes[first:last] = columns
        return begins, sizes

    def dtypes(self) -> set[str]:
        """Return the names of the types of all rows, which are checked."""
        codes = {code for _, _, columns in self._batches() for code in columns[0].tolist()}
        return {dtype.name for code in codes if (dtype := self.rules.dtypes[code]) is not None}

    def side_ranges(self, rows: NDArray[np.int64]) -> Sequence[tuple[Source, Range]]:  # noqa: ARG002 - of tables under deltas
        """Return source and range of the bytes outside their data that decoding rows needs."""
        return ()

    def dim_layout(self, dim: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return for each row: the product of the dimensions before `dim`, the size of `dim`, whether bytes are plain.

        A negative `dim` counts from the last dimension; the size is -1 for a row without `dim`. Plain bytes hold
        elements of whole bytes, in row-major order.
        """
        bits = np.frombuffer(self.rules.bits, np.uint8)
        outer, size = np.ones(self.count, np.int64), np.full(self.count, -1, np.int64)
        plain = np.zeros(self.count, np.bool_)
        for start, stop, (codes, ndims, dims, *_) in self._batches():
            at = ndims.astype(np.int64) + dim if dim < 0 else np.full(len(codes), dim)
            rows = np.flatnonzero((at >= 0) & (at < ndims))
            size[start + rows] = dims[rows, at[rows]]
            before = np.arange(dims.shape[1]) < at[:, None]
            outer[start:stop] = np.where(before, dims, np.uint64(1)).prod(1, dtype=np.uint64)
            plain[start:stop] = bits[codes] % 8 == 0  # neither packed nor of a scheme: `DECLARED` is odd
        return outer, size, plain

    def rows(self) -> Iterator[Row]:
        """Yield every row, checked, in file order."""
        for row, count, step in self.runs():
            yield row
            dtype, shape, source, offset, nbytes, geometry, quantized = row
            for k in range(1, count):
                yield tuple.__new__(Row, (dtype, shape, source, offset + k * step, nbytes, geometry, quantized))

    def check(self) -> None:
        """Check every row, and that names are unique. Raises the error of the first bad row."""
        raise NotImplementedError

    def disorder(self) -> LayoutError | None:
        """Return the error for the first overlap or hole that lax rules tolerated, or None."""
        if not self.rules.lax or self.rules.scattered:
            return None
        import copy  # noqa: PLC0415 - needed by `verify` alone

        strict = copy.copy(self)
        strict.path = None  # `verify` names the file once
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
            self.refuse("NAME_UTF8", bad)
        count, duplicate, original = names.duplicates()
        if count:
            self.refuse("NAME_DUPLICATE", duplicate, 0, original)

    def label(self, row: int) -> str:
        """Return the label of a row in messages: its name, or its number if the name cannot be read."""
        try:
            return f"tensor {quoted(self.names[row])}"
        except (FormatError, IndexError, ValueError):
            return f"tensor {row}"

    def refuse(self, kind: str, row: int, actual: int = 0, expected: int = 0) -> NoReturn:
        """Raise the error for a fault that Python found."""
        self.fail(access.Fault(access.faults()[kind], row, 0, actual, expected))

    def fail(self, fault: access.Fault) -> NoReturn:
        """Raise the error for a fault that a scan in C found."""
        raise table_error(self, fault).located(path=self.path, format=self.format)
