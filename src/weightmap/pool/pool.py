"""`TensorFile.pool`: tensors in the pool's own memory, within a budget, for models that are larger than memory.

A tensor, or an entry of its first dimension such as an expert, is read when it is held, and stays until others need
its room. The pool evicts the tensor with the fewest holds. It counts the holds of every tensor it has ever seen, and
halves the counts after a while, so that old favourites give way. Among equal counts it evicts the most recently used
tensor, which a loop over the model needs last.

An `Arena` has a slot of memory for each tensor; a freed slot serves the next one. `DirectReader` reads without a
mapping: the whole pages around a tensor at once, straight into its slot, and neighbours of one request in one call.

A signal's handler may raise an exception at any moment. The pool stays sound because only the dictionary of entries
matters, which changes by single assignments. Sums and the order of eviction follow from it: they are None while they
change, and are then computed again. A caller that holds or reads an entry keeps an object, to which the entry has only
a weak reference, so that an interruption leaves nothing to undo.
"""

from __future__ import annotations

import _thread
import heapq
import operator
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import numpy as np

from weightmap._messages import quoted
from weightmap.checkpoints.configuration import as_parameters
from weightmap.checkpoints.weights import Components
from weightmap.core.arguments import as_threads
from weightmap.core.bytes.memory import PerProcess, headroom
from weightmap.core.dtypes import numpy_dtype
from weightmap.core.model.internals import check_open, name_of, row_of, sources_of
from weightmap.core.model.typing import PoolStats
from weightmap.core.native import access
from weightmap.core.native.quantised import GGML_TYPES
from weightmap.errors import ClosedError, LimitError, PlanError, TensorNotFoundError
from weightmap.plans.direct import JOIN_GAP_BYTES, READ_BYTES, DirectReader, window
from weightmap.plans.pages import cached_in
from weightmap.pool.arena import Arena, slot_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from weightmap.core.bytes.geometry import Geometry
    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row

    Name = str | tuple[str, ...]
    Key = tuple[Name, int | None]
    Candidate = tuple[int, int, Key]  # count, time, key

# Holds per tensor in the pool after which all counts are halved
_HOLDS_PER_HALVING = 8
# Threads that prefetch: from files, and from stores, where they mostly wait
_FILE_THREADS, _STORE_THREADS = 4, 16
# Tensors begin at multiples of this many bytes.
_ALIGN_BYTES = 64
# Identifies this process without a system call, which would take as long as the lock of a hold.
_PROCESS = PerProcess(object)
# Seconds between a waiting thread's checks that the read still goes on
_WAIT_SECONDS = 0.05


def _is_cold(source: Source) -> bool:
    """Whether less than a tenth of a file is in the page cache, as far as the system tells."""
    there = cached_in(source, 0, source.size) if source.has_pages else None
    return there is not None and there < source.size // 10


class _Reading(NamedTuple):
    """How to make a tensor, or an entry of one, from bytes of files.

    Attributes
    ----------
    ranges : sequence of (Source, int, int)
        The ranges to read: source, begin and end.
    build : callable
        Takes an array of bytes for each range, and returns the tensor.
    nbytes : int or None
        Bytes of the result, if it has its own memory; None for a view of the bytes read.
    joined : bool
        Whether `build` instead takes one array with the bytes of all ranges.
    """

    ranges: Sequence[tuple[Source, int, int]]
    build: Callable[[list[NDArray[np.uint8]]], Any]
    nbytes: int | None = None
    joined: bool = False


class _Pin:
    """Keeps an entry held while it is alive; the holder has it."""

    __slots__ = ("__weakref__",)


class _Reader:
    """Marks entries as being read, or queued, while it is alive; the reading thread or the queue has it."""

    __slots__ = ("__weakref__", "latch", "queued")

    def __init__(self, *, queued: bool) -> None:
        self.queued: bool = queued
        self.latch: _thread.LockType = _thread.allocate_lock()  # locked while a thread reads


@dataclass(slots=True, eq=False)
class _Entry:
    """A tensor in the pool, or on its way there."""

    key: Key
    cost: int
    value_nbytes: int  # of its value, if that is not in a slot
    count: int  # of requests for it
    tick: int  # the time of the last request: negative and unique
    reader: weakref.ref[_Reader]
    prefetched: bool  # and not held yet
    pin: weakref.ref[_Pin] | None = None
    error: Exception | None = None
    value: Any = None  # keeps its slot alive

    @property
    def ready(self) -> bool:
        return self.value is not None

    @property
    def is_held(self) -> bool:
        return self.pin is not None and self.pin() is not None

    @property
    def is_read(self) -> bool:
        """Whether a thread is reading it."""
        reader = self.reader()
        return reader is not None and reader.latch.locked()

    @property
    def queued(self) -> bool:
        """Whether it waits for a thread that will read it."""
        reader = self.reader()
        return reader is not None and reader.queued


class Hold:
    """A tensor that stays in memory until the hold is left or released: ``with pool.hold(name) as tensor``."""

    __slots__ = ("_entry", "_pin")

    def __init__(self, entry: _Entry, pin: _Pin) -> None:
        self._entry, self._pin = entry, pin

    def __enter__(self) -> Any:
        entry = self._entry
        if entry is None:
            raise ClosedError("this hold was released")
        return entry.value

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.release()

    def release(self) -> None:
        """Let the tensor go; once."""
        self._entry = self._pin = None  # type: ignore[assignment] # of a hold that was released


class Pool:
    """Tensors of a model in memory, within a budget: see `TensorFile.pool`.

    Attributes
    ----------
    budget : int
        Bytes.
    direct : bool
        Whether reads leave nothing in the page cache.
    """

    def __init__(self, file: Any, budget: int, *, direct: bool | None = None, threads: int | None = None) -> None:
        check_open(file)
        self.budget: int = operator.index(budget)
        if self.budget < 1:
            raise ValueError(f"budget is {budget}, expected bytes, 1 or more")
        threads = None if threads is None else as_threads(threads)
        size = sum(source.size for source in sources_of(file))
        if direct is None:
            available = headroom().limit
            direct = available is not None and size + min(self.budget, size) > available
            direct = direct or (self.budget >= size and all(map(_is_cold, sources_of(file))))
        self.direct: bool = direct
        self._source = sources_of(file)[0]
        self._file = file
        self._threads = threads or (_STORE_THREADS if self._source.store is not None else _FILE_THREADS)
        self._process = _PROCESS.instance
        self._parameters: Any = None
        self._readers: dict[Source, DirectReader] = {}
        self._lock = threading.RLock()
        self._entries: dict[Key, _Entry] = {}
        # Bytes that entries cost, and bytes of values outside slots. None while they change: see _totals.
        self._sums: tuple[int, int] | None = (0, 0)
        # A heap with at least one element, perhaps outdated, for each entry that may be evicted. None while it changes:
        # see _candidates.
        self._waiting: list[Candidate] | None = []
        self._counts: dict[Key, int] = {}  # of entries outside the pool
        self._ticks = self._holds = 0
        self._arena = Arena()
        self._hits = self._misses = self._evictions = self._read_nbytes = 0
        self._closed = False
        self._jobs: deque[tuple[_Reader, list[tuple[_Entry, _Reading]]]] = deque()
        self._workers: set[int] = set()  # threads that empty it

    # ---------------------------------------------------------------------------------------------------- for users
    def hold(self, name: str | tuple[str, ...], index: int | None = None) -> Hold:
        """Bring a tensor into memory, and keep it there until the hold is left or released.

        Threads that ask for the same tensor at once share one read.

        Parameters
        ----------
        name : str or tuple of str
            A tensor of the model, or a parameter of `TensorFile.weights`. Several tensors are joined along the first
            dimension into one array; quantised ones are decoded.
        index : int, optional
            Only this entry of the first dimension, such as one of stacked experts. No other bytes are read if the entry
            is contiguous in the file, as in dense tensors and in blocks of GGUF. Other quantised tensors are decoded.

        Returns
        -------
        Hold
            A context manager that returns the read-only array, or the `QuantizedTensor`. The tensor does not move while
            held; afterwards the pool may read other data into its memory.

        Raises
        ------
        LimitError
            When the tensor does not fit beside held tensors.
        TensorNotFoundError
        PlanError
            When tensors to join differ in their type, or in a dimension other than the first; for an index that is not
            a whole number, or out of range.
        TruncatedError, FileChangedError
            When the file changed.
        ClosedError
            When the pool or the file is closed, and in a child process.
        """
        # A tensor in memory takes one lock and one look-up. Keys in the pool have no negative indices.
        if self._process is not _PROCESS.instance:
            self._check()
        plain = type(name) is str and (index is None or type(index) is int)
        key = (name, index) if plain else self._key(name, index)
        with self._lock:
            self._check()
            entry = self._entries.get(key)
            if entry is not None and entry.value is not None:
                self._hits += 1
                return Hold(entry, self._pinned(entry))
        return self._hold(self._key(name, index))

    def _hold(self, key: Key) -> Hold:
        """Hold a tensor that must be read, or that another thread is reading."""
        while True:
            reader = _Reader(queued=False)
            with reader.latch:
                entry, reading, pin = self._begin(key, reader)
                if reading is not None:
                    self._read([(entry, reading)])
            if reading is None:
                self._await(entry)
            while pin is not None and not entry.ready and entry.error is None and entry.is_read:
                self._await(entry)
            if entry.error is not None:
                raise entry.error
            if pin is not None and entry.value is not None:
                return Hold(entry, pin)
            # There was no room yet, or an interrupt has ended another thread's read.

    def _begin(self, key: Key, reader: _Reader) -> tuple[_Entry, _Reading | None, _Pin | None]:
        """Return an entry, the reading for this `reader`, and the pin that holds the entry.

        The reading is None if another thread reads the entry. If there is no room until another entry is read, return
        that entry, not held.
        """
        with self._lock:
            self._check()
            entry = self._entries.get(key)
            if entry is not None and not (entry.ready or entry.is_read or entry.queued):  # its reader was interrupted
                self._drop(entry)
                entry = None
            if entry is None:
                reading, cost = self._reading(key)
                first = self._make_room(cost, key)
                if first is not None:
                    return first, None, None
                entry = self._add(key, cost, reading.nbytes or 0, reader, prefetched=False)
                self._misses += 1
                return entry, reading, self._pinned(entry)
            self._hits += 1
            if entry.ready or not entry.queued:
                return entry, None, self._pinned(entry)
            reading, _ = self._reading(key)
            entry.reader = weakref.ref(reader)
            return entry, reading, self._pinned(entry)

    def _await(self, entry: _Entry) -> None:
        """Wait a short time for the thread that reads an entry, because an interrupt may have ended it."""
        reader = entry.reader()
        if not entry.ready and reader is not None and reader.latch.acquire(timeout=_WAIT_SECONDS):
            reader.latch.release()

    def prefetch(self, items: Iterable[tuple[str | tuple[str, ...], int | None] | str]) -> None:
        """Begin to read tensors in the background, as far as the budget allows; return at once.

        Neighbours in a file are read together. Tensors that do not fit beside held and prefetched ones are left out.
        Holding a tensor raises the error of its read.

        Parameters
        ----------
        items : iterable of str or (name, index)
            The arguments of `hold`.
        """
        self._check()
        keys = [self._key_of(one) for one in items]
        reader = _Reader(queued=True)
        with self._lock:
            self._check()
            queued: list[tuple[_Entry, _Reading]] = []
            for key in keys:
                if key in self._entries:
                    continue
                reading, cost = self._reading(key)
                if not self._evict_for(cost, prefetched=False):
                    continue
                queued.append((self._add(key, cost, reading.nbytes or 0, reader, prefetched=True), reading))
            for group in _neighbours(queued):
                reader = _Reader(queued=True)
                for entry, _ in group:
                    entry.reader = weakref.ref(reader)
                self._jobs.append((reader, group))
            missing = min(self._threads - len(self._workers), len(self._jobs))
        for _ in range(missing):
            try:
                # The threading module waits for the thread to begin, and cannot be interrupted safely.
                _thread.start_new_thread(self._work, ())
            except RuntimeError:  # without a thread, the hold of a tensor reads it
                break

    def _work(self) -> None:
        """Read queued entries in a thread until none is left."""
        worker = _thread.get_ident()
        try:
            while (job := self._next_job(worker)) is not None:
                reader, group = job
                with reader.latch:
                    with self._lock:
                        reader.queued = False
                        # Others were read for a hold meanwhile, or dropped.
                        group = [
                            (entry, reading)
                            for entry, reading in group
                            if entry.reader() is reader and self._entries.get(entry.key) is entry
                        ]
                    if group:
                        self._read(group)
                del job, reader, group
        finally:
            self._workers.discard(worker)

    def _next_job(self, worker: int) -> tuple[_Reader, list[tuple[_Entry, _Reading]]] | None:
        with self._lock:
            if self._jobs and (worker in self._workers or len(self._workers) < self._threads):
                self._workers.add(worker)
                return self._jobs.popleft()
            self._workers.discard(worker)
            return None

    def _shape_of(self, name: str | tuple[str, ...], index: int | None = None) -> tuple[int, ...]:
        """Return the shape of the result of `hold` for the same arguments, without reading.

        Raises
        ------
        TensorNotFoundError, PlanError, ClosedError
            As `hold`.
        """
        self._check()
        key = self._key(name, index)
        with self._lock:
            self._check()
            self._reading(key)
            shapes = [self._row(one).shape for one in ((name,) if isinstance(name, str) else name)]
        if not shapes[0]:
            return ()
        inner = shapes[0][1:]
        return inner if index is not None else (sum(shape[0] for shape in shapes), *inner)

    @property
    def stats(self) -> PoolStats:
        """The pool's activity, and its content now. Raises `ClosedError` in a child process."""
        self._check_process()
        with self._lock:
            held_nbytes = sum(entry.cost for entry in self._entries.values() if entry.is_held)
            resident, _ = self._totals()
            return PoolStats(self._hits, self._misses, self._evictions, self._read_nbytes, held_nbytes, resident)

    def close(self) -> None:
        """Free all entries that are not held. Idempotent.

        Raises
        ------
        ClosedError
            When a tensor is held: the pool is closed all the same, and held tensors stay valid until released.
        """
        if self._process is not _PROCESS.instance:
            return
        with self._lock:
            self._closed = True
            self._jobs.clear()
            held_keys = [entry.key for entry in self._entries.values() if entry.is_held]
            self._sums = self._waiting = None
            self._entries = {}
        while self._workers:  # they end after their current reads
            time.sleep(0.001)
        self._arena.trim()
        for reader in self._readers.values():
            reader.close()
        if held_keys:
            raise ClosedError(f"{_called(held_keys[0])} is held while the pool is closed", path=name_of(self._file))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pool cannot be pickled: pickle the path of its model, and open a pool there")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ClosedError:
            if kind is None:  # otherwise it would hide the first error
                raise

    def __repr__(self) -> str:
        resident = sum(entry.cost for entry in list(self._entries.values()))
        return f"<Pool of {name_of(self._file)!r}: {resident} of {self.budget} bytes>"

    # ----------------------------------------------------------------------------------------------- under the lock
    def _check(self) -> None:
        if self._process is _PROCESS.instance and not self._closed and not self._source.closed:
            return
        self._check_process()
        if self._closed:
            raise ClosedError("the pool is closed", path=name_of(self._file))
        check_open(self._file)

    def _check_process(self) -> None:
        """Raise `ClosedError` in a child process, where a thread that no longer exists may hold the lock."""
        if self._process is not _PROCESS.instance:
            what = "the pool belongs to the parent process: open one in this process"
            raise ClosedError(what, path=name_of(self._file))

    def _totals(self) -> tuple[int, int]:
        """Return the bytes of all entries, and of values outside slots."""
        if self._sums is None:
            entries = self._entries.values()
            self._sums = sum(entry.cost for entry in entries), sum(entry.value_nbytes for entry in entries)
        return self._sums

    def _add(self, key: Key, cost: int, value_nbytes: int, reader: _Reader, *, prefetched: bool) -> _Entry:
        total, total_of_values = self._totals()
        self._sums = None
        self._ticks += 1
        count = self._counts.get(key, 0)
        entry = _Entry(key, cost, value_nbytes, count, -self._ticks, weakref.ref(reader), prefetched)
        if self._waiting is not None and not prefetched:
            heapq.heappush(self._waiting, (count, entry.tick, key))
        self._entries[key] = entry
        self._counts.pop(key, None)
        self._sums = total + cost, total_of_values + value_nbytes
        return entry

    def _drop(self, entry: _Entry) -> None:
        """Forget an entry; its slot is free once the array is no longer used."""
        cost, value_nbytes = self._totals()
        self._sums = None
        if entry.count:
            self._counts[entry.key] = entry.count
        if self._entries.pop(entry.key, None) is not None:
            cost, value_nbytes = cost - entry.cost, value_nbytes - entry.value_nbytes
        self._sums = cost, value_nbytes
        entry.value = None  # the queue may still have the entry

    def _pinned(self, entry: _Entry) -> _Pin:
        """Count a hold of an entry, and return its pin. Halve all counts once in a while."""
        pin = None if entry.pin is None else entry.pin()
        if pin is None:
            pin = _Pin()
            entry.pin = weakref.ref(pin)
        entry.count += 1
        self._ticks += 1
        entry.tick = -self._ticks
        if entry.prefetched:
            if self._waiting is not None:
                heapq.heappush(self._waiting, (entry.count, entry.tick, entry.key))
            entry.prefetched = False
        self._holds += 1
        if self._holds >= _HOLDS_PER_HALVING * len(self._entries):
            self._holds = 0
            self._waiting = None
            self._counts = {key: count // 2 for key, count in self._counts.items() if count > 1}
            for other in self._entries.values():
                other.count //= 2
        return pin

    def _candidates(self) -> list[Candidate]:
        """Return the heap of entries that may be evicted; the caller must put it back."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            waiting = [(entry.count, entry.tick, entry.key) for entry in self._entries.values() if not entry.prefetched]
            heapq.heapify(waiting)
        return waiting

    def _make_room(self, cost: int, key: Key) -> _Entry | None:
        """Evict for a hold. Return an entry to wait for, if there is no room before it is read.

        Raises `LimitError` if evicting everything that is not held would not suffice.
        """
        while not self._evict_for(cost, prefetched=True):
            entries = [entry for entry in self._entries.values() if not entry.ready]
            idle = [entry for entry in entries if entry.queued or not entry.is_read]
            for entry in idle:
                self._drop(entry)
            if not idle:
                first = next((entry for entry in entries if not entry.is_held), None)
                if first is not None:  # a prefetch in progress
                    return first
                nbytes = sum(entry.cost for entry in self._entries.values() if entry.is_held)
                expected = f"at most {self.budget - nbytes}: the budget is {self.budget}, and {nbytes} are held"
                raise LimitError(f"memory for {_called(key)}", path=name_of(self._file), actual=cost, expected=expected)
        return None

    def _evict_for(self, cost: int, *, prefetched: bool) -> bool:
        """Evict until `cost` bytes fit, with `prefetched` also prefetched entries. Return whether the bytes fit."""
        if self._totals()[0] + cost <= self.budget:
            return True
        waiting, passed = self._candidates(), []
        while self._totals()[0] + cost > self.budget and waiting:
            candidate = count, tick, key = heapq.heappop(waiting)
            entry = self._entries.get(key)
            if entry is None:
                continue
            if (count, tick) != (entry.count, entry.tick):  # requested again since
                heapq.heappush(waiting, (entry.count, entry.tick, key))
            elif entry.is_held or not entry.ready:
                passed.append(candidate)
            else:
                self._evictions += 1
                self._drop(entry)
        for candidate in passed:
            heapq.heappush(waiting, candidate)
        self._waiting = waiting
        if prefetched and self._totals()[0] + cost > self.budget:  # the last requested entry is needed last
            for entry in [entry for entry in self._entries.values() if entry.prefetched and entry.ready][::-1]:
                self._evictions += 1
                self._drop(entry)
                if self._totals()[0] + cost <= self.budget:
                    break
        return self._totals()[0] + cost <= self.budget

    # ------------------------------------------------------------------------------------------------------ reading
    def _read(self, group: list[tuple[_Entry, _Reading]]) -> None:
        """Read entries together. Keep an error in its entry, and forget that entry."""
        try:
            values, nbytes = self._values(group)
        except Exception as error:  # noqa: BLE001 - raised by the hold of that entry
            if len(group) > 1:
                for one in group:
                    self._read([one])
                return
            with self._lock:
                entry = group[0][0]
                entry.error = error
                if self._entries.get(entry.key) is entry:
                    self._drop(entry)
            return
        with self._lock:
            self._read_nbytes += nbytes
            for (entry, _), value in zip(group, values, strict=True):
                if entry.value_nbytes:  # the slot is free again
                    self._sums = None
                    entry.cost = entry.value_nbytes
                entry.value = value

    def _slot(self, entry: _Entry) -> NDArray[np.uint8]:
        """Return memory for reading an entry."""
        with self._lock:
            limit = self.budget - self._totals()[1]
        return self._arena.allocate(entry.cost - entry.value_nbytes, limit)

    def _values(self, group: list[tuple[_Entry, _Reading]]) -> tuple[list[Any], int]:
        """Return the tensors of entries, and the number of bytes read for them."""
        windows: dict[DirectReader, list[tuple[int, int, memoryview]]] = {}
        slots, moves = [], []
        for entry, reading in group:
            bounds = [window(begin, end) for _, begin, end in reading.ranges]
            slot, at, to = self._slot(entry), 0, 0
            runs: list[tuple[int, int, int]] = []
            for (source, begin, end), (low, high) in zip(reading.ranges, bounds, strict=True):
                if high > low:
                    part = memoryview(slot[at : at + high - low])
                    windows.setdefault(self._reader(source), []).append((low, end, part))
                begins = at + begin - low
                if not runs or not reading.joined:
                    # Products of unaligned matrices would differ in the last bit.
                    to = begins // _ALIGN_BYTES * _ALIGN_BYTES
                runs.append((to, begins, end - begin))
                at, to = at + high - low, to + end - begin
            slots.append(slot)
            moves.append(runs)
        nbytes = sum(reader.read_windows(some) for reader, some in windows.items())
        parts = []
        for (_, reading), slot, runs in zip(group, slots, moves, strict=True):
            for to, at, size in runs:
                if to != at:
                    slot[to : to + size] = slot[at : at + size]
            if reading.joined:
                parts.append([slot[runs[0][0] : runs[-1][0] + runs[-1][2]]])
            else:
                parts.append([slot[to : to + size] for to, _, size in runs])
        values = [reading.build(arrays) for (_, reading), arrays in zip(group, parts, strict=True)]
        del slots
        for value in values:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        return values, nbytes

    def _reader(self, source: Source) -> DirectReader:
        with self._lock:
            reader = self._readers.get(source)
            if reader is None:
                reader = self._readers[source] = DirectReader(source, direct=self.direct)
        return reader

    # --------------------------------------------------------------------------------------------- what is to be read
    def _reading(self, key: Key) -> tuple[_Reading, int]:
        """Return the reading of a tensor, and the most memory that it takes. Raises for wrong names and indices."""
        name, index = key
        if isinstance(name, str):
            reading = self._alone(name, index)
        elif index is None:
            reading = _joined([self._row(one) for one in name], [self._alone(one, None) for one in name], name)
        else:
            raise PlanError("an entry of several tensors", actual=index, expected="one name, or index=None")
        windows = [window(begin, end) for _, begin, end in reading.ranges]
        return reading, slot_size(sum(high - low for low, high in windows)) + (reading.nbytes or 0)

    def _key(self, name: Name, index: int | None) -> Key:
        """Normalise a key: negative indices become positive."""
        if not isinstance(name, str):
            if not isinstance(name, (tuple, list)) or not name or not all(isinstance(one, str) for one in name):
                raise PlanError("what is held", actual=repr(name)[:100], expected="the name of a tensor, or several")
            name = tuple(name)
        if index is None:
            return name, None
        try:
            number = operator.index(index)
        except TypeError:
            number = None
        if number is None or isinstance(index, (bool, np.bool_)):
            what = f"index of tensor {quoted(name)}"
            expected = "a whole number, an entry of the first dimension: index the held array for the others"
            raise PlanError(what, actual=repr(index)[:100], expected=expected)
        if number < 0 and isinstance(name, str):
            with self._lock:
                self._check()
                shape = self._row(name).shape
            if shape and -shape[0] <= number:
                number += shape[0]
        return name, number

    def _key_of(self, one: Any) -> Key:
        """Return the key of an item of `prefetch`."""
        if isinstance(one, str):
            return one, None
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise PlanError("what is prefetched", actual=repr(one)[:100], expected="a name, or (name, index)")
        return self._key(*one)

    def _alone(self, name: str, index: int | None) -> _Reading:
        row = self._row(name)
        if index is not None:
            count = row.shape[0] if row.shape else 0
            if not -count <= index < count:
                raise PlanError(f"index {index} of tensor {quoted(name)}, whose first dimension is {count}")
            index %= count
        if isinstance(row.geometry, Components):
            return _of_pieces(row, row.geometry, index)
        return _of_row(row, index) if row.geometry is None else _of_geometry(row, row.geometry, index)

    def _row(self, name: str) -> Row:
        try:
            return row_of(self._file, name)
        except TensorNotFoundError:
            if self._parameters is None:
                self._parameters = as_parameters(self._file)
            if name not in self._parameters:
                raise
        return row_of(self._parameters, name)


def _called(key: Key) -> str:
    name, index = key
    called = f"tensor {quoted(name)}" if isinstance(name, str) else "tensors " + " and ".join(map(quoted, name))
    return called if index is None else f"entry {index} of {called}"


def _neighbours(entries: list[tuple[_Entry, _Reading]]) -> Iterable[list[tuple[_Entry, _Reading]]]:
    """Return groups of entries to read together; the group with the first requested entry comes first."""
    groups: list[list[int]] = []
    last, end, nbytes = None, 0, 0
    for number in sorted(range(len(entries)), key=lambda number: _place(entries[number][1])):
        ranges = entries[number][1].ranges
        source, begin = (ranges[0][0], ranges[0][1]) if ranges else (None, 0)
        if not groups or source is not last or begin > end + JOIN_GAP_BYTES or nbytes >= READ_BYTES:
            groups.append([])
            nbytes = 0
        groups[-1].append(number)
        nbytes += entries[number][0].cost
        last, end = source, ranges[-1][2] if ranges else 0
    return [[entries[number] for number in group] for group in sorted(groups, key=min)]


def _place(reading: _Reading) -> tuple[str, int]:
    """Return a key that sorts by file and place."""
    ranges = reading.ranges
    return (ranges[0][0].name, ranges[0][1]) if ranges else ("", 0)


def _joined(rows: list[Row], readings: list[_Reading], names: tuple[str, ...]) -> _Reading:
    """Return the reading of tensors that become one array."""
    first = rows[0]
    for row, name in zip(rows, names, strict=True):
        if not row.shape or row.dtype != first.dtype or row.shape[1:] != first.shape[1:]:
            expected = f"{first.dtype.name} {first.shape}, but for the first dimension"
            raise PlanError(
                f"tensor {quoted(name)} to be joined", actual=f"{row.dtype.name} {row.shape}", expected=expected
            )
    ranges = [one for reading in readings for one in reading.ranges]
    if all(row.geometry is None and not row.dtype.quantized and not row.dtype.packed for row in rows):
        whole = first._replace(
            shape=(sum(row.shape[0] for row in rows), *first.shape[1:]), nbytes=sum(row.nbytes for row in rows)
        )
        return _Reading(ranges, lambda parts: whole.over(parts[0]), joined=True)
    ends = list(accumulate(len(reading.ranges) for reading in readings))
    views = [(np.dtype(np.float32), row.shape) if row.dtype.quantized else row.viewed for row in rows]
    dtype, (_, *inner) = views[0]
    bounds = [0, *accumulate(shape[0] for _, shape in views)]

    def concatenated(parts: list[NDArray[np.uint8]]) -> Any:
        whole = _aligned((bounds[-1], *inner), dtype)
        for reading, end, span in zip(readings, ends, map(slice, bounds, bounds[1:]), strict=True):
            value = reading.build(parts[end - len(reading.ranges) : end])
            if isinstance(value, np.ndarray):
                whole[span] = value
            else:
                value.dequantize(out=whole[span])
        return whole

    nbytes = bounds[-1] * prod(inner) * dtype.itemsize
    return _Reading(ranges, concatenated, nbytes + sum(reading.nbytes or 0 for reading in readings))


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialised array with the alignment of a slot."""
    return access.aligned(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def _copied(values: Any) -> NDArray[Any]:
    """Return a copy of decoded values with the alignment of a slot."""
    copy = _aligned(values.shape, values.dtype)
    copy[...] = values
    return copy


def _of_row(row: Row, index: int | None) -> _Reading:
    """Return the reading of a tensor whose elements follow one another."""
    if index is None:
        return _Reading([(row.source, row.offset, row.offset + row.nbytes)], lambda parts: row.over(parts[0]))
    if not row.dtype.quantized:
        dtype, shape = row.viewed
        each = prod(shape[1:]) * dtype.itemsize
    elif len(row.shape) > 1 and (ggml := GGML_TYPES.get(row.dtype.name)) and not prod(row.shape[1:]) % ggml.block_size:
        each = row.nbytes // row.shape[0]
    else:
        whole = [(row.source, row.offset, row.offset + row.nbytes)]
        return _Reading(whole, lambda parts: _copied(row.over(parts[0])[index]), 4 * prod(row.shape[1:]))
    one = row._replace(shape=row.viewed[1][1:] if row.dtype.packed else row.shape[1:], nbytes=each)
    begin = row.offset + index * each
    return _Reading([(row.source, begin, begin + each)], lambda parts: one.over(parts[0]))


def _of_geometry(row: Row, geometry: Geometry, index: int | None) -> _Reading:
    """Return the reading of a tensor with a geometry: strided, deflated or decoded."""
    dtype, shape = row.viewed
    axes: list[Any] = [(0, 1, size, True) for size in shape]
    if index is not None:
        axes[0] = (index, 1, 1, False)
        shape = shape[1:]
    begin, end = geometry.extent(row, axes)
    nbytes = prod(shape) * dtype.itemsize

    def selected(parts: list[NDArray[np.uint8]]) -> Any:
        return _copied(geometry.part(row, axes, parts[0])).reshape(shape)

    return _Reading([(row.source, begin, end)], selected, nbytes)


def _of_pieces(row: Row, pieces: Components, index: int | None) -> _Reading:
    """Return the reading of a parameter of several tensors; an entry of the first dimension is decoded."""
    rows = pieces.rows
    if any(piece.geometry is not None for _, piece in rows.values()):
        raise PlanError(f"parameter of {quoted(next(iter(rows.values()))[0])}", expected="pieces that are not deflated")
    if index is None:
        ranges = [(piece.source, piece.offset, piece.offset + piece.nbytes) for _, piece in rows.values()]

        def over(parts: list[NDArray[np.uint8]]) -> Any:
            arrays = [piece.over(octets) for (_, piece), octets in zip(rows.values(), parts, strict=True)]
            for array in arrays:
                array.flags.writeable = False
            named = zip(rows.items(), arrays, strict=True)
            return pieces.over({role: (name, array) for (role, (name, _)), array in named})

        return _Reading(ranges, over)
    coding = pieces.coding
    low, high = coding.around(index, index + 1)
    cut = coding.cut(low, high)
    ranges, shapes = [], []
    for role, (_, piece) in rows.items():
        if role not in cut:
            continue
        begin, size, part = piece.offset, piece.nbytes, cut[role]
        shape, selection = piece.shape, part
        if isinstance(part, slice) and part.step is None and shape:
            first, last, _ = part.indices(shape[0])
            each = size // shape[0]
            begin, size = begin + first * each, (last - first) * each
            shape, selection = (last - first, *shape[1:]), None
        ranges.append((piece.source, begin, begin + size))
        shapes.append((role, piece, shape, selection))

    def decoded(parts: list[NDArray[np.uint8]]) -> Any:
        arrays = {}
        for (role, piece, shape, selection), octets in zip(shapes, parts, strict=True):
            array = piece._replace(shape=shape, nbytes=len(octets)).over(octets)
            arrays[role] = array if selection is None else array[selection]
        return _copied(coding.rows(arrays, low, high, numpy_dtype(pieces.model_dtype))[index - low])

    return _Reading(ranges, decoded, prod(row.shape[1:]) * numpy_dtype(pieces.model_dtype).itemsize)
