"""Open files: descriptors that close themselves, and what is refused because it is no regular file.

A `Descriptor` is an int that is closed with the last reference to it, so that no reader ever meets a reused number.
``own(function, *args)`` makes one of the number that a function returns, in one step: an exception, such as one of a
signal's handler, comes before it or after it and loses nothing. It closes in C, so an interpreter that shuts down can
empty its modules before.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NoReturn

from weightmap.errors import NotRegularFileError
from weightmap.kernels import Descriptor, own

__all__ = ["Descriptor", "open_descriptor", "own", "refuse"]

# O_NONBLOCK: opening a FIFO must not wait for its writer. O_BINARY exists on Windows only.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)


def open_descriptor(path: str) -> Descriptor:
    """Open a file for reading. Raises `OSError` as it comes, and says what a path is that is no file."""
    try:
        return own(os.open, path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # what a socket answers, and a device that is not there
            refuse(os.stat(path).st_mode, path)
        raise


def refuse(mode: int, name: str) -> NoReturn:
    """Say what an opened thing is that is no regular file, by the mode that `stat` gives."""
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
