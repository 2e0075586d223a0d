"""Prefetching from stores: `Windows` keeps bytes read with headers, `Queue` requests bytes ahead."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from weightmap.io.location import Stored

# Header bytes kept per object
_MOST_KEPT = 16 << 20
# Bytes per request, and bytes requested ahead of the reader at most.
PART, _WINDOW = 4 << 20, 64 << 20


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
        """Keep bytes; if there are very many, only the first and the last."""
        with self._lock:
            if self._size + len(data) > _MOST_KEPT:
                del self._starts[1:], self._data[1:]
                self._size = len(self._data[0])
            number = bisect_right(self._starts, start)
            self._starts.insert(number, start)
            self._data.insert(number, data)
            self._size += len(data)


class Queue:
    """Bytes of an object, requested ahead of reading, by several requests at a time.

    Parameters
    ----------
    stored : Stored
    ranges : iterable of (int, int)
        Begin and end of what will be read, in the order of reading.
    gap : int
        Ranges that follow one another with at most so many bytes between them are requested together.
    """

    def __init__(self, stored: Stored, ranges: Iterable[tuple[int, int]], gap: int) -> None:
        self._stored, self._gap = stored, gap
        self._ranges: Iterable[tuple[int, int]] | None = ranges  # until the first read, which many queues never see
        self._bounds = np.empty((0, 2), np.int64)
        self._number, self._at = 0, 0  # the range to be requested next, and where in it
        self._under_way: deque[tuple[int, int, bytearray, Future[Any]]] = deque()
        self._lock = Lock()

    def take(self, begin: int, end: int) -> memoryview:
        """Return bytes from `begin` on; none if they are not among the ranges left. Drops what comes before them."""
        with self._lock:
            if self._ranges is not None:
                self._bounds, self._ranges = _joined(self._ranges, self._gap), None
                self._go_to(0)
            if not any(first <= begin < last for first, last, _, _ in self._under_way):
                left = self._bounds[self._number :]
                ahead = (left[:, 0] <= begin) & (begin < left[:, 1])
                ahead[:1] &= begin >= self._at
                found = np.flatnonzero(ahead)
                if not len(found):
                    return memoryview(b"")
                self._drop(len(self._under_way))
                self._go_to(self._number + int(found[0]), begin)
                self._ask()
            while not self._under_way[0][0] <= begin < self._under_way[0][1]:
                self._drop(1)
            first, last, data, future = self._under_way[0]
            if end >= last:
                self._under_way.popleft()
            self._ask()
        self._stored.wait(future, first, last)
        return memoryview(data)[begin - first : end - first]

    def _go_to(self, number: int, at: int = 0) -> None:
        """Go on with a range, from a place in it on."""
        self._number = number
        if number < len(self._bounds):
            self._at = max(at, int(self._bounds[number, 0]))

    def _ask(self) -> None:
        """Send requests up to the limit."""
        stored = self._stored
        while self._number < len(self._bounds) and len(self._under_way) < stored.access.concurrency:
            last = int(self._bounds[self._number, 1])
            begin, end = self._at, min(self._at + PART, last)
            if self._under_way and end - begin + sum(len(data) for _, _, data, _ in self._under_way) > _WINDOW:
                return
            data = bytearray(end - begin)
            self._under_way.append((begin, end, data, stored.fetch(begin, end, memoryview(data))))
            self._go_to(*((self._number, end) if end < last else (self._number + 1,)))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._under_way.popleft()[3].cancel()

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
