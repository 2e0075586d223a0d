"""Prefetching from stores: `Windows` keeps bytes read with headers, `Queue` requests bytes ahead."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

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
    """Bytes of an object, requested ahead of reading, by several requests at a time."""

    def __init__(self, stored: Stored, ranges: Iterable[tuple[int, int]]) -> None:
        self._stored = stored
        self._left = _parts(ranges)
        self._next = next(self._left, None)
        self._under_way: deque[tuple[int, int, bytearray, Future[Any]]] = deque()
        self._lock = Lock()

    def take(self, begin: int, end: int) -> memoryview:
        """Return bytes from `begin` on; none if they were not requested. Drops all bytes before `begin`."""
        with self._lock:
            self._ask()
            if not any(first <= begin < last for first, last, _, _ in self._under_way):
                return memoryview(b"")
            while not self._under_way[0][0] <= begin < self._under_way[0][1]:
                self._under_way.popleft()[3].cancel()
            first, last, data, future = self._under_way[0]
            if end >= last:
                self._under_way.popleft()
            self._ask()
        self._stored.wait(future, first, last)
        return memoryview(data)[begin - first : end - first]

    def _ask(self) -> None:
        """Send requests up to the limit."""
        stored = self._stored
        while self._next is not None and len(self._under_way) < stored.access.concurrency:
            begin, end = self._next
            if self._under_way and end - begin + sum(len(data) for _, _, data, _ in self._under_way) > _WINDOW:
                return
            data = bytearray(end - begin)
            self._under_way.append((begin, end, data, stored.fetch(begin, end, memoryview(data))))
            self._next = next(self._left, None)

    def __del__(self) -> None:
        for _, _, _, future in self._under_way:
            future.cancel()


def _parts(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for begin, end in ranges:
        for at in range(begin, end, PART):
            yield at, min(at + PART, end)
