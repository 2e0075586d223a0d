"""Prefetching from stores: `Windows` keeps bytes read with headers, `Queue` requests bytes ahead."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from weightmap.core.bytes.descriptor import aligned
from weightmap.remote.fetching import Pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from weightmap.remote.location import Stored

# Header bytes kept per object
_MOST_KEPT = 16 << 20
# Bytes per request, and bytes requested ahead of the reader at most.
PART, _WINDOW = 8 << 20, 128 << 20


class Windows:
    """Bytes of an object that were read with its headers, by their offset."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._data: list[bytes] = []
        self._size = 0
        self._lock = Lock()

    def find(self, begin: int, end: int) -> memoryview:
        """Return the bytes from `begin` on, as far as they reach; none if `begin` is not among them."""
        with self._lock:
            number = bisect_right(self._starts, begin) - 1
            if number < 0:
                return memoryview(b"")
            start, data = self._starts[number], self._data[number]
        return memoryview(data)[begin - start : end - start]

    def add(self, start: int, data: bytes) -> None:
        """Keep bytes; if there are very many, forget what lies before others: a walk has read it."""
        with self._lock:
            while self._size + len(data) > _MOST_KEPT and len(self._starts) > 1:
                self._size -= len(self._data[1])
                del self._starts[1], self._data[1]
            number = bisect_right(self._starts, start)
            self._starts.insert(number, start)
            self._data.insert(number, data)
            self._size += len(data)


class _Request(NamedTuple):
    """A request: its first byte and the one behind its last, its memory, and the handle to wait for it."""

    begin: int
    end: int
    pieces: Pieces
    future: Future[Any]


class Queue:
    """Bytes of an object, requested ahead of reading, by several requests at a time.

    Parameters
    ----------
    stored : Stored
    ranges : iterable of (int, int)
        Begin and end of what will be read, in the order of reading.
    gap : int
        Ranges that follow one another with at most so many bytes between them are requested together.
    own : iterable of (int, int)
        Ranges, in file order and apart from each other, whose bytes get memory of their own, for `own`.
    """

    def __init__(
        self, stored: Stored, ranges: Iterable[tuple[int, int]], gap: int, own: Iterable[tuple[int, int]] = ()
    ) -> None:
        self._stored, self._gap = stored, gap
        self._ranges: Iterable[tuple[int, int]] | None = ranges  # until the first read, which many queues never see
        self._bounds = np.empty((0, 2), np.int64)
        self._number, self._at = 0, 0  # the range to be requested next, and where in it
        self._under_way: deque[_Request] = deque()
        self._given = own
        self._firsts: list[int] = []  # of ranges with memory of their own, by which `_lasts` and `_memory` are numbered
        self._lasts: list[int] = []
        self._memory: WeakValueDictionary[int, NDArray[np.uint8]] = WeakValueDictionary()
        self._upto: dict[int, int] = {}  # how far each was requested: what is requested again gets other memory
        self._lock = Lock()

    def take(self, begin: int, end: int) -> memoryview:
        """Return bytes from `begin` on; none if they are not among the ranges left. Drops what comes before them."""
        with self._lock:
            if not self._reaches(begin):
                return memoryview(b"")
            first = self._under_way[0]
            there = first.pieces[begin - first.begin : min(end, first.end) - first.begin]
            if begin + len(there) >= first.end:
                self._under_way.popleft()
            self._ask()
        self._stored.wait(first.future, first.begin, first.end)
        return there

    def own(self, begin: int, end: int, here: memoryview) -> NDArray[np.uint8] | None:
        """Return a range that has memory of its own, with its beginning from `here`; None if there is none, or no more.

        Its memory is the caller's from now on.
        """
        with self._lock:
            if not self._reaches(begin + len(here)):
                return None
            number = bisect_right(self._firsts, begin) - 1
            if number < 0 or (self._firsts[number], self._lasts[number]) != (begin, end):
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
        """Make the request with a byte the first one, if it is among the ranges left."""
        if self._ranges is not None:
            self._bounds, self._ranges = _joined(self._ranges, self._gap), None
            self._go_to(0)
            for first, last in self._given:
                self._firsts.append(first)
                self._lasts.append(last)
            self._given = ()
        if not any(request.begin <= begin < request.end for request in self._under_way):
            left = self._bounds[self._number :]
            ahead = (left[:, 0] <= begin) & (begin < left[:, 1])
            ahead[:1] &= begin >= self._at
            found = np.flatnonzero(ahead)
            if not len(found):
                return False
            self._drop(len(self._under_way))
            self._go_to(self._number + int(found[0]), begin)
            self._ask()
        while not self._under_way[0].begin <= begin < self._under_way[0].end:
            self._drop(1)
        return True

    def _go_to(self, number: int, at: int = 0) -> None:
        """Go on with a range, from a place in it on."""
        self._number = number
        if number < len(self._bounds):
            self._at = max(at, int(self._bounds[number, 0]))

    def _ask(self) -> None:
        """Send requests up to the limit."""
        stored = self._stored
        while self._number < len(self._bounds) and len(self._under_way) < stored.access.small:
            last = int(self._bounds[self._number, 1])
            begin, end = self._at, min(self._at + PART, last)
            if len(self._under_way) >= stored.access.most(end - begin):
                return
            if self._under_way and end - begin + sum(other.end - other.begin for other in self._under_way) > _WINDOW:
                return
            pieces = Pieces(list(self._memory_of(begin, end)))
            self._under_way.append(_Request(begin, end, pieces, stored.fetch(begin, end, pieces)))
            self._go_to(*((self._number, end) if end < last else (self._number + 1,)))

    def _memory_of(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield memory for the bytes from `begin` to `end`: that of the ranges among them that have their own."""
        while begin < end:
            number = bisect_right(self._firsts, begin) - 1
            inside = number >= 0 and begin < self._lasts[number]
            upto = min(end, self._lasts[number] if inside else min(self._firsts[number + 1 : number + 2], default=end))
            if inside and self._upto.get(number, begin) == begin:
                first, self._upto[number] = self._firsts[number], upto
                memory = self._memory.get(number)
                if memory is None:
                    memory = self._memory[number] = aligned(self._lasts[number] - first)
                yield memoryview(memory)[begin - first : upto - first]
            else:
                yield memoryview(np.empty(upto - begin, np.uint8))
            begin = upto

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._under_way.popleft().future.cancel()

    def __del__(self) -> None:
        self._drop(len(self._under_way))


def _joined(ranges: Iterable[tuple[int, int]], gap: int) -> NDArray[np.int64]:
    """Return ranges that are not empty as an array of begin and end; neighbours in this order are joined."""
    bounds = np.fromiter(chain.from_iterable(ranges), np.int64).reshape(-1, 2)
    bounds = bounds[bounds[:, 0] < bounds[:, 1]]
    between = bounds[1:, 0] - bounds[:-1, 1]
    apart = (between < 0) | (between > gap)
    firsts, lasts = np.concatenate(([True], apart)), np.concatenate((apart, [True]))
    return np.column_stack((bounds[firsts[: len(bounds)], 0], bounds[lasts[: len(bounds)], 1]))
