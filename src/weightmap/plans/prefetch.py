"""Brings pages of mappings into memory in the background.

One thread serves the whole process, first come, first served, and ends when its queue is empty: a thousand shards need
one thread, and a program that forks later has none. Between two pieces the thread holds no reference to the mapping, so
closing the last user of a mapping also cancels its remaining work.
"""

from __future__ import annotations

import _thread
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from weightmap.core.bytes.process import PerProcess
from weightmap.core.native import access
from weightmap.core.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Iterable

    # The id of a mapping, its ranges, and whether it is advised as "random".
    Key = tuple[int, tuple[Range, ...], bool]

# Bytes per call: a few milliseconds from the page cache, so the thread rarely waits for the GIL; a fraction of a
# second from a disk.
PIECE_BYTES = 32 << 20
# Closer ranges are merged: reading the pages between them costs less than another call.
_GAP_BYTES = 1 << 16


class _Worker:
    """A queue of ranges to bring in, and the thread that empties it."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        # The entry being worked on is the first and stays until it is done, so asking for it again adds nothing.
        self._queue: OrderedDict[Key, weakref.ref[Any]] = OrderedDict()
        self._busy = False

    def add(self, memory: Any, ranges: tuple[Range, ...], *, scattered: bool) -> None:
        """Queue ranges of a mapping; start the thread if it is not running."""
        key = (id(memory), ranges, scattered)
        with self._lock:
            queued = self._queue.get(key)
            if queued is not None and queued() is memory:
                return
            self._queue[key] = weakref.ref(memory)
            if self._busy:
                return
            self._busy = True
        try:
            # The threading module takes milliseconds to import and waits for the thread to begin.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:  # no thread to be had: give the kernel advice instead, which returns at once
            with self._lock:
                self._busy = False
                self._queue.clear()
            for start, stop in ranges:
                access.will_need(memory, start, stop - start)

    def _work(self) -> None:
        try:
            while (first := self._first()) is not None:
                key, memory = first
                _, ranges, scattered = key
                for start, stop in ranges:
                    while start < stop and _populate(memory, start, stop, scattered=scattered):
                        start += PIECE_BYTES  # noqa: PLW2901 - piece by piece
                self._done(key, memory)
        except BaseException:
            self._busy = False
            raise

    def _first(self) -> tuple[Key, weakref.ref[Any]] | None:
        with self._lock:
            for first in self._queue.items():
                return first
            self._busy = False  # under the lock: the next `add` starts a thread
        return None

    def _done(self, key: Key, memory: weakref.ref[Any]) -> None:
        with self._lock:
            if self._queue.get(key) is memory:  # and not a newer mapping with the same id
                del self._queue[key]


def _populate(memory: weakref.ref[Any], start: int, stop: int, *, scattered: bool) -> bool:
    """Bring in one piece. Return False when the mapping is gone or the file became shorter."""
    mapped = memory()
    return (
        mapped is not None and access.populate(mapped, start, min(PIECE_BYTES, stop - start), scattered=scattered) == 0
    )


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sort ranges that are not empty, and merge neighbours."""
    merged: list[Range] = []
    for begin, end in sorted(ranges):
        if begin == end:
            continue
        if merged and begin <= merged[-1].end + _GAP_BYTES:
            merged[-1] = Range(merged[-1].begin, max(merged[-1].end, end))
        else:
            merged.append(Range(begin, end))
    return tuple(merged)


_worker = PerProcess(_Worker)


def prefetch(memory: Any, ranges: Iterable[Range], *, scattered: bool) -> None:
    """Bring ranges of a mapping into memory in the background; return at once.

    `scattered` means that the mapping is advised as "random": the kernel then reads nothing ahead by itself.
    """
    merged = _merged(ranges)
    if merged:
        _worker.own.add(memory, merged, scattered=scattered)
