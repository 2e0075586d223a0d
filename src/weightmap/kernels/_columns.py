"""The columns of a table of tensors, which C fills, reads and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import NULL, Fault, fault_of, ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# Without clearing: a scan fills the memory.
_new_words = ffi.new_allocator(should_clear_after_alloc=False)


class Columns:
    """The columns of a table of tensors, in private C memory.

    Indexing a C pointer takes a third of indexing an array, and opening a file is quick because it makes no arrays.

    Parameters
    ----------
    names : bytes
    bounds, dim_bounds : ndarray of uint32, shape (n + 1,)
    dtype : ndarray of uint8, shape (n,)
    dims : ndarray of uint64
    begin : ndarray of uint64, shape (n,)
    end : ndarray of uint64, shape (n,), optional
        See wm_columns in kernels.h.

    Attributes
    ----------
    count, n_dims, names_len : int
        Numbers of tensors, of dimensions and of bytes of names.
    native : wm_columns
        Its pointers are attributes of this object too.
    """

    __slots__ = ("_memory", "_row", "count", "n_dims", "names_len", "native")

    def __init__(
        self, names: bytes, bounds: Any, dtype: Any, dims: Any, dim_bounds: Any, begin: Any, end: Any = None
    ) -> None:
        self.count, self.n_dims, self.names_len = len(dtype), len(dims), len(names)
        kinds = ("uint8_t[]", "uint32_t[]", "uint8_t[]", "uint64_t[]", "uint32_t[]", "uint64_t[]", "uint64_t[]")
        given = (names, bounds, dtype, dims, dim_bounds, begin, *(() if end is None else (end,)))
        self._memory: Any = tuple(map(from_buffer, kinds, given))
        self.native = ffi.new("wm_columns *", (self.count, self.n_dims, self.names_len, *self._memory))
        self._row: Any = None

    @classmethod
    def scratch(cls, size: int, count: int, n_dims: int) -> Columns:
        """Return columns for a scan to fill: names of `size` bytes, `count` tensors, `n_dims` dimensions."""
        self = cls.__new__(cls)
        self.count, self.n_dims, self.names_len = count, n_dims, size
        # One allocation for all columns; a scan touches only the pages that it fills.
        words = n_dims + 3 * count + (size + count) // 8 + 2
        self._memory = memory = _new_words("uint64_t[]", words)
        self.native = ffi.new("wm_columns *", (count, n_dims, size))
        self._row = None
        if lib.wm_columns_place(self.native, memory, words):
            msg = f"no memory for a table of {8 * words} bytes"
            raise MemoryError(msg)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def array(self, column: Any, count: int, dtype: str) -> NDArray[Any]:
        """Return a copy of `count` values of a column."""
        return np.frombuffer(ffi.buffer(column, count * int(dtype[-1])), dtype).copy()

    def text(self) -> bytes:
        """Return the names back to back."""
        return bytes(ffi.buffer(self.names, self.names_len))

    def order(self) -> NDArray[np.intp]:
        """Return the numbers of the rows in the order of their data."""
        n = self.count
        return np.lexsort((self.array(self.end, n, "<u8"), self.array(self.begin, n, "<u8")))

    def take(self, order: NDArray[np.intp], names: Sequence[bytes] | None = None) -> Columns:
        """Return new columns of the rows `order`, in that order, with new `names` if given."""
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
        begin = self.array(self.begin, n, "<u8")[order]
        end = self.array(self.end, n, "<u8")[order] if self.end else None
        return Columns(text, bounds, self.array(self.dtype, n, "u1")[order], dims, dim_bounds, begin, end)

    def raw(self, i: int) -> tuple[int, tuple[int, ...], int]:
        """Return dtype code, shape and begin of row i."""
        row = self._row
        if row is None:
            columns = self.native
            row = self._row = (columns.dtype, columns.dims, columns.dim_bounds, columns.begin)
        dtype, dims, bounds, begin = row
        first = bounds[i]
        return dtype[i], tuple(ffi.unpack(dims + first, bounds[i + 1] - first)), begin[i]

    def find(self, name: bytes) -> int:
        """Return the row of the tensor called `name`, or -1, by one pass over the names."""
        row: int = lib.wm_columns_find(self.native, self.count, self.names_len, name, len(name))
        return row

    def check(self, rules: Any, data_size: int, room: int, *, lax: bool, utf8: bool) -> Fault | None:
        """Check every row by a wm_rules, and the names; return the first fault, or None."""
        asked = (self.native, self.count, self.n_dims, self.names_len, utf8, rules, data_size, room, lax)
        # A valid table allocates no wm_fault.
        if lib.wm_columns_check(*asked, NULL) == 0:
            return None
        fault = ffi.new("wm_fault *")
        lib.wm_columns_check(*asked, fault)
        return fault_of(fault)


def row_rules(rules: Any) -> Any:
    """Return a wm_rules from an object with its fields."""
    return ffi.new("wm_rules *", (rules.min_ndim, rules.max_ndim, rules.alignment, rules.max_gap, rules.bits))


def _runs(values: NDArray[Any], bounds: NDArray[np.uint32], order: Any) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return the runs values[bounds[i]:bounds[i + 1]] in the given order, and their bounds."""
    lengths = np.diff(bounds)[order].astype(np.int64)
    new = np.zeros(len(order) + 1, bounds.dtype)
    np.cumsum(lengths, out=new[1:])
    # Position k of the result lies in run r, k - new[r] after that run's old start.
    source = np.repeat(bounds[:-1][order].astype(np.int64) - new[:-1], lengths) + np.arange(int(new[-1]))
    return values[source], new
