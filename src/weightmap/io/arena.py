"""`Arena`: memory for many arrays of different sizes, which takes no more pages than it is allowed.

Arrays are runs of whole pages in segments of address space. A run is free again when nothing refers to its array any
more; its pages stay for the next array, as far as that is allowed, and go back to the system otherwise. So what lies
free between arrays of other sizes costs addresses and no memory.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Place = tuple[int, int]  # number of a segment, offset there

# Bytes of addresses that are taken at once.
_SEGMENT = 64 << 20
# Memory of this process alone: by default it would be shared with children.
_PRIVATE: dict[str, Any] = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
_GIVE_BACK = getattr(mmap, "MADV_DONTNEED", None)


class Arena:
    """Arrays of whole pages. Many threads may use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[mmap.mmap] = []
        self._arrays: dict[Place, weakref.ref[Any]] = {}  # with a callback: that of a dead reference is never called
        self._returned: deque[tuple[Place, int]] = deque()  # runs whose array is gone; a callback may take no lock
        # Free runs: by size, by where they begin (with size, and how much of it has pages), and by where they end.
        self._sizes: list[tuple[int, Place]] = []
        self._begins: dict[Place, tuple[int, int]] = {}
        self._ends: dict[Place, int] = {}
        self._paged: dict[Place, None] = {}  # those with pages, the oldest first
        self._used = self._free = 0

    @property
    def nbytes(self) -> int:
        """Memory that it takes at most: pages of arrays, and of free runs that keep theirs."""
        with self._lock:
            self._collect()
            return self._used + self._free

    def allocate(self, nbytes: int, most: int) -> NDArray[np.uint8]:
        """Return an array of bytes of any value.

        Parameters
        ----------
        nbytes : int
            A multiple of the size of a page.
        most : int
            What the arena may take with it. Arrays that are in use may make it more; then no free run keeps pages.

        Raises
        ------
        OSError
            When the system has no addresses or no memory left.
        """
        if not nbytes:
            return np.empty(0, np.uint8)
        with self._lock:
            self._collect()
            place = self._take(nbytes)
            self._used += nbytes
            self._give_back(most)
            segment, offset = place
            array = np.frombuffer(memoryview(self._segments[segment])[offset : offset + nbytes], np.uint8)
            returned = self._returned
            self._arrays[place] = weakref.ref(array, lambda _: returned.append((place, nbytes)))
        return array

    def trim(self, most: int = 0) -> None:
        """Give pages of free runs back until the arena takes at most so many bytes."""
        with self._lock:
            self._collect()
            self._give_back(most)

    # ----------------------------------------------------------------------------------------------- under the lock
    def _collect(self) -> None:
        """Make runs free whose arrays are gone."""
        while self._returned:
            place, nbytes = self._returned.popleft()
            del self._arrays[place]
            self._used -= nbytes
            self._put(place, nbytes, nbytes)

    def _take(self, nbytes: int) -> Place:
        """Remove a run from the free ones: the smallest that is large enough, or of a new segment."""
        at = bisect_left(self._sizes, (nbytes,))
        if at == len(self._sizes):
            size = max(_SEGMENT, nbytes)
            self._segments.append(mmap.mmap(-1, size, **_PRIVATE))
            self._put((len(self._segments) - 1, 0), size, 0)
            at = len(self._sizes) - 1
        place = self._sizes[at][1]
        size, paged = self._remove(place)
        if size > nbytes:
            self._put((place[0], place[1] + nbytes), size - nbytes, min(paged, size - nbytes))
        return place

    def _put(self, place: Place, size: int, paged: int) -> None:
        """Add a free run, joined to those beside it."""
        segment, begin = place
        if (before := self._ends.get(place)) is not None:
            more, pages = self._remove((segment, before))
            begin, size, paged = before, size + more, paged + pages
        if (after := (segment, begin + size)) in self._begins:
            more, pages = self._remove(after)
            size, paged = size + more, paged + pages
        place = segment, begin
        insort(self._sizes, (size, place))
        self._begins[place] = size, paged
        self._ends[segment, begin + size] = begin
        self._free += paged
        if paged:
            self._paged[place] = None

    def _remove(self, place: Place) -> tuple[int, int]:
        size, paged = self._begins.pop(place)
        del self._ends[place[0], place[1] + size]
        del self._sizes[bisect_left(self._sizes, (size, place))]
        self._paged.pop(place, None)
        self._free -= paged
        return size, paged

    def _give_back(self, most: int) -> None:
        while self._free and self._used + self._free > most:
            place = next(iter(self._paged))
            size, paged = self._begins[place]
            if _GIVE_BACK is not None:
                with suppress(OSError):  # of pages that are locked, which nobody asked for
                    self._segments[place[0]].madvise(_GIVE_BACK, place[1], size)
            self._begins[place] = size, 0
            self._free -= paged
            del self._paged[place]
