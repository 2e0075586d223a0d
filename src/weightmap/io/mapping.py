"""Memory that arrays are made on: mappings of files, and new memory for copies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ADVICE", "aligned", "map_file"]

# How pages will be touched; the position of a word here is its number in C.
ADVICE = ("normal", "random", "sequential")
_WINDOWS = os.name == "nt"
_ALIGN = 64


def map_file(fd: int, size: int, mode: str, advice: str | None) -> tuple[NDArray[np.uint8], Any]:
    """Map a file in mode "mmap", "cow" or "sealed"; return its bytes, and what arrays are to be made on.

    Raises `OSError` where that cannot be done.
    """
    cow = mode == "cow"
    if _WINDOWS:
        import mmap  # noqa: PLC0415 - used nowhere else

        mapped: Any = mmap.mmap(fd, size, access=mmap.ACCESS_COPY if cow else mmap.ACCESS_READ)
    else:
        mapped = kernels.map_file(fd, size, cow=cow, sealed=mode == "sealed")
    if advice is not None:
        kernels.advise(mapped, ADVICE.index(advice))
    # A read-only mapping says so to whoever views it: an array on it cannot be made writeable either.
    return np.ndarray((size,), np.uint8, mapped), mapped


def aligned(size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of new memory that begin at a multiple of 64: aligned files stay aligned in a copy."""
    room = kernels.empty(size + _ALIGN, np.uint8)
    start = -room.ctypes.data % _ALIGN
    return room[start : start + size]
