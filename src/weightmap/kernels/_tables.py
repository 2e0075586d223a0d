"""Tables of tensors in C: columns, records, the headers that need a scan. Used by weightmap.table and the formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Fault:
    """What a scan found wrong: see wm_fault in kernels.h."""

    __slots__ = ("actual", "at", "code", "expected", "row")

    def __init__(
        self,
        code: int,
        row: int,
        at: int,
        actual: int,
        expected: int,
    ) -> None:
        self.code = code
        self.row = row
        self.at = at
        self.actual = actual
        self.expected = expected

    @property
    def kind(self) -> str:
        """The name of its code, such as "TABLE_RANGE"."""
        return _KINDS.get(self.code, "")


FAULTS = {name.removeprefix("WM_FAULT_"): getattr(lib, name) for name in dir(lib) if name.startswith("WM_FAULT_")}
_KINDS = {code: name for name, code in FAULTS.items()}


def fault_of(fault: Any) -> Fault:
    """Return what a scan has written into a wm_fault. Raises MemoryError where that was the fault."""
    if fault.code == lib.WM_FAULT_MEMORY:  # nothing that the file could help
        msg = f"no memory for a table of {fault.actual} bytes"
        raise MemoryError(msg)
    return Fault(fault.code, fault.row, fault.at, fault.actual, fault.expected)


class Columns:
    """The columns of a table of tensors, in memory of their own, where C reads and checks them.

    Indexing a C pointer costs a third of indexing an array, and making no arrays is what opening a file quickly takes.

    Parameters
    ----------
    names : bytes
    bounds, dim_bounds : ndarray of uint32, shape (n + 1,)
    dtype : ndarray of uint8, shape (n,)
    dims : ndarray of uint64
    begin, end : ndarray of uint64, shape (n,)
        See wm_columns_check in kernels.h.
    """

    __slots__ = (
        "_keep",
        "begin",
        "bounds",
        "count",
        "dim_bounds",
        "dims",
        "dtype",
        "end",
        "n_dims",
        "names",
        "names_len",
    )

    def __init__(self, names: bytes, bounds: Any, dtype: Any, dims: Any, dim_bounds: Any, begin: Any, end: Any) -> None:
        self.count = len(dtype)
        self.n_dims = len(dims)
        self.names_len = len(names)
        self.names = from_buffer("uint8_t[]", names)
        self.dtype = from_buffer("uint8_t[]", dtype)
        self.bounds, self.dim_bounds = from_buffer("uint32_t[]", bounds), from_buffer("uint32_t[]", dim_bounds)
        self.dims, self.begin, self.end = (from_buffer("uint64_t[]", column) for column in (dims, begin, end))
        self._keep: Any = None

    @classmethod
    def scratch(cls, size: int, count: int, n_dims: int) -> Columns:
        """Return columns to be filled by a scan: names of `size` bytes, `count` tensors, `n_dims` dimensions."""
        self = cls.__new__(cls)
        self.count, self.n_dims, self.names_len = count, n_dims, size
        # One piece of memory for all; its pages are touched only as far as the scan fills them.
        pairs = 2 * (count + 1)
        words = n_dims + 2 * count + (4 * pairs + size + count) // 8 + 1
        memory = np.empty(words, np.uint64)
        self._keep = self.dims = from_buffer("uint64_t[]", memory, require_writable=True)
        self.begin = self.dims + n_dims
        self.end = self.begin + count
        self.bounds = ffi.cast("uint32_t *", self.end + count)
        self.dim_bounds = self.bounds + count + 1
        self.names = ffi.cast("uint8_t *", self.dim_bounds + count + 1)
        self.dtype = self.names + size
        return self

    def to_fill(self) -> Any:
        """Return a wm_columns, for a scan to fill columns made by `scratch`; see kernels.h."""
        room = (self.count, self.n_dims, self.names_len)
        columns = (self.names, self.bounds, self.dtype, self.dims, self.dim_bounds, self.begin, self.end)
        return ffi.new("wm_columns *", (*room, *columns))

    def array(self, column: Any, count: int, dtype: str) -> NDArray[Any]:
        """Return `count` values of one of the columns as a copy."""
        return np.frombuffer(ffi.buffer(column, count * int(dtype[-1])), dtype).copy()

    def text(self) -> bytes:
        """Return the names, one after another."""
        return bytes(ffi.buffer(self.names, self.names_len))

    def take(self, order: NDArray[np.intp], names: Sequence[bytes] | None = None) -> Columns:
        """Return the rows of these numbers, in this order, as new columns; with new names when they are given."""
        n = self.count
        dims, dim_bounds = _runs(
            self.array(self.dims, self.n_dims, "<u8"), self.array(self.dim_bounds, n + 1, "<u4"), order
        )
        if names is None:
            old = np.frombuffer(self.text(), np.uint8)
            taken, bounds = _runs(old, self.array(self.bounds, n + 1, "<u4"), order)
            text = taken.tobytes()
        else:
            text, bounds = b"".join(names), np.cumsum([0, *map(len, names)], dtype=np.uint32)
        begin, end = self.array(self.begin, n, "<u8")[order], self.array(self.end, n, "<u8")[order]
        return Columns(text, bounds, self.array(self.dtype, n, "u1")[order], dims, dim_bounds, begin, end)

    def raw(self, i: int) -> tuple[int, tuple[int, ...], int]:
        """Return dtype code, shape and begin of row i."""
        bounds = self.dim_bounds
        return self.dtype[i], tuple(ffi.unpack(self.dims + bounds[i], bounds[i + 1] - bounds[i])), self.begin[i]

    def find(self, name: bytes) -> int:
        """Return the row of the tensor of this name, or -1, by one pass over the names."""
        row: int = lib.wm_columns_find(self.names, self.names_len, self.bounds, self.count, name, len(name))
        return row

    def check(
        self, bits: bytes, min_ndim: int, max_ndim: int, data_size: int, max_gap: int, *, lax: bool, utf8: bool
    ) -> Fault | None:
        """Check every row and the uniqueness of the names; return what is wrong, or None."""
        fault = ffi.new("wm_fault *")
        failed = lib.wm_columns_check(
            self.names,
            self.names_len,
            self.bounds,
            self.count,
            self.dtype,
            self.dims,
            self.n_dims,
            self.dim_bounds,
            self.begin,
            self.end,
            bits,
            len(bits),
            min_ndim,
            max_ndim,
            data_size,
            max_gap,
            lax,
            utf8,
            fault,
        )
        return fault_of(fault) if failed else None


def _runs(values: NDArray[Any], bounds: NDArray[np.uint32], order: Any) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Put the runs values[bounds[i]:bounds[i + 1]] into another order."""
    lengths = np.diff(bounds)[order].astype(np.int64)
    new = np.zeros(len(order) + 1, bounds.dtype)
    np.cumsum(lengths, out=new[1:])
    # Position k of the result lies in run r, k - new[r] after that run's old start.
    source = np.repeat(bounds[:-1][order].astype(np.int64) - new[:-1], lengths) + np.arange(int(new[-1]))
    return values[source], new


def pairs_check(data: bytes, count: int) -> Fault | None:
    """Check pairs of strings after their two u16 lengths: structure, UTF-8, unique keys; return a fault or None."""
    fault = ffi.new("wm_fault *")
    return fault_of(fault) if lib.wm_pairs_check(data, len(data), count, fault) else None


def records_check(
    index: bytes | NDArray[np.uint8],
    count: int,
    bits: bytes,
    data_size: int,
    alignment: int,
    max_gap: int,
    *,
    lax: bool,
) -> tuple[int, Fault | None]:
    """Check `count` records as EMBD has them, and the names that lie behind them.

    Returns
    -------
    used : int
        Bytes that the names take.
    fault : Fault or None
        What is wrong with a record or a name.
    """
    used, fault = ffi.new("uint64_t *"), ffi.new("wm_fault *")
    data = index if type(index) is bytes else from_buffer("uint8_t[]", index)
    failed = lib.wm_records_check(
        data, len(data), count, bits, len(bits), data_size, alignment, max_gap, lax, used, fault
    )
    return used[0], fault_of(fault) if failed else None


def records_find(index: bytes | NDArray[np.uint8], count: int, name: bytes) -> int:
    """Return the number of the record of this name, or -1, by one pass over the stored hashes."""
    row: int = lib.wm_records_find(from_buffer("uint8_t[]", index), len(index), count, name, len(name))
    return row


# Fewest bytes that one tensor takes in a header: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]},
_SAFETENSORS_ENTRY = 48


def safetensors_scan(header: bytes, dtypes: bytes, max_tensors: int) -> tuple[Columns, Any] | Fault:
    """Turn the JSON header of a safetensors file into columns, or say what is wrong with it.

    Parameters
    ----------
    header : bytes
        From ``{`` to ``}`` and trailing spaces.
    dtypes : bytes
        The known names of dtypes, each in 16 bytes padded with zero bytes.
    max_tensors : int
        No more are read: a fault CAPACITY.

    Returns
    -------
    columns : Columns
        In the order of the text.
    found : wm_safetensors
        See kernels.h.
    """
    size = len(header)
    columns = Columns.scratch(size, min(size // _SAFETENSORS_ENTRY + 1, max_tensors), size // 2 + 1)
    found, fault = ffi.new("wm_safetensors *"), ffi.new("wm_fault *")
    failed = lib.wm_safetensors_scan(
        header,
        size,
        dtypes,
        len(dtypes) // 16,
        columns.count,
        columns.n_dims,
        columns.names,
        columns.bounds,
        columns.dtype,
        columns.dims,
        columns.dim_bounds,
        columns.begin,
        columns.end,
        found,
        fault,
    )
    if failed:
        return fault_of(fault)
    columns.count, columns.n_dims, columns.names_len = found.n_tensors, found.n_dims, found.names_len
    return columns, found


# Fewest bytes that one tensor takes in a header: an empty name, dtype, no dimensions, start, end.
_BINTENSORS_ENTRY = 5


def bintensors_scan(header: bytes, layouts: int, max_tensors: int) -> tuple[Columns, Any, Fault | None]:
    """Turn the header of a BinTensors file into columns, and say what is wrong with it.

    Parameters
    ----------
    header : bytes
        With its padding.
    layouts : int
        1 the specification's, 2 the current one, 3 the first of them that fits.
    max_tensors : int
        No more are read: a fault CAPACITY, which says where the next one begins.

    Returns
    -------
    columns : Columns
        In the order of the file's list.
    found : wm_bintensors
        See kernels.h.
    fault : Fault or None
    """
    size = len(header)
    columns = Columns.scratch(size, min(size // _BINTENSORS_ENTRY + 1, max_tensors), size)
    found, fault = ffi.new("wm_bintensors *"), ffi.new("wm_fault *")
    failed = lib.wm_bintensors_scan(header, size, layouts, columns.to_fill(), found, fault)
    columns.count, columns.n_dims, columns.names_len = found.n_tensors, found.n_dims, found.names_len
    return columns, found, fault_of(fault) if failed else None


# Bytes of room for the name of a layer, and of its record.
_LAYER_NAME, _LAYER_RECORD = 32, 20


def cnn_layers(records: bytes) -> tuple[Columns, Any] | Fault:
    """Turn the layer records of a CNN v2 file into columns, or say what is wrong with one.

    Parameters
    ----------
    records : bytes
        20 for each layer.

    Returns
    -------
    columns : Columns
        Offsets in bytes, relative to the weights.
    found : wm_cnn
        See kernels.h.
    """
    count = len(records) // _LAYER_RECORD
    columns = Columns.scratch(_LAYER_NAME * count, count, 4 * count)
    found, fault = ffi.new("wm_cnn *"), ffi.new("wm_fault *")
    failed = lib.wm_cnn_layers(records, len(records), count, columns.to_fill(), found, fault)
    if failed:
        return fault_of(fault)
    columns.names_len = found.names_len
    return columns, found
