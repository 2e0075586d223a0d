"""Memory for tests of the C scans: inputs and outputs that end where a page begins that nobody may touch."""

import numpy as np
from tests import guard

from weightmap._kernels import ffi


class Arena:
    """Memory whose last byte lies right before a page without any rights: one byte too far is a segmentation fault.

    Where there is no ``mprotect`` the arena is plain memory. What was put into an arena is overwritten by the next.
    """

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // guard.PAGE) * guard.PAGE
        blank = bytearray(self.size)
        self._view = guard.guarded(blank) if guard.AVAILABLE else memoryview(blank)
        self.address = np.frombuffer(self._view, np.uint8).ctypes.data

    def end(self, nbytes: int, ctype: str = "uint8_t *"):
        """Return a pointer to the last `nbytes` bytes."""
        assert 0 <= nbytes <= self.size
        return ffi.cast(ctype, self.address + self.size - nbytes)

    def put(self, data: bytes):
        """Copy `data` to the end and return a pointer to it."""
        self._view[self.size - len(data) : self.size] = data
        return self.end(len(data))

    def array(self, count: int, dtype) -> np.ndarray:
        """Return the last `count` elements as an array."""
        dtype = np.dtype(dtype)
        return np.frombuffer(self._view, dtype, count, self.size - count * dtype.itemsize)


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
