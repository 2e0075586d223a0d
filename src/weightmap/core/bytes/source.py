"""`Source`: the bytes of one file or buffer. The ONLY place where an offset becomes memory.

Formats read headers into private bytes with `Source.pread`. Arrays are views of the rest:

* mode "mmap": a read-only shared mapping. The arrays are the page cache.
* mode "cow": a private copy-on-write mapping. The arrays are writable, the file never changes.
* mode "copy": the whole file, read into memory.
* mode "direct": such a copy, read past the page cache; `Source.mode` is then "copy".
* mode "sealed": a read-only mapping of a copy of the file in memory that no process can change any more.

A file is opened once: size, header and mapping come from one descriptor. A mapping lives as long as its last array.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap._messages import escape
from weightmap.core import hooks
from weightmap.core.arguments import DEFAULT_LIMITS, Limits, check_expansion
from weightmap.core.faults import shrank
from weightmap.core.native import access
from weightmap.errors import ClosedError, LimitError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes import Range

MODES = ("mmap", "cow", "copy", "sealed", "direct")
# Copies of more bytes than `_CHECKED_NBYTES` first check the free memory.
_COPIED, _CHECKED_NBYTES = "size of the file to copy", 1 << 28
# These modes copy the file before it is parsed.
_COPIES = ("copy", "sealed")
# Errors of mmap on file systems without it, and for files without pages.
_UNMAPPABLE = (errno.ENODEV, errno.EINVAL, errno.ENOMEM, errno.EACCES, errno.EPERM)
# Bits of st_mode for the kind of file
_KIND = 0o170000
# Imported late: few handles need these.
is_sealed: Callable[..., Any] = hooks.later("weightmap.core.bytes.sealed", "is_sealed")
seal: Callable[..., Any] = hooks.later("weightmap.core.bytes.sealed", "seal")
check_room: Callable[..., Any] = hooks.later("weightmap.core.bytes.memory", "check_room")
_read_runs: Callable[..., int] = hooks.later("weightmap.core.native.files", "read_runs")
# Bytes per read into a bounce buffer: enough to make the call cheap (2 us of 35), few enough for any CPU's L2 cache.
CHUNK = 1 << 18
# Most bytes of padding or headers between two tensors that are fetched too, to save a request to a store.
BETWEEN = 16 << 10
# Bytes that a store sends during the round trip of one of 16 simultaneous requests: 40 ms at 200 MB/s in all.
ROUND_TRIP = 512 << 10


class Source:
    """The bytes of one file or buffer. The functions of bytes/open_source.py make one from the user's argument.

    Parameters
    ----------
    path : str or None
        The path as given; None for a descriptor or a buffer.
    name : str
        Name in messages: the path, or ``<bytes>``, ``<file descriptor 5>``.
    mode : str
        One of `MODES`.
    file : Descriptor, optional
        The open file. Raises `NotRegularFileError` or `IsADirectoryError` unless it is a regular file.
    octets : ndarray of uint8, optional
        The bytes, if there is no file.
    stable : bool
        Whether nothing else can change `octets`.
    identity : tuple of int, optional
        Identity of the file whose sealed copy `file` is.

    Attributes
    ----------
    path, name, mode, size
        `size` is in bytes; `mode` becomes "copy" when a mapping fails and no mode was given.
    private : bool
        Whether to read sections in frequent use, such as a vocabulary, instead of mapping them. For callers that hand
        out no arrays: a shrinking file then raises an exception instead of causing a fault.
    closed : bool
    format : str or None
        Its recognised format, for messages.
    """

    # Class attributes: most handles never set these, and setting attributes is a large part of opening a file.
    closed: bool = False
    private: bool = False
    _folder: str | None = None  # the working directory when a file was opened by a relative path
    _released: str | None = None  # the path of a file whose descriptor was released
    _state: Any = None  # the file's state when it was opened, a `State`
    _identity: tuple[int, ...] | None = None
    _file: access.Descriptor | None = None
    _octets: NDArray[np.uint8] | None = None
    _memory: Any = None  # the owner of the same bytes, on which arrays are made
    _sealed: access.Descriptor | None = None  # the memory that a file was copied to
    _stable = True
    _fallback = True
    _limits: Limits | None = None
    advice: str | None = None  # how its bytes are accessed: see `advise`
    format: str | None = None
    store: str | None = None  # name of the store of the bytes
    digest: str | None = None  # as the store states it
    trust: Any = None  # the digests that files beside this one must have: see weightmap.trust
    watch: Callable[[memoryview], None] | None = None  # gets each piece that is copied, in order
    past_cache: bool = False  # whether copies are read past the page cache

    def __init__(
        self,
        path: str | None,
        name: str,
        mode: str,
        file: access.Descriptor | None = None,
        octets: NDArray[np.uint8] | None = None,
        *,
        stable: bool = True,
        identity: tuple[int, ...] | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self.mode: str = mode
        if mode == "direct":
            self.mode, self.past_cache = "copy", True
        self._file = file
        if file is None:
            self._octets = self._memory = octets
            self._stable = stable
            self.size: int = 0 if octets is None else len(octets)
            return
        try:
            state = self._state = access.fstat(file)
        except OSError as error:
            raise self._named(error) from None
        if state.mode & _KIND != stat.S_IFREG:
            access.refuse(state.mode, name)
        self.size = state.size
        if identity is not None:
            self._identity = identity
        if path is not None and path[0] != "/":  # the working directory may change before the handle is pickled
            self._folder = os.getcwd()

    # ------------------------------------------------------------------------------------------------- reading
    @property
    def in_memory(self) -> bool:
        """Whether the bytes have no file behind them."""
        return self._file is None and self._released is None

    @property
    def is_scattered(self) -> bool:
        """Whether the advice is "random": the system then reads nothing ahead."""
        return self.advice == "random"

    @property
    def has_pages(self) -> bool:
        """Whether its bytes are pages of a file, which the system may drop from memory."""
        return not self.in_memory

    @property
    def descriptor(self) -> int:
        """The open file, which the caller holds while a scan in C reads it; -1 if the bytes are in memory."""
        file = self._opened()
        return -1 if file is None else file

    @property
    def c_input(self) -> tuple[int, Any]:
        """Input of a scan in C: the open file, which the caller holds meanwhile, or -1 and the bytes in memory."""
        file = self._opened()
        return (-1, self.octets) if file is None else (file, None)

    @property
    def c_random_input(self) -> int | NDArray[np.uint8] | None:
        """Input for C at any offset: the open file, which the caller holds meanwhile, or the bytes in memory.

        None if only `chunks` can read the source.
        """
        if os.name == "nt" and self._octets is None:
            return None
        file = self._opened()
        return self._memory_octets() if file is None else file

    def fail_reading(self, at: int, nbytes: int, error: int, *, during: str = "it") -> NoReturn:
        """Raise the error for bytes `at` to `nbytes` that cannot be read: by an errno, or 0 at the end of the file."""
        if error:
            raise self._named(OSError(error, os.strerror(error)), during)
        self._short(at, nbytes, during)

    def expect(self, ranges: Iterable[Range]) -> None:
        """Announce the ranges of coming calls of `pread`: a store fetches them all at once."""

    def _opened(self) -> access.Descriptor | None:
        """Return the open file, to be held while it is used; None if the bytes are in memory."""
        file, path = self._file, self._released
        if file is not None or path is None:
            return file
        return access.open_again(path, self.name, self.identity)

    def _memory_octets(self) -> NDArray[np.uint8]:
        """Return the bytes in memory. Raises `ClosedError` once they are released."""
        octets = self._octets
        if octets is None:
            self.fail_closed()
        return octets

    def pread(self, offset: int, count: int) -> bytes:
        """Read `count` bytes at `offset` into private memory. Raises `TruncatedError` when the file has fewer."""
        file = self._file
        if file is None and (file := self._opened()) is None:
            data = self._memory_octets()[offset : offset + count].tobytes()
        else:
            try:
                data = os.pread(file, count, offset)
                if len(data) == count:
                    return data
                while more := os.pread(file, count - len(data), offset + len(data)):
                    data += more
            except OSError as error:
                raise self._named(error) from None
        if len(data) != count:
            self._short(offset + len(data), offset + count)
        return data

    def chunks(self, offset: int, count: int, size: int = CHUNK) -> Iterator[memoryview]:
        """Yield `count` bytes from `offset` on, in pieces of `size` bytes; the last one may be shorter.

        Reads a file by pread, into one buffer that all pieces share. So a file that shrinks meanwhile raises a
        `TruncatedError` instead of SIGBUS.
        """
        file, end = self._opened(), offset + count
        if file is None:
            view = memoryview(self._memory_octets())
            for start in range(offset, end, size):
                yield view[start : min(start + size, end)]
            return
        size = min(size, count) or 1
        view = memoryview(np.empty(size, np.uint8))
        for start in range(offset, end, size):
            piece = view[: min(size, end - start)]
            got = access.read_into(file, piece, start, self.name)
            if got < len(piece):
                self._short(start + got, end)
            yield piece.toreadonly()

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill a contiguous array with the bytes from `offset` on. Raises `TruncatedError` when the file has fewer."""
        file = self._file if self._released is None else self._opened()
        if file is None:
            memory = self._memory_octets()[offset : offset + len(target)]
            got = len(memory)
            target[:got] = memory
        else:
            got = access.read_into(file, memoryview(target), offset, self.name)
        if got < len(target):
            self._short(offset + got, offset + len(target))

    def read_runs(self, starts: NDArray[np.int64], length: int, target: NDArray[np.uint8], gap: int = 0) -> None:
        """Fill a contiguous array with runs of `length` bytes, which begin at `starts` in rising order.

        Gaps of less than `gap` bytes between runs are read too, which is faster.
        """
        file = self._opened()
        if file is None or os.name == "nt":
            for number, start in enumerate(starts.tolist()):
                self.read_into(start, target[number * length : (number + 1) * length])
            return
        try:
            got = _read_runs(file, starts, length, target, gap)
        except OSError as error:
            raise self._named(error) from None
        if got < len(target):
            start = int(starts[got // length])
            self._short(start + got % length, start + length)

    def ahead(
        self,
        ranges: Iterable[Range],  # noqa: ARG002 - see RemoteSource
        gap: int = 0,  # noqa: ARG002
        arrays: Iterable[Range] = (),  # noqa: ARG002
    ) -> Source:
        """Return a source of the same bytes for reading these ranges in order, some of them as arrays."""
        return self

    def received(self, begin: int, end: int) -> NDArray[np.uint8] | None:  # noqa: ARG002 - see RemoteSource
        """Return bytes requested ahead for an array, in memory that the caller owns; None if there are none."""
        return None

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:
        """Yield the ranges (source, begin, end) of files that reading these bytes reads, in order."""
        yield self, begin, end

    def stretches(self, begin: int, end: int) -> Sequence[tuple[Source, int, int]]:
        """Return the ranges (source, begin, end) of files that make up these bytes; none if the bytes are computed."""
        return ((self, begin, end),)

    def reading(self, ahead: Mapping[Source, Source]) -> Source:
        """Return a source of the same bytes that reads from the sources in `ahead` instead of its files."""
        return ahead.get(self, self)

    def _named(self, error: OSError, during: str = "it") -> OSError:
        """Add the file name to the error of a call on a descriptor, and the part of the file being read, if any."""
        error.filename = self.name
        if during != "it":
            error.add_note(f"while {during} was being read")
        return error

    def _short(self, at: int, nbytes: int, during: str = "it") -> NoReturn:
        """Raise the error for a file that shrank, or for bytes behind its end."""
        if at < self.size:
            raise shrank(at, nbytes, during=during).located(path=self.name)
        raise TruncatedError("the file ends", path=self.name, offset=at, expected=f"at least {nbytes} bytes")

    # ------------------------------------------------------------------------------------------------- memory
    @property
    def octets(self) -> NDArray[np.uint8]:
        """The bytes as a uint8 array, shape (size,); mapped or read at the first use."""
        octets = self._octets
        return self._load() if octets is None else octets

    @property
    def mapped(self) -> NDArray[np.uint8] | None:
        """The bytes if they are mapped by now, else None."""
        return None if self.in_memory else self._octets

    def section(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return the bytes from `begin` to `end`: a view of the mapping, or a copy if the source is `private`."""
        if self.private and not self.in_memory:
            return np.frombuffer(self.pread(begin, end - begin), np.uint8)
        return self.octets[begin:end]

    def prepare(self, *, explicit: bool, limits: Limits) -> None:
        """Set limits, and whether the mode is `explicit`: then a failed mapping is an error instead of a read.

        Explicit and copying modes get their memory now. Otherwise mapping, which costs more than reading a header,
        waits for the first array.
        """
        self._fallback, self._limits = not explicit, limits
        if (explicit or self.mode in _COPIES) and self._octets is None and self.size:
            self._load()

    def follow(self, other: Source) -> None:
        """Take over the settings of another source: from `prepare`, `advise` and `private`."""
        if other.advice is not None:
            self.advise(other.advice)
        self.private = self.private or other.private
        if other.past_cache:
            self.past_cache = True
        limits = other._limits
        if other.trust is not None:
            other.trust.admit(self, other._limits or DEFAULT_LIMITS)
        elif limits is not None:
            self.prepare(explicit=not other._fallback, limits=limits)

    def advise(self, advice: str) -> None:
        """Advise the kernel how the bytes will be accessed: one of `ADVICE`.

        A caller's descriptor gets no advice, because its read-ahead would change too. A system may refuse advice.
        """
        self.advice = advice
        file, memory = self._file, self._memory
        if file is not None and memory is not None and self.mode not in _COPIES:
            access.advise(memory, access.ADVICE.index(advice))
        if file is not None and self.path is not None and self.mode not in _COPIES and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(file, 0, 0, getattr(os, f"POSIX_FADV_{advice.upper()}"))

    def _get_memory(self) -> Any:
        """Return the memory to make arrays on; never None, which would make numpy allocate."""
        memory = self._memory
        if memory is None:
            self._load()
            memory = self._memory
            if memory is None:  # another thread has just closed it
                self.fail_closed()
        return memory

    def _load(self) -> NDArray[np.uint8]:
        """Map or copy the file. If the file system cannot map and no mode was given, read it instead."""
        file = self._file
        if file is None:
            return self._memory_octets()  # another thread has just read the file
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
        if self.mode in _COPIES:
            octets, memory = self._copy(file)
            self.check_unchanged()  # a write meanwhile would leave a mixed copy
        # Set memory before octets: a thread without memory calls this itself; one without a file looks for octets.
        self._memory = memory
        self._octets = octets
        if self.mode in _COPIES:
            self._file = None
        if self.closed:  # by another thread in between: it released only the memory that existed then
            self.close()
        return octets

    def _map(self, file: access.Descriptor) -> tuple[NDArray[np.uint8], Any]:
        """Map the file; return its bytes, and their owner to make arrays on."""
        mode = self.mode
        if mode == "mmap" and self.path is None and is_sealed(file):
            mode = "sealed"
        try:
            return access.map_file(file, self.size, mode, self.advice)
        except OSError as error:
            raise self._named(error) from None

    def _copy(self, file: access.Descriptor) -> tuple[NDArray[np.uint8], Any]:
        """Copy the file into new memory, sealed in that mode; return the same as `_map`."""
        sealed = self.mode == "sealed"
        if not (sealed and is_sealed(file)):
            try:
                if self._limits is not None:
                    self._limits.check("max_copy_bytes", self.size, _COPIED)
                if self.size > _CHECKED_NBYTES:
                    check_room(self.size, _COPIED)
            except LimitError as error:
                raise error.located(path=self.name) from None
            if not sealed:
                data = access.aligned(self.size)
                got = self._filled(file, memoryview(data))
                if got < self.size:
                    self._short(got, self.size)
                return data, data
            try:
                file = seal(self._watched(self._past_cache() if self.past_cache else self.chunks(0, self.size)))
            except OSError as error:
                raise error if error.filename is not None else self._named(error) from None
        self._sealed = file
        return self._map(file)

    def _filled(self, file: access.Descriptor, view: memoryview) -> int:
        """Read the file into memory; return the number of bytes. `watch` gets each piece while it is in the cache."""
        got, watch = 0, self.watch
        if self.past_cache:
            for piece in self._watched(self._past_cache()):
                view[got : got + len(piece)] = piece
                got += len(piece)
            return got
        if watch is None:
            return access.read_into(file, view, 0, self.name)
        while got < len(view) and (count := access.read_into(file, view[got : got + CHUNK], got, self.name)):
            watch(view[got : got + count])
            got += count
        return got

    def _past_cache(self) -> Iterator[memoryview]:
        pieces: Iterator[memoryview] = hooks.direct_reader(self).pieces(0, self.size)
        return pieces

    def _watched(self, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        for piece in pieces:
            if self.watch is not None:
                self.watch(piece)
            yield piece

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int) -> NDArray[Any]:
        """Return the `nbytes` bytes from `offset` on as an array, without a copy.

        Raises `TruncatedError` if they do not lie within the source; the check does not rely on the format's.
        """
        if offset < 0 or nbytes > self.size - offset:
            self._short(self.size, offset + nbytes)
        memory = self._memory
        return np.ndarray(shape, dtype, self._get_memory() if memory is None else memory, offset)

    def check_size(self, what: str, nbytes: int) -> None:
        """Raise `LimitError` if this file would expand to too many bytes: see `check_expansion`."""
        check_expansion(self._limits or DEFAULT_LIMITS, nbytes, self.size, f"size of {what}", self.name)

    def strided(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
    ) -> NDArray[Any]:
        """Return an array whose elements lie `strides` bytes apart, none of them negative, without a copy."""
        last = 0 if 0 in shape else sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
        if offset < 0 or last > self.size - offset:
            self._short(self.size, offset + last)
        return np.ndarray(shape, dtype, self._get_memory(), offset, strides)

    def array_of(
        self, count: int, step: int, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int
    ) -> NDArray[Any]:
        """Return `count` arrays of one shape, `step` bytes apart, as one array with an additional first dimension."""
        if offset < 0 or step < 0 or nbytes + (count - 1) * step > self.size - offset:
            self._short(self.size, offset + nbytes + (count - 1) * step)
        strides = [dtype.itemsize]
        for dim in shape[:0:-1]:
            strides.insert(0, strides[0] * dim)
        return np.ndarray((count, *shape), dtype, self._get_memory(), offset, (step, *strides))

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Bring ranges of a mapping into memory in the background; return at once."""
        if self.in_memory and self.mode != "sealed":
            return
        memory = self._get_memory()
        if self.mode != "copy":  # it is "copy" by now if the mapping failed
            hooks.prefetch(memory, ranges, scattered=self.is_scattered)

    # ------------------------------------------------------------------------------------------------- the same file
    @property
    def identity(self) -> tuple[int, ...]:
        """Device, inode, size and modification time in ns of the opened file; empty for a buffer."""
        identity = self._identity
        return identity if identity is not None else () if self._state is None else access.identity_of(self._state)

    @property
    def absolute(self) -> str | None:
        """The absolute path; None for a descriptor or a buffer."""
        return None if self.path is None else os.path.abspath(os.path.join(self._folder or "", self.path))

    @property
    def backing(self) -> str | None:
        """The absolute path of the file behind the bytes."""
        return self.absolute

    def check_unchanged(self) -> None:
        """Raise `FileChangedError` if size or modification time of the opened file have changed.

        A file that was replaced by rename is unchanged: the handle keeps the old file. The check narrows the window in
        which a file truncated in place can fault a reader, but cannot close it.
        """
        file = self._file  # the reference keeps another thread from closing it
        if file is not None:
            unchanged = self._state.unchanged()
            if unchanged <= 0:
                access.fail_changed(self._state, unchanged, self.name)
        elif self._released is not None:
            access.check_path(self._released, self._state, self.name)

    # ------------------------------------------------------------------------------------------------- sharing
    @property
    def is_stable(self) -> bool:
        """Whether nothing outside this process can change these bytes or take them away."""
        file = self._file
        if file is None:
            return self._released is None and self._stable
        sealed: bool = is_sealed(file)
        return sealed

    @property
    def sealed(self) -> int | None:
        """The descriptor of the sealed memory in mode "sealed", else None. It is closed with the handle."""
        file = self._sealed
        return None if file is None else int(file)

    # ------------------------------------------------------------------------------------------------- closing
    def release_descriptor(self) -> None:
        """Load the file now and close its descriptor; later reads open it again by its path.

        No effect on a source without a path, and on Windows, where a mapping keeps its file open and irreplaceable.
        """
        if self.path is None or os.name == "nt" or self.closed:
            return
        self.octets  # noqa: B018 - maps it
        if self._file is not None:
            # Set the path first: a thread that finds no descriptor looks for it.
            self._released = self.backing
            self._file = None
        self._sealed = None

    def without_bytes(self) -> Source:
        """Return a source with this one's name, path and identity, but without its bytes."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, size=0, mode="copy", closed=False, _released=None)
        copy._file = copy._octets = copy._memory = copy._sealed = None
        return copy

    def close(self) -> None:
        """Release the file; idempotent. Arrays that view it keep the mapping alive."""
        self.closed = True
        self._memory = self._octets = None
        self._file = self._sealed = self._released = None

    def fail_closed(self) -> NoReturn:
        """Raise `ClosedError`."""
        raise ClosedError("this handle was closed; arrays obtained before remain valid", path=self.name)
