"""`load` and `Loader`: send files through slots to a device, reading and copying at the same time."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.core.arguments import mistyped, names_moved
from weightmap.core.bytes import Range
from weightmap.core.dtypes import FLOATING
from weightmap.core.model.codes import check_computable
from weightmap.core.model.internals import check_unchanged, parts_of
from weightmap.core.native import access, checksums, files
from weightmap.device._slots import UNPINNED, Backend, Event, Exchange, Slot, Slots, Staging, Worker
from weightmap.device._transfers import ALIGN, AnyTransfer, ArrayTransfer, BatchTransfer, Piece, Transfer
from weightmap.errors import PlanError, TensorFileError
from weightmap.plans.delivery import Check, Sums, check_when
from weightmap.plans.direct import ALIGN as BLOCK
from weightmap.plans.direct import DirectReader
from weightmap.plans.pages import ask_for, cached_in
from weightmap.plans.planning import ParameterPlan, ReadPlan
from weightmap.plans.planning import plan as make_plan
from weightmap.plans.wants import at_least

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.model.opening import Model
    from weightmap.core.table.table import Row

# Longest run that one thread takes, in bytes
_MAX_RUN_BYTES = 1 << 20
# Threads that copy from memory, and that wait for a disk
_COPYING_THREADS, _WAITING_THREADS = 16, 32
# Most bytes of a piece to convert on the device: kernels count its bits in 31 bits.
_MAX_CHANGE_BYTES = 64 << 20
# Bytes of small tensors in one batch
_BATCH_BYTES = 4 << 20
# A slot with less room than this, in bytes, is sent before another tensor begins.
_MIN_ROOM_BYTES = 1 << 16
_NOWHERE = np.empty(0, np.uint64)


class Loader:
    """Sends tensors to a device, through the slots of one load; a context manager.

    After the block, however it ends, no copy is running and the slots are back in the pool.

    Parameters
    ----------
    backend : Backend
    staging : Staging, optional

    Raises
    ------
    PlanError, TypeError
        As from `Staging.checked`, and for another type of staging.
    """

    def __init__(self, backend: Backend, staging: Staging | None = None) -> None:
        if not isinstance(staging, Staging | None):
            raise mistyped("staging", staging, "a Staging")
        self.backend = backend
        self._staging: Staging = (Staging() if backend.pinned else UNPINNED) if staging is None else staging.checked()
        self._slots: Slots | None = None
        self._slot: Slot | None = None
        self._used = 0  # bytes of the slot
        self._names: list[str] = []  # of the tensors that have bytes in the slot
        # Pending reads into the slot, all from one source: offsets in the file, offsets in the slot, sizes, and the
        # tensor of all, or of each.
        self._runs: list[tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], Sequence[str] | str]] = []
        self._source: Source | None = None
        self._sums: Sums | None = None
        self._end = 0  # end of the bytes covered by them
        self._cold: Range | None = None  # announced bytes not prefetched yet
        self._direct: DirectReader | None = None  # for bytes that are not in memory
        self._readers: dict[Source, DirectReader] = {}
        # The device's copies and conversions out of the slot: begin and end there, and the destination.
        self._moves: list[tuple[int, int, Any, int]] = []
        self._changes: list[tuple[int, int, Any, Any, int]] = []
        self._scratch: Any = None
        self._stopped = False

    def __enter__(self) -> Self:
        self.backend.begin()
        self._slots = Slots(self.backend, self._staging)
        self._staging = self._slots.staging
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        slots, self._slots, self._slot = self._slots, None, None
        self._direct = None
        for reader in self._readers.values():
            reader.close()
        scratch, self._scratch = self._scratch, None
        if slots is None:
            return
        try:
            interrupt = self._settle()
        except Exception:
            slots.discard()
            if value is None:
                raise
            return  # the error at hand is the cause
        slots.give_back()
        if scratch is not None:
            self.backend.free(scratch)
        if interrupt is not None:
            raise interrupt

    def _settle(self) -> BaseException | None:
        """Wait for copies out of the slots to end, in spite of interrupts. Return the interrupt."""
        interrupt = None
        while True:
            try:
                self.backend.synchronize()
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                interrupt = error
            else:
                return interrupt

    def stop(self) -> None:
        """Make a call of `send` in another thread end with an error at the next slot."""
        self._stopped = True

    def give_up(self, buffers: Sequence[Any]) -> None:
        """Free device memory that no caller has, once all copies to it have ended."""
        self._slot = None
        try:
            interrupt = self._settle()
        except Exception:  # noqa: BLE001 - the device is lost, and its memory with it; the cause is being raised
            return
        for buffer in buffers:
            self.backend.free(buffer)
        if interrupt is not None:
            raise interrupt

    # --------------------------------------------------------------------------------------------------- sending
    def expect(self, source: Source, part: Range, sums: Sums | None = None) -> None:
        """Announce the next bytes of a source, in order, and their checksums."""
        self._fill()
        self._sums, self._end, self._cold, self._direct = sums, part.end, None, None
        # An entry of an archive may be larger than its stored bytes.
        begin, end = part.begin, min(part.end, source.size)
        if not source.has_pages or end <= begin:
            return
        there = cached_in(source, begin, end)
        if there is None:
            return
        if there < (end - begin) // 10 * 9:
            self._cold = Range(begin, end)
        if there < (end - begin) // 10:
            reader = self._readers.get(source)
            if reader is None:
                reader = self._readers[source] = DirectReader(source)
            self._direct = reader if reader.passes_cache else None

    def send(
        self,
        transfer: AnyTransfer,
        buffer: Any,
        at: int,
        source: Source | None = None,
        part: Range | None = None,
    ) -> None:
        """Send a tensor to device memory, from byte `at` on; the event of `finish` tells when it has arrived.

        With `part`, a range of bytes, only that part of a divisible one is sent.
        """
        source = transfer.source if source is None else source
        for piece in transfer.pieces(min(self._staging.slot_bytes // 4, _MAX_CHANGE_BYTES)):
            if piece.change is not None:
                self._free(piece.nbytes)
                self._changes.append((self._used, self._used + piece.nbytes, piece.change, buffer, at + piece.at))
                self._take(transfer.name, source, piece, 0, piece.nbytes)
                continue
            if piece.places is not None:
                self._free(piece.nbytes)
                self._move(piece.nbytes, buffer, at + piece.at)
                self._names += piece.names
                self._take_runs(source, piece.starts, self._used + piece.places, piece.sizes, piece.names)
                self._used += piece.nbytes
                continue
            done, end = (0, piece.nbytes) if part is None else part
            while done < end:
                place = int(piece.starts[0]) + done if len(piece.starts) == 1 else None
                room = self._room(buffer, at + piece.at + done, end - done, place)
                self._move(room, buffer, at + piece.at + done)
                self._take(transfer.name, source, piece, done, room)
                done += room

    def flush(self) -> None:
        """Send the rest of the slot, before the caller's later work on the device."""
        self._ship()
        self.backend.end()

    def finish(self) -> Event:
        """Send the rest of the slot, check the checksums, and return the event after all copies."""
        self._ship()
        if self._sums is not None:
            self._sums.finish(self._end)
        return self.backend.event()

    # ------------------------------------------------------------------------------------------------- in the slot
    def _current(self) -> Slot:
        if self._slot is None:
            if self._slots is None or self._stopped:
                raise ValueError("a loader is used within its block")
            self._slot, self._used = self._slots.next(), 0
        return self._slot

    def _free(self, nbytes: int) -> None:
        """Make room for `nbytes` in one piece, aligned."""
        slot = self._current()
        self._used += -self._used % ALIGN
        if self._used + nbytes > len(slot.memory):
            self._ship()
            self._current()

    def _room(self, buffer: Any, at: int, nbytes: int, place: int | None) -> int:
        """Make room for some of `nbytes`, which lie at a `place` in the file, for byte `at` of a buffer.

        Returns the number of bytes. Direct reads keep their alignment to the blocks of the file.
        """
        slot = self._current()
        if self._direct is not None and place is not None and nbytes >= _MAX_RUN_BYTES:
            used = self._used + (place - self._used) % BLOCK
            if used + min(nbytes, _MAX_RUN_BYTES) > len(slot.memory):
                self._ship()
                slot = self._current()
                used = place % BLOCK
            self._used, room = used, len(slot.memory) - used
            return nbytes if nbytes <= room else room - (place + room) % BLOCK
        skipped = -self._used % ALIGN
        if self._moves:
            begin, end, other, before = self._moves[-1]
            gap = at - (before + end - begin)
            # Copy the gap between two tensors too: one copy instead of two.
            skipped = gap if other is buffer and end == self._used and 0 <= gap < ALIGN else skipped
        size = len(slot.memory)
        room = size - self._used - skipped
        if room < min(nbytes, _MIN_ROOM_BYTES, size // 8):
            self._ship()
            return min(nbytes, len(self._current().memory))
        self._used += skipped
        return min(nbytes, room)

    def _move(self, nbytes: int, buffer: Any, at: int) -> None:
        """Note that the next bytes of the slot go to a buffer."""
        begin, end = self._used, self._used + nbytes
        if self._moves:
            first, last, other, before = self._moves[-1]
            if other is buffer and at - before == begin - first and begin - last < ALIGN:
                self._moves[-1] = first, end, buffer, before
                return
        self._moves.append((begin, end, buffer, at))

    def _take(self, name: str, source: Source | None, piece: Piece, begin: int, nbytes: int) -> None:
        """Put the bytes of a piece from `begin` on into the slot, or queue them for reading."""
        slot, used = self._current(), self._used
        if not self._names or self._names[-1] != name:
            self._names.append(name)
        self._used += nbytes
        if piece.data is not None:
            slot.memory[used : used + nbytes] = piece.data[begin : begin + nbytes]
            return
        starts, sizes = _within(piece.starts, piece.sizes, begin, begin + nbytes, 1 if self._direct is None else BLOCK)
        to = used + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.uint64)
        self._take_runs(source, starts, to.astype(np.uint64), sizes, name)

    def _take_runs(
        self,
        source: Source | None,
        starts: NDArray[np.uint64],
        to: NDArray[np.uint64],
        sizes: NDArray[np.uint64],
        names: Sequence[str] | str,
    ) -> None:
        """Queue runs of the file for reading."""
        if source is not self._source:
            self._fill()
            self._source = source
        self._runs.append((starts, to, sizes, names))

    def _fill(self) -> None:
        """Read the pending bytes into the slot."""
        runs, self._runs = self._runs, []
        source, slot = self._source, self._slot
        if not runs or source is None or slot is None:
            return
        starts, to, sizes = (np.concatenate([run[part] for run in runs]) for part in range(3))
        bounds = np.cumsum([len(run[0]) for run in runs]).tolist()
        self._ask(source, int(starts[-1] + sizes[-1]))
        crcs = None if self._sums is None else np.empty(len(starts), np.uint32)

        def name(number: int) -> str:
            run = bisect_right(bounds, number)
            named = runs[run][3]
            return named if isinstance(named, str) else named[number - (bounds[run - 1] if run else 0)]

        if source.store is not None:
            for start, place, size in zip(starts.tolist(), to.tolist(), sizes.tolist(), strict=True):
                source.read_into(start, slot.memory[place : place + size])
            if crcs is not None:
                for number, (place, size) in enumerate(zip(to.tolist(), sizes.tolist(), strict=True)):
                    crcs[number] = checksums.crc32(slot.memory[place : place + size])
        else:
            file, memory = source.c_input
            c_input = memory if file == -1 else file
            direct = self._direct if self._direct is not None and self._direct.passes_cache else None
            how: dict[str, Any] = {"crcs": crcs, "threads": self._threads()}
            if direct is None:
                failed, error = files.stage(c_input, (starts, to, sizes), slot.memory, **how)
            else:
                failed, error = direct.stage((starts, to, sizes), slot.memory, **how)
            if failed >= 0:
                start, during = int(starts[failed]), f"tensor {quoted(name(failed))}"
                source.fail_reading(start, start + int(sizes[failed]), error, during=during)
        if self._sums is not None and crcs is not None:
            self._sums.feed(starts.tolist(), sizes.tolist(), crcs.tolist())

    def _threads(self) -> int:
        if self._staging.threads is not None:
            return self._staging.threads
        return _WAITING_THREADS if self._cold is not None else min(access.cpus(), _COPYING_THREADS)

    def _ask(self, source: Source, reached: int) -> None:
        """Make the system prefetch the next bytes, so that the disk is busy while the device copies."""
        if self._cold is None or (self._direct is not None and self._direct.passes_cache):
            return
        begin, end = self._cold
        until = min(reached + self._staging.slots * self._staging.slot_bytes, end)
        if until > begin:
            ask_for(source, Range(begin, until))
            self._cold = Range(until, end)

    # ---------------------------------------------------------------------------------------------- to the device
    def _ship(self) -> None:
        """Fill the slot, and make the device copy from it."""
        slot = self._slot
        if slot is None:
            return
        self._fill()
        moves, changes, names = self._moves, self._changes, self._names
        self._moves, self._changes, self._names, self._slot = [], [], [], None
        backend = self.backend
        try:
            if changes and self._scratch is None:
                self._scratch = backend.allocate(len(slot.memory))
            for begin, end, buffer, at in (*moves, *_joined(changes, self._scratch)):
                backend.copy(slot.memory[begin:end], buffer, at)
            for begin, end, change, buffer, at in changes:
                backend.change(self._scratch, begin, end, change, buffer, at)
            slot.event = backend.event()
        except Exception as error:
            several = f"tensors {quoted(names[0])} to {quoted(names[-1])}"
            what = several if len(names) > 1 else f"tensor {quoted(names[0])}"
            error.add_note(f"while {what} went to {backend.key}")
            raise


def _joined(changes: Sequence[tuple[int, int, Any, Any, int]], scratch: Any) -> Iterator[tuple[int, int, Any, int]]:
    """Yield as few copies as possible to scratch memory, which has the layout of the slot."""
    first = last = -1
    for begin, end, _, _, _ in changes:
        if first >= 0 and begin - last < ALIGN:
            last = end
            continue
        if first >= 0:
            yield first, last, scratch, first
        first, last = begin, end
    if first >= 0:
        yield first, last, scratch, first


def _within(
    starts: NDArray[np.uint64], sizes: NDArray[np.uint64], begin: int, end: int, block: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return bytes `begin` to `end` of the joined runs, as short runs.

    One run is divided at multiples of `block`, into its head, whole blocks, and its tail.
    """
    if len(starts) == 1:
        first, last = int(starts[0]) + begin, int(starts[0]) + end
        low, high = min(-(-first // block) * block, last), max(last // block * block, first)
        inner = np.arange(low, high, _MAX_RUN_BYTES, dtype=np.uint64) if low < high else _NOWHERE
        ends = np.array([high, last], np.uint64)
        edges = np.unique(np.concatenate([np.array([first], np.uint64), inner, ends]))
        return edges[:-1], np.diff(edges)
    ends = np.cumsum(sizes)
    low, high = (int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(ends, end, "left")) + 1)
    firsts, lengths = starts[low:high].copy(), sizes[low:high].copy()
    lengths[-1] -= ends[high - 1] - np.uint64(end)
    skipped = np.uint64(begin) - (ends[low] - sizes[low])
    firsts[0] += skipped
    lengths[0] -= skipped
    return firsts, lengths


class ExchangedCrcs:
    """CRCs of the bytes this rank read, exchanged between ranks."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int]] = []

    def feed(self, starts: Iterable[int], sizes: Iterable[int], crcs: Iterable[int]) -> None:
        """Implement `Sums.feed`."""
        self.runs += zip(starts, sizes, crcs, strict=True)

    def finish(self, end: int) -> None:
        """Implement `Sums.finish` by doing nothing: the check follows the exchange of all ranks' CRCs."""


class Group:
    """Tensors of one file that are handed out together, and the pieces of device memory that they share.

    Attributes
    ----------
    buffers : list
        The pieces, until the first tensor is handed out.
    """

    def __init__(
        self,
        source: Source,
        ahead: Source,
        transfers: list[AnyTransfer],
        sums: Sums | None,
        exchange: Exchange | None = None,
        *,
        cuts: bool,
    ) -> None:
        self.buffers: list[Any] = []
        self._source, self._ahead, self._transfers, self._sums, self._cuts = source, ahead, transfers, sums, cuts
        self._exchange, self._crcs = exchange, ExchangedCrcs()
        self._places: list[tuple[AnyTransfer, Any, int]] = []
        self._event: Event | None = None

    def reserve(self, backend: Backend, *, divide: bool) -> list[Group]:
        """Allocate memory: one piece, or with `divide` several smaller ones if there is no room for it.

        Returns the rest of the group for later, in smaller groups, because a caller still holds the last tensor of one
        group while the next is allocated.
        """
        waiting = [self._transfers]
        while waiting:
            transfers = waiting.pop()
            sizes = np.array([transfer.nbytes + -transfer.nbytes % ALIGN for transfer in transfers], np.int64)
            total = int(sizes.sum())
            try:
                buffer = backend.allocate(total)
            except Exception as error:
                if divide and len(transfers) > 1:
                    half = int(np.searchsorted(np.cumsum(sizes), total // 2)) + 1
                    half = min(half, len(transfers) - 1)
                    waiting += [transfers[half:], transfers[:half]]
                    continue
                error.add_note(
                    f"while asking for {total} bytes for {counted(len(transfers), 'tensor')} of {self._source.name}"
                )
                raise
            if waiting and self._cuts:
                # There is room for this much, and for half of it beside an equal half that a caller still holds.
                backend.free(buffer)
                self._transfers, *others = _divided(self._transfers, total // 2, None)
                self.reserve(backend, divide=False)
                return [Group(self._source, self._ahead, later, self._sums, cuts=True) for later in others]
            self.buffers.append(buffer)
            self._places += zip(transfers, [buffer] * len(transfers), (np.cumsum(sizes) - sizes).tolist(), strict=True)
        return []

    def fill(self, loader: Loader) -> None:
        """Read the tensors, or this rank's part, and make the device copy them."""
        exchange = self._exchange
        first, last = 0, np.inf
        if exchange is not None:
            first, last = self._bounds(exchange.world_size)[exchange.rank :][:2]
        parts = []
        for transfer, buffer, place in self._places:
            low, high = max(first - place, 0), int(min(last - place, transfer.nbytes))
            if low < high or not transfer.nbytes:
                part = None if (low, high) == (0, transfer.nbytes) else Range(low, high)
                begin = transfer.begin
                ends = (begin, transfer.end) if part is None or transfer.cut else (begin + low, begin + high)
                parts.append((transfer, buffer, place, part, *ends))
        sums: Any = self._sums if exchange is None or self._sums is None else self._crcs
        try:
            if parts:
                loader.expect(self._ahead, Range(min(one[4] for one in parts), max(one[5] for one in parts)), sums)
            for transfer, buffer, place, part, _, _ in parts:
                loader.send(transfer, buffer, place, self._ahead, part)
            self._event = loader.finish()
            self._ahead.check_unchanged()
        except TensorFileError as error:
            raise error.located(path=self._source.name, format=self._source.format) from None

    def _bounds(self, ranks: int) -> list[int]:
        """Return the bounds of the ranks' parts of the memory: about equal, within divisible tensors."""
        ends = [place + transfer.nbytes + -transfer.nbytes % ALIGN for transfer, _, place in self._places]
        bounds = [0]
        for rank in range(1, ranks):
            ideal = ends[-1] * rank // ranks
            transfer, _, place = self._places[number := min(bisect_right(ends, ideal), len(ends) - 1)]
            if transfer.divisible:
                bounds.append(ideal // ALIGN * ALIGN)
            else:
                bounds.append(place if ideal - place < ends[number] - ideal else ends[number])
        return [*bounds, ends[-1]]

    def meet(self) -> None:
        """Exchange parts with the other ranks."""
        exchange = self._exchange
        if exchange is None:
            return
        if self._event is not None:
            self._event.wait()
        if self._sums is not None:
            runs = sorted(run for others in exchange.tell(self._crcs.runs) for run in others)
            self._sums.feed(*zip(*runs, strict=True)) if runs else None
            self._sums.finish(max(transfer.end for transfer, _, _ in self._places))
        for buffer in self.buffers:
            exchange.share(buffer, self._bounds(exchange.world_size))

    def tensors(self, backend: Backend) -> Iterator[tuple[str, Any]]:
        """Yield the tensors, once the device has all of them; do not hold tensors that were handed out."""
        if self._event is not None:
            self._event.wait()
        tensors = self._delivered(backend)
        self.buffers, self._places = [], []
        while tensors:
            yield tensors.pop()

    def _delivered(self, backend: Backend) -> list[tuple[str, Any]]:
        """Return names and tensors, the first one last."""
        tensors = [
            pair for transfer, buffer, place in self._places for pair in transfer.delivered(backend, buffer, place)
        ]
        tensors.reverse()
        return tensors


def groups_of(
    plan: ReadPlan, backend: Backend, dtype: str | None, limit: int | None, exchange: Exchange | None, *, verify: Check
) -> Iterator[Group]:
    """Yield the groups of a plan, in the order of its files."""
    content = parts_of(plan.file)[1]
    for source, numbers, reads in plan.parts():
        sums = None
        try:
            transfers = list[AnyTransfer](
                _transfers(plan, backend, numbers, dtype, _BATCH_BYTES if limit is None else min(limit, _BATCH_BYTES))
            )
            if verify:
                begins, ends = [transfer.begin for transfer in transfers], [transfer.end for transfer in transfers]
                sums = Sums(source, content.sums(source), begins, ends, last=verify == "last")
            ahead = source.ahead(reads)
        except TensorFileError as error:
            raise error.located(path=source.name, format=source.format) from None
        # Divide before reading, because the checksums forget the ones that were checked.
        for together in list(_divided(transfers, limit, sums)):
            yield Group(source, ahead, together, sums, exchange, cuts=verify is not True)


def groups_of_parameters(
    plan: ParameterPlan, backend: Backend, dtype: str | None, limit: int | None, *, verify: Check
) -> Iterator[Group]:
    """Yield the groups of a plan of parameters, which are decoded when a group is filled; by default one each."""
    source = parts_of(plan.file)[0]
    together, nbytes = list[AnyTransfer](), 0
    for name, array in plan.run(verify=verify):
        transfer = ArrayTransfer(name, array, dtype if array.dtype.name in FLOATING else None)
        backend.check(transfer.dtype)
        if together and nbytes + transfer.nbytes > (limit or 0):
            yield Group(source, source, together, None, cuts=False)
            together, nbytes = [], 0
        together.append(transfer)
        nbytes += transfer.nbytes
        if nbytes >= (limit or 0):  # now: an error of the next one is due later
            yield Group(source, source, together, None, cuts=False)
            together, nbytes = [], 0
    if together:
        yield Group(source, source, together, None, cuts=False)


def _transfers(
    plan: ReadPlan, backend: Backend, numbers: Iterable[tuple[int, Any]], dtype: str | None, limit: int
) -> Iterator[Transfer | BatchTransfer]:
    """Yield the wanted tensors of a file, small ones in batches of about `limit` bytes."""
    small: list[tuple[str, Row]] = []
    spans, nbytes, checked = plan.spans, 0, set()
    for number, key in numbers:
        name, row = spans.name(number), spans.of(number)
        batched = key is None and BatchTransfer.takes(row, dtype)
        if small and (not batched or nbytes + row.nbytes + ALIGN > limit):
            yield _batch(small)
            small, nbytes = [], 0
        if not batched:
            yield Transfer(backend, name, row, key, dtype)
            continue
        if row.dtype.name not in checked:
            backend.check(row.dtype.name)
            checked.add(row.dtype.name)
        small.append((name, row))
        nbytes += row.nbytes + -row.nbytes % ALIGN
    if small:
        yield _batch(small)


def _batch(small: list[tuple[str, Row]]) -> BatchTransfer:
    names, rows = zip(*small, strict=True)
    return BatchTransfer(list(names), list(rows))


def _divided(transfers: list[AnyTransfer], limit: int | None, sums: Sums | None) -> Iterator[list[AnyTransfer]]:
    """Yield groups of tensors to send: at most `limit` bytes, or one tensor, or all tensors of one checksum."""
    begin = nbytes = end = 0
    for number, transfer in enumerate(transfers):
        over = limit is not None and number > begin and nbytes + transfer.nbytes > limit
        if over and (sums is None or not sums.join(end, transfer.begin)):
            yield transfers[begin:number]
            begin, nbytes = number, 0
        nbytes += transfer.nbytes
        end = max(end, transfer.end)
    yield transfers[begin:]


@names_moved
def load(
    plan: ReadPlan | Model,
    backend: Backend,
    *,
    dtype: str | None = None,
    verify: Check = False,
    group: int | None = None,
    staging: Staging | None = None,
    exchange: Exchange | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a plan on a device, in its order.

    Parameters
    ----------
    plan : ReadPlan, or a model: a handle or anything else that `weightmap.open` takes
        The tensors to load; of partly wanted tensors, only the parts are read. Parameters (``f.weights``) are decoded
        by the CPU, and every rank reads its own.
    backend : Backend
    dtype : str, optional
        The type of floating-point and quantised tensors. By default the file's type, and float32 for quantised tensors.
        The device converts them, with its own rounding.
    verify : bool or "last"
        Check the checksums that cover a tensor, on the bytes sent to the device, before yielding it. With "last", each
        checksum is checked before its last tensor: earlier tensors are yielded unchecked.
    group : int, optional
        Bytes of tensors that share one piece of device memory; by default one piece per file, or per parameter. With
        ``verify=True``, all tensors under one checksum stay together. While you use one group, the next one is read; if
        a loop still holds the previous group's last tensor, three pieces are alive.
    staging : Staging, optional
    exchange : Exchange, optional
        Ranks that load the same plan: each reads a part of the bytes of each group, and gets the rest from the other
        devices. An error on one rank is raised on all. If a rank ends otherwise, or hangs, the exchange raises an error
        on the others: `torch.distributed` does so at once, or after the timeout of the process group.

    Notes
    -----
    A piece of memory lives as long as one of its tensors: copy a few tensors that you want to keep. If the device has
    no room for a piece, the load waits for earlier tensors to be freed, and divides the tensors among smaller pieces.

    Raises
    ------
    ChecksumError
        With `verify`, when a checksum does not match.
    TruncatedError, FileChangedError
        When a file changes before its last tensor is yielded.
    PlanError, UnsupportedError, QuantError
        As from `ReadPlan.run` and `Staging.checked`, and for types that the device lacks.
    """
    if not isinstance(plan, ReadPlan):
        with make_plan(plan) as reads:
            options: dict[str, Any] = {"group": group, "staging": staging, "exchange": exchange}
            yield from load(reads, backend, dtype=dtype, verify=verify, **options)
        return
    check_when(verify)
    group = None if group is None else at_least(1, "group", group)
    check_unchanged(plan.file)
    if dtype is not None and not isinstance(plan, ParameterPlan):
        check_computable(plan.file, set(plan.names).__contains__, "dtype=")
    if isinstance(plan, ParameterPlan):
        exchange = None
        groups = groups_of_parameters(plan, backend, dtype, group, verify=verify)
    else:
        groups = groups_of(plan, backend, dtype, group, exchange, verify=verify)
    yield from _Turns(Loader(backend, staging), groups, exchange)


def send_array(loader: Loader, transfer: ArrayTransfer) -> Any:
    """Send an array to new memory on the device; return the tensor."""
    backend = loader.backend
    backend.check(transfer.dtype)
    buffer = backend.allocate(transfer.nbytes)
    try:
        loader.send(transfer, buffer, 0)
        loader.finish().wait()
    except BaseException:
        loader.give_up([buffer])
        raise
    ((_, tensor),) = transfer.delivered(backend, buffer, 0)
    return tensor


class _Turns:
    """Groups in their order: each is filled while the one before is used."""

    def __init__(self, loader: Loader, groups: Iterable[Group], exchange: Exchange | None) -> None:
        self._loader, self._groups, self._exchange = loader, iter(groups), exchange
        self._worker = Worker()
        self._alive: list[Group] = []  # with memory not handed out yet
        self._postponed = False
        self._failed: BaseException | None = None  # raised when its turn comes

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        failed: BaseException | None = None
        try:
            group = self._first()
            while group is not None or self._failed is not None:
                failed, self._failed = self._failed, None
                following = self._begun() if failed is None else None
                _raise_together(self._exchange, failed)
                if group is not None:
                    group.meet()
                    yield from group.tensors(self._loader.backend)
                    self._alive.remove(group)
                self._finish(following)
                group = following
        except BaseException as error:
            failed = error
            raise
        finally:
            self._loader.stop()
            interrupt = self._worker.end(partial(_close, self._loader, self._alive, failed))
            failed = None
            if interrupt is not None:
                raise interrupt

    def _reserve(self, group: Group, *, divide: bool) -> None:
        if group not in self._alive:
            self._alive.append(group)
        # With ranks, do not divide: all must have the same groups.
        others = group.reserve(self._loader.backend, divide=divide and self._exchange is None)
        self._groups = chain(others, self._groups)

    def _first(self) -> Group | None:
        """Fill the first group."""
        group = None
        try:
            self._loader.__enter__()
            group = next(self._groups, None)
            if group is not None:
                self._reserve(group, divide=True)
                group.fill(self._loader)
        except Exception as error:  # noqa: BLE001 - raised when the other ranks know of it
            self._failed = error
        return group

    def _begun(self) -> Group | None:
        """Begin to fill the next group; postpone it if memory is missing."""
        group = None
        try:
            group = next(self._groups, None)
            if group is not None:
                self._postponed = True
                self._reserve(group, divide=False)
                self._postponed = False
                self._worker.begin(partial(group.fill, self._loader))
        except Exception as error:  # noqa: BLE001 - raised when what was there before is handed out
            self._failed = error
        return group

    def _finish(self, group: Group | None) -> None:
        """Return when the next group is filled, or has failed."""
        if group is None:
            return
        try:
            if self._postponed:  # tensors handed out may be freed by now
                self._failed, self._postponed = None, False
                self._reserve(group, divide=True)
                group.fill(self._loader)
            else:
                self._worker.wait()
        except Exception as error:  # noqa: BLE001 - raised when the other ranks know of it
            self._failed = error


def _raise_together(exchange: Exchange | None, failed: BaseException | None) -> None:
    """Raise the error of this or another rank, once all ranks know of it."""
    errors = [] if exchange is None else exchange.tell(None if failed is None else repr(failed))
    try:
        if failed is not None:
            raise failed
    finally:
        failed = None  # its traceback refers to this frame: the cycle would keep files open
    for rank, error in enumerate(errors):
        if error is not None:
            raise PlanError(f"rank {rank} could not read its part: {error}")


def _close(loader: Loader, alive: list[Group], failed: BaseException | None) -> None:
    """Free the memory that was not handed out, and give the slots back."""
    buffers = [buffer for group in alive for buffer in group.buffers]
    try:
        if buffers:
            loader.give_up(buffers)
    finally:
        loader.__exit__(None if failed is None else type(failed), failed, None)
