"""`Arena`: memory for many arrays of a few sizes, within a limit.

Each size class has a free list of slots, which are cut from segments of address space and never joined or divided. A
slot is free once nothing refers to its array. Up to the limit, free slots keep their pages for the next array of their
size; above the limit, pages go back to the system, and a slot costs only addresses.

All other state follows from the live arrays, and is computed again after an interruption.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Bytes of addresses of one mapping, and of a huge page.
_SEGMENT_BYTES = 64 << 20
_HUGE_PAGE_BYTES = 2 << 20
# Private memory; by default, child processes would share it.
_PRIVATE: dict[str, Any] = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
# Advice for Linux about memory; other systems lack some or all of it.
_DONTNEED, _HUGEPAGE, _NOHUGEPAGE = (
    getattr(mmap, f"MADV_{name}", None) for name in ("DONTNEED", "HUGEPAGE", "NOHUGEPAGE")
)


# A size class is a multiple of a page, and of a 64th of the next power of two, so that similar tensors share slots.
_STEPS = 64


def slot_size(nbytes: int) -> int:
    """Return the bytes of a slot for an array of `nbytes`."""
    step = max(mmap.PAGESIZE, (1 << nbytes.bit_length()) // 2 // _STEPS)
    return -(-nbytes // step) * step


class _Slot:
    """A place for an array in a segment."""

    __slots__ = ("begin", "memory", "nbytes", "paged")

    def __init__(self, memory: mmap.mmap, begin: int, nbytes: int) -> None:
        self.memory, self.begin, self.nbytes = memory, begin, nbytes
        self.paged = True  # whether it has pages, as far as known


class _Tenant(weakref.ref[Any]):
    """A reference to the array in a slot. Its callback is in C, so that a signal's handler cannot end it halfway."""

    __slots__ = ("slot",)

    slot: _Slot


class Arena:
    """Arrays of whole pages. Many threads may use it at once.

    It asks for huge pages: direct reads into them take a fifth of the processor time, and fewer faults.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All slots; their arrays follow.
        self._slots: list[_Slot] = []
        self._tenants: dict[_Slot, _Tenant] = {}
        self._returned: deque[_Tenant] = deque()  # tenants without array whose slot is not counted as free yet
        # Derived from these: see _settle.
        self._settled = True
        self._used = self._idle = 0  # bytes of slots with an array, and of free slots with pages
        self._paged: dict[int, list[_Slot]] = {}
        self._bare: dict[int, list[_Slot]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of pages of arrays, and of free slots that keep their pages."""
        with self._lock:
            self._settle()
            return self._used + self._idle

    def allocate(self, nbytes: int, limit: int) -> NDArray[np.uint8]:
        """Return an array of bytes of any value.

        Parameters
        ----------
        nbytes : int
            A multiple of the size of a page; see `slot_size`.
        limit : int
            Bytes that arrays and free slots with pages may take together; above it, free slots give pages back.

        Raises
        ------
        OSError
            When the system has no addresses or no memory left.
        """
        if not nbytes:
            return np.empty(0, np.uint8)
        with self._lock:
            self._settle()
            self._settled = False
            slot = self._take(nbytes)
            array = np.frombuffer(memoryview(slot.memory)[slot.begin : slot.begin + nbytes], np.uint8)
            tenant = _Tenant(array, self._returned.append)
            tenant.slot = slot
            self._tenants[slot] = tenant
            self._used += nbytes
            self._give_back(limit - self._used)
            self._settled = True
        return array

    def trim(self) -> None:
        """Give the pages of all free slots back."""
        with self._lock:
            self._settle()
            self._settled = False
            self._give_back(0)
            self._settled = True

    # ----------------------------------------------------------------------------------------------- under the lock
    def _settle(self) -> None:
        """Free the slots whose arrays are gone; after an interruption, compute the derived state again."""
        if not self._settled:
            self._returned.clear()
            self._tenants = {slot: tenant for slot, tenant in self._tenants.items() if tenant() is not None}
            self._used = sum(slot.nbytes for slot in self._tenants)
            self._paged, self._bare, self._idle = {}, {}, 0
            for slot in self._slots:
                if slot not in self._tenants:
                    self._free(slot)
            self._settled = True
        while self._returned:
            self._settled = False
            tenant = self._returned.popleft()
            if self._tenants.get(tenant.slot) is tenant:  # otherwise noticed above
                del self._tenants[tenant.slot]
                self._used -= tenant.slot.nbytes
                self._free(tenant.slot)
            self._settled = True

    def _free(self, slot: _Slot) -> None:
        (self._paged if slot.paged else self._bare).setdefault(slot.nbytes, []).append(slot)
        self._idle += slot.nbytes if slot.paged else 0

    def _take(self, nbytes: int) -> _Slot:
        """Remove a slot from the free list, one with pages if possible."""
        if slots := self._paged.get(nbytes):
            self._idle -= nbytes
            return slots.pop()
        if slots := self._bare.get(nbytes):
            slot = slots.pop()
            slot.paged = True
            _advise(slot.memory, _HUGEPAGE, slot.begin, nbytes)
            return slot
        slot = self._cut(nbytes)
        self._slots.append(slot)
        return slot

    def _cut(self, nbytes: int) -> _Slot:
        """Return a new slot, after the last one or in a new segment."""
        if self._slots:
            last = self._slots[-1]
            end = last.begin + last.nbytes
            if end + nbytes <= len(last.memory):
                return _Slot(last.memory, end, nbytes)
            _drop_pages(last.memory, end, len(last.memory) - end)  # the end of a huge page
        size = (-(-max(_SEGMENT_BYTES, nbytes) // _HUGE_PAGE_BYTES) + 1) * _HUGE_PAGE_BYTES
        memory = mmap.mmap(-1, size, **_PRIVATE)
        _advise(memory, _HUGEPAGE, 0, size)
        return _Slot(memory, -np.frombuffer(memory, np.uint8).ctypes.data % _HUGE_PAGE_BYTES, nbytes)

    def _give_back(self, limit: int) -> None:
        """Give pages back, from the largest slots first, until free slots keep at most `limit` bytes."""
        for size in sorted(self._paged, reverse=True):
            slots = self._paged[size]
            while slots and self._idle > max(limit, 0):
                _drop_pages(slots[-1].memory, slots[-1].begin, size)
                slots[-1].paged = False
                self._bare.setdefault(size, []).append(slots.pop())
                self._idle -= size


def _drop_pages(memory: mmap.mmap, begin: int, nbytes: int) -> None:
    _advise(memory, _DONTNEED, begin, nbytes)
    # Otherwise Linux would make huge pages of it again, together with its neighbours in use.
    _advise(memory, _NOHUGEPAGE, begin, nbytes)


def _advise(memory: mmap.mmap, advice: int | None, begin: int, nbytes: int) -> None:
    if advice is not None and nbytes:
        with suppress(OSError):  # locked pages, or a system without huge pages
            memory.madvise(advice, begin, nbytes)
