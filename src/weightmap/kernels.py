"""Kernels in C: checksums, hashes, scans. Arrays in, arrays out.

Every kernel takes any C-contiguous buffer (bytes, bytearray, memoryview, mmap, numpy array), releases the GIL while it works, and
gives to the bit what its plain definition gives, whatever the instruction set in use. A buffer that is not contiguous is a
TypeError. This is the only module that touches the C extension; the functions below the public ones serve the rest of the package.
"""

from __future__ import annotations

import os
from functools import partial
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import _kernels
from weightmap._kernels import ffi, lib

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Buffer = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]

__all__ = [
    "available_isas",
    "crc32",
    "crc32_combine",
    "fnv1a32",
    "fnv1a32_many",
    "fnv1a64",
    "isa",
    "use_isa",
]

U32_MAX = 0xFFFFFFFF
NULL = ffi.NULL
_from_buffer = ffi.from_buffer


def _in(data: Buffer) -> Any:
    """Return `data` as a pointer that C may read; its length is ``len()`` of it, in bytes."""
    try:
        if type(data) is memoryview:
            # Not straight from a memoryview: before CPython 3.12.4, collecting one in a cycle while C holds it crashes
            # (python/cpython#77894). An array is invisible to the collector, and so is what it holds.
            return _from_buffer("uint8_t[]", np.frombuffer(data, np.uint8)) if data.nbytes else _from_buffer("uint8_t[]", b"")
        return _from_buffer("uint8_t[]", data)
    except (BufferError, ValueError) as error:
        msg = f"a C-contiguous buffer is needed, not this {type(data).__name__}: {error}"
        raise TypeError(msg) from None


def _out(array: NDArray[Any], ctype: str) -> Any:
    """Return an array of our own making as a pointer that C may write."""
    return _from_buffer(ctype, array, require_writable=True)


# --------------------------------------------------------------------------------------------- instruction sets
def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this CPU has, plainest first: "portable" is always there.

    Examples
    --------
    >>> available_isas()[0]
    'portable'
    """
    names = []
    tier = 0
    while (name := lib.wm_isa_name(tier)) != NULL:
        if lib.wm_isa_available(tier):
            names.append(ffi.string(name).decode())
        tier += 1
    return tuple(names)


def isa() -> str:
    """Return the instruction set in use: the best one available, unless `use_isa` chose another."""
    name: str = ffi.string(lib.wm_isa_name(lib.wm_isa_selected())).decode()
    return name


def use_isa(name: str) -> None:
    """Use the instruction set `name` from now on, in all threads. Meant for tests and comparisons: results never differ.

    Parameters
    ----------
    name : str
        One of `available_isas`.

    Raises
    ------
    ValueError
        When this CPU does not have it.
    """
    tier = 0
    while (found := lib.wm_isa_name(tier)) != NULL:
        if ffi.string(found).decode() == name and lib.wm_isa_select(tier) == 0:
            return
        tier += 1
    msg = f"instruction set {name!r} is not available here; there are {', '.join(available_isas())}"
    raise ValueError(msg)


def crc32_variant() -> str:
    """Return the name of the C function that `crc32` uses for long inputs, such as "crc32_x86_pclmulqdq"."""
    name: str = ffi.string(lib.wm_crc32_variant()).decode()
    return name


def fnv1a32_variant() -> str:
    """Return the name of the C function that `fnv1a32_many` uses."""
    name: str = ffi.string(lib.wm_fnv1a32_variant()).decode()
    return name


# ---------------------------------------------------------------------------------------------------- checksums
def crc32(data: Buffer, value: int = 0, *, threads: int = 1) -> int:
    """CRC-32 as of zlib: reflected polynomial 0xEDB88320, initial value and final XOR 0xFFFFFFFF.

    Parameters
    ----------
    data : buffer
        The bytes.
    value : int
        CRC of the bytes before `data`, as `zlib.crc32` takes it; only its low 32 bits count.
    threads : int
        At most this many threads share the work; fewer where the input is too small to gain.

    Returns
    -------
    int
        The CRC, 0 to 2**32 - 1.

    Examples
    --------
    >>> hex(crc32(b"123456789"))
    '0xcbf43926'
    """
    buffer = _in(data)
    crc: int = lib.wm_crc32(value & U32_MAX, buffer, len(buffer), threads)
    return crc


# A call through cffi costs more than zlib takes for a kilobyte. So the built-in function of csrc/python.c takes the place
# of the one above, which stays its definition, its types and its documentation.
_CRC32_DOC = ffi.new("char[]", f"crc32(data, value=0, *, threads=1)\n--\n\n{cleandoc(crc32.__doc__ or '')}".encode())
if not TYPE_CHECKING and lib.wm_python_functions(_CRC32_DOC) == 0:
    crc32_by_cffi, crc32 = crc32, _kernels.crc32
    crc32.__module__ = __name__


def crc32_combine(crc1: int, crc2: int, len2: int) -> int:
    """CRC-32 of A + B from the CRC of A, the CRC of B and the length of B in bytes, in time O(log len2).

    Raises
    ------
    ValueError
        When `len2` is negative or not below 2**64.

    Examples
    --------
    >>> crc32_combine(crc32(b"12345"), crc32(b"6789"), 4) == crc32(b"123456789")
    True
    """
    if not 0 <= len2 < 1 << 64:
        msg = f"len2 is {len2}, expected 0 to 2**64 - 1"
        raise ValueError(msg)
    crc: int = lib.wm_crc32_combine(crc1 & U32_MAX, crc2 & U32_MAX, len2)
    return crc


# ------------------------------------------------------------------------------------------------------- hashes
def fnv1a32(data: Buffer) -> int:
    """FNV-1a hash of 32 bits: basis 0x811C9DC5, prime 0x01000193.

    Examples
    --------
    >>> hex(fnv1a32(b"foobar"))
    '0xbf9cf968'
    """
    buffer = _in(data)
    value: int = lib.wm_fnv1a32(buffer, len(buffer))
    return value


def fnv1a64(data: Buffer) -> int:
    """FNV-1a hash of 64 bits: basis 0xCBF29CE484222325, prime 0x100000001B3.

    Examples
    --------
    >>> hex(fnv1a64(b"foobar"))
    '0x85944171f73967e8'
    """
    buffer = _in(data)
    value: int = lib.wm_fnv1a64(buffer, len(buffer))
    return value


def fnv1a32_many(blob: Buffer, lengths: ArrayLike) -> NDArray[np.uint32]:
    """FNV-1a 32 of many names at once, much faster than name by name.

    Parameters
    ----------
    blob : buffer
        The names, one after another with nothing between them.
    lengths : array_like of int, shape (n,)
        Their lengths in bytes.

    Returns
    -------
    ndarray of uint32, shape (n,)
        Their hashes.

    Raises
    ------
    ValueError
        When a length is negative or not below 2**32, or the lengths add up to more than `blob` holds.

    Examples
    --------
    >>> [hex(h) for h in fnv1a32_many(b"foobara", [6, 1]).tolist()]
    ['0xbf9cf968', '0xe40c292c']
    """
    counts = np.asarray(lengths)
    if counts.dtype != np.uint32:
        if counts.size == 0:
            counts = counts.astype(np.uint32)
        if counts.dtype.kind not in "ui" or int(counts.min(initial=0)) < 0 or int(counts.max(initial=0)) > U32_MAX:
            msg = f"lengths must be integers from 0 to 2**32 - 1, not {counts.dtype} from {counts.min()} to {counts.max()}"
            raise ValueError(msg)
    if counts.ndim != 1:
        msg = f"lengths has {counts.ndim} dimensions, expected 1"
        raise ValueError(msg)
    counts = np.ascontiguousarray(counts, np.uint32)
    hashes = np.empty(len(counts), np.uint32)
    buffer = _in(blob)
    where = lib.wm_fnv1a32_many(
        buffer, len(buffer), _from_buffer("uint32_t[]", counts), len(counts), 0, _out(hashes, "uint32_t[]")
    )
    if where >= 0:
        msg = f"name {where} of {len(counts)} runs past the blob of {len(buffer)} bytes"
        raise ValueError(msg)
    return hashes


# -------------------------------------------------------------------------- string tables (used by strings.py)
def walk_strings(data: Buffer, count: int, width: int, bounds: NDArray[np.uint32] | None = None) -> int:
    """Walk `count` strings, each after a length of `width` bytes; return the bytes walked or -1 - i for string i.

    `bounds`, shape (count + 1,), is filled as kernels.h says.
    """
    buffer = _in(data)
    out = NULL if bounds is None else _out(bounds, "uint32_t[]")
    walked: int = lib.wm_walk_strings(buffer, len(buffer), count, width, out)
    return walked


def walk_pairs(data: Buffer, count: int, bounds: NDArray[np.uint32] | None = None) -> int:
    """Walk `count` pairs of strings after their two u16 lengths; return the bytes walked or -1 - i for pair i."""
    buffer = _in(data)
    out = NULL if bounds is None else _out(bounds, "uint32_t[]")
    walked: int = lib.wm_walk_pairs(buffer, len(buffer), count, out)
    return walked


def utf8_strings(data: Buffer, bounds: NDArray[np.uint32], gap: int) -> int:
    """Return -1, or the number of the first string within `bounds` that is not strict UTF-8."""
    buffer = _in(data)
    bad: int = lib.wm_utf8_strings(buffer, len(buffer), _from_buffer("uint32_t[]", bounds), len(bounds) - 1, gap)
    return bad


def index_build(data: Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]) -> tuple[int, int, int]:
    """Fill `slots` (a power of two of entries, at least 4/3 of the strings) with a hash index over the strings.

    Returns how many strings equal an earlier one, and the numbers of the first such string and of its original; a count of -2
    when somebody made the hashes collide.
    """
    buffer = _in(data)
    pair = ffi.new("uint64_t[2]")
    count = lib.wm_index_build(
        buffer,
        len(buffer),
        _from_buffer("uint32_t[]", bounds),
        len(bounds) - 1,
        gap,
        _out(slots, "uint32_t[]"),
        len(slots),
        pair,
        pair + 1,
    )
    return count, pair[0], pair[1]


def index_finder(data: Buffer, bounds: NDArray[np.uint32], gap: int, slots: NDArray[np.uint32]) -> Callable[[object], int]:
    """Return a function from a text to the number of the string equal to it, or -1. It keeps the arrays alive."""
    buffer, starts, table = _in(data), _from_buffer("uint32_t[]", bounds), _from_buffer("uint32_t[]", slots)
    index = ffi.new("wm_index *", (buffer, len(buffer), starts, len(bounds) - 1, gap, table, len(slots)))
    keep = (buffer, starts, table)
    lookup = lib.wm_index_lookup

    def finder(text: object, _keep: Any = keep) -> int:
        try:
            raw = text.encode()  # type: ignore[attr-defined]
        except (AttributeError, UnicodeEncodeError):  # no text, or a lone surrogate: no file can hold it
            return -1
        row: int = lookup(index, raw, len(raw))
        return row

    return finder


def index_find_many(
    data: Buffer,
    bounds: NDArray[np.uint32],
    gap: int,
    slots: NDArray[np.uint32],
    names: bytes,
    name_bounds: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """Return the numbers of the strings equal to names[name_bounds[i]:name_bounds[i + 1]], -1 where there is none."""
    buffer = _in(data)
    rows = np.empty(len(name_bounds) - 1, np.int64)
    lib.wm_index_find_many(
        buffer,
        len(buffer),
        _from_buffer("uint32_t[]", bounds),
        len(bounds) - 1,
        gap,
        _from_buffer("uint32_t[]", slots),
        len(slots),
        names,
        len(names),
        _from_buffer("uint32_t[]", name_bounds),
        len(name_bounds) - 1,
        _out(rows, "int64_t[]"),
    )
    return rows


# ------------------------------------------------------------------------ tables of tensors (used by table.py)
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


FAULTS = {name.removeprefix("WM_FAULT_"): getattr(lib, name) for name in dir(lib) if name.startswith("WM_FAULT_")}


def _fault(fault: Any) -> Fault:
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

    __slots__ = ("_keep", "begin", "bounds", "count", "dim_bounds", "dims", "dtype", "end", "n_dims", "names", "names_len")

    def __init__(self, names: bytes, bounds: Any, dtype: Any, dims: Any, dim_bounds: Any, begin: Any, end: Any) -> None:
        self.count = len(dtype)
        self.n_dims = len(dims)
        self.names_len = len(names)
        self.names = _from_buffer("uint8_t[]", names)
        self.dtype = _from_buffer("uint8_t[]", dtype)
        self.bounds, self.dim_bounds = _from_buffer("uint32_t[]", bounds), _from_buffer("uint32_t[]", dim_bounds)
        self.dims, self.begin, self.end = (_from_buffer("uint64_t[]", column) for column in (dims, begin, end))
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
        self._keep = self.dims = _from_buffer("uint64_t[]", memory, require_writable=True)
        self.begin = self.dims + n_dims
        self.end = self.begin + count
        self.bounds = ffi.cast("uint32_t *", self.end + count)
        self.dim_bounds = self.bounds + count + 1
        self.names = ffi.cast("uint8_t *", self.dim_bounds + count + 1)
        self.dtype = self.names + size
        return self

    def array(self, column: Any, count: int, dtype: str) -> NDArray[Any]:
        """Return `count` values of one of the columns as a copy."""
        return np.frombuffer(ffi.buffer(column, count * int(dtype[-1])), dtype).copy()

    def text(self) -> bytes:
        """Return the names, one after another."""
        return bytes(ffi.buffer(self.names, self.names_len))

    def raw(self, i: int) -> tuple[int, tuple[int, ...], int]:
        """Return dtype code, shape and begin of row i."""
        bounds = self.dim_bounds
        return self.dtype[i], tuple(ffi.unpack(self.dims + bounds[i], bounds[i + 1] - bounds[i])), self.begin[i]

    def check(
        self, bits: bytes, min_ndim: int, max_ndim: int, data_size: int, max_gap: int, *, lax: bool, utf8: bool
    ) -> Fault | None:
        """Check every row and the uniqueness of the names; return what is wrong, or None."""
        fault = ffi.new("wm_fault *")
        failed = lib.wm_columns_check(
            self.names, self.names_len, self.bounds, self.count, self.dtype, self.dims, self.n_dims, self.dim_bounds, self.begin,
            self.end, bits, len(bits), min_ndim, max_ndim, data_size, max_gap, lax, utf8, fault,
        )
        return _fault(fault) if failed else None


def pairs_check(data: bytes, count: int) -> Fault | None:
    """Check pairs of strings after their two u16 lengths: structure, UTF-8, unique keys; return what is wrong, or None."""
    fault = ffi.new("wm_fault *")
    return _fault(fault) if lib.wm_pairs_check(data, len(data), count, fault) else None


def records_check(
    index: bytes | NDArray[np.uint8], count: int, bits: bytes, data_size: int, alignment: int, max_gap: int, *, lax: bool
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
    data = index if type(index) is bytes else _from_buffer("uint8_t[]", index)
    failed = lib.wm_records_check(data, len(data), count, bits, len(bits), data_size, alignment, max_gap, lax, used, fault)
    return used[0], _fault(fault) if failed else None


def records_find(index: bytes | NDArray[np.uint8], count: int, name: bytes) -> int:
    """Return the number of the record of this name, or -1, by one pass over the stored hashes."""
    row: int = lib.wm_records_find(_from_buffer("uint8_t[]", index), len(index), count, name, len(name))
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
        header, size, dtypes, len(dtypes) // 16, columns.count, columns.n_dims, columns.names, columns.bounds, columns.dtype,
        columns.dims, columns.dim_bounds, columns.begin, columns.end, found, fault,
    )
    if failed:
        return _fault(fault)
    columns.count, columns.n_dims, columns.names_len = found.n_tensors, found.n_dims, found.names_len
    return columns, found


# ------------------------------------------------------------------------------------- files (used by source.py)
def map_file(fd: int, size: int, *, cow: bool) -> Any:
    """Map `size` bytes of a file; return a writable buffer that unmaps when its last user is gone. Raises OSError."""
    error = ffi.new("int *")
    address = lib.wm_map(fd, size, cow, error)
    if address == NULL:
        raise OSError(error[0], os.strerror(error[0]))
    return ffi.buffer(ffi.gc(address, partial(_unmap, size=size)), size)


def _unmap(address: Any, size: int) -> None:
    lib.wm_unmap(address, size)


def will_need(memory: Any, offset: int, size: int) -> None:
    """Ask the kernel for these pages of a mapping. A refusal does not matter: it is advice."""
    buffer = _from_buffer("uint8_t[]", memory)
    lib.wm_will_need(buffer, len(buffer), offset, size)


def stamp(fd: int, size: int, mtime_ns: int) -> Any:
    """Return what `unchanged` compares a file with."""
    return ffi.new("wm_stamp *", (fd, size, mtime_ns))


unchanged = lib.wm_unchanged
