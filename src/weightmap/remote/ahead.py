"""Prefetching from stores: `HeaderCache` keeps bytes read with headers, `Prefetcher` requests ranges ahead."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from weightmap.core.native.access import aligned
from weightmap.remote.fetching import Call, Pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.bytes import Range
    from weightmap.remote.location import Stored

# Header bytes to keep per object.
_MAX_HEADER_BYTES = 16 << 20
# Bytes per request; most bytes to request ahead of the reader.
REQUEST_BYTES, _MAX_AHEAD_BYTES = 8 << 20, 128 << 20


class HeaderCache:
    """Bytes of an object that came with its headers, by offset."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._data: list[bytes] = []
        self._size = 0
        self._lock = Lock()

    def find(self, begin: int, end: int) -> memoryview:
        """Return kept bytes from `begin` on, perhaps not up to `end`; none if the first is not kept."""
        with self._lock:
            number = bisect_right(self._starts, begin) - 1
            if number < 0:
                return memoryview(b"")
            start, data = self._starts[number], self._data[number]
        return memoryview(data)[begin - start : end - start]

    def add(self, start: int, data: bytes) -> None:
        """Keep bytes. Above 16 MiB, forget the bytes at the lowest offsets, which a walk has read."""
        with self._lock:
            while self._size + len(data) > _MAX_HEADER_BYTES and len(self._starts) > 1:
                self._size -= len(self._data[1])
                del self._starts[1], self._data[1]
            number = bisect_right(self._starts, start)
            self._starts.insert(number, start)
            self._data.insert(number, data)
            self._size += len(data)


class _Request(NamedTuple):
    """A request for bytes from `begin` to `end`: its memory, and the call to wait for."""

    begin: int
    end: int
    pieces: Pieces
    call: Call


class Prefetcher:
    """Requests ranges of an object ahead of reading, several at a time.

    Parameters
    ----------
    stored : Stored
    ranges : iterable of Range
        The ranges that will be read, in order.
    gap : int
        Ranges are requested together if at most this many bytes lie between them.
    arrays : iterable of Range
        Disjoint ranges in file order. Each gets its own memory, for `take_array`.
    """

    def __init__(self, stored: Stored, ranges: Iterable[Range], gap: int, arrays: Iterable[Range] = ()) -> None:
        self._stored, self._gap = stored, gap
        self._ranges: Iterable[Range] | None = ranges  # until the first read, which many prefetchers never see
        self._bounds = np.empty((0, 2), np.int64)
        self._number, self._at = 0, 0  # the next range to request, and the position in it
        self._under_way: deque[_Request] = deque()
        self._announced = arrays
        # Begins and ends of the arrays, memory by number, and how far each is requested. A second request for the same
        # bytes gets other memory.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._memory: WeakValueDictionary[int, NDArray[np.uint8]] = WeakValueDictionary()
        self._requested: dict[int, int] = {}
        self._lock = Lock()

    def take(self, begin: int, end: int) -> memoryview:
        """Return bytes from `begin` on; none if no pending range has them. Drop the requests before them."""
        with self._lock:
            if not self._reaches(begin):
                return memoryview(b"")
            first = self._under_way[0]
            there = first.pieces[begin - first.begin : min(end, first.end) - first.begin]
            if begin + len(there) >= first.end:
                self._under_way.popleft()
            self._ask()
        self._stored.wait(first.call, first.begin, first.end)
        return there

    def take_array(self, begin: int, end: int, here: memoryview) -> NDArray[np.uint8] | None:
        """Return the memory of an announced array, whose first bytes are `here`; None at other places or when repeated.

        The memory then belongs to the caller.
        """
        with self._lock:
            if not self._reaches(begin + len(here)):
                return None
            number = bisect_right(self._begins, begin) - 1
            if number < 0 or (self._begins[number], self._ends[number]) != (begin, end):
                return None
            memory = self._memory.get(number)
        at = begin + len(here)
        while at < end:
            there = self.take(at, end)
            if memory is None or there.obj is not memory:
                return None
            at += len(there)
        if memory is not None:
            memory[: len(here)] = here
        return memory

    def _reaches(self, begin: int) -> bool:
        """Make the request for a byte the first one; return False if no pending range has the byte."""
        if self._ranges is not None:
            self._bounds, self._ranges = _joined(self._ranges, self._gap), None
            self._go_to(0)
            for first, last in self._announced:
                self._begins.append(first)
                self._ends.append(last)
            self._announced = ()
        if not any(request.begin <= begin < request.end for request in self._under_way):
            pending = self._bounds[self._number :]
            ahead = (pending[:, 0] <= begin) & (begin < pending[:, 1])
            ahead[:1] &= begin >= self._at
            numbers = np.flatnonzero(ahead)
            if not len(numbers):
                return False
            self._drop(len(self._under_way))
            self._go_to(self._number + int(numbers[0]), begin)
            self._ask()
        while not self._under_way[0].begin <= begin < self._under_way[0].end:
            self._drop(1)
        return True

    def _go_to(self, number: int, at: int = 0) -> None:
        """Continue with a range, from a position in it."""
        self._number = number
        if number < len(self._bounds):
            self._at = max(at, int(self._bounds[number, 0]))

    def _ask(self) -> None:
        """Send requests up to the limit."""
        stored = self._stored
        while self._number < len(self._bounds) and len(self._under_way) < stored.access.small:
            last = int(self._bounds[self._number, 1])
            begin, end = self._at, min(self._at + REQUEST_BYTES, last)
            if len(self._under_way) >= stored.access.max_requests(end - begin):
                return
            if (
                self._under_way
                and end - begin + sum(other.end - other.begin for other in self._under_way) > _MAX_AHEAD_BYTES
            ):
                return
            pieces = Pieces(list(self._memory_of(begin, end)))
            self._under_way.append(_Request(begin, end, pieces, stored.fetch(begin, end, pieces)))
            self._go_to(*((self._number, end) if end < last else (self._number + 1,)))

    def _memory_of(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield memory for the bytes from `begin` to `end`: the array's own if they belong to an array."""
        while begin < end:
            number = bisect_right(self._begins, begin) - 1
            inside = number >= 0 and begin < self._ends[number]
            stop = min(end, self._ends[number] if inside else min(self._begins[number + 1 : number + 2], default=end))
            if inside and self._requested.get(number, begin) == begin:
                first, self._requested[number] = self._begins[number], stop
                memory = self._memory.get(number)
                if memory is None:
                    memory = self._memory[number] = aligned(self._ends[number] - first)
                yield memoryview(memory)[begin - first : stop - first]
            else:
                yield memoryview(np.empty(stop - begin, np.uint8))
            begin = stop

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._under_way.popleft().call.cancel()

    def __del__(self) -> None:
        self._drop(len(self._under_way))


def _joined(ranges: Iterable[Range], gap: int) -> NDArray[np.int64]:
    """Return the ranges that are not empty as an array of begins and ends; join neighbours in this order."""
    bounds = np.fromiter(chain.from_iterable(ranges), np.int64).reshape(-1, 2)
    bounds = bounds[bounds[:, 0] < bounds[:, 1]]
    between = bounds[1:, 0] - bounds[:-1, 1]
    divided = (between < 0) | (between > gap)
    firsts, lasts = np.concatenate(([True], divided)), np.concatenate((divided, [True]))
    return np.column_stack((bounds[firsts[: len(bounds)], 0], bounds[lasts[: len(bounds)], 1]))
