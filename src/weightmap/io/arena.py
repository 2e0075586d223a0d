"""`Arena`: memory for many arrays of different sizes, which takes no more pages than it is allowed.

Arrays are runs of whole pages in segments of address space. A run is free again when nothing refers to its array any
more; its pages stay for the next array, as far as that is allowed, and go back to the system otherwise. So what lies
free between arrays of other sizes costs addresses and no memory.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import weakref
from bisect import bisect_left, insort
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Place = tuple[int, int]  # number of a segment, offset there

# Bytes of addresses that are taken at once, and of a huge page. A read past the page cache looks up every page: into
# huge ones it takes a fifth of the processor's time.
_SEGMENT = 64 << 20
_HUGE = 2 << 20
# Virtual machines may give free huge pages back to their host. The first touch of one takes 4 to 6 ms then instead of
# 0.1, while memory that is free in smaller pieces is still there. Where pages are not read to again and again, the
# first of so many segments tells whether they have huge pages: if touching one takes no more nanoseconds.
_ALIKE, _DEAR = 4, 1_000_000
# Memory of this process alone: by default it would be shared with children.
_PRIVATE: dict[str, Any] = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
_GIVE_BACK = getattr(mmap, "MADV_DONTNEED", None)


class _Runs:
    """Free runs by their size, and by where they begin and end."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.sizes: list[tuple[int, Place]] = []  # sorted
        self._begins: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}

    def add(self, place: Place, size: int) -> None:
        """Add a run, joined to those beside it."""
        segment, begin = place
        if (before := self.before(place)) is not None:
            size += self.remove((segment, before))
            begin = before
        if (after := (segment, begin + size)) in self._begins:
            size += self.remove(after)
        insort(self.sizes, (size, (segment, begin)))
        self._begins[segment, begin] = size
        self._ends[segment, begin + size] = begin
        self.nbytes += size

    def remove(self, place: Place) -> int:
        """Remove a run, and return its size."""
        size = self._begins.pop(place)
        del self._ends[place[0], place[1] + size]
        del self.sizes[bisect_left(self.sizes, (size, place))]
        self.nbytes -= size
        return size

    def before(self, place: Place) -> int | None:
        """Return where the run begins that ends at a place."""
        return self._ends.get(place)

    def fitting(self, nbytes: int) -> Place | None:
        """Return the smallest run of at least so many bytes."""
        at = bisect_left(self.sizes, (nbytes,))
        return self.sizes[at][1] if at < len(self.sizes) else None


class Arena:
    """Arrays of whole pages. Many threads may use it at once.

    Parameters
    ----------
    huge : bool
        Whether to ask for huge pages although the first touch of one is dear.
    """

    def __init__(self, *, huge: bool) -> None:
        self._page = _HUGE if hasattr(mmap, "MADV_HUGEPAGE") else mmap.PAGESIZE
        self._huge, self._dear = huge, False
        self._lock = threading.Lock()
        self._segments: list[tuple[mmap.mmap, int]] = []  # with where the first huge page begins
        self._arrays: dict[Place, weakref.ref[Any]] = {}  # with a callback: that of a dead reference is never called
        self._returned: deque[tuple[Place, int]] = deque()  # runs whose array is gone; a callback may take no lock
        self._empty, self._paged = _Runs(), _Runs()  # without pages, and with all of them
        self._used = 0

    @property
    def nbytes(self) -> int:
        """Memory that it takes at most: pages of arrays, and of free runs that keep theirs."""
        with self._lock:
            self._collect()
            return self._used + self._paged.nbytes

    def allocate(self, nbytes: int, spare: int) -> NDArray[np.uint8]:
        """Return an array of bytes of any value.

        Parameters
        ----------
        nbytes : int
            A multiple of the size of a page.
        spare : int
            Bytes that free runs may keep then.

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
            memory, first = self._segments[place[0]]
            begin = first + place[1]
            array = np.frombuffer(memoryview(memory)[begin : begin + nbytes], np.uint8)
            if self._paged.nbytes > spare:
                array[-1] = 0  # the rest of its huge page is given back, so it must be there
                self._give_back(spare)
            returned = self._returned
            self._arrays[place] = weakref.ref(array, lambda _: returned.append((place, nbytes)))
        return array

    def trim(self) -> None:
        """Give the pages of all free runs back."""
        with self._lock:
            self._collect()
            self._give_back(0)

    # ----------------------------------------------------------------------------------------------- under the lock
    def _collect(self) -> None:
        """Make runs free whose arrays are gone."""
        while self._returned:
            place, nbytes = self._returned.popleft()
            del self._arrays[place]
            self._used -= nbytes
            self._paged.add(place, nbytes)

    def _take(self, nbytes: int) -> Place:
        """Remove a run from the free ones: one with pages, if there is one that is large enough."""
        if (place := self._paged.fitting(nbytes)) is not None:
            if rest := self._paged.remove(place) - nbytes:
                self._paged.add((place[0], place[1] + nbytes), rest)
            return place
        place = self._empty.fitting(nbytes)
        if place is None:
            size = -(-max(_SEGMENT, nbytes) // _HUGE) * _HUGE
            place = len(self._segments), 0
            self._segments.append(self._segment(size))
            self._empty.add(place, size)
        segment, begin = place
        stop = begin + self._empty.remove(place)
        if (before := self._paged.before(place)) is not None:  # the rest of the last huge page
            self._paged.remove((segment, before))
            begin = before
        end = begin + nbytes
        # The rest of a huge page gets its pages with the array.
        paged = min(-(-end // self._page) * self._page, stop)
        if paged > end:
            self._paged.add((segment, end), paged - end)
        if stop > paged:
            self._empty.add((segment, paged), stop - paged)
        return segment, begin

    def _give_back(self, spare: int) -> None:
        """Give pages back until free runs have at most so many bytes of them."""
        while (excess := self._paged.nbytes - max(spare, 0)) > 0:
            size, place = self._paged.sizes[-1]
            kept = max(size - excess, 0) // mmap.PAGESIZE * mmap.PAGESIZE
            self._paged.remove(place)
            memory, first = self._segments[place[0]]
            if _GIVE_BACK is not None:
                with suppress(OSError):  # of pages that are locked, which nobody asked for
                    memory.madvise(_GIVE_BACK, first + place[1] + kept, size - kept)
            if kept:
                self._paged.add(place, kept)
            self._empty.add((place[0], place[1] + kept), size - kept)

    def _segment(self, size: int) -> tuple[mmap.mmap, int]:
        """Return memory, and where its first page begins."""
        memory = mmap.mmap(-1, size + self._page, **_PRIVATE)
        first = -np.frombuffer(memory, np.uint8).ctypes.data % self._page
        if self._page > mmap.PAGESIZE:
            with suppress(OSError):  # a system without them
                memory.madvise(mmap.MADV_HUGEPAGE)
                if not self._huge and len(self._segments) % _ALIKE == 0:
                    begin = time.thread_time_ns()
                    memory[first] = 0
                    self._dear = time.thread_time_ns() - begin > _DEAR
                if self._dear:
                    memory.madvise(mmap.MADV_NOHUGEPAGE)
        return memory, first
