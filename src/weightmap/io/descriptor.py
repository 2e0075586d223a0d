"""Open files: descriptors that close themselves, reading from them, and whether a file is still the same.

A `Descriptor` is an int that is closed with the last reference to it, so that no reader ever meets a reused number.
``own(function, *args)`` makes one of the number that a function returns, in one step: an exception, such as one of a
signal's handler, comes before it or after it and loses nothing. It closes in C, so an interpreter that shuts down can
empty its modules before.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NoReturn

from weightmap import kernels
from weightmap.errors import FileChangedError, NotRegularFileError
from weightmap.kernels import Descriptor, own

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Descriptor",
    "check_path",
    "fail_changed",
    "identity_of",
    "open_again",
    "open_descriptor",
    "own",
    "read_into",
    "refuse",
]

# O_NONBLOCK: opening a FIFO must not wait for its writer. O_BINARY exists on Windows only.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)
# Linux reads at most 2 GiB at once.
_MOST = 1 << 30


def open_descriptor(path: str) -> Descriptor:
    """Open a file for reading. Raises `OSError` as it comes, `NotRegularFileError` for a socket or a missing device."""
    try:
        return own(os.open, path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # the answer of a socket, and of a device that is not there
            refuse(os.stat(path).st_mode, path)
        raise


def refuse(mode: int, name: str) -> NoReturn:
    """Raise the error for a thing that is no regular file, by the mode that `stat` gives."""
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
        while filled < len(buffer) and (got := os.preadv(file, [buffer[filled : filled + _MOST]], offset + filled)):
            filled += got
    except OSError as error:
        error.filename = name
        raise
    return filled


def identity_of(seen: Any) -> tuple[int, ...]:
    """Return device, inode, size and modification time in ns of a wm_file."""
    return seen.device, seen.inode, seen.size, seen.mtime_ns


def open_again(path: str, name: str, identity: Sequence[int]) -> Descriptor:
    """Open a file whose descriptor was given back. Raises `FileChangedError` when another one is there now."""
    file = open_descriptor(path)
    try:
        seen = kernels.fstat(file)
    except OSError as error:
        error.filename = name
        raise
    if identity_of(seen) != identity:
        msg = "the file was changed or replaced after it was opened, and no descriptor of the old one was kept"
        raise FileChangedError(msg, path=name)
    return file


def check_path(path: str, seen: Any, name: str) -> None:
    """Raise `FileChangedError` when `path` still leads to the file that was `seen`, and that was changed.

    Another file there, or none, says that this one was replaced or deleted: the mapping keeps it.
    """
    try:
        now = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if (now.st_dev, now.st_ino) != (seen.device, seen.inode):
        return
    if now.st_size != seen.size or (now.st_mtime_ns - seen.mtime_ns) % 2**64:
        raise _changed(seen, now.st_size, now.st_mtime_ns, name)


def fail_changed(seen: Any, unchanged: int, name: str) -> NoReturn:
    """Raise the error for the outcome of `kernels.unchanged`, 0 or a negative errno."""
    if unchanged < 0:  # a server that no longer knows the file: its pages would be missing, too
        raise OSError(-unchanged, os.strerror(-unchanged), name)
    now = kernels.fstat(seen.fd)
    raise _changed(seen, now.size, now.mtime_ns, name)


def _changed(seen: Any, size: int, mtime_ns: int, name: str) -> FileChangedError:
    msg = f"the file was changed after it was opened: its size and modification time are {size} bytes and {mtime_ns} ns"
    return FileChangedError(msg, path=name, expected=f"{seen.size} bytes and {seen.mtime_ns} ns")
