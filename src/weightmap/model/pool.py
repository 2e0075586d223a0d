"""`TensorFile.pool`: tensors in memory of their own, within a budget, for models that are larger than memory.

A tensor, or an entry of its first dimension such as an expert, is read when it is held, and stays until others need
its room. What was asked for least often is evicted: counts of all that was ever asked for are kept, and halved after a
while, so that yesterday's favourites give way. Of equal counts the one used last goes, since whoever goes round a model
needs it again last.

Memory is that of an `Arena`: a slot of whole pages for each tensor, and of an evicted one the pages serve the next.
Reads are those of `DirectReader`, never of a mapping: of the whole pages around a tensor at once, straight into its
slot, and of neighbours that were asked for together in one call.
"""

from __future__ import annotations

import heapq
import operator
import threading
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.arguments import as_threads
from weightmap.dtypes import GGML_SCHEMES, numpy_dtype
from weightmap.errors import ClosedError, LimitError, PlanError, TensorNotFoundError, quoted
from weightmap.io.arena import Arena
from weightmap.io.direct import CLOSE, PIECE, DirectReader, window
from weightmap.io.memory import headroom
from weightmap.io.pages import cached_in
from weightmap.io.process import PerProcess
from weightmap.model.parts import check_open, name_of, row_of, sources_of
from weightmap.model.weights import Pieces, as_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from weightmap.index.row import Row
    from weightmap.io.source import Source

    Name = str | tuple[str, ...]
    Key = tuple[Name, int | None]

# Counts are halved when the tensors in the pool were asked for so often, on average.
_PERIOD = 8
# What is prefetched is read by so many threads, and requested from a store by so many, each of which waits for answers.
_THREADS, _REQUESTS = 4, 16
# Tensors begin at multiples of so many bytes.
_LINE = 64
# The heap of what may be evicted is made anew when it has so many times the entries that it needs.
_OUTDATED = 4
# A system call for each hold would take as long as its lock.
_PROCESS = PerProcess(object)
# More than any count: what was prefetched and not held yet is needed soon.
_SOON = 1 << 62


def _is_cold(source: Source) -> bool:
    """Whether less than a tenth of a file is in the page cache, as far as the system tells."""
    there = cached_in(source, 0, source.size) if source.has_pages else None
    return there is not None and there < source.size // 10


class PoolStats(NamedTuple):
    """What a pool did, and what it has.

    Attributes
    ----------
    hits, misses : int
        Holds that found their tensor in memory, or on its way there, and those that read it.
    evictions : int
    read_nbytes : int
        Bytes read from files.
    held_nbytes, resident_nbytes : int
        Memory of tensors that are held now, and of all, in bytes.
    """

    hits: int
    misses: int
    evictions: int
    read_nbytes: int
    held_nbytes: int
    resident_nbytes: int


class _Reading(NamedTuple):
    """How a tensor, or an entry of one, is made of bytes of files.

    Attributes
    ----------
    ranges : sequence of (Source, int, int)
        What to read: source, begin and end.
    made : callable
        Takes an array of bytes for each range, and returns the tensor.
    nbytes : int or None
        Bytes of the result, if it is in memory of its own; None for a view of what was read.
    joined : bool
        Whether `made` takes one array of the bytes of all ranges instead.
    """

    ranges: Sequence[tuple[Source, int, int]]
    made: Callable[[list[NDArray[np.uint8]]], Any]
    nbytes: int | None = None
    joined: bool = False


class _Entry:
    """A tensor in the pool, or on its way there."""

    __slots__ = ("allocated", "cost", "count", "error", "holds", "key", "made", "ready", "stamp", "tick", "value")

    key: Key
    cost: int
    made: int
    holds: int
    count: int
    ready: bool
    allocated: bool

    def __init__(self, key: Key, cost: int, made: int, count: int) -> None:
        self.key, self.cost, self.made = key, cost, made  # `made`: bytes of its value, if that is not in a slot
        self.holds, self.count = 0, count  # now, and how often it was asked for
        self.ready = self.allocated = False
        self.error: BaseException | None = None
        self.tick: int = 0  # when it was let go
        self.stamp: tuple[int, int] | None = None  # its place in the heap of those that may be evicted
        self.value: Any = None  # while it lives, so does its slot


class Hold:
    """A tensor that stays in memory until this is left or released: ``with pool.hold(name) as tensor``."""

    __slots__ = ("_entry", "_pool")

    def __init__(self, pool: Pool, entry: _Entry) -> None:
        self._pool, self._entry = pool, entry

    def __enter__(self) -> Any:
        entry = self._entry
        if entry is None:
            raise ClosedError("this hold was released")
        return entry.value

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.release()

    def release(self) -> None:
        """Let the tensor go; once."""
        entry, self._entry = self._entry, None  # type: ignore[assignment] # of a hold that was released
        if entry is not None:
            self._pool._let_go(entry)  # noqa: SLF001 - of this module


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
            left = headroom().left
            direct = left is not None and size + min(self.budget, size) > left
            direct = direct or (self.budget >= size and all(map(_is_cold, sources_of(file))))
        self.direct: bool = direct
        self._source = sources_of(file)[0]
        self._file = file
        self._threads = threads or (_REQUESTS if self._source.store is not None else _THREADS)
        self._process = _PROCESS.own
        self._parameters: Any = None
        self._readers: dict[Source, DirectReader] = {}
        self._entries: dict[Key, _Entry] = {}
        self._queued: set[Key] = set()  # asked for by `prefetch`, and no thread has begun
        # A heap of those that may be evicted, by count and time; of those that were asked for since, both have grown.
        self._waiting: list[tuple[tuple[int, int], Key]] = []
        self._counts: dict[Key, int] = {}
        self._ticks = self._asked = 0
        self._arena = Arena(huge=self.budget < size)  # else no page is read to again
        self._awaited = 0  # bytes of slots that are not allocated yet
        self._resident = self._hits = self._misses = self._evictions = self._read_nbytes = 0
        self._closed = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0  # threads that wait for a change
        self._workers: ThreadPoolExecutor | None = None

    # ---------------------------------------------------------------------------------------------------- for users
    def hold(self, name: str | tuple[str, ...], index: int | None = None) -> Hold:
        """Bring a tensor into memory, and keep it there until the result is left or released.

        Threads that want one tensor at once share one read.

        Parameters
        ----------
        name : str or tuple of str
            A tensor of the model, or a parameter of `TensorFile.weights`. Several are joined along the first dimension,
            into one array; quantised ones are decoded.
        index : int, optional
            Only this entry of the first dimension, such as one of stacked experts: no other bytes are read where it
            lies apart in the file, as in dense tensors and in blocks of GGUF. Of other quantised tensors it is decoded.

        Returns
        -------
        Hold
            A context manager that gives the array, which is read-only, or `QuantizedTensor`. It does not move while it
            is held; afterwards its memory may be read over.

        Raises
        ------
        LimitError
            When it does not fit beside what is held.
        TensorNotFoundError, IndexError
        PlanError
            When tensors to be joined differ in their type, or in other dimensions than the first.
        TruncatedError, FileChangedError
            When the file changed.
        ClosedError
            When the pool or the file is closed, and in a child process.
        """
        # What is in memory takes one lock and one look-up. No key in the pool has an index from the end.
        plain = type(name) is str and (index is None or type(index) is int)
        key = (name, index) if plain else self._key(name, index)
        with self._lock:
            self._check()
            entry = self._entries.get(key)
            if entry is not None and entry.ready:
                self._hits += 1
                self._count(entry)
                return Hold(self, entry)
        return self._hold(self._key(name, index))

    def _hold(self, key: Key) -> Hold:
        """Hold a tensor that has to be read, or waited for."""
        while True:
            with self._lock:
                self._check()
                entry = self._entries.get(key)
                if entry is None:
                    reading, cost = self._reading(key)
                    self._make_room(cost, key)
                    if key in self._entries:  # by another thread, while this one waited
                        continue
                    entry = self._add(key, cost, reading)
                    self._misses += 1
                    reads = True
                else:
                    self._hits += 1
                    reads = not entry.ready and key in self._queued
                    if reads:  # nobody has begun
                        self._queued.discard(key)
                        reading = self._reading(key)[0]
                self._count(entry)
                if not reads:
                    while not entry.ready and entry.error is None:
                        self._sleep()
            if reads:
                self._read([(entry, reading)])
            if entry.error is None:
                return Hold(self, entry)
            if reads or isinstance(entry.error, Exception):  # another thread's interrupt is not this one's
                raise entry.error

    def prefetch(self, wanted: Iterable[tuple[str | tuple[str, ...], int | None] | str]) -> None:
        """Begin to read tensors in the background, as far as the budget allows; return at once.

        Those that lie beside each other in a file are read together. What does not fit beside what is held, or
        prefetched and not held yet, is left out. An error is raised by the hold that follows.

        Parameters
        ----------
        wanted : iterable of str or (name, index)
            What `hold` takes.
        """
        with self._lock:
            self._check()
            found: list[tuple[_Entry, _Reading]] = []
            for one in wanted:
                key = (one, None) if isinstance(one, str) else self._key(*one)
                if key in self._entries:
                    continue
                reading, cost = self._reading(key)
                if not self._evict_for(cost, soon=False):
                    continue
                entry = self._add(key, cost, reading)
                self._queued.add(key)
                found.append((entry, reading))
            if not found:
                return
            if self._workers is None:
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - its hooks of forks come too late

                self._workers = ThreadPoolExecutor(self._threads, "weightmap-pool")
            for group in _neighbours(found):
                assert self._workers is not None  # noqa: S101 - for the type checker
                self._workers.submit(self._read_queued, group)

    def _shape_of(self, name: str | tuple[str, ...], index: int | None = None) -> tuple[int, ...]:
        """Return the shape of what `hold` of the same arguments gives; nothing is read.

        Raises
        ------
        TensorNotFoundError, IndexError, PlanError, ClosedError
            As `hold`.
        """
        key = self._key(name, index)
        with self._lock:
            self._check()
            self._reading(key)
            shapes = [self._row(own).shape for own in ((name,) if isinstance(name, str) else name)]
        if not shapes[0]:
            return ()
        rest = shapes[0][1:]
        return rest if index is not None else (sum(shape[0] for shape in shapes), *rest)

    @property
    def stats(self) -> PoolStats:
        """What the pool did, and what it has now."""
        with self._lock:
            held = sum(entry.cost for entry in self._entries.values() if entry.holds)
            return PoolStats(self._hits, self._misses, self._evictions, self._read_nbytes, held, self._resident)

    def close(self) -> None:
        """Free what is not held. Idempotent.

        Raises
        ------
        ClosedError
            When something is held: the pool is closed all the same, and what is held stays valid until it is released.
        """
        with self._lock:
            if self._closed or self._process is not _PROCESS.own:
                return
            self._closed = True
            self._wake()
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.shutdown(cancel_futures=True)
        with self._lock:
            held = [entry.key for entry in self._entries.values() if entry.holds]
            for key in [key for key, entry in self._entries.items() if not entry.holds]:
                self._drop(self._entries[key])
        self._arena.trim()
        for reader in self._readers.values():
            reader.close()
        if held:
            what = f"{_called(held[0])} is held while the pool is closed"
            raise ClosedError(what, path=name_of(self._file))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ClosedError:
            if kind is None:  # or it would hide what went wrong
                raise

    def __repr__(self) -> str:
        return f"<Pool of {name_of(self._file)!r}: {self._resident} of {self.budget} bytes>"

    # ----------------------------------------------------------------------------------------------- under the lock
    def _check(self) -> None:
        if self._process is _PROCESS.own and not self._closed and not self._source.closed:
            return
        if self._process is not _PROCESS.own:
            raise ClosedError(
                "the pool belongs to the parent process: open one in this process", path=name_of(self._file)
            )
        if self._closed:
            raise ClosedError("the pool is closed", path=name_of(self._file))
        check_open(self._file)

    def _sleep(self) -> None:
        self._sleepers += 1
        try:
            self._changed.wait()
        finally:
            self._sleepers -= 1

    def _wake(self) -> None:
        if self._sleepers:
            self._changed.notify_all()

    def _add(self, key: Key, cost: int, reading: _Reading) -> _Entry:
        entry = self._entries[key] = _Entry(key, cost, reading.nbytes or 0, self._counts.pop(key, 0))
        self._resident += cost
        self._awaited += cost - entry.made
        return entry

    def _count(self, entry: _Entry) -> None:
        """Count a hold; halve all counts once in a while."""
        entry.holds += 1
        entry.count += 1
        self._asked += 1
        if self._asked < _PERIOD * len(self._entries):
            return
        self._asked = 0
        self._counts = {own: count // 2 for own, count in self._counts.items() if count > 1}
        for other in self._entries.values():
            other.count //= 2
        self._sort()

    def _offer(self, entry: _Entry, *, soon: bool = False) -> None:
        """Let an entry be evicted, in its turn."""
        self._ticks += 1
        entry.tick = -self._ticks
        if (
            soon or entry.stamp is None or entry.stamp[0] == _SOON
        ):  # else its count and time have grown, so it waits longer
            entry.stamp = _SOON if soon else entry.count, entry.tick
            heapq.heappush(self._waiting, (entry.stamp, entry.key))
            if len(self._waiting) > _OUTDATED * (len(self._entries) + _OUTDATED):
                self._sort()

    def _sort(self) -> None:
        """Make the heap anew."""
        self._waiting = []
        for entry in self._entries.values():
            if not entry.ready or entry.holds:
                entry.stamp = None
                continue
            if entry.stamp is None or entry.stamp[0] != _SOON:
                entry.stamp = entry.count, entry.tick
            self._waiting.append((entry.stamp, entry.key))
        heapq.heapify(self._waiting)

    def _make_room(self, cost: int, key: Key) -> None:
        """Evict for a hold. Raises `LimitError` if all that is not held is not enough."""
        while not self._evict_for(cost, soon=True):
            if self._queued:
                for other in list(self._queued):
                    self._drop(self._entries[other])
                self._queued.clear()
                continue
            if not any(not entry.ready and not entry.holds for entry in self._entries.values()):
                held = sum(entry.cost for entry in self._entries.values() if entry.holds)
                expected = f"at most {self.budget - held}: the budget is {self.budget}, and {held} are held"
                raise LimitError(f"memory for {_called(key)}", path=name_of(self._file), actual=cost, expected=expected)
            self._sleep()  # for what is being prefetched
            self._check()

    def _evict_for(self, cost: int, *, soon: bool) -> bool:
        """Evict until `cost` bytes fit; `soon`: also what was prefetched. Returns whether they do."""
        while self._resident + cost > self.budget:
            if not self._waiting or (self._waiting[0][0][0] == _SOON and not soon):
                return False
            stamp, key = heapq.heappop(self._waiting)
            entry = self._entries.get(key)
            if entry is None or entry.stamp is not stamp:  # it left the pool, or was held after it was prefetched
                continue
            if entry.holds:
                entry.stamp = None
                continue
            if stamp[0] != _SOON and stamp[1] != entry.tick:
                entry.stamp = entry.count, entry.tick
                heapq.heappush(self._waiting, (entry.stamp, key))
                continue
            self._evictions += 1
            self._drop(entry)
        return True

    def _drop(self, entry: _Entry) -> None:
        """Forget an entry; its slot is free once nobody uses the array any more."""
        self._entries.pop(entry.key, None)
        if entry.count:
            self._counts[entry.key] = entry.count
        self._resident -= entry.cost
        if not entry.allocated:
            self._awaited -= entry.cost - entry.made
        entry.value = None

    def _let_go(self, entry: _Entry) -> None:
        with self._lock:
            entry.holds -= 1
            if not entry.holds:
                if not self._closed:
                    self._offer(entry)
                elif self._entries.get(entry.key) is entry:
                    self._drop(entry)
            if self._sleepers:
                self._changed.notify_all()

    # ------------------------------------------------------------------------------------------------------ reading
    def _read_queued(self, group: list[tuple[_Entry, _Reading]]) -> None:
        with self._lock:
            if self._closed:
                return
            group = [
                (entry, reading)
                for entry, reading in group
                if entry.key in self._queued and self._entries.get(entry.key) is entry
            ]
            self._queued.difference_update([entry.key for entry, _ in group])
        if group:
            self._read(group)

    def _read(self, group: list[tuple[_Entry, _Reading]]) -> None:
        """Read entries together. An error is kept in the entry that it concerns, and that one forgotten."""
        try:
            values, nbytes = self._values(group)
        except BaseException as error:
            if len(group) > 1 and isinstance(error, Exception):
                for one in group:
                    self._read([one])
                return
            with self._lock:
                for entry, _ in group:
                    entry.error = error
                    if self._entries.get(entry.key) is entry:
                        self._drop(entry)
                self._wake()
            if not isinstance(error, Exception):
                raise
            return
        with self._lock:
            self._read_nbytes += nbytes
            for (entry, _), value in zip(group, values, strict=True):
                entry.value, entry.ready = value, True
                if entry.made:  # and its slot is free again
                    self._resident += entry.made - entry.cost
                    entry.cost = entry.made
                if self._closed and not entry.holds:
                    self._drop(entry)
                elif not entry.holds:
                    self._offer(entry, soon=True)
            self._wake()

    def _slot(self, entry: _Entry) -> NDArray[np.uint8]:
        """Return memory for what an entry is read to."""
        nbytes = entry.cost - entry.made
        with self._lock:
            if not entry.allocated:
                entry.allocated = True
                self._awaited -= nbytes
            # The slots of what was evicted are kept for those who did it.
            spare = self.budget - self._resident + self._awaited
        return self._arena.allocate(nbytes, spare)

    def _values(self, group: list[tuple[_Entry, _Reading]]) -> tuple[list[Any], int]:
        """Return the tensors of entries, and how many bytes were read for them."""
        windows: dict[DirectReader, list[tuple[int, int, memoryview]]] = {}
        slots, moves = [], []
        for entry, reading in group:
            bounds = [window(begin, end) for _, begin, end in reading.ranges]
            slot, at, to = self._slot(entry), 0, 0
            own: list[tuple[int, int, int]] = []
            for (source, begin, end), (low, high) in zip(reading.ranges, bounds, strict=True):
                if high > low:
                    part = memoryview(slot[at : at + high - low])
                    windows.setdefault(self._reader(source), []).append((low, end, part))
                begins = at + begin - low
                if not own or not reading.joined:
                    # Products of matrices that are not aligned differ in the last bit.
                    to = begins // _LINE * _LINE
                own.append((to, begins, end - begin))
                at, to = at + high - low, to + end - begin
            slots.append(slot)
            moves.append(own)
        nbytes = sum(reader.read_windows(some) for reader, some in windows.items())
        parts = []
        for (_, reading), slot, own in zip(group, slots, moves, strict=True):
            for to, at, size in own:
                if to != at:
                    slot[to : to + size] = slot[at : at + size]
            if reading.joined:
                parts.append([slot[own[0][0] : own[-1][0] + own[-1][2]]])
            else:
                parts.append([slot[to : to + size] for to, _, size in own])
        values = [reading.made(own) for (_, reading), own in zip(group, parts, strict=True)]
        del slots
        for value in values:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        return values, nbytes

    def _reader(self, source: Source) -> DirectReader:
        with self._lock:
            found = self._readers.get(source)
            if found is None:
                found = self._readers[source] = DirectReader(source, direct=self.direct)
        return found

    # --------------------------------------------------------------------------------------------- what is to be read
    def _reading(self, key: Key) -> tuple[_Reading, int]:
        """Return how a tensor is read, and the most memory that it takes. Raises errors for names and indices."""
        name, index = key
        if isinstance(name, str):
            reading = self._alone(name, index)
        elif index is None:
            reading = _joined([self._row(own) for own in name], [self._alone(own, None) for own in name], name)
        else:
            raise TypeError("an entry of several tensors: expected one name, or index=None")
        cost = reading.nbytes or 0
        for _, begin, end in reading.ranges:
            low, high = window(begin, end)
            cost += high - low
        return reading, cost

    def _key(self, name: Name, index: int | None) -> Key:
        """Return what one entry is called by: an index from the end is the one from the beginning."""
        if index is not None and (index := operator.index(index)) < 0 and isinstance(name, str):
            with self._lock:
                self._check()
                shape = self._row(name).shape
            if shape and -shape[0] <= index:
                index += shape[0]
        return name if isinstance(name, str) else tuple(name), index

    def _alone(self, name: str, index: int | None) -> _Reading:
        row = self._row(name)
        if index is not None:
            count = row.shape[0] if row.shape else 0
            if not -count <= index < count:
                raise IndexError(f"index {index} of tensor {quoted(name)}, whose first dimension is {count}")
            index %= count
        if isinstance(row.geometry, Pieces):
            return _of_pieces(row, row.geometry, index)
        return _of_row(row, index) if row.geometry is None else _of_geometry(row, index)

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


def _neighbours(found: list[tuple[_Entry, _Reading]]) -> Iterable[list[tuple[_Entry, _Reading]]]:
    """Return what is read together, in groups; that with the one asked for first comes first."""
    groups: list[list[int]] = []
    last, end, nbytes = None, 0, 0
    for number in sorted(range(len(found)), key=lambda number: _place(found[number][1])):
        ranges = found[number][1].ranges
        source, begin = (ranges[0][0], ranges[0][1]) if ranges else (None, 0)
        if not groups or source is not last or begin > end + CLOSE or nbytes >= PIECE:
            groups.append([])
            nbytes = 0
        groups[-1].append(number)
        nbytes += found[number][0].cost
        last, end = source, ranges[-1][2] if ranges else 0
    return [[found[number] for number in group] for group in sorted(groups, key=min)]


def _place(reading: _Reading) -> tuple[str, int]:
    """Return a key that sorts by file and place."""
    ranges = reading.ranges
    return (ranges[0][0].name, ranges[0][1]) if ranges else ("", 0)


def _joined(rows: list[Row], readings: list[_Reading], names: tuple[str, ...]) -> _Reading:
    """Return how tensors are read that become one array."""
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

    def made(parts: list[NDArray[np.uint8]]) -> Any:
        own = [parts[end - len(reading.ranges) : end] for reading, end in zip(readings, ends, strict=True)]
        values = [reading.made(some) for reading, some in zip(readings, own, strict=True)]
        return np.concatenate([value if isinstance(value, np.ndarray) else value.dequantize() for value in values])

    itemsize = 4 if first.dtype.quantized else first.viewed[0].itemsize
    nbytes = sum(row.nbytes if row.dtype.packed else prod(row.shape) * itemsize for row in rows)
    return _Reading(ranges, made, nbytes + sum(reading.nbytes or 0 for reading in readings))


def _of_row(row: Row, index: int | None) -> _Reading:
    """Return how a tensor whose elements follow one another is read."""
    if index is None:
        return _Reading([(row.source, row.offset, row.offset + row.nbytes)], lambda parts: row.over(parts[0]))
    if not row.dtype.quantized:
        dtype, shape = row.viewed
        each = prod(shape[1:]) * dtype.itemsize
    elif row.dtype.name in GGML_SCHEMES and len(row.shape) > 1:
        each = row.nbytes // row.shape[0]
    else:
        made = row.shape[1:]

        def decoded(parts: list[NDArray[np.uint8]]) -> Any:
            return np.ascontiguousarray(row.over(parts[0])[index])

        return _Reading([(row.source, row.offset, row.offset + row.nbytes)], decoded, 4 * prod(made))
    one = row._replace(shape=row.viewed[1][1:] if row.dtype.packed else row.shape[1:], nbytes=each)
    begin = row.offset + index * each
    return _Reading([(row.source, begin, begin + each)], lambda parts: one.over(parts[0]))


def _of_geometry(row: Row, index: int | None) -> _Reading:
    """Return how a tensor that is strided, deflated or made otherwise is read."""
    geometry = row.geometry
    assert geometry is not None  # noqa: S101 - that is which tensors these are
    dtype, shape = row.viewed
    axes: list[Any] = [(0, 1, size, True) for size in shape]
    if index is not None:
        axes[0] = (index, 1, 1, False)
        shape = shape[1:]
    begin, end = geometry.extent(row, axes)
    nbytes = prod(shape) * dtype.itemsize

    def made(parts: list[NDArray[np.uint8]]) -> Any:
        return np.array(geometry.part(row, axes, parts[0])).reshape(shape)

    return _Reading([(row.source, begin, end)], made, nbytes)


def _of_pieces(row: Row, pieces: Pieces, index: int | None) -> _Reading:
    """Return how a parameter of several tensors is read; an entry of the first dimension is decoded."""
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
        shape, rest = piece.shape, part
        if isinstance(part, slice) and part.step is None and shape:
            first, last, _ = part.indices(shape[0])
            each = size // shape[0]
            begin, size, shape, rest = begin + first * each, (last - first) * each, (last - first, *shape[1:]), None
        ranges.append((piece.source, begin, begin + size))
        shapes.append((role, piece, shape, rest))

    def decoded(parts: list[NDArray[np.uint8]]) -> Any:
        arrays = {}
        for (role, piece, shape, rest), octets in zip(shapes, parts, strict=True):
            array = piece._replace(shape=shape, nbytes=len(octets)).over(octets)
            arrays[role] = array if rest is None else array[rest]
        return np.array(coding.rows(arrays, low, high, numpy_dtype(pieces.own))[index - low])

    return _Reading(ranges, decoded, prod(row.shape[1:]) * numpy_dtype(pieces.own).itemsize)
