"""The directory of a ZIP archive, and the pickle of a PyTorch checkpoint, read in C without making Python objects."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import NULL, U32_MAX, as_input, as_output, fault_of, ffi, from_buffer, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.kernels._native import Fault

__all__ = [
    "PICKLE_STRIDED",
    "PICKLE_VALUES",
    "ZIP_ENTRY_LEAST",
    "Pickle",
    "PickleTensors",
    "PickleValues",
    "ZipEntries",
    "zip_scan",
]

# Fewest bytes that an entry takes in the central directory.
ZIP_ENTRY_LEAST = 46
# Of data that is no `Reader`.
_NO_HOOK = (NULL, NULL)


class ZipEntries:
    """The entries of an archive, as columns, in the order of its directory.

    Attributes
    ----------
    names : ndarray of uint8
    bounds : ndarray of uint32, shape (n + 1,)
        Name i is names[bounds[i] : bounds[i + 1]].
    method : ndarray of uint16, shape (n,)
        0 stored, 8 deflated.
    crc : ndarray of uint32, shape (n,)
    stored, size : ndarray of uint64, shape (n,)
        Bytes in the file, and when inflated.
    offset, data : ndarray of uint64, shape (n,)
        Where the header of the entry and where its bytes begin.
    """

    __slots__ = ("bounds", "crc", "data", "method", "names", "offset", "size", "stored")

    def __init__(self, count: int, names: int) -> None:
        self.names = np.empty(names, np.uint8)
        self.bounds = np.empty(count + 1, np.uint32)
        self.method = np.empty(count, np.uint16)
        self.crc = np.empty(count, np.uint32)
        self.stored, self.size, self.offset, self.data = np.empty((4, count), np.uint64)

    def __len__(self) -> int:
        return len(self.method)


def zip_scan(fd: int, data: Any, end: int, central: bytes, count: int) -> ZipEntries | Fault:
    """Turn a central directory into columns, checked against the headers of the entries; or say what is wrong.

    Parameters
    ----------
    fd : int
        The open file; -1 where `data` has its bytes.
    data : ndarray of uint8, Reader or None
    end : int
        Where the central directory begins in the file.
    central : bytes
    count : int
        Number of its entries.
    """
    entries = ZipEntries(count, len(central))
    columns: Any = ffi.new("wm_zip_entries *")
    columns.count = count
    kinds = {np.uint8: "uint8_t[]", np.uint16: "uint16_t[]", np.uint32: "uint32_t[]", np.uint64: "uint64_t[]"}
    keep = []
    for name in ZipEntries.__slots__:
        array = getattr(entries, name)
        keep.append(as_output(array, kinds[array.dtype.type]))
        setattr(columns, name, keep[-1])
    function, context = getattr(data, "hook", _NO_HOOK)
    octets = NULL if data is None or function else as_input(data)
    source, fault = ffi.new("wm_zip_source *", (fd, octets, end, function, context)), ffi.new("wm_fault *")
    failed = lib.wm_zip_scan(source, from_buffer("uint8_t[]", central), len(central), columns, fault)
    if function:
        data.check()
    if failed:
        return fault_of(fault)
    entries.names = entries.names[: int(entries.bounds[-1])].copy()
    return entries


PICKLE_STRIDED: int = lib.WM_PICKLE_STRIDED
# The kinds of values: their numbers by name.
PICKLE_VALUES = {
    name: getattr(lib, f"WM_PICKLE_{name}")
    for name in (
        *("NONE", "BOOLEAN", "INTEGER", "LONG", "REAL", "TEXT", "BYTES", "LATIN"),
        *("DTYPE", "DEVICE", "KIND", "SCALAR", "SCALAR_LATIN"),
    )
}
# Words of the arena for each byte of a program, and besides; larger arenas are not made with malloc, which may keep
# them.
_WORDS, _WORDS_LEAST, _MALLOC_MOST = 8, 1024, 1 << 17
_NAMES, _NAMES_LEAST = 32, 1 << 16
_new_words = ffi.new_allocator(should_clear_after_alloc=False)


class PickleTensors:
    """The tensors of a checkpoint as columns: see wm_pickle_tensors in kernels.h.

    Attributes
    ----------
    names, bounds, dtype, dims, dim_bounds, begin, end : ndarray
        As `Columns` takes them; begin and end count from the beginning of the storage.
    storage : ndarray of uint32, shape (n,)
    strides : ndarray of uint64
        In elements, as many as dimensions.
    """

    __slots__ = ("begin", "bounds", "dim_bounds", "dims", "dtype", "end", "names", "storage", "strides")

    def __init__(self, count: int, n_dims: int, names: int) -> None:
        self.names: NDArray[np.uint8] = np.empty(names, np.uint8)
        self.dtype: NDArray[np.uint8] = np.empty(count, np.uint8)
        self.bounds: NDArray[np.uint32] = np.empty(count + 1, np.uint32)
        self.dim_bounds: NDArray[np.uint32] = np.empty(count + 1, np.uint32)
        self.begin: NDArray[np.uint64] = np.empty(count, np.uint64)
        self.end: NDArray[np.uint64] = np.empty(count, np.uint64)
        self.dims: NDArray[np.uint64] = np.empty(n_dims, np.uint64)
        self.strides: NDArray[np.uint64] = np.empty(n_dims, np.uint64)
        self.storage: NDArray[np.uint32] = np.empty(count, np.uint32)


class PickleValues:
    """The values of a checkpoint that are no tensors, as columns: see wm_pickle_values in kernels.h.

    Attributes
    ----------
    names, bounds : ndarray
    kind : ndarray of uint8, shape (n,)
        See `PICKLE_VALUES`.
    length : ndarray of uint32, shape (n,)
    at : ndarray of uint64, shape (n,)
        Where the value is in the program, or itself.
    """

    __slots__ = ("at", "bounds", "kind", "length", "names")

    def __init__(self, count: int, names: int) -> None:
        self.names: NDArray[np.uint8] = np.empty(names, np.uint8)
        self.bounds: NDArray[np.uint32] = np.empty(count + 1, np.uint32)
        self.kind: NDArray[np.uint8] = np.empty(count, np.uint8)
        self.length: NDArray[np.uint32] = np.empty(count, np.uint32)
        self.at: NDArray[np.uint64] = np.empty(count, np.uint64)


class Pickle:
    """A pickle program that has been run.

    Attributes
    ----------
    end : int
        Where the program ends in the data.
    fault : Fault or None
        What is wrong with it; then nothing else is known.
    """

    __slots__ = ("_arena", "_data", "_most", "_native", "fault")

    def __init__(self, data: bytes | bytearray, most: int, most_names: int) -> None:
        """Run the program, and count what it makes: at most `most` tensors, and `most_names` bytes of names."""
        self._data = data
        # A key may be part of many names: they are bounded by the length of the program too.
        self._most = most, min(most_names, _NAMES * len(data) + _NAMES_LEAST, U32_MAX)
        words = _WORDS * len(data) + _WORDS_LEAST
        # Its pages are touched only as far as the program goes.
        large = words > _MALLOC_MOST
        self._arena: Any = (
            from_buffer("uint64_t[]", mmap.mmap(-1, 8 * words)) if large else _new_words("uint64_t[]", words)
        )
        self._native = ffi.new("wm_pickle *")
        fault = ffi.new("wm_fault *")
        octets = from_buffer("uint8_t[]", data)
        failed = lib.wm_pickle_run(octets, len(data), self._arena, words, self._native, fault)
        if not failed:
            asked = (octets, len(data), self._arena, *self._most, NULL, NULL, NULL, self._native, fault)
            failed = lib.wm_pickle_walk(*asked)
        self.fault: Fault | None = fault_of(fault) if failed else None

    @property
    def end(self) -> int:
        """Where the program ends in the data."""
        return int(self._native.end)

    @property
    def n_values(self) -> int:
        """How many values there are that are no tensors."""
        return int(self._native.n_values)

    @property
    def n_tensors(self) -> int:
        """How many tensors there are."""
        return int(self._native.n_tensors)

    def content(self) -> tuple[PickleTensors, PickleValues]:
        """Return the tensors and the other values."""
        native, octets = self._native, from_buffer("uint8_t[]", self._data)
        tensors = PickleTensors(native.n_tensors, native.n_dims, native.names_len)
        values = PickleValues(native.n_values, native.value_names_len)
        columns: tuple[NDArray[Any], ...] = (
            tensors.names,
            tensors.bounds,
            tensors.dtype,
            tensors.dims,
            tensors.dim_bounds,
            tensors.begin,
            tensors.end,
        )
        filled = tuple(map(_output, columns))
        storage, strides = _output(tensors.storage), _output(tensors.strides)
        head = (native.n_tensors, native.n_dims, native.names_len, *filled)
        of_tensors = ffi.new("wm_pickle_tensors *", (head, storage, strides))
        parts = tuple(_output(getattr(values, name)) for name in ("names", "bounds", "kind", "length", "at"))
        of_values = ffi.new("wm_pickle_values *", (native.n_values, native.value_names_len, *parts))
        path = _new_words("uint8_t[]", native.longest + 1)
        fault = ffi.new("wm_fault *")
        asked = (octets, len(self._data), self._arena, *self._most, of_tensors, of_values, path, native, fault)
        if lib.wm_pickle_walk(*asked):  # pragma: no cover - it was counted by the same walk
            raise MemoryError
        return tensors, values

    def storages(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint8]]:
        """Return of each storage where its key is in the data, its length, the bytes it claims and of an element."""
        count = self._native.n_storages
        columns = tuple(np.empty(count, kind) for kind in (np.uint64, np.uint32, np.uint64, np.uint8))
        lib.wm_pickle_list_storages(self._arena, self._native, *map(_output, columns))
        key, length, nbytes, item = columns
        return key, length, nbytes, item


_CTYPES = {"u1": "uint8_t[]", "u4": "uint32_t[]", "u8": "uint64_t[]"}


def _output(array: NDArray[Any]) -> Any:
    return as_output(array, _CTYPES[array.dtype.str[1:]])
