"""Where bytes come from: a file, mapped or read, or a buffer. The ONLY place where an offset becomes memory.

Formats read headers with `Source.pread` into private bytes: see weightmap.io.reader. Arrays are views of the rest:

* mode "mmap": a read-only shared mapping. The arrays are the page cache.
* mode "cow": a private copy-on-write mapping. The arrays are writable, the file never changes.
* mode "copy": the whole file read into memory, no mapping left.
* mode "sealed": the whole file copied into memory that nobody can change any more, and a read-only mapping of that.

A mapping lives as long as the last array that views it. Python objects own it, so nothing is unmapped underneath
anybody.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import escape
from weightmap.io.descriptor import Descriptor, open_descriptor, own
from weightmap.io.mapping import aligned, map_file
from weightmap.io.reader import Readable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from weightmap.options import Limits

__all__ = ["MODES", "Source", "path_of"]

MODES = ("mmap", "cow", "copy", "sealed")
# What these hand out is no longer the file, so they get it before anything of it is looked at.
_COPIES = ("copy", "sealed")
# What mmap says on file systems that cannot, and for what has no pages.
_UNMAPPABLE = (errno.ENODEV, errno.EINVAL, errno.ENOMEM, errno.EACCES, errno.EPERM)


def path_of(source: Any) -> str | None:
    """Return the path that `source` is, or None when it is something else. Bytes are content, whatever they spell."""
    return os.fsdecode(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else None


def _no_source(what: Any) -> TypeError:
    expected = "a path, a file descriptor, a binary file object or a bytes-like object"
    return TypeError(f"source is a {type(what).__name__}, expected {expected}")


def _is_mmap(source: Any) -> bool:
    mmap = sys.modules.get("mmap")
    return mmap is not None and isinstance(source, mmap.mmap)


class Source(Readable):
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

    # What is looked at again and again, such as a vocabulary or a large index, is read once and not mapped: for whoever
    # goes through a whole file and hands out nothing of it, so that a file that shrinks meanwhile is an exception there
    # and no fault.
    private = False
    _memory: Any = None  # the bytes, as arrays are made on them
    _sealed: Descriptor | None = None  # of the memory that a file was copied to
    _stable = True  # whether nobody else can change what is in memory
    _fallback = True
    _limits: Limits | None = None
    _advice: str | None = None

    # ------------------------------------------------------------------------------------------------- opening
    @classmethod
    def of(cls, source: Any, path: str | None, mode: str) -> Source:
        """Use whatever `weightmap.open` takes for a source; `path` is what `path_of` says of it."""
        if path is not None:
            return cls.from_path(path, mode)
        if isinstance(source, int) and not isinstance(source, bool):
            return cls.from_fd(source, mode)
        if hasattr(source, "read") and not isinstance(source, memoryview) and not _is_mmap(source):
            return cls.from_object(source, mode)
        try:
            return cls.from_buffer(source, mode)
        except TypeError:
            if not isinstance(source, (bytes, bytearray, memoryview, np.ndarray)):
                raise _no_source(source) from None
            raise

    @classmethod
    def from_path(cls, path: str, mode: str) -> Source:
        """Open the file at `path`. Raises `IsADirectoryError` for a directory, other `OSError` as they come."""
        self = cls(path, path, mode)
        self._adopt(open_descriptor(path))
        if path[:1] != "/":  # the working directory may change before the handle is pickled
            self._folder = os.getcwd()
        return self

    @classmethod
    def from_fd(cls, fd: int, mode: str) -> Source:
        """Use the file behind a descriptor, which stays the caller's: it is duplicated, its offset is not moved."""
        self = cls(None, f"<file descriptor {fd}>", mode)
        try:
            self._adopt(own(os.dup, fd))
        except OverflowError:  # no descriptor has such a number
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
        return self

    @classmethod
    def from_parent(cls, shared: Any, path: str | None, identity: tuple[int, ...]) -> Source:
        """Use the sealed memory that `to_child` of the process that started this one has handed over."""
        self = cls(path, path or "<sealed memory>", "sealed")
        self._adopt(own(shared.detach))
        self._identity = identity
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
        self.size = octets.nbytes
        if mode == "mmap":
            octets.flags.writeable = False
            self._stable = isinstance(view.obj, bytes)
        elif mode != "sealed":
            copy = aligned(octets.nbytes)
            copy[:] = octets
            octets = copy
        self._octets = self._memory = octets
        if mode == "sealed" and self.size:
            self._octets, self._memory = self._seal()
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
            if not (hasattr(file, "tell") and hasattr(file, "seek")):
                raise _no_source(file) from None
            position = file.tell()
            file.seek(0)
            data = file.read()
            file.seek(position)
            return cls.from_buffer(data, mode)
        return cls.from_fd(fd, mode)

    # ------------------------------------------------------------------------------------------------- memory
    @property
    def octets(self) -> NDArray[np.uint8]:
        """The bytes as an array, shape (size,); mapped or read at the first use."""
        octets = self._octets
        return self._load() if octets is None else octets

    def section(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return the bytes from `begin` to `end`: of the mapping, or read once if this is `private`."""
        if self.private and not self.in_memory:
            return np.frombuffer(self.pread(begin, end - begin), np.uint8)
        return self.octets[begin:end]

    def prepare(self, *, explicit: bool, limits: Limits) -> None:
        """Say what is allowed when memory is needed; get it now where a mode was asked for by name, or is a copy.

        Without a call it is allowed to read where mapping fails, and there are no limits.

        Mapping a file costs more than reading its header, so otherwise it waits for the first array.
        """
        self._fallback, self._limits = not explicit, limits
        if (explicit or self.mode in _COPIES) and self._octets is None and self.size:
            self._load()

    def advise(self, advice: str) -> None:
        """Tell the kernel how the bytes will be touched: one of `ADVICE`, before anything was mapped.

        It counts for the mapping, and for reads of a file that was opened by path: a descriptor of the caller's shares
        its read-ahead with ours. It changes speed and nothing else, so a system that does not take it is no error.
        """
        self._advice = advice
        file = self._file
        if file is not None and self.path is not None and self.mode not in _COPIES and hasattr(os, "posix_fadvise"):
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
        """Map or copy the file. Where a file system cannot map, and the mode was not asked for by name, read."""
        file = self._file
        if file is None:
            return self._held()  # another thread has read the file in between
        if self.mode not in _COPIES:
            try:
                octets, memory = self._map(file)
            except OSError as error:
                if not self._fallback or error.errno not in _UNMAPPABLE:
                    raise
                import logging  # noqa: PLC0415 - 6 ms, for a rare event

                what = "%s cannot be mapped (%s): reading it instead"
                logging.getLogger("weightmap").warning(what, escape(self.name), escape(str(error)))
                self.mode = "copy"
            else:
                # In this order: a thread that finds no memory comes here itself.
                self._memory = memory
                self._octets = octets
                return self._loaded(octets)
        octets, memory = self._seal() if self.mode == "sealed" else self._read(file)
        self.check_unchanged()  # a file written to meanwhile may be half of each
        self._memory = memory
        self._octets = octets
        self._file = None
        return self._loaded(octets)

    def _loaded(self, octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.closed:  # by another thread in between: it has let go of what was there then
            self.close()
        return octets

    def _map(self, fd: int) -> tuple[NDArray[np.uint8], Any]:
        """Map the file; return its bytes, and what arrays are to be made on."""
        mode = self.mode
        if mode == "mmap" and self.path is None:
            from weightmap.io.sealed import is_sealed  # noqa: PLC0415 - for descriptors only

            mode = "sealed" if is_sealed(fd) else mode
        try:
            return map_file(fd, self.size, mode, self._advice)
        except OSError as error:
            raise self._named(error) from None

    def _check_copy(self) -> None:
        if self._limits is not None:
            self._limits.check("max_copy_bytes", self.size, "size of the file to copy")

    def _read(self, fd: int) -> tuple[NDArray[np.uint8], Any]:
        """Read the file into new memory; return it, twice: arrays are made on it as it is."""
        self._check_copy()
        data = aligned(self.size)
        view = memoryview(data)
        offset = 0
        while offset < self.size:
            # At most 1 GiB a call: Linux reads no more than 2 GiB at once.
            got = self._readv(fd, view[offset : offset + (1 << 30)], offset)
            if got == 0:
                self._short(offset, self.size)
            offset += got
        return data, data

    def _seal(self) -> tuple[NDArray[np.uint8], Any]:
        """Copy the bytes into sealed memory, unless they are some already; return them, and what arrays are made on."""
        from weightmap.io import sealed as sealing  # noqa: PLC0415 - few handles need it

        file = self._file
        if file is None or not sealing.is_sealed(file):
            self._check_copy()
            try:
                file = sealing.seal(self.chunks(0, self.size))
            except OSError as error:
                raise error if error.filename is not None else self._named(error) from None
        self._sealed = file
        return self._map(file)

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
        if self.in_memory and self.mode != "sealed":
            return
        memory = self._get_memory()
        if self.mode != "copy":  # it could be mapped, and was not read instead
            from weightmap.io.prefetch import prefetch  # noqa: PLC0415 - what it needs is needed for nothing else

            prefetch(memory, ranges, scattered=self._advice == "random")

    # ------------------------------------------------------------------------------------------------- sharing
    @property
    def is_stable(self) -> bool:
        """Whether nothing outside this process can change these bytes or take them away."""
        file = self._file
        if file is None:
            return self._released is None and self._stable
        from weightmap.io.sealed import is_sealed  # noqa: PLC0415 - few handles need it

        return is_sealed(file)

    @property
    def sealed(self) -> int | None:
        """The descriptor of the sealed memory in mode "sealed", else None. It is closed with the handle."""
        file = self._sealed
        return None if file is None else int(file)

    def to_child(self) -> Any:
        """Return what `from_parent` takes, while `multiprocessing` starts a process and in mode "sealed"; else None."""
        if self._sealed is None:
            return None
        from weightmap.io.sealed import to_child  # noqa: PLC0415 - few handles need it

        return to_child(self._sealed)

    # ------------------------------------------------------------------------------------------------- closing
    def release_descriptor(self) -> None:
        """Map the file now, if it is to be mapped, and give its descriptor back.

        From then on what is read is read from the file opened again by its path, which raises `FileChangedError` when
        another one is there; and whether it is unchanged is asked of the path. Without effect on what has no path, and
        on Windows, where an open file is not replaced and its mapping keeps it open.
        """
        if self.path is None or os.name == "nt" or self.closed:
            return
        self.octets  # noqa: B018 - maps it
        if self._file is not None:
            # In this order: whoever finds no descriptor looks for the path.
            self._released = self.absolute
            self._file = None
        self._sealed = None

    def close(self) -> None:
        """Let go of the file. Arrays that view it keep the mapping alive; idempotent."""
        self.closed = True
        self._memory = self._octets = None
        self._file = self._sealed = self._released = None
