"""Columns of a table of tensors, for C to fill and to check. Used by weightmap.table and the scans of formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import fault_of, ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightmap.kernels._faults import Fault


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
