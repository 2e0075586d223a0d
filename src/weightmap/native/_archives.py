"""The directory of a ZIP archive, and the pickle of a PyTorch checkpoint, read in C without making Python objects."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from weightmap.lazy import np
from weightmap.native._native import (
    NULL,
    U32_MAX,
    as_input,
    as_items,
    as_output,
    fault_of,
    ffi,
    from_buffer,
    lib,
    module,
)
from weightmap.native._strings import Columns

if sys.platform == "win32":
    import mmap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.native._native import Fault

# Fewest bytes that an entry takes in the central directory.
ZIP_ENTRY_LEAST = 46
# Of data that is no `Reader`.
_NO_HOOK = (NULL, NULL)
# Larger memory is not made with malloc, which may keep it.
_MALLOC_MOST = 1 << 17
_OF_DTYPE = {"u1": "uint8_t[]", "u2": "uint16_t[]", "u4": "uint32_t[]", "u8": "uint64_t[]"}


def transient(count: int, dtype: type[Any]) -> NDArray[Any]:
    """Return an uninitialised array whose memory is reused, or given back, once it is collected.

    Malloc may keep the pages of a large array until the process ends.
    """
    nbytes = count * np.dtype(dtype).itemsize
    return np.empty(count, dtype) if nbytes < _MALLOC_MOST else np.frombuffer(_pages(nbytes), dtype)


def _pages(nbytes: int) -> Any:
    """Return private memory; a page of it is there when it is touched."""
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    return module.map_file(-1, nbytes, 3)


class ZipEntries:
    """The entries of an archive, as columns, in the order of its directory.

    Attributes
    ----------
    names : ndarray of uint8
        With room behind the last name.
    bounds : ndarray of uint32, shape (n + 1,)
        Name i is names[bounds[i] : bounds[i + 1]].
    method : ndarray of uint16, shape (n,)
        0 stored, 8 deflated.
    later : ndarray of uint8, shape (n,)
        Whether a data descriptor may follow.
    crc : ndarray of uint32, shape (n,)
    stored, size : ndarray of uint64, shape (n,)
        Bytes in the file, and when inflated.
    offset, data : ndarray of uint64, shape (n,)
        Where the header of the entry and where its bytes begin.
    """

    __slots__ = ("bounds", "crc", "data", "later", "method", "names", "offset", "size", "stored")

    def __init__(self, count: int, names: int) -> None:
        self.names = transient(names, np.uint8)
        self.bounds = transient(count + 1, np.uint32)
        self.method = transient(count, np.uint16)
        self.later = transient(count, np.uint8)
        self.crc = transient(count, np.uint32)
        self.stored, self.size, self.offset, self.data = (transient(count, np.uint64) for _ in range(4))

    def __len__(self) -> int:
        return len(self.method)

    def native(self) -> tuple[Any, list[Any]]:
        """Return a wm_zip_entries, and what it points to."""
        columns: Any = ffi.new("wm_zip_entries *")
        columns.count = len(self)
        keep = []
        for name in self.__slots__:
            column = getattr(self, name)
            kind = _OF_DTYPE["u1" if name == "names" else column.dtype.str[1:]]
            keep.append(as_output(column, kind))
            setattr(columns, name, keep[-1])
        return columns, keep

    def check_order(self, end: int) -> Fault | None:
        """Check that entries lie one behind the other from byte 0 to `end`; return what is wrong first."""
        offset = self.offset
        rising = bool((offset[1:] >= offset[:-1]).all())
        order = NULL if rising else as_items("uint64_t[]", np.argsort(offset, kind="stable").astype(np.uint64))
        (columns, _keep), fault = self.native(), ffi.new("wm_fault *")
        return fault_of(fault) if lib.wm_zip_order(columns, order, end, fault) else None


def zip_scan(fd: int, data: Any, end: int, central: bytes | NDArray[np.uint8], count: int) -> ZipEntries | Fault:
    """Turn a central directory into columns, checked against the headers of the entries; or say what is wrong.

    Parameters
    ----------
    fd : int
        The open file; -1 where `data` has its bytes.
    data : ndarray of uint8, Reader or None
    end : int
        Where the central directory begins in the file.
    central : bytes or ndarray of uint8
    count : int
        Number of its entries.
    """
    entries = ZipEntries(count, len(central))
    columns, _keep = entries.native()
    function, context = getattr(data, "hook", _NO_HOOK)
    octets = NULL if data is None or function else as_input(data)
    source, fault = ffi.new("wm_zip_source *", (fd, octets, end, function, context)), ffi.new("wm_fault *")
    failed = lib.wm_zip_scan(source, as_input(central), len(central), columns, fault)
    if function:
        data.check()
    if failed:
        return fault_of(fault)
    return entries


NPY_ODD: int = lib.WM_NPY_ODD


class NpyHeaders:
    """The headers of the members of an .npz archive, as columns: see wm_npy_scan in archives.h.

    Attributes
    ----------
    names : ndarray of uint8
    bounds : ndarray of uint32, shape (n + 1,)
    kind : ndarray of uint8, shape (n,)
        `NPY_ODD` for a member that was not read.
    fortran : ndarray of uint8, shape (n,)
    dims : ndarray of uint64
    dim_bounds : ndarray of uint32, shape (n + 1,)
    begin, end : ndarray of uint64, shape (n,)
    kinds : list of str
        The types that `kind` numbers, such as "<f4".
    """

    __slots__ = ("begin", "bounds", "dim_bounds", "dims", "end", "fortran", "kind", "kinds", "names")

    def __init__(self, count: int, names: int) -> None:
        self.names = transient(names, np.uint8)
        self.bounds, self.dim_bounds = (transient(count + 1, np.uint32) for _ in range(2))
        self.kind, self.fortran = (transient(count, np.uint8) for _ in range(2))
        # Room for the most dimensions; its pages are touched as far as there are some.
        self.dims = transient(count * lib.WM_NPY_NDIM, np.uint64)
        self.begin, self.end = (transient(count, np.uint64) for _ in range(2))
        self.kinds: list[str] = []


def npy_scan(fd: int, data: Any, entries: ZipEntries) -> NpyHeaders | Fault:
    """Read the headers of members that are stored, and of the form that numpy writes; or say what is wrong.

    Parameters
    ----------
    fd, data
        As for `zip_scan`.
    entries : ZipEntries
    """
    found = NpyHeaders(len(entries), int(entries.bounds[-1]))
    (archive, _keep), columns = entries.native(), ffi.new("wm_npy *", (len(found.dims),))
    keep = []
    for name in ("names", "bounds", "kind", "fortran", "dims", "dim_bounds", "begin", "end"):
        keep.append(_output(getattr(found, name)))
        setattr(columns, name, keep[-1])
    function, context = getattr(data, "hook", _NO_HOOK)
    octets = NULL if data is None or function else as_input(data)
    source, fault = ffi.new("wm_zip_source *", (fd, octets, 0, function, context)), ffi.new("wm_fault *")
    failed = lib.wm_npy_scan(source, archive, columns, fault)
    if function:
        data.check()
    if failed:
        return fault_of(fault)
    found.names, found.dims = found.names[: columns.names_len], found.dims[: columns.n_dims]
    texts = (int(columns.kinds[i]).to_bytes(8, "little") for i in range(columns.n_kinds))
    found.kinds = [text.rstrip(b"\0").decode("ascii") for text in texts]
    return found


PICKLE_STRIDED: int = lib.WM_PICKLE_STRIDED
# The kinds of values: their numbers by name.
PICKLE_VALUES = {
    name: getattr(lib, f"WM_PICKLE_{name}")
    for name in (
        *("NONE", "BOOLEAN", "INTEGER", "LONG", "REAL", "TEXT", "BYTES", "LATIN"),
        *("DTYPE", "DEVICE", "KIND", "SCALAR", "COMPLEX", "PATH", "ARRAY", "ODD"),
    )
}
# What is no tensor or value: the words for it by number.
PICKLE_ODD = {
    getattr(lib, f"WM_PICKLE_ODD_{name}"): name
    for name in ("UNKNOWN", "CONJUGATE", "NEGATIVE", "STORAGE", "CLASS", "KEY", "ARRAY")
}
# Words of the arena for each byte of a program, and besides; bytes of a program for each word of the memo's directory.
_WORDS, _WORDS_LEAST, _PAGE = 4, 1024, 256
_NAMES, _NAMES_LEAST = 32, 1 << 16
_new_words = ffi.new_allocator(should_clear_after_alloc=False)


class PickleValues:
    """The values of a checkpoint that are no tensors, as columns: see wm_pickle_values in kernels.h.

    Attributes
    ----------
    names, bounds : ndarray
    kind : ndarray of uint8, shape (n,)
        See `PICKLE_VALUES`. The parts of a value follow it, without names.
    length : ndarray of uint32, shape (n,)
    at : ndarray of uint64, shape (n,)
        Where the value is in the program, or itself.
    """

    __slots__ = ("at", "bounds", "kind", "length", "names")

    def __init__(self, count: int, names: int) -> None:
        self.names: NDArray[np.uint8] = transient(names, np.uint8)
        self.bounds: NDArray[np.uint32] = transient(count + 1, np.uint32)
        self.kind: NDArray[np.uint8] = transient(count, np.uint8)
        self.length: NDArray[np.uint32] = transient(count, np.uint32)
        self.at: NDArray[np.uint64] = transient(count, np.uint64)


class PickleStorages:
    """Mentions of storages, as columns: see wm_pickle_storages in archives.h.

    Attributes
    ----------
    names : bytes
    bounds : ndarray of uint32, shape (n + 1,)
        Name i, the prefix and the key, is names[bounds[i] : bounds[i + 1]].
    at : ndarray of uint64, shape (n,)
        Where the key lies in the program.
    nbytes : ndarray of uint64, shape (n,)
        The bytes that the program says the storage has.
    item : ndarray of uint8, shape (n,)
        Bytes of an element.
    type : ndarray of uint8, shape (n,)
        The code of its type: see csrc/pickle_calls.c.
    """

    __slots__ = ("at", "bounds", "item", "names", "nbytes", "type")

    def __init__(self, count: int) -> None:
        self.names = b""
        self.bounds: NDArray[np.uint32] = transient(count + 1, np.uint32)
        self.at: NDArray[np.uint64] = transient(count, np.uint64)
        self.nbytes: NDArray[np.uint64] = transient(count, np.uint64)
        self.item: NDArray[np.uint8] = transient(count, np.uint8)
        self.type: NDArray[np.uint8] = transient(count, np.uint8)


class Pickle:
    """A pickle program that has been run.

    Parameters
    ----------
    data : bytes or ndarray of uint8 or None
        The program; None where it lies in a file.
    most, most_names : int
        The most tensors that the program may make, and bytes of their names.
    fd, begin, size : int
        The open file, which is read as long as this object is used; where the program begins in it, and the bytes that
        it may have.
    lax : bool
        Leave out anything but tensors and values, instead of a fault.

    Attributes
    ----------
    end : int
        Where the program ends in the data.
    fault : Fault or None
        Its defect; then nothing else is known.
    """

    __slots__ = ("_arena", "_held", "_most", "_native", "_source", "fault")

    def __init__(
        self,
        data: bytes | NDArray[np.uint8] | None,
        most: int,
        most_names: int,
        *,
        fd: int = -1,
        begin: int = 0,
        size: int = 0,
        lax: bool = False,
    ) -> None:
        """Run the program, and count what it makes."""
        size = size if data is None else len(data)
        octets = NULL if data is None else from_buffer("uint8_t[]", data)
        self._held: Any = fd, octets
        self._source: Any = ffi.new("wm_pickle_source *", (fd, octets, begin, size, lax))
        # A key may be part of many names: they are bounded by the length of the program too.
        self._most = most, min(most_names, _NAMES * size + _NAMES_LEAST, U32_MAX)
        words = _WORDS * size + size // _PAGE + _WORDS_LEAST
        # Its pages are touched only as far as the program goes.
        large = 8 * words > _MALLOC_MOST
        self._arena: Any = from_buffer("uint64_t[]", _pages(8 * words)) if large else _new_words("uint64_t[]", words)
        self._native = ffi.new("wm_pickle *")
        fault = ffi.new("wm_fault *")
        failed = lib.wm_pickle_run(self._source, self._arena, words, self._native, fault)
        if not failed:
            asked = (self._source, self._arena, *self._most, NULL, NULL, NULL, self._native, fault)
            failed = lib.wm_pickle_walk(*asked)
        self.fault: Fault | None = fault_of(fault) if failed else None

    @property
    def end(self) -> int:
        """Where the program ends in the data."""
        return int(self._native.end)

    @property
    def n_values(self) -> int:
        """Number of values besides tensors."""
        return int(self._native.n_values)

    @property
    def n_tensors(self) -> int:
        """Number of tensors."""
        return int(self._native.n_tensors)

    @property
    def n_retyped(self) -> int:
        """Number of tensors whose numbers have another width than those of their storage."""
        return int(self._native.n_retyped)

    @property
    def n_storages(self) -> int:
        """Number of times that the program mentions a storage."""
        return int(self._native.n_storages)

    def storages(self, prefix: bytes, most: int) -> Iterator[PickleStorages | Fault]:
        """Yield the mentions of storages, `most` at a time, named by `prefix` and their key; or what is wrong."""
        cursor, left = ffi.new("uint64_t *", self._native.storages), self.n_storages
        while left:
            count = min(most, left)
            found = PickleStorages(count)
            names = _new_words("uint8_t[]", count * (len(prefix) + lib.WM_PICKLE_KEY))
            filled = (_output(getattr(found, name)) for name in ("bounds", "at", "nbytes", "item", "type"))
            columns = ffi.new("wm_pickle_storages *", (from_buffer("uint8_t[]", prefix), len(prefix), names, *filled))
            fault = ffi.new("wm_fault *")
            if lib.wm_pickle_list(self._source, self._arena, cursor, count, columns, fault):
                yield fault_of(fault)
                return
            found.names = ffi.unpack(ffi.cast("char *", names), int(found.bounds[-1]))
            yield found
            left -= count

    def tensors(self, storages: NDArray[np.uint64]) -> tuple[Columns, NDArray[np.uint64] | None] | Fault:
        """Return the tensors, whose storages begin there, and the strides of those that are not row-major.

        The strides are in elements, as many as dimensions; None where all tensors are row-major.
        """
        native = self._native
        columns = Columns.scratch(native.names_len, native.n_tensors, native.n_dims)
        strides = transient(native.n_dims, np.uint64) if native.n_strided else None
        of_strides = NULL if strides is None else _output(strides)
        begins = as_items("uint64_t[]", storages)
        out = ffi.new("wm_pickle_tensors *", (columns.native, begins, of_strides))
        fault = self._walk(out, NULL)
        return (columns, strides) if fault is None else fault

    def values(self) -> PickleValues | Fault:
        """Return the values of the program besides tensors."""
        native = self._native
        values = PickleValues(native.n_values, native.value_names_len)
        parts = tuple(_output(getattr(values, name)) for name in ("names", "bounds", "kind", "length", "at"))
        out = ffi.new("wm_pickle_values *", (native.n_values, native.value_names_len, *parts))
        fault = self._walk(NULL, out)
        return values if fault is None else fault

    def _walk(self, tensors: Any, values: Any) -> Fault | None:
        path, fault = _new_words("uint8_t[]", self._native.longest + 1), ffi.new("wm_fault *")
        asked = (self._source, self._arena, *self._most, tensors, values, path, self._native, fault)
        return fault_of(fault) if lib.wm_pickle_walk(*asked) else None


def _output(array: NDArray[Any]) -> Any:
    return as_output(array, _OF_DTYPE[array.dtype.str[1:]])
