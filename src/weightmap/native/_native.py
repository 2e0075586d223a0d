"""The access to the C module for the other modules here, the faults that its scans report, and files in C."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from weightmap import _kernels
from weightmap.lazy import later, np

if TYPE_CHECKING:
    import mmap

    from numpy.typing import NDArray

    from weightmap._kernels import State

    Buffer = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]

ffi = _kernels.ffi
lib = _kernels.lib
U32_MAX = 0xFFFFFFFF
# More than any kernel starts; fits an int.
_MOST_THREADS = 1 << 16
NULL = ffi.NULL
from_buffer = ffi.from_buffer
module = _kernels
as_threads = later("weightmap.arguments", "as_threads")
mistyped = later("weightmap.arguments", "mistyped")

if lib.wm_python_arrays() or lib.wm_python_owners() or lib.wm_python_lookups():  # pragma: no cover
    raise ImportError("the built-in functions of weightmap._kernels could not be added")
# Built-in functions for the usual arrays: True if they did the work, False if they wrote nothing.
widen_array = _kernels.widen
decode_array = _kernels.decode
decode_ggml_array = _kernels.decode_ggml


def as_input(data: Buffer) -> Any:
    """Return `data` as a pointer for C to read; its ``len()`` is the number of bytes."""
    try:
        if type(data) is memoryview:
            # Through an array: before CPython 3.12.4, collecting a memoryview in a cycle while C holds it crashes
            # (python/cpython#77894). The collector does not see arrays, nor what they hold.
            data = np.frombuffer(data, np.uint8) if data.nbytes else b""
        return from_buffer("uint8_t[]", data)
    except (BufferError, TypeError, ValueError) as error:
        if isinstance(data, str):
            raise TypeError("a bytes-like object is required, not 'str'") from None
        if isinstance(error, TypeError):
            raise
        msg = f"expected a C-contiguous buffer, not this {type(data).__name__}: {error}"
        raise TypeError(msg) from None


def thread_count(threads: int) -> int:
    """Return a number of threads that fits C; each kernel bounds it further."""
    count: int = as_threads(threads)
    return min(count, _MOST_THREADS)


def as_items(ctype: str, array: NDArray[Any]) -> Any:
    """Return an array as a pointer for C to read items of several bytes, which are aligned, if need be in a copy."""
    return from_buffer(ctype, array if array.flags.aligned else array.copy())


def as_output(array: NDArray[Any], ctype: str) -> Any:
    """Return an array as a pointer for C to write. Raises ValueError for one that is not aligned."""
    if type(array) is np.ndarray and not array.flags.aligned:
        raise ValueError("an array to be filled is not aligned")
    return from_buffer(ctype, array, require_writable=True)


class Fault:
    """A defect, as the numbers of a wm_fault: see kernels.h."""

    __slots__ = ("actual", "at", "code", "expected", "row")

    def __init__(self, code: int, row: int, at: int, actual: int, expected: int) -> None:
        self.code: int = code
        self.row: int = row
        self.at: int = at
        self.actual: int = actual
        self.expected: int = expected

    @property
    def kind(self) -> str:
        """The name of its code, such as "TABLE_RANGE"."""
        return next((name for name, code in faults().items() if code == self.code), "")


@functools.cache
def faults() -> dict[str, int]:
    """Return the codes of faults by name, such as "TABLE_RANGE"; those of C begin with WM_FAULT_."""
    return {name.removeprefix("WM_FAULT_"): getattr(lib, name) for name in dir(lib) if name.startswith("WM_FAULT_")}


def fault_of(fault: Any) -> Fault:
    """Return the fault in a wm_fault. Raises MemoryError if a scan ran out of memory."""
    if fault.code == lib.WM_FAULT_MEMORY:
        msg = f"no memory for a table of {fault.actual} bytes"
        raise MemoryError(msg)
    return Fault(fault.code, fault.row, fault.at, fault.actual, fault.expected)


# ------------------------------------------------------------------------------------------------------------- files
def map_file(fd: int, size: int, *, cow: bool, sealed: bool = False) -> Any:
    """Map `size` bytes of a file; return a buffer that unmaps with its last user. Raises OSError.

    `cow` makes the buffer writable; `sealed` says that the file is sealed memory.
    """
    return module.map_file(fd, size, 2 if sealed and not cow else cow)


def advise(memory: Any, advice: int) -> None:
    """Advise the system on the use of a mapping: 0 normal, 1 random, 2 sequential. Ignores a refusal."""
    buffer = from_buffer("uint8_t[]", memory)
    lib.wm_advise(buffer, len(buffer), advice)


def populate(memory: Any, offset: int, size: int, *, scattered: bool = False) -> int:
    """Read and map pages of memory, and wait for them; `scattered` if the mapping is advised as random.

    Returns 0, or an errno.
    """
    buffer = as_input(memory)
    error: int = lib.wm_populate(buffer, len(buffer), offset, size, scattered)
    return error


def will_need(memory: Any, offset: int, size: int) -> None:
    """Ask the system to read pages of a mapping. Ignores a refusal."""
    buffer = from_buffer("uint8_t[]", memory)
    lib.wm_will_need(buffer, len(buffer), offset, size)


def fstat(fd: int) -> State:
    """Return the state of an open file, which tells later whether it is `unchanged`. Raises OSError."""
    if os.name != "nt":
        return module.fstat(fd)
    status = os.fstat(fd)
    return module.fstat(fd, status.st_mode, status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)


# These own what the system returns from the first moment on: see csrc/python/owners.c.
Descriptor = module.Descriptor
take_ownership = module.own
with_temporary = module.with_temporary
# A bytearray of so many bytes, with any content.
new_buffer = module.new_buffer

# Whether the environment has a variable of this name.
is_set = module.is_set
