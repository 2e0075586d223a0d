"""Bytes that can be read: of an open file by pread, or in memory.

A file is opened once; its size, its header and its mapping all come from that one descriptor, so nobody can swap the
file in between. A handle that has mapped its file may give the descriptor back (`Source.release_descriptor`). What is
read after that is read from the same file, opened again by its path and recognised by device, inode, size and time, or
not at all.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, NoReturn

from weightmap import kernels
from weightmap.errors import ClosedError, FileChangedError, TruncatedError
from weightmap.io.descriptor import Descriptor, open_descriptor, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CHUNK", "Readable"]

# The bits of a mode that tell the kind of a file.
_KIND = 0o170000
# One read of a bounce buffer: large enough that the call costs little (2 us of 35), small enough to be still in the L2
# cache of any CPU when it is looked at.
CHUNK = 1 << 18


class Readable:
    """What `Source` knows of its file, and how it reads: see there."""

    # What most handles never change is the class's: setting attributes is a good part of what opening a file takes.
    closed = False
    _folder: str | None = None  # the working directory when a file was opened by a relative path
    _file: Descriptor | None = None
    _released: str | None = None  # the path of a file whose descriptor was given back
    _seen: Any = None  # what the file was when it was opened, a wm_file: see kernels.h
    _identity: tuple[int, ...] | None = None  # of the file that sealed memory from another process is a copy of
    _octets: NDArray[np.uint8] | None = None

    def __init__(self, path: str | None, name: str, mode: str, size: int = 0) -> None:
        self.path = path
        self.name = name
        self.mode = mode
        self.size = size

    def _adopt(self, file: Descriptor) -> None:
        """Look once at what was opened, and refuse what is no regular file."""
        try:
            seen = self._seen = kernels.fstat(file)
        except OSError as error:
            raise self._named(error) from None
        if seen.mode & _KIND != stat.S_IFREG:
            refuse(seen.mode, self.name)
        self._file = file
        self.size = seen.size

    @property
    def identity(self) -> tuple[int, ...]:
        """Device, inode, size and modification time in ns of the opened file; empty for a buffer."""
        told = self._identity
        return told if told is not None else () if self._seen is None else _identity_of(self._seen)

    @property
    def absolute(self) -> str | None:
        """The path from the root on; None for a descriptor or a buffer."""
        return None if self.path is None else os.path.abspath(os.path.join(self._folder or "", self.path))

    # ------------------------------------------------------------------------------------------------- reading
    @property
    def in_memory(self) -> bool:
        """Whether the bytes are in memory that no file can take away, and are read from there."""
        return self._file is None and self._released is None

    @property
    def descriptor(self) -> int:
        """The number of the open file, for a scan in C that reads by pread; -1 where the bytes are in memory.

        To be held, as this object, while it is used: once another thread closes the handle, the number is anybody's.
        """
        file = self._opened()
        return -1 if file is None else file

    def _opened(self) -> Descriptor | None:
        """Return the open file, to be held while it is used; None where the bytes are in memory."""
        file = self._file
        if file is None:
            path = self._released
            return None if path is None else self._open_again(path)
        return file

    def _open_again(self, path: str) -> Descriptor:
        """Open the file whose descriptor was given back. Raises `FileChangedError` when it is another one now."""
        file = open_descriptor(path)
        try:
            seen = kernels.fstat(file)
        except OSError as error:
            raise self._named(error) from None
        if _identity_of(seen) != self.identity:
            msg = "the file was changed or replaced after it was opened, and no descriptor of the old one was kept"
            raise FileChangedError(msg, path=self.name)
        return file

    def _held(self) -> NDArray[np.uint8]:
        """Return the bytes in memory. Raises `ClosedError` when there are none any more."""
        octets = self._octets
        if octets is None:
            self.fail_closed()
        return octets

    def head(self, most: int) -> bytes:
        """Return the first bytes, `most` of them or all that there are, as private bytes."""
        size = self.size
        return self.pread(0, min(most, size))

    def pread(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset` on, as private bytes. Raises `TruncatedError` when the file has fewer."""
        file = self._opened()
        if file is None:
            data = self._held()[offset : offset + count].tobytes()
        else:
            try:
                data = os.pread(file, count, offset)
                while len(data) < count and (more := os.pread(file, count - len(data), offset + len(data))):
                    data += more
            except OSError as error:
                raise self._named(error) from None
        if len(data) != count:
            self._short(offset + len(data), offset + count)
        return data

    def _named(self, error: OSError) -> OSError:
        """Return the error of a call that knew only a descriptor, with the name of the file."""
        error.filename = self.name
        return error

    def _short(self, at: int, wanted: int) -> None:
        msg = "the file became shorter while it was being read: it ends" if at < self.size else "the file ends"
        raise TruncatedError(msg, path=self.name, offset=at, expected=f"at least {wanted} bytes")

    def _readv(self, fd: int, into: memoryview, offset: int) -> int:
        try:
            return os.preadv(fd, [into], offset)
        except OSError as error:
            raise self._named(error) from None

    def chunks(self, offset: int, count: int, size: int = CHUNK) -> Iterator[memoryview]:
        """Yield `count` bytes from `offset` on, in pieces of at most `size` bytes.

        Every piece but the last has exactly that size. A file is read by pread into one buffer that each piece reuses:
        if the file shrinks meanwhile, that is an exception and not a SIGBUS. Raises `TruncatedError`.
        """
        file = self._opened()
        if file is None:
            view = memoryview(self._held())
            for start in range(offset, offset + count, size):
                yield view[start : min(start + size, offset + count)]
            return
        buffer = memoryview(bytearray(min(size, count)))
        end = offset + count
        while offset < end:
            piece = buffer[: min(size, end - offset)]
            filled = 0
            while filled < len(piece):
                got = self._readv(file, piece[filled:], offset + filled)
                if got == 0:
                    self._short(offset + filled, end)
                filled += got
            yield piece.toreadonly()
            offset += filled

    def check_unchanged(self) -> None:
        """Raise `FileChangedError` when the opened file has another size or modification time than it had.

        A file that was replaced (by rename) is not a changed one: the handle keeps the old file. This narrows the
        window in which a file truncated in place can fault a reader; it cannot close it.
        """
        file = self._file
        if file is None:
            path = self._released
            if path is not None:
                self._check_path(path)
            return
        unchanged = kernels.unchanged(self._seen)
        if unchanged < 0:  # a server that no longer knows the file: its pages would be missing, too
            raise OSError(-unchanged, os.strerror(-unchanged), self.name)
        if not unchanged:
            now = kernels.fstat(file)
            self._fail_changed(now.size, now.mtime_ns)

    def _check_path(self, path: str) -> None:
        """Do the same by the path of a file whose descriptor was given back.

        A file that is gone from there was deleted or replaced: the mapping keeps it.
        """
        seen = self._seen
        try:
            now = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        if (now.st_dev, now.st_ino) != (seen.device, seen.inode):
            return
        if now.st_size != seen.size or (now.st_mtime_ns - seen.mtime_ns) % 2**64:
            self._fail_changed(now.st_size, now.st_mtime_ns)

    def _fail_changed(self, size: int, mtime_ns: int) -> NoReturn:
        msg = "the file was changed after it was opened: its size and modification time are"
        raise FileChangedError(
            f"{msg} {size} bytes and {mtime_ns} ns",
            path=self.name,
            expected=f"{self.size} bytes and {self._seen.mtime_ns} ns",
        )

    def fail_closed(self) -> NoReturn:
        """Raise `ClosedError`."""
        msg = "this handle was closed; arrays obtained before remain valid"
        raise ClosedError(msg, path=self.name)


def _identity_of(seen: Any) -> tuple[int, ...]:
    return seen.device, seen.inode, seen.size, seen.mtime_ns
