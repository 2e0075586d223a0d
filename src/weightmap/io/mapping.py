"""Makes memory for arrays: mappings of files, and aligned memory for copies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ADVICE", "aligned", "map_file"]

# Ways to touch pages; kernels.h numbers them in this order.
ADVICE = ("normal", "random", "sequential")
_WINDOWS = os.name == "nt"
_ALIGN = 64


def map_file(fd: int, size: int, mode: str, advice: str | None) -> tuple[NDArray[np.uint8], Any]:
    """Map a file in mode "mmap", "cow" or "sealed"; return its bytes, and their owner to make arrays on.

    Raises `OSError` when mapping fails.
    """
    cow = mode == "cow"
    if _WINDOWS:
        import mmap  # noqa: PLC0415 - other systems need it for buffers only

        mapped: Any = mmap.mmap(fd, size, access=mmap.ACCESS_COPY if cow else mmap.ACCESS_READ)
    else:
        mapped = kernels.map_file(fd, size, cow=cow, sealed=mode == "sealed")
    if advice is not None:
        kernels.advise(mapped, ADVICE.index(advice))
    # A read-only mapping exports read-only memory, so nobody can make an array on it writeable.
    return np.ndarray((size,), np.uint8, mapped), mapped


def aligned(size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of new memory, aligned to 64: tensors that are aligned in the file stay so in a copy."""
    room = kernels.empty(size + _ALIGN, np.uint8)
    start = -room.ctypes.data % _ALIGN
    return room[start : start + size]
