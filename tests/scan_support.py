"""Pointers for tests of the C scans."""

import numpy as np

from weightmap._kernels import ffi


def u8(data: bytes):
    """Return `data` as a C pointer."""
    return ffi.from_buffer("uint8_t[]", data)


def u32(array: np.ndarray):
    """Return a uint32 array as a C pointer."""
    return ffi.from_buffer("uint32_t[]", array)


def pack(strings: list[bytes], width: int) -> tuple[bytes, np.ndarray]:
    """Return the strings one after another, each behind a length of `width` bytes, and the bounds of them."""
    lengths = np.array([len(string) for string in strings], np.uint32)
    blob = b"".join(len(string).to_bytes(width, "little") + string for string in strings)
    return blob, np.cumsum([width, *(lengths + width)]).astype(np.uint32)
