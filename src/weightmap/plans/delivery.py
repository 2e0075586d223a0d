"""`ReadPlan.run`: the wanted tensors one after another, as views of a mapping or read into memory of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from weightmap.core.bytes.descriptor import aligned
from weightmap.core.bytes.direct import DirectReader
from weightmap.core.native import checksums
from weightmap.errors import quoted
from weightmap.plans.pages import ask_for, give_back, reads_ahead
from weightmap.plans.part import PartReader, Runs
from weightmap.plans.wants import Indices, Shard, arranged, axes_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Sum
    from weightmap.core.quant.places import Heads
    from weightmap.core.table.table import Row
    from weightmap.plans.residency import Spans

# Checksums of a file, checked on the bytes of tensors as they are read.

Check = bool | Literal["last"]


def check_when(verify: Check) -> None:
    """Raise ValueError unless this is a value of `verify`."""
    if verify not in (True, False, "last"):
        raise ValueError(f"verify is {verify!r}, expected True, False or 'last'")


class Sums:
    """The checksums that cover what is wanted of a file, checked as its bytes come by in their order.

    What is covered and does not come by, such as the bytes between tensors, is read from the file.

    Parameters
    ----------
    source : Source
    sums : sequence of Sum
        All that the file has.
    begins, ends : array_like of int
        Where the tensors lie that are wanted.
    last : bool
        Whether a checksum is due before the last tensor that it covers is handed out, and not before the first.
    consumed : callable, optional
        Called with begin and end of what was read.
    """

    def __init__(
        self,
        source: Source,
        sums: Sequence[Sum],
        begins: ArrayLike,
        ends: ArrayLike,
        *,
        last: bool = False,
        consumed: Callable[[int, int], None] | None = None,
    ) -> None:
        self._source, self._last, self._consumed = source, last, consumed
        begin, end = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
        order = np.argsort(begin, kind="stable")
        order = order[begin[order] < end[order]]
        begin, reached = begin[order], np.maximum.accumulate(end[order])
        # With each checksum the byte that it is due at, or before.
        self._left: list[tuple[Sum, int]] = []
        for stored in sorted(sums, reverse=True):
            before = int(np.searchsorted(begin, stored.offset + stored.nbytes))
            if before and reached[before - 1] > stored.offset:
                self._left.append((stored, int(reached[before - 1]) - 1 if last else stored.offset))
        self._reached()

    @property
    def takes(self) -> bool:
        """Whether bytes that come by are still needed: `feed` them."""
        return self._last and bool(self._left)

    def _reached(self) -> None:
        """Begin with the next checksum."""
        self._at, self._crc = (self._left[-1][0].offset, 0) if self._left else (0, 0)

    def _end(self) -> int:
        """Where the bytes end that the next checksum covers."""
        stored = self._left[-1][0]
        return stored.offset + stored.nbytes

    def join(self, end: int, begin: int) -> bool:
        """Whether tensors that end and begin at these bytes are handed out together, for a checksum covers both."""
        return not self._last and any(
            stored.offset < end and begin < stored.offset + stored.nbytes for stored, _ in self._left
        )

    def feed(self, starts: Iterable[int], sizes: Iterable[int], crcs: Iterable[int]) -> None:
        """Take the checksums of runs of the file, in its order."""
        for start, size, crc in zip(starts, sizes, crcs, strict=True):
            while self._left and self._end() <= start:
                self._complete()
            if not self._left or start + size <= self._at:
                continue
            end = self._end()
            self._skip(start)
            if self._at == start and start + size <= end:
                self._crc, self._at = checksums.crc32_combine(self._crc, crc, size), start + size
            else:
                self._skip(min(start + size, end))

    def read(self, end: int) -> None:
        """Read on to a place in the file, as if all before it came by."""
        while self._left and self._end() <= end:
            self._complete()
        if self._left:
            self._skip(end)

    def finish(self, end: int) -> None:
        """Check what is due before tensors up to here are handed out. Raises `ChecksumError`."""
        while self._left and self._left[-1][1] < end:
            self._complete()

    def _skip(self, to: int) -> None:
        """Read on to a place in the file."""
        if to <= self._at:
            return
        for piece in self._source.chunks(self._at, to - self._at):
            self._crc = checksums.crc32(piece, self._crc)
            if self._consumed is not None:
                self._consumed(self._at, self._at + len(piece))
            self._at += len(piece)

    def _complete(self) -> None:
        stored, _ = self._left[-1]
        self._skip(stored.offset + stored.nbytes)
        stored.check(self._crc)
        self._left.pop()
        self._reached()


# The system may keep pages in units of so many bytes, and gives back none of a unit that is left in part.
_UNIT = 2 << 20
# Runs of elements of a quantised tensor are decoded one by one where they are less than one part in so many.
_SPARSE = 2


class Delivery(PartReader):
    """How the tensors of one file are handed out.

    Parameters
    ----------
    spans : Spans
    file : int
        The number of the source.
    keys : mapping of int to index or Indices
        Of the tensors wanted in part.
    chunk : int
        Bytes read at once; small tensors that lie together are read together up to that.
    window : int
        Bytes of the mapping to prefetch.
    gap : int
        Tensors with less than so many bytes between them are read together.
    within : (int, float)
        Gap and over-read that bound joining the ranges of a part into one read: see `files.join_ranges`.
    release : bool
        Whether consumed pages are given back.
    direct : bool
        Whether the page cache is passed by.
    sums : sequence of Sum
        Checksums to be checked: before the first tensor that they cover is handed out or, with `last`, before the last.
    last : bool
    into, cut : callable, optional
        See `ReadPlan.run`.
    reads : iterable of (int, int)
        The reads of the plan in this file, for prefetching from a store.
    heads : Heads
        Headers of quantised tensors, read while planning.
    """

    def __init__(
        self,
        spans: Spans,
        file: int,
        keys: Mapping[int, Any],
        *,
        chunk: int,
        window: int,
        gap: int,
        within: tuple[int, float],
        release: bool,
        direct: bool = False,
        sums: Sequence[Sum] = (),
        last: bool = False,
        into: Callable[[str, int], NDArray[np.uint8] | None] | None = None,
        cut: Callable[[str, Any], Iterable[Any]] | None = None,
        reads: Iterable[tuple[int, int]] = (),
        heads: Heads,
    ) -> None:
        self.spans = spans
        self._heads = heads
        self._into, self._cut = into, cut
        self.number: int = file
        self.source: Source = spans.sources[file]
        self.keys = keys
        self.window: int = window
        self._release = release
        self._from = self._to = 0  # consumed, and not given back yet
        self._consumed: list[tuple[int, int]] = []
        self._stored, self._last = sums, last
        self._sums: Sums
        self._reads, self._ahead = reads, self.source
        reader = DirectReader(self.source) if direct and self.source.has_pages else self.source
        super().__init__(reader, chunk=chunk, gap=within[0], most=within[1])
        self._gap = gap

    # ------------------------------------------------------------------------------------------------- giving back
    def consumed(self, begin: int, end: int) -> None:
        """Note that bytes were consumed; give pages back when there are enough of them."""
        if not self._release or end <= begin:
            return
        if not self._from <= begin <= self._to + self._gap:
            self._flush()
            self._from = self._to = begin
        self._to = max(self._to, end)
        if self._to - self._from >= self.chunk + 2 * _UNIT:
            self._give_back([(self._from, self._to)])
            # The last unit is consumed in part, and the one before it perhaps not given back for that reason.
            self._from = (self._to // _UNIT - 1) * _UNIT
            self._consumed.append((self._from, self._to))

    def _flush(self) -> None:
        if self._to > self._from:
            self._give_back([(self._from, self._to)])
            self._consumed.append((self._from, self._to))
            self._from = self._to

    def finish(self) -> None:
        """Give back all that was consumed; once more what was in use when it was given back."""
        self._flush()
        if self._consumed:
            self._give_back(self._consumed)

    def _give_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        give_back(self.source, (self.spans.outwards(self.number, begin, end) for begin, end in ranges))

    # --------------------------------------------------------------------------------------------------- verifying
    def _sums_of(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Sums:
        """Return the checksums that cover these bytes."""
        # Tensors that were read for a checksum of theirs and are not handed out yet are not given back.
        consumed = None if self._last else self.consumed
        return Sums(self.source, self._stored, begins, ends, last=self._last, consumed=consumed)

    def _pieces(self, name: str, number: int) -> Iterator[Any]:
        """Yield the indices by which a tensor wanted in part is handed out."""
        keys = Indices.of(self.keys[number])
        return iter(keys) if self._cut is None else (piece for key in keys for piece in self._cut(name, key))

    # ----------------------------------------------------------------------------------------------------- mapping
    def mapped(self, numbers: NDArray[np.int64]) -> Iterator[tuple[str, Any]]:
        """Yield names and views of the mapping; prefetch the next pages where the system does not."""
        spans = self.spans
        begins, ends = spans.begin[numbers], spans.begin[numbers] + spans.nbytes[numbers]
        sums = self._sums_of(begins, ends)
        asked = len(numbers) if reads_ahead(self.source) else 0
        for place, number in enumerate(numbers.tolist()):
            begin, end = int(begins[place]), int(ends[place])
            if asked < len(numbers) and begins[asked] <= begin + self.window // 2:
                last = max(int(np.searchsorted(begins, begin + self.window, side="left")), place + 1)
                for n in range(max(asked, place), last):
                    if int(numbers[n]) not in self.keys:  # what is wanted in part is touched only there
                        at = int(begins[n])
                        ask_for(self.source, at, min(int(ends[n]), begin + self.window) - at)
                asked = last
            if self._stored:
                if sums.takes:
                    # A mapping shows the pages that this reads, and a file that becomes shorter is an error here.
                    sums.read(end)
                sums.finish(end)
            name = spans.name(number)
            self.source.check_unchanged()
            array = spans.of(number).array()
            if number in self.keys:
                for key in self._pieces(name, number):
                    yield name, _selected(array, key, name)
            else:
                yield name, array
            del array
            self.consumed(begin, end)

    # ----------------------------------------------------------------------------------------------------- reading
    def read(self, numbers: NDArray[np.int64]) -> Iterator[tuple[str, Any]]:
        """Yield names and arrays in memory of their own; what lies close together is read together."""
        spans = self.spans
        begins, ends = spans.begin[numbers], spans.begin[numbers] + spans.nbytes[numbers]
        self._sums = self._sums_of(begins, ends)
        batches = partial(self._batches, numbers, begins, ends)
        whole = ((first, last) for batch, first, last in batches() if batch[0] not in self.keys)
        self._ahead = self.source.ahead(self._reads, arrays=whole)
        if self._ahead is not self.source:
            self._reader = self._ahead
        for batch, first, last in batches():
            number = batch[0]
            if number in self.keys:
                self._sums.finish(last)
                name = spans.name(number)
                for key in self._pieces(name, number):
                    yield name, self._part(number, name, key)
                self.consumed(first, last)
            else:
                yield from self._batch(batch, first, last)

    def _batches(
        self, numbers: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Iterator[tuple[list[int], int, int]]:
        """Yield the tensors that are read together, and between which two bytes of the file; each part for itself."""
        batch: list[int] = []
        first = reached = 0
        for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True):
            joins = batch and begin - reached < max(self._gap, 1) and max(end, reached) - first <= self.chunk
            inside = batch and end <= reached  # of a tensor that shares its bytes with one before
            if batch and (number in self.keys or not (joins or inside)):
                yield batch, first, reached
                batch = []
            if number in self.keys:
                yield [number], begin, end
                continue
            if not batch:
                first = reached = begin
            batch.append(number)
            reached = max(reached, end)
        if batch:
            yield batch, first, reached

    def _batch(self, numbers: list[int], first: int, last: int) -> Iterator[tuple[str, Any]]:
        """Yield whole tensors that lie between two bytes of the file, read into one piece of memory."""
        octets = self._fetch(first, last)
        for number in numbers:
            self._sums.finish(int(self.spans.begin[number] + self.spans.nbytes[number]))
            yield self.spans.name(number), self._whole(number, octets, first)
        del octets
        self.consumed(first, last)

    def _whole(self, number: int, octets: NDArray[np.uint8], at: int) -> Any:
        """Return a tensor over bytes of the file, which begin at `at`."""
        row = self.spans.of(number)
        if row.geometry is not None:
            return _made(row, ..., self.spans.name(number), lambda begin, end: octets[begin - at : end - at])
        return row.over(octets[row.offset - at : row.offset - at + row.nbytes])

    def _fetch(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return bytes of the file in new memory, aligned as they are in the file."""
        self.source.check_unchanged()
        octets = self._ahead.received(begin, end)
        if octets is not None:
            self.note(begin, octets)
        else:
            skip = begin % 64
            octets = aligned(end - begin + skip)[skip:]
            self.fill(octets, begin)
        octets.flags.writeable = self.source.mode != "mmap"
        return octets

    def note(self, at: int, octets: NDArray[np.uint8]) -> None:
        """Add a chunk to its checksums; it is consumed."""
        if self._sums.takes:
            self._sums.feed([at], [len(octets)], [checksums.crc32(octets)])
        self.consumed(at, at + len(octets))

    def note_runs(self, starts: NDArray[np.int64], length: int) -> None:
        """Note that runs are consumed."""
        if self._release:
            for start in starts.tolist():
                self.consumed(start, start + length)

    def _part(self, number: int, name: str, key: Any) -> Any:
        """Return a part of a tensor, of which no other bytes are read."""
        self.source.check_unchanged()
        row = self.spans.of(number)
        if row.geometry is not None:
            return _made(row, key, name, self._fetch)
        if row.dtype.quantized:
            return _selected(self.quantized(row, key, name, self._heads, number), key, name)
        what = f"tensor {quoted(name)}"
        part = Runs(row, axes_of(key, row.viewed[1], what), what)
        target = None if self._into is None else self._into(name, part.nbytes)
        if target is None:
            target = np.empty(part.nbytes, np.uint8)
        self.gather(part, target)
        return part.arranged(target, key, writeable=self.source.mode != "mmap")


def _selected(tensor: Any, key: Any, name: str) -> Any:
    """Return what an index selects of an array or a quantised tensor; decode no block that the part does not need."""
    shape: tuple[int, ...] = tensor.shape
    if hasattr(tensor, "runs"):
        axes = axes_of(key, shape, f"tensor {quoted(name)}")
        starts, length = runs_of(axes, shape, f"tensor {quoted(name)}")
        # Where runs lie as close together as that, decoding what lies between them is faster.
        if len(starts) > 1 and _SPARSE * len(starts) * length < starts[-1] + length - starts[0]:
            return arranged(tensor.runs(starts, length).reshape(-1), axes, key)
    return tensor[key.of(shape) if isinstance(key, Shard) else key]


def _made(row: Row, key: Any, name: str, fetch: Callable[[int, int], NDArray[np.uint8]]) -> Any:
    """Return what an index selects of a tensor with a geometry; `fetch` returns bytes of the file."""
    assert row.geometry is not None  # noqa: S101 - that is which tensors these are
    axes = axes_of(key, row.viewed[1], f"tensor {quoted(name)}")
    return arranged(row.geometry.part(row, axes, fetch(*row.geometry.extent(row, axes))), axes, key)
