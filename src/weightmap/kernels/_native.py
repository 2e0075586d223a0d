"""The one door to the C module: what the other modules of this package hand to C goes through here."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import _kernels
from weightmap._kernels import ffi, lib

if TYPE_CHECKING:
    import mmap

    from numpy.typing import NDArray

    Buffer = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]

__all__ = [
    "NULL",
    "U32_MAX",
    "as_input",
    "as_output",
    "decode_array",
    "ffi",
    "from_buffer",
    "lib",
    "module",
    "thread_count",
    "widen_array",
]

U32_MAX = 0xFFFFFFFF
# More than any kernel starts, and an int.
_MOST_THREADS = 1 << 16
NULL = ffi.NULL
from_buffer = ffi.from_buffer
module = _kernels

if lib.wm_python_arrays() or lib.wm_python_owners():  # pragma: no cover
    raise ImportError("the built-in functions of weightmap._kernels could not be added")
# Built-in functions for arrays as they usually are: True when they have done it all, or False, and nothing was written.
widen_array = _kernels.widen
decode_array = _kernels.decode


def as_input(data: Buffer) -> Any:
    """Return `data` as a pointer that C may read; its length is ``len()`` of it, in bytes."""
    try:
        if type(data) is memoryview:
            # Not straight from a memoryview: before CPython 3.12.4, collecting one in a cycle while C holds it crashes
            # (python/cpython#77894). An array is invisible to the collector, and so is what it holds.
            return (
                from_buffer("uint8_t[]", np.frombuffer(data, np.uint8))
                if data.nbytes
                else from_buffer("uint8_t[]", b"")
            )
        return from_buffer("uint8_t[]", data)
    except (BufferError, ValueError) as error:
        msg = f"a C-contiguous buffer is needed, not this {type(data).__name__}: {error}"
        raise TypeError(msg) from None


def thread_count(threads: int) -> int:
    """Return a number of threads that C can take: how many there are at most, each kernel knows itself."""
    return max(0, min(index(threads), _MOST_THREADS))


def as_output(array: NDArray[Any], ctype: str) -> Any:
    """Return an array of our own making as a pointer that C may write."""
    return from_buffer(ctype, array, require_writable=True)
