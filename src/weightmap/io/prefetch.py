"""Bringing pages of mappings into memory in the background. Used by weightmap.io.source.

One thread for the whole process does it, in the order of asking, and ends when there is nothing left to do: a thousand
shards are not a thousand threads, and a program that forks later is not one with threads. Between two pieces of work
the thread holds no mapping, so one that nobody uses any more is let go of, and the rest of the work with it.
"""

from __future__ import annotations

import _thread
import os
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from weightmap import kernels

if TYPE_CHECKING:
    from collections.abc import Iterable

    # Which mapping, by its id, which ranges of it, as (start, stop), and whether it is advised as "random".
    Key = tuple[int, tuple[tuple[int, int], ...], bool]

__all__ = ["prefetch"]

# What is brought in at once: some milliseconds of work when it comes from the page cache, so that the thread waits for
# the interpreter rarely, and a fraction of a second when it comes from a disk.
PIECE = 32 << 20
# Ranges closer to each other than this are one: the pages between them cost less than another call.
_GAP = 1 << 16


class _Worker:
    """The work that is left, and the thread that does it while there is any."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        # What is being worked on is the first, and stays until it is done: asking for it again changes nothing.
        self._wanted: OrderedDict[Key, weakref.ref[Any]] = OrderedDict()
        self._busy = False

    def add(self, memory: Any, ranges: tuple[tuple[int, int], ...], *, scattered: bool) -> None:
        """Put ranges of a mapping in line. Starts the thread when there is none."""
        key = (id(memory), ranges, scattered)
        with self._lock:
            known = self._wanted.get(key)
            if known is not None and known() is memory:
                return
            self._wanted[key] = weakref.ref(memory)
            if self._busy:
                return
            self._busy = True
        try:
            # Not by the threading module, which takes milliseconds to import and waits for the thread to begin.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:  # no more threads, or none allowed here: then only advice, which returns at once
            with self._lock:
                self._busy = False
                self._wanted.clear()
            for start, stop in ranges:
                kernels.will_need(memory, start, stop - start)

    def _work(self) -> None:
        try:
            while (first := self._first()) is not None:
                key, memory = first
                _, ranges, scattered = key
                for start, stop in ranges:
                    while start < stop and _populate(memory, start, stop, scattered=scattered):
                        start += PIECE  # noqa: PLW2901 - piece by piece
                self._done(key, memory)
        except BaseException:
            self._busy = False
            raise

    def _first(self) -> tuple[Key, weakref.ref[Any]] | None:
        with self._lock:
            for first in self._wanted.items():
                return first
            self._busy = False  # under the lock: whoever adds now starts the next thread
        return None

    def _done(self, key: Key, memory: weakref.ref[Any]) -> None:
        with self._lock:
            if self._wanted.get(key) is memory:  # and not a new mapping at the same place
                del self._wanted[key]


def _populate(memory: weakref.ref[Any], start: int, stop: int, *, scattered: bool) -> bool:
    """Bring in one piece. Whether it is worth going on: not when the mapping is gone, or the file became shorter."""
    mapped = memory()
    return mapped is not None and kernels.populate(mapped, start, min(PIECE, stop - start), scattered=scattered) == 0


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of ranges given as (offset, bytes), in order, those that lie close together as one."""
    merged: list[tuple[int, int]] = []
    for offset, nbytes in sorted(ranges):
        if not nbytes:
            continue
        if merged and offset <= merged[-1][1] + _GAP:
            merged[-1] = (merged[-1][0], max(merged[-1][1], offset + nbytes))
        else:
            merged.append((offset, offset + nbytes))
    return tuple(merged)


_worker = _Worker()


def _renew() -> None:
    global _worker  # noqa: PLW0603 - there is one a process
    _worker = _Worker()


# A child has neither the thread nor, maybe, the lock in a state that anybody would ever change.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def prefetch(memory: Any, ranges: Iterable[tuple[int, int]], *, scattered: bool) -> None:
    """Bring these ranges (offset, bytes) of a mapping into memory, in the background; return at once.

    `scattered` says that the mapping is advised as "random", so that the kernel reads nothing ahead by itself.
    """
    merged = _merged(ranges)
    if merged:
        _worker.add(memory, merged, scattered=scattered)
