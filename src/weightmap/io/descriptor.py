"""Open files: descriptors that close themselves, and what is refused because it is no regular file."""

from __future__ import annotations

import errno
import os
import stat
from typing import NoReturn

from weightmap.errors import NotRegularFileError

__all__ = ["Descriptor", "open_descriptor", "refuse"]

# O_NONBLOCK: opening a FIFO must not wait for its writer. O_BINARY exists on Windows only.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)


class Descriptor(int):
    """A file descriptor that is closed with the last reference to it, so that no reader ever meets a reused number."""

    def __del__(self) -> None:
        try:  # noqa: SIM105 - contextlib.suppress takes a microsecond, of the thirty that opening takes
            os.close(self)
        except OSError:  # of a file that was only read: nothing is lost, and there is nobody to tell
            pass


def open_descriptor(path: str) -> Descriptor:
    """Open a file for reading. Raises `OSError` as it comes, and says what a path is that is no file."""
    try:
        return Descriptor(os.open(path, _FLAGS))
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
