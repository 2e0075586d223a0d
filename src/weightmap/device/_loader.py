"""`Loader`: bytes from files through slots to a device, reading and copying at the same time."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.arguments import mistyped
from weightmap.core.bytes.direct import ALIGN as BLOCK
from weightmap.core.bytes.direct import DirectReader
from weightmap.core.native import access, checksums, files
from weightmap.core.ranges import Range
from weightmap.device._cargo import ALIGN
from weightmap.device._slots import UNPINNED, Slots, Staging
from weightmap.errors import quoted
from weightmap.plans.pages import ask_for, cached_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.device._backend import Backend, Event
    from weightmap.device._cargo import AnyCargo, Piece
    from weightmap.device._slots import Slot
    from weightmap.plans.delivery import Sums

# Longest run that one thread takes, in bytes
_UNIT = 1 << 20
# Threads when copying from memory, and when waiting for a disk
_COPYING, _WAITING = 16, 32
# Longest piece that the device changes, in bytes: kernels count its bits in 32 bits, of which one is the sign.
_LONGEST = 64 << 20
# A slot with less room than this, in bytes, is sent before a tensor begins.
_REST = 1 << 16


_NOWHERE = np.empty(0, np.uint64)


class Loader:
    """Sends tensors to a device, through the slots of one load; a context manager.

    After the block, however it ends, no copy is under way and the slots are back in the pool.

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
        # Pending reads into it, all from one source: offsets in the file, offsets in the slot, sizes, and the tensor of
        # all, or of each.
        self._runs: list[tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], Sequence[str] | str]] = []
        self._source: Source | None = None
        self._sums: Sums | None = None
        self._end = 0  # end of the bytes covered by them
        self._cold: Range | None = None  # announced bytes that were not prefetched yet
        self._direct: DirectReader | None = None  # of bytes that are not in memory
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
        """Wait for the device, interrupted or not: copies out of slots may be under way. Return the interrupt."""
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
        """Let a call of `send` in another thread end, with an error, at the next slot."""
        self._stopped = True

    def give_up(self, buffers: Sequence[Any]) -> None:
        """Free device memory that is not handed out, once nothing is copied to it any more."""
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
    def expect(self, source: Source, begin: int, end: int, sums: Sums | None = None) -> None:
        """Announce the next bytes of a source, in order, and their checksums."""
        self._fill()
        self._sums, self._end, self._cold, self._direct = sums, end, None, None
        end = min(end, source.size)  # an entry of an archive may be larger than what it is stored in
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
        cargo: AnyCargo,
        buffer: Any,
        at: int,
        source: Source | None = None,
        part: tuple[int, int] | None = None,
    ) -> None:
        """Send a tensor to device memory, from byte `at` on; `finish` tells when it is there.

        Of a divisible one, `part` is sent alone: where it begins and ends, in bytes of the tensor.
        """
        given = cargo.source if source is None else source
        for piece in cargo.pieces(min(self._staging.slot_bytes // 4, _LONGEST)):
            if piece.change is not None:
                self._free(piece.nbytes)
                self._changes.append((self._used, self._used + piece.nbytes, piece.change, buffer, at + piece.at))
                self._take(cargo.name, given, piece, 0, piece.nbytes)
                continue
            if piece.places is not None:
                self._free(piece.nbytes)
                self._move(piece.nbytes, buffer, at + piece.at)
                self._names += piece.names
                self._take_runs(given, piece.starts, self._used + piece.places, piece.sizes, piece.names)
                self._used += piece.nbytes
                continue
            done, end = (0, piece.nbytes) if part is None else part
            while done < end:
                place = int(piece.starts[0]) + done if len(piece.starts) == 1 else None
                room = self._room(buffer, at + piece.at + done, end - done, place)
                self._move(room, buffer, at + piece.at + done)
                self._take(cargo.name, given, piece, done, room)
                done += room

    def flush(self) -> None:
        """Send the rest of the slot; the caller's later work on the device comes after it."""
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

        Returns for how many. What is read past the page cache lies in the slot as in the blocks of the file.
        """
        slot = self._current()
        if self._direct is not None and place is not None and nbytes >= _UNIT:
            used = self._used + (place - self._used) % BLOCK
            if used + min(nbytes, _UNIT) > len(slot.memory):
                self._ship()
                slot = self._current()
                used = place % BLOCK
            self._used, left = used, len(slot.memory) - used
            return nbytes if nbytes <= left else left - (place + left) % BLOCK
        skipped = -self._used % ALIGN
        if self._moves:
            begin, end, other, before = self._moves[-1]
            gap = at - (before + end - begin)
            # The gap between two tensors is copied with them: one copy instead of two.
            skipped = gap if other is buffer and end == self._used and 0 <= gap < ALIGN else skipped
        size = len(slot.memory)
        left = size - self._used - skipped
        if left < min(nbytes, _REST, size // 8):
            self._ship()
            return min(nbytes, len(self._current().memory))
        self._used += skipped
        return min(nbytes, left)

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
            file, memory = source.scanned
            given = memory if file == -1 else file
            direct = self._direct if self._direct is not None and self._direct.passes_cache else None
            how: dict[str, Any] = {"crcs": crcs, "threads": self._threads()}
            if direct is None:
                failed, error = files.stage(given, (starts, to, sizes), slot.memory, **how)
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
        return _WAITING if self._cold is not None else min(access.cpus(), _COPYING)

    def _ask(self, source: Source, reached: int) -> None:
        """Let the system prefetch the next bytes, so that the disk is busy while the device copies."""
        if self._cold is None or (self._direct is not None and self._direct.passes_cache):
            return
        begin, end = self._cold
        until = min(reached + self._staging.slots * self._staging.slot_bytes, end)
        if until > begin:
            ask_for(source, Range(begin, until))
            self._cold = Range(until, end)

    # ---------------------------------------------------------------------------------------------- to the device
    def _ship(self) -> None:
        """Fill the slot, and let the device copy from it."""
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
    """Yield copies to scratch memory, as few as possible: its layout is the slot's."""
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
    starts: NDArray[np.uint64], sizes: NDArray[np.uint64], begin: int, end: int, block: int = 1
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return bytes `begin` to `end` of the joined runs, as runs; none of them is long.

    One run is divided at multiples of `block`, into its head, whole blocks, and its tail.
    """
    if len(starts) == 1:
        first, last = int(starts[0]) + begin, int(starts[0]) + end
        low, high = min(-(-first // block) * block, last), max(last // block * block, first)
        inner = np.arange(low, high, _UNIT, dtype=np.uint64) if low < high else _NOWHERE
        ends = np.array([high, last], np.uint64)
        edges = np.unique(np.concatenate([np.array([first], np.uint64), inner, ends]))
        return edges[:-1], np.diff(edges)
    ends = np.cumsum(sizes)
    low, high = (int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(ends, end, "left")) + 1)
    found, lengths = starts[low:high].copy(), sizes[low:high].copy()
    lengths[-1] -= ends[high - 1] - np.uint64(end)
    skipped = np.uint64(begin) - (ends[low] - sizes[low])
    found[0] += skipped
    lengths[0] -= skipped
    return found, lengths
