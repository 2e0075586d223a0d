"""The columns of a table of tensors, and tables of strings, which C fills, reads and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.lazy import np
from weightmap.native._native import (
    NULL,
    Fault,
    as_input,
    as_items,
    as_output,
    fault_of,
    ffi,
    from_buffer,
    lib,
    module,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from weightmap.native._native import Buffer


# Without clearing: a scan fills the memory.
_new_words = ffi.new_allocator(should_clear_after_alloc=False)


class Columns:
    """The columns of a table of tensors, in private C memory.

    Indexing a C pointer takes a third of indexing an array, and opening a file is quick because it makes no arrays.

    Parameters
    ----------
    names : bytes or ndarray of uint8
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

    __slots__ = ("_memory", "count", "n_dims", "names_len", "native")

    def __init__(
        self,
        names: bytes | NDArray[np.uint8],
        bounds: Any,
        dtype: Any,
        dims: Any,
        dim_bounds: Any,
        begin: Any,
        end: Any = None,
    ) -> None:
        self.count: int = len(dtype)
        self.n_dims: int = len(dims)
        self.names_len: int = len(names)
        self._memory: Any = (
            from_buffer("uint8_t[]", names),
            as_items("uint32_t[]", bounds),
            from_buffer("uint8_t[]", dtype),
            as_items("uint64_t[]", dims),
            as_items("uint32_t[]", dim_bounds),
            *(as_items("uint64_t[]", column) for column in (begin, end) if column is not None),
        )
        self.native: Any = ffi.new("wm_columns *", (self.count, self.n_dims, self.names_len, *self._memory))

    @classmethod
    def scratch(cls, size: int, count: int, n_dims: int) -> Columns:
        """Return columns for a scan to fill: names of `size` bytes, `count` tensors, `n_dims` dimensions."""
        self = cls.__new__(cls)
        self.count, self.n_dims, self.names_len = count, n_dims, size
        # One allocation for all columns; a scan touches only the pages that it fills.
        words = n_dims + 3 * count + (size + 5 * count) // 8 + 2
        self._memory = memory = _new_words("uint64_t[]", words)
        self.native = ffi.new("wm_columns *", (count, n_dims, size))
        if lib.wm_columns_place(self.native, memory, words):
            msg = f"no memory for a table of {8 * words} bytes"
            raise MemoryError(msg)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def array(self, column: Any, count: int, dtype: str) -> NDArray[Any]:
        """Return a copy of `count` values of a column."""
        return np.frombuffer(ffi.buffer(column, count * int(dtype[-1])), dtype).copy()

    def words(self, column: Any, count: int) -> memoryview[int]:
        """Return a copy of `count` values of a column of 32 bits, without numpy."""
        return memoryview(bytes(ffi.buffer(column, 4 * count))).cast("I")

    def text(self) -> bytes:
        """Return the names back to back."""
        return bytes(ffi.buffer(self.names, self.names_len))

    def name(self, i: int) -> bytes:
        """Return the name of row i."""
        begin = self.bounds[i]
        return bytes(ffi.buffer(self.names + begin, self.bounds[i + 1] - begin))

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

    def groups(self, order: NDArray[np.intp], counts: NDArray[np.intp]) -> list[Columns]:
        """Return new columns for each of `counts` rows that follow one another in `order`."""
        taken, n = self.take(order), len(order)
        bounds, dim_bounds = (taken.array(column, n + 1, "<u4") for column in (taken.bounds, taken.dim_bounds))
        text, dims = taken.text(), taken.array(taken.dims, taken.n_dims, "<u8")
        dtype, begin, end = (
            taken.array(column, n, kind)
            for column, kind in ((taken.dtype, "u1"), (taken.begin, "<u8"), (taken.end, "<u8"))
        )
        found, last = [], 0
        for count in counts.tolist():
            first, last = last, last + count
            rows, names, shapes = slice(first, last), bounds[first : last + 1], dim_bounds[first : last + 1]
            found.append(
                Columns(
                    text[names[0] : names[-1]],
                    names - names[0],
                    dtype[rows],
                    dims[shapes[0] : shapes[-1]],
                    shapes - shapes[0],
                    begin[rows],
                    end[rows],
                )
            )
        return found

    def content(self) -> tuple[bytes, ...]:
        """Return all that the columns hold, for comparison."""
        n = self.count
        columns = (
            *((self.bounds, n + 1, "<u4"), (self.dtype, n, "u1"), (self.dims, self.n_dims, "<u8")),
            *((self.dim_bounds, n + 1, "<u4"), (self.begin, n, "<u8"), (self.end, n, "<u8")),
        )
        return self.text(), *(self.array(*column).tobytes() for column in columns)

    def find(self, name: bytes) -> int:
        """Return the row of the tensor called `name`, or -1, by one pass over the hashes of `check`, or the names."""
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


def placer(rules: Any, count: int, columns: Columns | None, records: Buffer = b"") -> Callable[[int], Any]:
    """Return a function like `Table.place` over columns or records; for a row that is not usual it returns None."""
    buffer = as_input(records) if columns is None else NULL
    native = NULL if columns is None else columns.native
    places = ffi.new("wm_places *", (rules.native, native, buffer, count, rules.base, rules.data_size))
    return module.placer(int(ffi.cast("uintptr_t", places)), (rules.dtypes, rules.native, columns, buffer))


def _runs(values: NDArray[Any], bounds: NDArray[np.uint32], order: Any) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return the runs values[bounds[i]:bounds[i + 1]] in the given order, and their bounds."""
    lengths = np.diff(bounds)[order].astype(np.int64)
    new = np.zeros(len(order) + 1, bounds.dtype)
    np.cumsum(lengths, out=new[1:])
    # Position k of the result lies in run r, k - new[r] after that run's old start.
    source = np.repeat(bounds[:-1][order].astype(np.int64) - new[:-1], lengths) + np.arange(int(new[-1]))
    return values[source], new


def walk_strings(data: Buffer, count: int, width: int, bounds: NDArray[np.uint32] | None = None) -> int:
    """Walk `count` strings after lengths of `width` bytes; return the bytes walked, or -1 - i if string i does not fit.

    Fills `bounds`, shape (count + 1,), as kernels.h says.
    """
    buffer = as_input(data)
    out = NULL if bounds is None else as_output(bounds, "uint32_t[]")
    walked: int = lib.wm_walk_strings(buffer, len(buffer), count, width, out)
    return walked


def skip_strings(data: Buffer, count: int, tail: int) -> tuple[int, int]:
    """Walk those of `count` entries that lie whole in `data`: a u32 length, that many bytes, and `tail` bytes.

    Returns their bytes and their number.
    """
    buffer = as_input(data)
    walked = ffi.new("uint64_t *")
    size: int = lib.wm_finalfusion_skip(buffer, len(buffer), count, tail, walked)
    return size, walked[0]


def walk_indexed(data: Buffer, count: int) -> tuple[int, NDArray[np.uint32], NDArray[np.uint64]]:
    """Walk `count` strings, each after a u32 length and before a u64 index.

    The caller checks that `count` is at most a twelfth of the bytes.

    Returns
    -------
    walked : int
        Bytes walked, or -1 - i if entry i does not fit.
    bounds : ndarray of uint32, shape (count + 1,)
        As for `weightmap.index.strings.StringTable`, with gap 12.
    indices : ndarray of uint64, shape (count,)
    """
    buffer = as_input(data)
    bounds, indices = np.empty(count + 1, np.uint32), np.empty(count, np.uint64)
    starts, numbers = as_output(bounds, "uint32_t[]"), as_output(indices, "uint64_t[]")
    walked: int = lib.wm_finalfusion_ngrams(buffer, len(buffer), count, starts, numbers)
    return walked, bounds, indices


def utf8_strings(data: Buffer, bounds: NDArray[np.uint32], gap: int) -> int:
    """Return -1, or the number of the first string within `bounds` that is not strict UTF-8."""
    buffer = as_input(data)
    bad: int = lib.wm_utf8_strings(buffer, len(buffer), as_items("uint32_t[]", bounds), len(bounds) - 1, gap)
    return bad


def index_build(data: Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]) -> tuple[int, int, int]:
    """Fill `slots` (a power of two of entries, at least 4/3 of the strings) with a hash index over the strings.

    Returns how many strings equal an earlier one, and the numbers of the first such string and of its original; a count
    of -2 when too many hashes collide, as in an attack.
    """
    buffer, starts, table = as_input(data), as_items("uint32_t[]", bounds), as_output(slots, "uint32_t[]")
    pair = ffi.new("uint64_t[2]")
    count = lib.wm_index_build(buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots), pair, pair + 1)
    return count, pair[0], pair[1]


def index_finder(
    data: Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]
) -> Callable[[object], int]:
    """Return a function from a text to the number of the string equal to it, or -1; it keeps the arrays alive."""
    keep = (as_input(data), as_items("uint32_t[]", bounds), as_items("uint32_t[]", slots))
    buffer, starts, table = keep
    index = ffi.new("wm_index *", (buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots)))
    return module.finder(int(ffi.cast("uintptr_t", index)), keep)


def index_find_many(
    data: Buffer,
    bounds: NDArray[np.uint32],
    gap: int,
    slots: NDArray[np.uint32],
    names: bytes,
    name_bounds: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """Return the numbers of the strings equal to names[name_bounds[i]:name_bounds[i + 1]], -1 for a missing one."""
    buffer, starts, table = as_input(data), as_items("uint32_t[]", bounds), as_items("uint32_t[]", slots)
    wanted, count = as_items("uint32_t[]", name_bounds), len(name_bounds) - 1
    rows = np.empty(count, np.int64)
    index = (buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots))
    lib.wm_index_find_many(*index, names, len(names), wanted, count, as_output(rows, "int64_t[]"))
    return rows
