"""Objects in stores as sources of bytes: `RemoteSource`.

Headers come in a few large requests, into private memory. Each tensor comes into its own array, in one request, or by
the joined requests of a plan, several at a time.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from weightmap.core.bytes import Range
from weightmap.core.bytes.open_source import blob_of
from weightmap.core.bytes.source import CHUNK, Source
from weightmap.core.native import files
from weightmap.core.native.access import aligned, open_descriptor
from weightmap.remote.ahead import HeaderCache, Prefetcher
from weightmap.remote.location import Location, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.arguments import Limits

# Smallest request; shorter requests are rounded up.
_MIN_REQUEST_BYTES = 16 << 10
# Bytes to request at each header of a walk; headers to request at once if the walk repeats its last step; by how much
# steps over equal tensors may differ, because names do.
_WALK_WINDOW, _WALK_HEADERS, _PADDING = 64 << 10, 64, 64
# Smallest array that receives its bytes directly.
_MIN_ARRAY_BYTES = 64 << 10


# Open objects of stores with digests, so that `diff` of two revisions opens their common files without a request.
_by_digest: WeakValueDictionary[str, RemoteSource] = WeakValueDictionary()


def open_location(path: Any, mode: str) -> Source:
    """Return the source for a location: a local file if the Hub's cache has it."""
    local = path.cached
    return RemoteSource(path) if local is None else CachedSource(path, local, mode)


class CachedSource(Source):
    """An object that its store also keeps in a local file.

    Parameters
    ----------
    location : Location
    local : str
        The path of the file.
    mode : str
    """

    def __init__(self, location: Location, local: str, mode: str) -> None:
        super().__init__(local, str(location), mode, open_descriptor(local))
        self.path: Location = location
        self._local = os.path.abspath(local)
        # The Hub's cache names the file behind a link by its digest.
        blob = blob_of(local)
        self.digest: str | None = None if blob is None else os.path.basename(blob)

    @property
    def absolute(self) -> str | None:
        """The location."""
        return self.path

    @property
    def backing(self) -> str:
        """The path of the file."""
        return self._local


class RemoteSource(Source):
    """The bytes of an object in a store, fetched on use.

    Every request asks for the opened version of the object, by its ETag if the store has one. Each array is private
    memory, fetched at its look-up.

    Parameters
    ----------
    location : Location

    Attributes
    ----------
    queue : Prefetcher or None
        Bytes requested ahead of reading.

    Raises
    ------
    FileNotFoundError, PermissionError, RemoteError
    IsADirectoryError
        When the object does not exist, but objects below it do.
    """

    private = True
    in_memory = has_pages = False  # the bytes lie elsewhere, and no page of the system holds them
    c_random_input = None  # C code cannot fetch them
    is_stable = True  # arrays are copies
    path: Location
    name: str
    queue: Prefetcher | None
    _stored: Stored
    _headers: HeaderCache

    def __init__(self, location: Location) -> None:
        self.path, self.name, self.mode = location, str(location), "copy"
        scheme, separator, _ = self.name.partition("://")
        self.store: str = scheme if separator else "store"
        self._file = None
        self.digest, self.queue = location.digest, None
        twin = None if self.digest is None else _by_digest.get(self.digest)
        if twin is not None and not twin.closed:  # the same file of another revision, whose headers were read
            self._stored, self._headers = Stored(location, twin._stored.pin), twin._headers  # noqa: SLF001
        else:
            self._stored, head = Stored.open(location)
            self._headers = HeaderCache()
            self._headers.add(0, head)
        self.size: int = self._stored.pin.size
        if self.digest is not None:
            _by_digest[self.digest] = self

    # ------------------------------------------------------------------------------------------------- reading
    def fill(self, begin: int, target: memoryview) -> None:
        """Fill memory from byte `begin` on: with kept bytes, with requested ones, and the rest by a new request."""
        at, end = begin, begin + len(target)
        while at < end and len(there := self._ready(at, end)):
            target[at - begin : at - begin + len(there)] = there
            at += len(there)
        if at < end:
            self._stored.wait(self._stored.fetch(at, end, target[at - begin :]), at, end)

    def _ready(self, begin: int, end: int) -> memoryview:
        """Return bytes from `begin` on that came with a header or are requested ahead, if any."""
        if self.closed:
            self.fail_closed()
        if begin < 0 or end > self.size:
            self._short(self.size, end)
        there = self._here(begin, end)
        return there if len(there) or self.queue is None else self.queue.take(begin, end)

    def _here(self, begin: int, end: int) -> memoryview:
        """Return bytes from `begin` on that came with a header."""
        return self._headers.find(begin, end)

    def pread(self, offset: int, count: int) -> bytes:
        """Implement `Source.pread`. A short read also fetches neighbouring bytes, for the next call."""
        if offset < 0 or offset + count > self.size:
            self._short(self.size, offset + count)
        there = self._here(offset, offset + count)
        if len(there) == count:
            if self.closed:
                self.fail_closed()
            return bytes(there)
        if self.queue is not None or count >= _MIN_REQUEST_BYTES:
            data = bytearray(count)
            self.fill(offset, memoryview(data))
            return bytes(data)
        first = offset + len(there)
        end = min(max(offset + count, first + _MIN_REQUEST_BYTES), self.size)
        begin = first if len(there) else max(0, min(first, end - _MIN_REQUEST_BYTES))
        data = bytearray(end - begin)
        self.fill(begin, memoryview(data))
        self._headers.add(begin, bytes(data))
        return bytes(there) + bytes(data[first - begin : offset + count - begin])

    @property
    def c_input(self) -> tuple[int, Any]:
        """No file, and a function that reads the object: 64 KiB at each header of a walk.

        If a walk repeats its last step, as over equal tensors, the next headers are requested at once.
        """
        last = step = 0

        def walk(offset: int, count: int) -> bytes:
            nonlocal last, step
            repeated, step, last = abs(offset - last - step) <= _PADDING, offset - last, offset
            end = min(offset + count, self.size)
            if self.queue is None and count < _WALK_WINDOW and len(self._here(offset, end)) < end - offset:
                ahead = range(offset + step, self.size, step)[:_WALK_HEADERS] if repeated and step > 0 else ()
                headers = (Range(max(at - _MIN_REQUEST_BYTES // 4, 0), at + _MIN_REQUEST_BYTES) for at in ahead)
                self.expect([Range(offset, offset + _WALK_WINDOW), *headers])
            return self.pread(offset, count)

        return -1, files.Reader(walk)

    def expect(self, ranges: Iterable[Range]) -> None:
        """Read all these ranges, by several requests at a time, and keep them for `pread`."""
        joined: list[Range] = []
        for begin, end in sorted(ranges):
            last = min(end, self.size)
            if begin >= last or len(self._here(begin, last)) == last - begin:
                continue
            if joined and begin - joined[-1].end < _MIN_REQUEST_BYTES:
                joined[-1] = Range(joined[-1].begin, max(last, joined[-1].end))
            else:
                joined.append(Range(begin, last))
        source = self.ahead(joined)
        for begin, last in joined:
            data = bytearray(last - begin)
            source.fill(begin, memoryview(data))
            self._headers.add(begin, bytes(data))

    def chunks(self, offset: int, count: int, size: int = CHUNK) -> Iterator[memoryview]:
        """Implement `Source.chunks`, by several requests at a time, in order."""
        if not count:
            return
        source = self if self.queue is not None else self.ahead([Range(offset, offset + count)])
        at, end = offset, offset + count
        while at < end:
            there = source._ready(at, end)  # noqa: SLF001 - of this class
            whole = len(there) if at + len(there) == end else len(there) // size * size
            for begin in range(0, whole, size):
                yield there[begin : min(begin + size, whole)].toreadonly()
            at += whole
            if at < end:  # the piece spans two requests, or was not requested
                begun, piece = len(there) - whole, memoryview(bytearray(min(size, end - at)))
                piece[:begun] = there[whole:]
                source.fill(at + begun, piece[begun:])
                yield piece.toreadonly()
                at += len(piece)

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Implement `Source.read_into`, by one request."""
        self.fill(offset, memoryview(target))

    def ahead(self, ranges: Iterable[Range], gap: int = 0, arrays: Iterable[Range] = ()) -> RemoteSource:
        """Return a source of the same bytes that requests these ranges ahead of reading, in order.

        Neighbours with at most `gap` bytes between them are requested together. The beginning of a range is not
        requested again if it came with a header. Bytes of a range in `arrays` arrive directly in their array.
        """
        source = copy.copy(self)
        missing = (Range(begin + len(self._here(begin, end)), end) for begin, end in ranges)
        source.queue = Prefetcher(self._stored, missing, gap, self._disjoint(arrays))
        return source

    def _disjoint(self, arrays: Iterable[Range]) -> Iterator[Range]:
        """Yield, in file order, the ranges that are large enough for their own memory and share no byte."""
        limit = None if self._limits is None else self._limits.max_copy_bytes
        max_nbytes, reached = np.inf if limit is None else limit, 0
        for begin, end in sorted(arrays):
            if reached <= begin <= end - _MIN_ARRAY_BYTES and end - begin <= max_nbytes and end <= self.size:
                reached = end
                yield Range(begin, end)

    def received(self, begin: int, end: int) -> NDArray[np.uint8] | None:
        """Implement `Source.received`."""
        if self.closed:
            self.fail_closed()
        return None if self.queue is None else self.queue.take_array(begin, end, self._here(begin, end))

    # ------------------------------------------------------------------------------------------------- memory
    @property
    def octets(self) -> NDArray[np.uint8]:
        """The whole object in memory."""
        octets = self._octets
        if octets is None:
            octets = self._octets = self._new(0, self.size)
        return octets

    def _new(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return bytes in new memory."""
        if nbytes > self.size - offset or offset < 0:
            self._short(self.size, offset + nbytes)
        if self._limits is not None:
            self._limits.check("max_copy_bytes", nbytes, "size of the bytes to fetch")
        there = self.received(offset, offset + nbytes)
        if there is not None:
            return there
        data = aligned(nbytes)
        if nbytes:
            self.fill(offset, memoryview(data))
        return data

    def section(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return a copy of the bytes from `begin` to `end`."""
        return np.frombuffer(self.pread(begin, end - begin), np.uint8)

    def prepare(self, *, explicit: bool, limits: Limits) -> None:  # noqa: ARG002 - there is nothing to map
        """Set limits."""
        self._limits = limits

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int) -> NDArray[Any]:
        """Return the `nbytes` bytes from `offset` on as an array in its own memory."""
        return np.ndarray(shape, dtype, self._new(offset, nbytes))

    def strided(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
    ) -> NDArray[Any]:
        """Implement `Source.strided`: fetch the bytes from the first element to the last."""
        last = 0 if 0 in shape else sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
        return np.ndarray(shape, dtype, self._new(offset, last), 0, strides)

    def array_of(
        self, count: int, step: int, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int
    ) -> Any:
        """Yield `count` arrays of one shape, `step` bytes apart."""
        for k in range(count):
            yield self.array(dtype, shape, offset + k * step, nbytes)

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Do nothing: there is no mapping."""

    def advise(self, advice: str) -> None:
        """Do nothing: the system does not read ahead."""

    # ------------------------------------------------------------------------------------------------- the same object
    @property
    def identity(self) -> tuple[Any, ...]:
        """Size, ETag and modification time of the object."""
        return tuple(self._stored.pin)

    @property
    def absolute(self) -> str | None:
        """The location."""
        return self.path

    def check_unchanged(self) -> None:
        """Do nothing: every request asks for the opened version of the object."""

    def release_descriptor(self) -> None:
        """Do nothing: there is no descriptor."""

    def close(self) -> None:
        """Forget kept bytes; idempotent. Arrays stay valid."""
        super().close()
        self._headers, self.queue = HeaderCache(), None
