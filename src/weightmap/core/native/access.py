"""Access to the C module: faults of its scans, arrays, instruction sets, memory for DLPack, descriptors."""

from __future__ import annotations

import errno
import functools
import math
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import numpy as np

import weightmap._kernels as _kernels
from weightmap.core.arguments import as_threads
from weightmap.errors import FileChangedError, NotRegularFileError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from numpy.typing import DTypeLike, NDArray

    from weightmap._kernels import State as State  # noqa: PLC0414 - passed on
    from weightmap._kernels import Temporary as Temporary  # noqa: PLC0414

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]"
ffi = _kernels.ffi
lib = _kernels.lib
U32_MAX = 0xFFFFFFFF
# More threads than any kernel starts; fits an int.
_MAX_THREADS = 1 << 16
NULL = ffi.NULL
from_buffer = ffi.from_buffer
module = _kernels

if lib.wm_python_owners() or lib.wm_python_lookups():  # pragma: no cover
    raise ImportError("the built-in functions of weightmap._kernels could not be added")


def as_input(data: Buffer) -> Any:
    """Return `data` as a pointer for C to read; its ``len()`` is the number of bytes."""
    try:
        if type(data) is memoryview:
            # Wrap it in an array: before CPython 3.12.4, collecting a memoryview in a cycle while C holds it crashes
            # (python/cpython#77894). The collector ignores arrays and their bases.
            data = np.frombuffer(data, np.uint8) if data.nbytes else b""
        return from_buffer("uint8_t[]", data)
    except (BufferError, TypeError, ValueError) as error:
        if isinstance(data, str):
            raise TypeError("a bytes-like object is required, not 'str'") from None
        if isinstance(error, TypeError):
            raise
        raise TypeError(f"expected a C-contiguous buffer, not this {type(data).__name__}: {error}") from None


def thread_count(threads: int) -> int:
    """Return a number of threads that fits C; each kernel bounds it further."""
    count: int = as_threads(threads)
    return min(count, _MAX_THREADS)


def as_items(ctype: str, array: NDArray[Any]) -> Any:
    """Return an array as a pointer for C to aligned items of several bytes; an array that is not aligned is copied."""
    return from_buffer(ctype, array if array.flags.aligned else array.copy())


def as_output(array: NDArray[Any], ctype: str) -> Any:
    """Return an array as a pointer for C to write to. Raises ValueError unless the array is aligned."""
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
    """Return the codes of faults by name, such as "TABLE_RANGE", which is WM_FAULT_TABLE_RANGE in C."""
    return {name.removeprefix("WM_FAULT_"): getattr(lib, name) for name in dir(lib) if name.startswith("WM_FAULT_")}


def fault_of(fault: Any) -> Fault:
    """Return the fault in a wm_fault. Raises MemoryError if a scan ran out of memory."""
    if fault.code == lib.WM_FAULT_MEMORY:
        raise MemoryError(f"no memory for a table of {fault.actual} bytes")
    return Fault(fault.code, fault.row, fault.at, fault.actual, fault.expected)


# ------------------------------------------------------------------------------------------------------------- files
def advise(memory: Any, advice: int) -> None:
    """Advise the system on the use of a mapping: 0 normal, 1 random, 2 sequential. Ignores a refusal."""
    buffer = from_buffer("uint8_t[]", memory)
    lib.wm_advise(buffer, len(buffer), advice)


def populate(memory: Any, offset: int, size: int, *, scattered: bool = False) -> int:
    """Read and map pages of memory, and wait for them; `scattered` says that the advice is "random".

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
    """Return the state of an open file, which can later check that the file is `unchanged`. Raises OSError."""
    if os.name != "nt":
        return module.fstat(fd)
    status = os.fstat(fd)
    return module.fstat(fd, status.st_mode, status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)


# Objects that own a descriptor or mapping as soon as the system returns it: see csrc/python/owners.c.
Descriptor = module.Descriptor
take_ownership = module.own
with_temporary = module.with_temporary

# Whether the environment has a variable of this name.
is_set = module.is_set


# ----------------------------------------------------------------------------------------------------
# Calls of C that read and write files: their inputs and outcomes.

_WHAT = {
    lib.WM_NOT_FINITE: "number",
    lib.WM_UNREADABLE: "read",
    lib.WM_OTHER_UNREADABLE: "read other",
    lib.WM_UNWRITABLE: "write",
}


class Failed(Exception):  # noqa: N818 - callers turn it into an error that names file and tensor
    """Why a call ended early.

    Attributes
    ----------
    what : {"number", "read", "read other", "write"}
        A number is not finite; or the file, the second of two, or the new one failed.
    at : int
        The number, or the byte that could not be read.
    error : int
        An errno; 0 at the end of the file.
    """

    def __init__(self, what: str, at: int, error: int) -> None:
        super().__init__(what, at, error)
        self.what: str = what
        self.at: int = at
        self.error: int = error


def place_of(source: int | NDArray[np.uint8]) -> tuple[int, Any, int]:
    """Return descriptor, memory and size as C takes them: -1 for memory; NULL and 0 for a descriptor."""
    if isinstance(source, int):
        return source, NULL, 0
    memory = as_input(source)
    return -1, memory, len(memory)


def check_outcome(outcome: Any) -> None:
    """Raise `Failed` for a ``wm_outcome *`` with a failure, and ValueError for sizes that do not fit together."""
    if outcome.what == lib.WM_UNFIT:
        raise ValueError("sizes that do not fit together")
    if outcome.what != lib.WM_DONE:
        raise Failed(_WHAT[outcome.what], outcome.at, outcome.error)


# ----------------------------------------------------------------------------------------------------
# Output arrays: memory that is quick to fill, and checks of callers' arrays.

# Up to this size, glibc's malloc reuses memory and numpy asks for huge pages. A larger array would get fresh pages,
# which the system clears first.
_LARGE = 32 << 20


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array, like `numpy.empty`.

    An array of 32 MiB or more is backed by huge pages if the system has them, and reuses the memory of a freed large
    array. One such region of at most 1 GiB is kept; the system may take it back at any time.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype_like

    Returns
    -------
    ndarray
        C-contiguous and writeable, its elements undefined.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * kind.itemsize
    if size < _LARGE or (memory := module.new_memory(size)) is None:
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, memory)


# ----------------------------------------------------------------------------------------------------
# Memory for reading files, which begins at a line of the CPU's cache.
#
# The system copies a file to such memory up to a sixth faster. Large numpy arrays and bytearrays begin 16 or 32 bytes
# into a line, so that every other store of a copy crosses two lines.

LINE = 64  # bytes


def to_line(buffer: bytearray | NDArray[np.uint8]) -> int:
    """Return the offset of the first line of the cache in a buffer."""
    return -int(ffi.cast("uintptr_t", from_buffer("uint8_t[]", buffer))) % LINE


def aligned(size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of new memory that begins at a line: tensors aligned in a file stay so in a copy."""
    whole = empty(size + LINE, np.uint8)
    begin = to_line(whole)
    return whole[begin : begin + size]


def given_array(out: object) -> NDArray[Any]:
    """Return the caller's `out`. Raises TypeError when it is not an array."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    return out


def check_out(out: object, shape: tuple[int, ...], what: str) -> None:
    """Raise TypeError or ValueError unless `out` is a writeable array with the shape of `what`."""
    array = given_array(out)
    if array.shape != shape:
        raise ValueError(f"out has shape {array.shape}, but {what} has {shape}")
    if not array.flags.writeable:
        raise ValueError("out is read-only")


# ----------------------------------------------------------------------------------------------------
# Instruction sets: those available, the one in use, and the C functions chosen for it.


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets of this CPU, plainest first; "portable" is always available.

    Examples
    --------
    >>> from weightmap import kernels
    >>> kernels.available_isas()[0]
    'portable'
    """
    names = []
    tier = 0
    while (name := lib.wm_isa_name(tier)) != NULL:
        if lib.wm_isa_available(tier):
            names.append(ffi.string(name).decode())
        tier += 1
    return tuple(names)


def isa() -> str:
    """Return the instruction set in use: the best available one, unless `use_isa` chose another."""
    name: str = ffi.string(lib.wm_isa_name(lib.wm_isa_selected())).decode()
    return name


def use_isa(name: str) -> None:
    """Use the instruction set `name` from now on, in all threads. For tests and timings: results never differ.

    Parameters
    ----------
    name : str
        One of `available_isas`.

    Raises
    ------
    ValueError
        When this CPU lacks it.
    """
    tier = 0
    while (name_ := lib.wm_isa_name(tier)) != NULL:
        if ffi.string(name_).decode() == name and lib.wm_isa_select(tier) == 0:
            return
        tier += 1
    raise ValueError(f"instruction set {name!r} is not available here; there are {', '.join(available_isas())}")


def variant(kernel: str) -> str:
    """Return the name of the C function in use for a kernel, such as "crc32_x86_pclmulqdq".

    Parameters
    ----------
    kernel : str
        "crc32", "fnv1a32", "f16_to_f32", "bf16_to_f32", "intblock", "combine_rows" or "groups".
    """
    name: str = ffi.string(lib.wm_variant(kernel.encode())).decode()
    return name


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(pool: Executor, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Yield the results of calls, in order, made in a pool; in this thread, if the system has no more threads.

    The pool may make the first of these too.
    """
    calls: list[Future[_Result]] = []
    with suppress(RuntimeError):  # "can't start new thread"
        calls.extend(pool.submit(function, item) for item in items)
    for call in calls:
        yield call.result()
    yield from map(function, items[len(calls) :])


# ----------------------------------------------------------------------------------------------------
# Memory for other libraries by DLPack, a capsule that keeps its owner: see csrc/python/dlpack.c.

if lib.wm_python_dlpack():  # pragma: no cover
    raise ImportError("the built-in function dlpack of weightmap._kernels could not be added")


def dlpack_capsule(array: NDArray[Any], code: int, flags: int | None) -> object:
    """Return a capsule with the memory of an array whose strides are multiples of its elements.

    `code` is DLPack's code for the kind of its type; `flags` are for version 1, None makes a capsule of version 0.
    """
    size = array.itemsize
    strides = tuple(stride // size for stride in array.strides)
    address = array.__array_interface__["data"][0]
    return module.dlpack(array, address, array.shape, strides, code, 8 * size, -1 if flags is None else flags)


# ----------------------------------------------------------------------------------------------------
# Opening, reading and mapping files through descriptors that close themselves; checks that a file is unchanged

# Ways to touch pages; kernels.h numbers them in this order.
ADVICE = ("normal", "random", "sequential")
_WINDOWS = os.name == "nt"


def map_file(fd: int, size: int, mode: str, advice: str | None) -> tuple[NDArray[np.uint8], Any]:
    """Map a file in mode "mmap", "cow" or "sealed"; return its bytes, and their owner to make arrays on.

    Raises `OSError` when mapping fails.
    """
    cow = mode == "cow"
    if not size:  # of a model's other file, whose tensors are empty: no system maps it
        empty = np.zeros(0, np.uint8)
        empty.flags.writeable = cow
        return empty, empty
    if _WINDOWS:
        import mmap  # noqa: PLC0415 - other systems need no module for it

        mapped: Any = mmap.mmap(fd, size, access=mmap.ACCESS_COPY if cow else mmap.ACCESS_READ)
    else:
        mapped = module.map_file(fd, size, 2 if mode == "sealed" else cow)
    if advice is not None:
        advise(mapped, ADVICE.index(advice))
    # A read-only mapping exports read-only memory: no caller can make an array on it writeable.
    return np.ndarray((size,), np.uint8, mapped), mapped


# O_NONBLOCK: opening a FIFO must not wait for its writer. O_BINARY exists on Windows only.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)
# Linux reads at most 2 GiB at once.
_MAX_READ = 1 << 30


def open_descriptor(path: str) -> Descriptor:
    """Open a file for reading.

    Raises `NotRegularFileError` for a socket, a missing device or a loop of links, other errors unchanged.
    """
    try:
        return take_ownership(os.open, path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that does not exist
            refuse(os.stat(path).st_mode, path)
        refuse_loop(error, path)
        raise


def status_of(path: str) -> os.stat_result:
    """Return the status of the file behind a path. Raises `NotRegularFileError` for a loop of links."""
    try:
        return os.stat(path)
    except OSError as error:
        refuse_loop(error, path)
        raise


def refuse_loop(error: OSError, path: str) -> None:
    """Raise `NotRegularFileError` if the system found more links on a path than it follows."""
    if error.errno == errno.ELOOP:
        what = "this path is a loop of symbolic links, expected a file: replace or remove the link"
        raise NotRegularFileError(what, path=path) from None


def refuse(mode: int, name: str) -> NoReturn:
    """Raise the error for something that is not a regular file, by its st_mode."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    names = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    what = names.get(stat.S_IFMT(mode), "a special file")
    raise NotRegularFileError(f"this is {what}, not a regular file: only regular files can be opened", path=name)


def read_into(file: Descriptor, buffer: memoryview, offset: int, name: str) -> int:
    """Fill `buffer` with the bytes of a file from `offset` on; return the number of bytes read."""
    filled = 0
    try:
        while filled < len(buffer) and (got := os.preadv(file, [buffer[filled : filled + _MAX_READ]], offset + filled)):
            filled += got
    except OSError as error:
        error.filename = name
        raise
    return filled


def read_bytes(file: Descriptor, nbytes: int, offset: int, name: str) -> bytearray:
    """Return `nbytes` bytes of a file from `offset` on, fewer at its end. Repeats reads that return too few."""
    data = bytearray(nbytes)
    with memoryview(data) as buffer:
        filled = read_into(file, buffer, offset, name)
    del data[filled:]
    return data


def identity_of(state: State) -> tuple[int, ...]:
    """Return device, inode, size and modification time in ns of the state of a file."""
    return state.device, state.inode, state.size, state.mtime_ns


def open_again(path: str, name: str, identity: Sequence[int]) -> Descriptor:
    """Open a file whose descriptor was released. Raises `FileChangedError` if the path leads to another file now."""
    file = open_descriptor(path)
    try:
        state_ = fstat(file)
    except OSError as error:
        error.filename = name
        raise
    if identity_of(state_) != identity:
        msg = "the file was changed or replaced after it was opened, and this handle keeps no descriptor of the old one"
        raise FileChangedError(msg, path=name)
    return file


def check_path(path: str, state: State, name: str) -> None:
    """Raise `FileChangedError` if `path` still leads to the file that was `state` and that file has changed.

    If the path leads elsewhere or nowhere, the file was replaced or deleted, and its mapping is still valid.
    """
    try:
        now = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if (now.st_dev, now.st_ino) != (state.device, state.inode):
        return
    if now.st_size != state.size or (now.st_mtime_ns - state.mtime_ns) % 2**64:
        raise _changed(state, now.st_size, now.st_mtime_ns, name)


def fail_changed(state: State, unchanged: int, name: str) -> NoReturn:
    """Raise the error for the outcome of `State.unchanged`, 0 or a negative errno."""
    if unchanged < 0:  # a server that no longer knows the file would not deliver its pages either
        raise OSError(-unchanged, os.strerror(-unchanged), name)
    now = fstat(state.fd)
    raise _changed(state, now.size, now.mtime_ns, name)


def _changed(state: State, size: int, mtime_ns: int, name: str) -> FileChangedError:
    now, then = (f"{size} bytes, modified at {ns} ns" for size, ns in ((size, mtime_ns), (state.size, state.mtime_ns)))
    return FileChangedError("the file was changed after it was opened: it", path=name, expected=then, actual=now)
