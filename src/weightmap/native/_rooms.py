"""Buffers that files are read into: they begin at a line of the CPU's cache.

An operating system copies a file to such a place up to a sixth faster. Large arrays of numpy and bytearrays begin 16
or 32 bytes behind the start of a line, so each second store of a copy meets two lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.native._native import ffi, from_buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

LINE = 64  # bytes


def to_line(buffer: bytearray | NDArray[np.uint8]) -> int:
    """Return how many bytes into a buffer a line of the cache begins."""
    return -int(ffi.cast("uintptr_t", from_buffer("uint8_t[]", buffer))) % LINE


def room(nbytes: int) -> NDArray[np.uint8]:
    """Return memory of so many bytes, with any content, that begins at a line of the cache."""
    whole = np.empty(nbytes + LINE, np.uint8)
    skipped = to_line(whole)
    return whole[skipped : skipped + nbytes]
