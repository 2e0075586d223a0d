"""A device and its host memory: the interface `Backend`, and pinned slots, some of which the process keeps."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from _thread import LockType, allocate_lock, get_ident, start_new_thread
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weightmap.core.arguments import as_integer
from weightmap.core.native import files
from weightmap.errors import PlanError
from weightmap.plans.wants import at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray


class Change(NamedTuple):
    """A conversion on the device, from bytes as stored to elements of another type.

    Attributes
    ----------
    stored : str
        The type of the elements in the file, or the scheme of a quantised tensor.
    quantized : bool
        Whether `stored` is a scheme: "int8" names a type and a scheme.
    dtype : str
        The type of the result.
    elements : int
        Number of elements. The bytes of a scheme form a whole tensor of one dimension, as `QuantizedTensor` and
        `GgmlTensor` take them.
    block_size, scale_type
        As for `QuantizedTensor`; 0 and "" for other types.
    """

    stored: str
    quantized: bool
    dtype: str
    elements: int
    block_size: int = 0
    scale_type: str = ""


class Event(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Return when the device has done all earlier work."""


class Exchange(Protocol):
    """The ranks that load the same plan at the same time, each to its own device; all make the same calls.

    Attributes
    ----------
    rank, world_size : int
        The number of this rank, and of all ranks.
    """

    rank: int
    world_size: int

    def tell(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""

    def share(self, buffer: Any, bounds: Sequence[int]) -> None:
        """Send bytes ``bounds[rank]`` to ``bounds[rank + 1]`` of device memory to all ranks. Receive theirs."""


class Backend(ABC):
    """A device: memory, copies, and changes of types.

    `copy` and `change` may return before the work is done. The device works in the order of the calls. Any method may
    raise errors of its library.

    Attributes
    ----------
    key : hashable
        Slots pinned by one backend serve every other with an equal key.
    node : int or None
        The NUMA node nearest to the device, if known.
    pinned : bool
        Whether `pin` is useful. Otherwise slots are small and not kept.
    """

    key: Hashable
    node: int | None = None
    pinned: bool = True

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """Return device memory, aligned to 256 bytes, with undefined contents."""

    @abstractmethod
    def free(self, buffer: Any) -> None:
        """Free memory from `allocate` that was not handed out, at once, even if an object still refers to it."""

    @abstractmethod
    def pin(self, memory: NDArray[np.uint8]) -> None:
        """Register host memory, so that the device copies from it directly."""

    @abstractmethod
    def unpin(self, memory: NDArray[np.uint8]) -> None:
        """Undo `pin`."""

    @abstractmethod
    def begin(self) -> None:
        """Make later copies wait for the caller's earlier work on the device."""

    @abstractmethod
    def end(self) -> None:
        """Make the caller's later work on the device wait for the copies so far."""

    @abstractmethod
    def copy(self, memory: NDArray[np.uint8], buffer: Any, at: int) -> None:
        """Copy host memory to `buffer`, from byte `at` on."""

    @abstractmethod
    def event(self) -> Event:
        """Return the event after all work so far."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work so far."""

    @abstractmethod
    def decodes(self, scheme: str) -> bool:
        """Whether `change` decodes quantised tensors of this scheme."""

    @abstractmethod
    def change(self, source: Any, begin: int, end: int, change: Change, buffer: Any, at: int) -> None:
        """Convert bytes `begin` to `end` of a buffer to elements, and write them to another from byte `at` on."""

    @abstractmethod
    def check(self, dtype: str) -> None:
        """Raise `UnsupportedError` for a type that the device lacks."""

    @abstractmethod
    def tensor(self, buffer: Any, at: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a tensor over `buffer` from byte `at` on; a tensor of bytes for types packed below the byte."""

    @abstractmethod
    def flip(self, tensor: Any, axes: tuple[int, ...]) -> Any:
        """Return a tensor with the elements of these axes in reverse order."""


class Staging(NamedTuple):
    """The size of the staging memory, and the number of threads that fill it.

    Attributes
    ----------
    slots : int
        2 to 1,024: a slot is filled while the device copies from another.
    slot_bytes : int
        256 to 2**36. Quantised tensors whose blocks are longer than a quarter of a slot are decoded by the CPU.
    threads : int, optional
        The most threads that read at once. By default one for each CPU, up to 16; more when waiting for a disk.
    """

    slots: int = 3
    slot_bytes: int = 32 << 20
    threads: int | None = None

    def checked(self) -> Staging:
        """Return the same numbers as plain integers.

        Raises
        ------
        PlanError
            For a number out of range.
        TypeError
            For anything but integers.
        """
        threads = None if self.threads is None else at_least(1, "threads", self.threads)
        slots = _between(2, 1 << 10, "slots", self.slots)
        return Staging(slots, _between(256, 1 << 36, "slot_bytes", self.slot_bytes), threads)


def _between(low: int, high: int, what: str, value: int) -> int:
    number = as_integer(what, value)
    if not low <= number <= high:
        raise PlanError(what, field=what, actual=number, expected=f"{low:,} to {high:,}")
    return number


class Slot:
    """Host memory from which a device copies; unpinned once nothing refers to it.

    Attributes
    ----------
    memory : ndarray of uint8
    event : Event or None
        Occurs when all requested copies from the memory have ended; None without copies.
    """

    def __init__(self, backend: Backend, nbytes: int, *, pinned: bool) -> None:
        self.event: Event | None = None
        self._backend: Backend | None = None  # pinned the memory, or is about to
        self._owner = os.getpid()
        self.memory: NDArray[np.uint8] = _new_memory(nbytes)
        if backend.node is not None:
            files.prefer_node(self.memory, backend.node)  # memory of another node would be slower
        if not pinned:
            return
        self._backend = backend  # set it first: an interrupt may come after pinning, before `pin` returns
        try:
            backend.pin(self.memory)
        except Exception:
            self._backend = None
            raise

    def release(self) -> None:
        """Unpin the memory. A child process leaves that to its parent, and the end of a process to the system."""
        if self._backend is not None and self._owner == os.getpid() and not sys.is_finalizing():
            self._backend.unpin(self.memory)
        self._backend = None  # last, so that an interrupted call can be repeated

    def __del__(self) -> None:
        if self._backend is not None:
            with contextlib.suppress(Exception):  # the memory was not pinned yet, or is already unpinned
                self.release()


def _new_memory(nbytes: int) -> NDArray[np.uint8]:
    """Return memory with separate pages, which a child process finds empty.

    A page that parent and child share is copied when one of them writes to it, while the device goes on reading the old
    page. If the child lacked the pages, other memory could take their place, and would be hit when they are unmapped.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    unit = _HUGE_PAGE_BYTES if nbytes >= _HUGE_PAGE_BYTES else mmap.PAGESIZE
    room = mmap.mmap(-1, nbytes + (unit if unit == _HUGE_PAGE_BYTES else 0), **private)
    for advice in (_WIPE_ON_FORK, getattr(mmap, "MADV_HUGEPAGE", None)):
        if sys.platform == "linux" and advice is not None:
            with contextlib.suppress(OSError):
                room.madvise(advice)
    octets = np.frombuffer(room, np.uint8)
    start = -octets.ctypes.data % unit
    return octets[start : start + nbytes]


# Bytes of a huge page
_HUGE_PAGE_BYTES = 2 << 20
# Of <linux/mman.h>
_WIPE_ON_FORK = 18
# Slots that cannot be pinned shrink, down to this many bytes.
_MIN_SLOT_BYTES = 1 << 20
# Slots that are not pinned are small, because nothing overlaps with filling them.
UNPINNED = Staging(2, 4 << 20)
# Unused slots, by the key of the backend and their size.
_idle: dict[tuple[Hashable, int], list[Slot]] = {}
# Slots from which lost devices may still copy, kept for good.
_lost: list[Slot] = []
# The bytes of slots that the system pins instead, or 0, by the backend's key and a size that it refused to pin.
_pinnable: dict[tuple[Hashable, int], int] = {}
_lock = allocate_lock()


class Slots:
    """The slots of one load: taken from the pool, and given back when no copy from them is running.

    If the system refuses to pin the requested size, slots are smaller; if it refuses all sizes, they are not pinned.

    Attributes
    ----------
    staging : Staging
        Their number and size.
    """

    def __init__(self, backend: Backend, staging: Staging) -> None:
        self._slots: list[Slot] = []
        self._next = 0
        requested = (backend.key, staging.slot_bytes)
        size = _pinnable.get(requested, staging.slot_bytes) if backend.pinned else 0
        while size:
            try:
                self._take(backend, staging._replace(slot_bytes=size))
            except Exception as error:  # noqa: BLE001 - each library has errors of its own
                self._slots.clear()
                size = size // 2 if size // 2 >= _MIN_SLOT_BYTES else 0
                _pinnable[requested] = size
                if not size:
                    import logging  # noqa: PLC0415 - 6 ms, for a rare event

                    what = "memory cannot be pinned for %s (%s): loading from memory that is not, several times slower"
                    logging.getLogger("weightmap").warning(what, backend.key, error)
            else:
                return
        self._take(backend, staging._replace(slot_bytes=min(staging.slot_bytes, UNPINNED.slot_bytes)), pinned=False)

    def _take(self, backend: Backend, staging: Staging, *, pinned: bool = True) -> None:
        """Take slots from the pool, and make the missing ones."""
        self.staging = staging
        self._key = (backend.key, staging.slot_bytes)
        self._idle_limit = staging.slots if pinned else 0
        with _lock:
            idle = _idle.get(self._key, [])
            while pinned and idle and len(self._slots) < staging.slots:
                slot = idle.pop()
                if slot._owner == os.getpid():  # noqa: SLF001 - of this module
                    self._slots.append(slot)
        while len(self._slots) < staging.slots:
            self._slots.append(Slot(backend, staging.slot_bytes, pinned=pinned))

    def next(self) -> Slot:
        """Return the least recently used slot, once the device has copied its content."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        if slot.event is not None:
            slot.event.wait()
            slot.event = None
        return slot

    def give_back(self) -> None:
        """Give the slots back to the pool, after `Backend.synchronize`; it keeps at most the slots of one load."""
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.event = None
        with _lock:
            idle = _idle.setdefault(self._key, [])
            while slots and len(idle) < self._idle_limit:
                idle.append(slots.pop())
        for slot in slots:
            slot.release()

    def discard(self) -> None:
        """Keep the slots for good, after the device was lost: it may still copy from them."""
        _lost.extend(self._slots)
        self._slots = []


def release_slots() -> None:
    """Unpin and free the slots that the process keeps for the next load."""
    with _lock:
        slots = [slot for idle in _idle.values() for slot in idle]
        _idle.clear()
        _pinnable.clear()
    for slot in slots:
        slot.release()


# Seconds between checks of a `Worker`'s flags. Flags decide, because an interrupt can lose the release of a lock; locks
# only shorten the waits.
_POLL_S = 1.0


class Worker:
    """A thread that makes one call at a time. It starts with the first call, and `end` ends it."""

    def __init__(self) -> None:
        self._requested, self._answered = allocate_lock(), allocate_lock()
        self._requested.acquire()
        self._answered.acquire()
        self._call: Callable[[], object] | None = None
        self._then: Callable[[], object] | None = None
        self._error: BaseException | None = None
        self._ident: int | None = None
        self._owner = os.getpid()
        self._started = self._is_answered = self._ending = self._ended = False

    def begin(self, call: Callable[[], object]) -> None:
        """Make the thread do a call; `wait` before the next one."""
        self._call, self._is_answered = call, False
        if not self._started:
            try:
                start_new_thread(self._work, ())
            except RuntimeError:  # without a thread, `wait` makes the call
                return
            self._started = True
        _release(self._requested)

    def wait(self) -> None:
        """Return when the call is made. Raises its error."""
        if not self._started:
            self._make_call()
        while not self._is_answered:
            self._answered.acquire(timeout=_POLL_S)
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            error = None  # its traceback refers to this frame: the cycle would keep files open

    def end(self, then: Callable[[], object]) -> BaseException | None:
        """End the thread, then call `then`, in spite of interrupts; return the last interrupt.

        A running call is finished first. In the thread itself, which may collect garbage, this returns at once, and the
        thread calls `then` when it ends.
        """
        self._ending = True
        if self._ident == get_ident():
            self._then = then
            return None
        interrupt = None
        _release(self._requested)
        while self._started and not self._ended and self._owner == os.getpid():
            try:
                self._answered.acquire(timeout=_POLL_S)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                interrupt = error
        then()
        return interrupt

    def _make_call(self) -> None:
        call, self._call = self._call, None
        try:
            if call is not None:
                call()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._error = error
        self._is_answered = True

    def _work(self) -> None:
        self._ident = get_ident()
        while not self._ending:
            if not self._requested.acquire(timeout=_POLL_S):
                continue
            self._make_call()
            _release(self._answered)
        then, self._then = self._then, None
        self._ended = True
        _release(self._answered)
        if then is not None:
            then()


def _release(lock: LockType) -> None:
    """Release a lock that may already be free."""
    with contextlib.suppress(RuntimeError):
        lock.release()
