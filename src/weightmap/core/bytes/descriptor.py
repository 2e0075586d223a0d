"""Opens, reads and maps files through descriptors that close themselves; checks that a file is still the same."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap.core.native import access
from weightmap.core.native.access import Descriptor, take_ownership
from weightmap.errors import FileChangedError, NotRegularFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightmap.core.native.access import State

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
        mapped = access.map_file(fd, size, cow=cow, sealed=mode == "sealed")
    if advice is not None:
        access.advise(mapped, ADVICE.index(advice))
    # A read-only mapping exports read-only memory, so nobody can make an array on it writeable.
    return np.ndarray((size,), np.uint8, mapped), mapped


def aligned(size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of new memory, aligned to 64: tensors that are aligned in the file stay so in a copy."""
    room = access.empty(size + _ALIGN, np.uint8)
    start = -room.ctypes.data % _ALIGN
    return room[start : start + size]


# O_NONBLOCK: opening a FIFO must not wait for its writer. O_BINARY exists on Windows only.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)
# Linux reads at most 2 GiB at once.
_MAX_READ = 1 << 30


def open_descriptor(path: str) -> Descriptor:
    """Open a file for reading. Raises `NotRegularFileError` for a socket or missing device, other errors unchanged."""
    try:
        return take_ownership(os.open, path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that does not exist
            refuse(os.stat(path).st_mode, path)
        raise


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
    msg = f"this is {what}, not a regular file: only regular files can be opened"
    raise NotRegularFileError(msg, path=name)


def read_into(file: Descriptor, buffer: memoryview, offset: int, name: str) -> int:
    """Fill `buffer` with the bytes of a file from `offset` on; return how many there were."""
    filled = 0
    try:
        while filled < len(buffer) and (got := os.preadv(file, [buffer[filled : filled + _MAX_READ]], offset + filled)):
            filled += got
    except OSError as error:
        error.filename = name
        raise
    return filled


def identity_of(state: State) -> tuple[int, ...]:
    """Return device, inode, size and modification time in ns of the state of a file."""
    return state.device, state.inode, state.size, state.mtime_ns


def open_again(path: str, name: str, identity: Sequence[int]) -> Descriptor:
    """Open a file whose descriptor was released. Raises `FileChangedError` if the path leads to another file now."""
    file = open_descriptor(path)
    try:
        state_ = access.fstat(file)
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
    if unchanged < 0:  # a server that no longer knows the file will not deliver its pages either
        raise OSError(-unchanged, os.strerror(-unchanged), name)
    now = access.fstat(state.fd)
    raise _changed(state, now.size, now.mtime_ns, name)


def _changed(state: State, size: int, mtime_ns: int, name: str) -> FileChangedError:
    now, then = (f"{size} bytes, modified at {ns} ns" for size, ns in ((size, mtime_ns), (state.size, state.mtime_ns)))
    return FileChangedError("the file was changed after it was opened: it", path=name, expected=then, actual=now)
