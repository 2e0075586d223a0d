"""The directory of a ZIP archive in C: from its bytes to columns. Used by weightmap.formats._zip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import NULL, as_input, as_output, fault_of, ffi, from_buffer, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.kernels._native import Fault

__all__ = ["ZIP_ENTRY_LEAST", "ZipEntries", "zip_scan"]

# Fewest bytes that an entry takes in the central directory.
ZIP_ENTRY_LEAST = 46


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


def zip_scan(fd: int, data: NDArray[np.uint8] | None, end: int, central: bytes, count: int) -> ZipEntries | Fault:
    """Turn a central directory into columns, checked against the headers of the entries; or say what is wrong.

    Parameters
    ----------
    fd : int
        The open file; -1 where `data` has its bytes.
    data : ndarray of uint8 or None
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
    octets = NULL if data is None else as_input(data)
    source, fault = ffi.new("wm_zip_source *", (fd, octets, end)), ffi.new("wm_fault *")
    if lib.wm_zip_scan(source, from_buffer("uint8_t[]", central), len(central), columns, fault):
        return fault_of(fault)
    entries.names = entries.names[: int(entries.bounds[-1])].copy()
    return entries
