"""Where bytes come from: a file, mapped or read, or a buffer. The ONLY place where an offset becomes memory.

A file is opened once; its size, its header and its mapping all come from that one descriptor, so nobody can swap the
file between two looks. Formats read headers with `Source.pread` into private bytes. Arrays are views of the rest:

* mode "mmap": a read-only shared mapping. The arrays are the page cache.
* mode "cow": a private copy-on-write mapping. The arrays are writable, the file never changes.
* mode "copy": the whole file read into memory, no mapping left.

A mapping lives as long as the last array that views it. Python objects own it, so nothing is unmapped underneath
anybody.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap import kernels
from weightmap.errors import ClosedError, FileChangedError, NotRegularFileError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.limits import Limits

__all__ = ["ADVICE", "MODES", "Source"]

MODES = ("mmap", "cow", "copy")
# How pages will be touched; the position of a word here is its number in C.
ADVICE = ("normal", "random", "sequential")
# O_NONBLOCK: opening a FIFO must not wait for its writer. O_BINARY exists on Windows only.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)
# What mmap says on file systems that cannot, and for what has no pages.
_UNMAPPABLE = (errno.ENODEV, errno.EINVAL, errno.ENOMEM, errno.EACCES, errno.EPERM)
_WINDOWS = os.name == "nt"
# The bits of a mode that tell the kind of a file.
_KIND = 0o170000
# One read of a bounce buffer: large enough that the call costs little (2 us of 35), small enough to be still in the L2
# cache of any CPU when it is looked at.
CHUNK = 1 << 18
_ALIGN = 64


class _Descriptor(int):
    """A file descriptor that is closed with the last reference to it, so that no reader ever meets a reused number."""

    def __del__(self) -> None:
        try:  # noqa: SIM105 - contextlib.suppress takes a microsecond, of the thirty that opening takes
            os.close(self)
        except OSError:  # of a file that was only read: nothing is lost, and there is nobody to tell
            pass


class Source:
    """The bytes of one file or buffer.

    Attributes
    ----------
    path : str or None
        As it was given; None for a descriptor or a buffer.
    name : str
        What messages call it: the path, or ``<bytes>``, ``<file descriptor 5>``.
    size : int
        In bytes.
    mode : str
        One of `MODES`.
    closed : bool
    """

    # What most handles never change is the class's: setting attributes is a good part of what opening a file takes.
    closed = False
    # What is looked at again and again, such as a vocabulary, is read once and not mapped: for whoever goes through a
    # whole file and hands out nothing of it, so that a file that shrinks meanwhile is an exception there and no fault.
    private = False
    _folder: str | None = None  # the working directory when a file was opened by a relative path
    _file: _Descriptor | None = None
    _seen: Any = None  # what the file was when it was opened, a wm_file: see kernels.h
    _octets: NDArray[np.uint8] | None = None
    _memory: Any = None  # the same, as arrays are made on it
    _fallback = True
    _limits: Limits | None = None
    _advice: str | None = None

    def __init__(self, path: str | None, name: str, mode: str, size: int = 0) -> None:
        self.path = path
        self.name = name
        self.mode = mode
        self.size = size

    # ------------------------------------------------------------------------------------------------- opening
    @classmethod
    def from_path(cls, path: str, mode: str) -> Source:
        """Open the file at `path`. Raises `IsADirectoryError` for a directory, other `OSError` as they come."""
        self = cls(path, path, mode)
        try:
            fd = os.open(path, _FLAGS)
        except OSError as error:
            if error.errno == errno.ENXIO:  # what a socket answers, and a device that is not there
                _refuse(os.stat(path).st_mode, path)
            raise
        self._adopt(fd)
        if path[:1] != "/":  # the working directory may change before the handle is pickled
            self._folder = os.getcwd()
        return self

    @classmethod
    def from_fd(cls, fd: int, mode: str) -> Source:
        """Use the file behind a descriptor, which stays the caller's: it is duplicated, its offset is not moved."""
        self = cls(None, f"<file descriptor {fd}>", mode)
        try:
            self._adopt(os.dup(fd))
        except OverflowError:  # no descriptor has such a number
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
        return self

    @classmethod
    def from_buffer(cls, data: Any, mode: str) -> Source:
        """Use the memory of a bytes-like object, without copying it in mode "mmap"."""
        view = memoryview(data)
        self = cls(None, f"<{type(data).__name__}>", mode)
        if not view.c_contiguous:
            msg = f"a contiguous buffer is needed, not this {type(data).__name__} with strides {view.strides}"
            raise TypeError(msg)
        octets = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        if mode == "mmap":
            octets.flags.writeable = False
        else:
            octets = _copy(octets)
        self.size = octets.nbytes
        self._octets = self._memory = octets
        return self

    @classmethod
    def from_object(cls, file: Any, mode: str) -> Source:
        """Use a binary file object: by its descriptor where it has one, else by its whole content."""
        if isinstance(file, io.TextIOBase):
            msg = "a binary file object is needed, this one is in text mode"
            raise TypeError(msg)
        if isinstance(file, io.BytesIO):
            return cls.from_buffer(file.getbuffer(), mode)
        try:
            fd = file.fileno()
        except (AttributeError, OSError):
            position = file.tell()
            file.seek(0)
            data = file.read()
            file.seek(position)
            return cls.from_buffer(data, mode)
        return cls.from_fd(fd, mode)

    def _adopt(self, fd: int) -> None:
        """Look once at what was opened, and refuse what is no regular file."""
        file = _Descriptor(fd)
        try:
            seen = self._seen = kernels.look(fd)
        except OSError as error:
            raise self._named(error) from None
        if seen.mode & _KIND != stat.S_IFREG:
            _refuse(seen.mode, self.name)
        self._file = file
        self.size = seen.size

    @property
    def identity(self) -> tuple[int, ...]:
        """Device, inode, size and modification time in ns of the opened file; empty for a buffer."""
        seen = self._seen
        return () if seen is None else (seen.device, seen.inode, seen.size, seen.mtime_ns)

    @property
    def absolute(self) -> str | None:
        """The path from the root on; None for a descriptor or a buffer."""
        return None if self.path is None else os.path.abspath(os.path.join(self._folder or "", self.path))

    # ------------------------------------------------------------------------------------------------- reading
    @property
    def descriptor(self) -> int:
        """The number of the open file, for a scan in C that reads by pread; -1 where the bytes are in memory.

        To be held, as this object, while it is used: once another thread closes the handle, the number is anybody's.
        """
        file = self._file
        return -1 if file is None else file

    def head(self, most: int) -> bytes:
        """Return the first bytes, `most` of them or all that there are, as private bytes."""
        size = self.size
        return self.pread(0, min(most, size))

    def pread(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset` on, as private bytes. Raises `TruncatedError` when the file has fewer."""
        file = self._file
        if file is None:
            data = self.octets[offset : offset + count].tobytes()
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
        file = self._file
        if file is None:
            view = memoryview(self.octets)
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

    # ------------------------------------------------------------------------------------------------- memory
    @property
    def octets(self) -> NDArray[np.uint8]:
        """The bytes as an array, shape (size,); mapped or read at the first use."""
        octets = self._octets
        return self._load() if octets is None else octets

    def section(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return the bytes from `begin` to `end`: of the mapping, or read once if this is `private`."""
        if self.private and self._file is not None:
            return np.frombuffer(self.pread(begin, end - begin), np.uint8)
        return self.octets[begin:end]

    def prepare(self, *, explicit: bool, limits: Limits) -> None:
        """Say what is allowed when memory is needed; where a mode was asked for by name, and in "copy", get it now.

        Without a call it is allowed to read where mapping fails, and there are no limits.

        Mapping a file costs more than reading its header, so otherwise it waits for the first array.
        """
        self._fallback, self._limits = not explicit, limits
        if (explicit or self.mode == "copy") and self._octets is None and self.size:
            self._load()

    def advise(self, advice: str) -> None:
        """Tell the kernel how the bytes will be touched: one of `ADVICE`, before anything was mapped.

        It counts for the mapping, and for reads of a file that was opened by path: a descriptor of the caller's shares
        its read-ahead with ours. It changes speed and nothing else, so a system that does not take it is no error.
        """
        self._advice = advice
        file = self._file
        if file is not None and self.path is not None and self.mode != "copy" and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(file, 0, 0, getattr(os, f"POSIX_FADV_{advice.upper()}"))

    def _get_memory(self) -> Any:
        """Return what arrays are made on: never None, which numpy would take for "new memory, as it comes"."""
        memory = self._memory
        if memory is None:
            self._load()
            memory = self._memory
            if memory is None:  # closed by another thread in between
                self.fail_closed()
        return memory

    def _load(self) -> NDArray[np.uint8]:
        """Map or read the file. Where a file system cannot map, and the mode was not asked for by name, read."""
        file = self._file
        if file is None:
            octets = self._octets
            if octets is None:
                self.fail_closed()
            return octets  # another thread has read the file in between
        if self.mode != "copy":
            try:
                octets, memory = self._map(file)
            except OSError as error:
                if not self._fallback or error.errno not in _UNMAPPABLE:
                    raise
                import logging  # noqa: PLC0415 - 6 ms, for a rare event

                logging.getLogger("weightmap").warning("%s cannot be mapped (%s): reading it instead", self.name, error)
                self.mode = "copy"
            else:
                # In this order: a thread that finds no memory comes here itself.
                self._memory = memory
                self._octets = octets
                return self._loaded(octets)
        if self._limits is not None:
            self._limits.check("max_copy_bytes", self.size, "size of the file to copy")
        octets = self._memory = self._octets = self._read(file)
        self._file = None
        return self._loaded(octets)

    def _loaded(self, octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.closed:  # by another thread in between: it has let go of what was there then
            self.close()
        return octets

    def _map(self, fd: int) -> tuple[NDArray[np.uint8], Any]:
        """Map the file; return its bytes, and what arrays are to be made on."""
        cow = self.mode == "cow"
        if _WINDOWS:
            import mmap  # noqa: PLC0415 - used nowhere else

            mapped: Any = mmap.mmap(fd, self.size, access=mmap.ACCESS_COPY if cow else mmap.ACCESS_READ)
        else:
            try:
                mapped = kernels.map_file(fd, self.size, cow=cow)
            except OSError as error:
                raise self._named(error) from None
        octets = np.ndarray((self.size,), np.uint8, mapped)
        if self._advice is not None:
            kernels.advise(octets, ADVICE.index(self._advice))
        if cow:
            return octets, octets
        octets.flags.writeable = False
        # The buffer behind that array is writable in name, so numpy would grant `setflags(write=True)` on any view of
        # it, and the next assignment would be a fault. A PickleBuffer hands on what the array allows, and nothing else.
        # (Not a memoryview: numpy looks through it, and collecting one in a cycle crashes CPython before 3.12.4:
        # python/cpython#77894.)
        return octets, PickleBuffer(octets)

    def _read(self, fd: int) -> NDArray[np.uint8]:
        data = _aligned(self.size)
        view = memoryview(data)
        offset = 0
        while offset < self.size:
            # At most 1 GiB a call: Linux reads no more than 2 GiB at once.
            got = self._readv(fd, view[offset : offset + (1 << 30)], offset)
            if got == 0:
                self._short(offset, self.size)
            offset += got
        return data

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int) -> NDArray[Any]:
        """Return the bytes from `offset` on as an array, without a copy. `nbytes` is what shape and dtype need.

        Raises `TruncatedError` when they do not lie within the source: the last line of defence, whatever a format has
        checked.
        """
        if offset < 0 or nbytes > self.size - offset:
            self._short(self.size, offset + nbytes)
        memory = self._memory
        return np.ndarray(shape, dtype, self._get_memory() if memory is None else memory, offset)

    def array_of(
        self, count: int, step: int, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int
    ) -> NDArray[Any]:
        """Return `count` arrays of one shape, `step` bytes apart, as one array of one dimension more."""
        if offset < 0 or step < 0 or nbytes + (count - 1) * step > self.size - offset:
            self._short(self.size, offset + nbytes + (count - 1) * step)
        strides = [dtype.itemsize]
        for dim in shape[:0:-1]:
            strides.insert(0, strides[0] * dim)
        return np.ndarray((count, *shape), dtype, self._get_memory(), offset, (step, *strides))

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Bring in these ranges (offset, bytes) of a mapping, in the background; return at once."""
        if self.mode == "copy" or self._file is None:
            return
        octets = self.octets
        if self._file is not None:  # it could be mapped, and was not read instead
            from weightmap.prefetching import prefetch  # noqa: PLC0415 - what it needs is needed for nothing else

            prefetch(octets, ranges, scattered=self._advice == "random")

    def check_unchanged(self) -> None:
        """Raise `FileChangedError` when the opened file has another size or modification time than it had.

        A file that was replaced (by rename) is not a changed one: the handle keeps the old file. This narrows the
        window in which a file truncated in place can fault a reader; it cannot close it.
        """
        file = self._file
        if file is None:
            return
        unchanged = kernels.unchanged(self._seen)
        if unchanged < 0:  # a server that no longer knows the file: its pages would be missing, too
            raise OSError(-unchanged, os.strerror(-unchanged), self.name)
        if not unchanged:
            now = kernels.look(file)
            msg = "the file was changed after it was opened: its size and modification time are"
            raise FileChangedError(
                f"{msg} {now.size} bytes and {now.mtime_ns} ns",
                path=self.name,
                expected=f"{self.size} bytes and {self._seen.mtime_ns} ns",
            )

    # ------------------------------------------------------------------------------------------------- closing
    def fail_closed(self) -> NoReturn:
        """Raise `ClosedError`."""
        msg = "this handle was closed; arrays obtained before remain valid"
        raise ClosedError(msg, path=self.name)

    def close(self) -> None:
        """Let go of the file. Arrays that view it keep the mapping alive; idempotent."""
        self.closed = True
        self._memory = self._octets = None
        self._file = None


def _refuse(mode: int, name: str) -> NoReturn:
    """Say what an opened thing is that is no regular file."""
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


def _aligned(size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of new memory that begin at a multiple of 64: aligned files stay aligned in a copy."""
    room = kernels.empty(size + _ALIGN, np.uint8)
    start = -room.ctypes.data % _ALIGN
    return room[start : start + size]


def _copy(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    data = _aligned(octets.nbytes)
    data[:] = octets
    return data
