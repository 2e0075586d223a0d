"""`ReadPlan.run`: yields the wanted tensors, as views of a mapping or in new memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from weightmap.core.bytes import Range
from weightmap.core.native import checksums, files
from weightmap.core.native.access import aligned
from weightmap.core.quant.blocks import QuantizedTensor, decode_runs
from weightmap.plans.direct import DirectReader
from weightmap.plans.pages import ask_for, file_system_of, give_back, reads_ahead
from weightmap.plans.wants import Axis, Indices, Shard, arranged, axes_of, ranges_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Sum
    from weightmap.core.table.table import Row
    from weightmap.plans.places import Heads, Ranges
    from weightmap.plans.residency import Spans


class Runs:
    """A part of a dense tensor: runs of elements that lie together in the file.

    Parameters
    ----------
    row : Row
    axes : list of Axis
        The elements of `Row.viewed` in the part.
    name : str
        Of the tensor, for messages.

    Attributes
    ----------
    starts : ndarray of int64
        The offsets of the runs in the file, in order.
    length, nbytes : int
        Bytes of a run, and of all runs.
    """

    starts: NDArray[np.int64]

    def __init__(self, row: Row, axes: list[Axis], name: str) -> None:
        self._axes = axes
        self._dtype, shape = row.viewed
        starts, length = runs_of(axes, shape, name)
        itemsize = self._dtype.itemsize
        self.starts = row.offset + starts * itemsize
        self.length: int = length * itemsize
        self.nbytes: int = len(starts) * self.length

    def reads(
        self,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        chunk: int,
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield each read: its first run and the run after its last, then its begin and end in the file.

        Runs lie from `starts` to `stops`, joined ranges of runs from `begins` to `ends`. A read of several runs has at
        most `chunk` bytes, unless they have no gaps.
        """
        lows = np.searchsorted(starts, begins).tolist()
        for low, high, last in zip(lows, [*lows[1:], len(starts)], ends.tolist(), strict=True):
            dense = last - int(starts[low]) == (high - low) * self.length
            while low < high:
                begin = int(starts[low])
                stop = high if dense else int(np.searchsorted(stops[low:high], begin + chunk, side="right")) + low
                stop = max(stop, low + 1)
                yield low, stop, begin, int(stops[stop - 1])
                low = stop  # noqa: PLW2901

    def arranged(self, octets: NDArray[np.uint8], key: Any, *, writeable: bool) -> Any:
        """Return the selection of the index as an array over the bytes of all runs, in file order."""
        if not writeable:
            octets.flags.writeable = False
        return arranged(octets.view(self._dtype) if len(octets) else np.empty(0, self._dtype), self._axes, key)


class PartReader:
    """Reads parts of the tensors of one file to memory, a chunk at a time.

    Parameters
    ----------
    source : Source or DirectReader
        The source to read; one from `Source.ahead` fetches in advance.
    chunk : int
        Bytes read at once.
    gap, max_over_read
        Bounds on joining runs into one read: see `files.join_ranges`.
    """

    def __init__(self, source: Source | DirectReader, *, chunk: int, gap: int, max_over_read: float) -> None:
        self._reader = source
        self.chunk: int = chunk
        self.gap: int = gap
        self.max_over_read: float = max_over_read

    def note(self, at: int, octets: NDArray[np.uint8]) -> None:
        """Note that a chunk was read, from `at` on; for subclasses."""

    def note_runs(self, starts: NDArray[np.int64], length: int) -> None:
        """Note that runs were read, without the bytes between them; for subclasses."""

    def fill(self, octets: NDArray[np.uint8], at: int) -> None:
        """Read into memory, a chunk at a time."""
        for start in range(0, len(octets), self.chunk):
            part = octets[start : start + self.chunk]
            self._reader.read_into(at + start, part)
            self.note(at + start, part)

    def gather(self, part: Runs, target: NDArray[np.uint8]) -> None:
        """Read the runs of a part; read close runs together with the bytes between them."""
        if len(part.starts) == 1:
            self.fill(target, int(part.starts[0]))
            return
        starts, stops = part.starts, part.starts + part.length
        begins, ends = self._joined(starts, stops)
        if len(begins) == len(starts) and part.length <= self.chunk:  # nothing is joined
            self._gather_runs(starts, part.length, target)
            return
        for low, high, begin, end in part.reads(starts, stops, begins, ends, self.chunk):
            if part.length * (high - low) == end - begin:
                self.fill(target[low * part.length : high * part.length], begin)
                continue
            octets = np.empty(end - begin, np.uint8)
            self.fill(octets, begin)
            rows = target[low * part.length : high * part.length].reshape(high - low, part.length)
            places = starts[low:high] - begin
            step = int(places[1] - places[0])
            if bool((np.diff(places) == step).all()):  # columns of a matrix: one copy instead of one for each row
                rows[...] = np.ndarray(rows.shape, np.uint8, octets, int(places[0]), (step, 1))
                continue
            for row, start in zip(rows, places.tolist(), strict=True):
                row[:] = octets[start : start + part.length]

    def _joined(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Ranges:
        """Return the beginnings and ends of the reads of ranges in ascending order."""
        one_file = np.zeros(len(starts), np.uint32)
        _, begins, ends, _ = files.join_ranges(one_file, starts, stops, gap=self.gap, max_over_read=self.max_over_read)
        return begins, ends

    def _gather_runs(self, starts: NDArray[np.int64], length: int, target: NDArray[np.uint8]) -> None:
        """Read runs that lie apart, about a chunk at a time; over a network, without the bytes between them."""
        reader = self._reader
        gap = 0 if isinstance(reader, DirectReader) or file_system_of(reader).is_remote else self.gap
        step = max(self.chunk // max(length, 1), 1)
        for low in range(0, len(starts), step):
            batch = starts[low : low + step]
            reader.read_runs(batch, length, target[low * length : (low + len(batch)) * length], gap)
            self.note_runs(batch, length)

    def quantized(self, row: Row, key: Any, name: str, heads: Heads, number: int) -> Any:
        """Return a quantised tensor, reading only the blocks of a part. `number` is its number in `heads`."""
        starts, stops = ranges_of(heads.of(number, row), key, name)
        order = np.argsort(starts, kind="stable")
        begins, ends = self._joined(starts[order], stops[order])
        # Pages of `zeros` take no memory until something is read into them.
        allocate = np.zeros if int((ends - begins).sum()) < row.nbytes else np.empty
        octets = allocate(row.nbytes, np.uint8)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            head = heads.head(number, begin)[: end - begin]
            at = begin + len(head)
            octets[begin - row.offset : at - row.offset] = np.frombuffer(head, np.uint8)
            self.fill(octets[at - row.offset : end - row.offset], at)
        return row.over(octets)


Check = bool | Literal["last"]


def check_when(verify: Check) -> None:
    """Raise ValueError unless this is a value of `verify`."""
    if verify not in (True, False, "last"):
        raise ValueError(f"verify is {verify!r}, expected True, False or 'last'")


class Sums:
    """The checksums of the wanted tensors of one file, computed while its bytes are read in order.

    Other bytes under a checksum, such as the padding between tensors, are read too.

    Parameters
    ----------
    source : Source
    sums : sequence of Sum
        All checksums of the file.
    begins, ends : array_like of int
        The ranges of the wanted tensors.
    last : bool
        Whether to check before yielding the last tensor under a checksum, instead of the first.
    consumed : callable, optional
        Called with begin and end of each read.
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
        # Each checksum, with the position before which it must be checked; the next one is last in the list.
        self._due: list[tuple[Sum, int]] = []
        for stored in sorted(sums, reverse=True):
            before = int(np.searchsorted(begin, stored.offset + stored.nbytes))
            if before and reached[before - 1] > stored.offset:
                self._due.append((stored, int(reached[before - 1]) - 1 if last else stored.offset))
        self._begin()

    @classmethod
    def of(cls, share: FileShare, options: RunOptions, sums: Sequence[Sum], release: PageRelease | None) -> Sums:
        """Return the checksums of the wanted tensors of a file."""
        last = options.verify == "last"
        # With "last", a checksum reads tensors that are yielded next, so that their pages stay.
        consumed = None if last or release is None else release.consumed
        return cls(share.source, sums, *share.bounds(), last=last, consumed=consumed)

    @property
    def takes(self) -> bool:
        """Whether `feed` still needs the checksums of bytes that are read."""
        return self._last and bool(self._due)

    def _begin(self) -> None:
        """Begin with the next checksum."""
        self._at, self._crc = (self._due[-1][0].offset, 0) if self._due else (0, 0)

    def _end(self) -> int:
        """Return the end of the bytes that the next checksum covers."""
        stored = self._due[-1][0]
        return stored.offset + stored.nbytes

    def join(self, end: int, begin: int) -> bool:
        """Whether one checksum covers tensors that end at `end` and begin at `begin`, so that both are due together."""
        return not self._last and any(
            stored.offset < end and begin < stored.offset + stored.nbytes for stored, _ in self._due
        )

    def feed(self, starts: Iterable[int], sizes: Iterable[int], crcs: Iterable[int]) -> None:
        """Add the checksums of runs that were read, in file order."""
        for start, size, crc in zip(starts, sizes, crcs, strict=True):
            while self._due and self._end() <= start:
                self._complete()
            if not self._due or start + size <= self._at:
                continue
            end = self._end()
            self._skip(start)
            if self._at == start and start + size <= end:
                self._crc, self._at = checksums.crc32_combine(self._crc, crc, size), start + size
            else:
                self._skip(min(start + size, end))

    def read(self, end: int) -> None:
        """Read up to a position in the file, and check the checksums that end there or before."""
        while self._due and self._end() <= end:
            self._complete()
        if self._due:
            self._skip(end)

    def finish(self, end: int) -> None:
        """Check the checksums due before tensors up to here are yielded. Raises `ChecksumError`."""
        while self._due and self._due[-1][1] < end:
            self._complete()

    def _skip(self, to: int) -> None:
        """Read up to a position in the file, for the next checksum."""
        if to <= self._at:
            return
        for piece in self._source.chunks(self._at, to - self._at):
            self._crc = checksums.crc32(piece, self._crc)
            if self._consumed is not None:
                self._consumed(self._at, self._at + len(piece))
            self._at += len(piece)

    def _complete(self) -> None:
        stored, _ = self._due[-1]
        self._skip(stored.offset + stored.nbytes)
        stored.check(self._crc)
        self._due.pop()
        self._begin()


# Bytes of the largest unit in which the system keeps pages; a unit that is partly in use stays whole.
_PAGE_UNIT = 2 << 20
# Decode runs of a quantised tensor one by one if they span more than this many times their elements.
_MIN_SPREAD = 2


class FileShare(NamedTuple):
    """A plan's wants in one file.

    Attributes
    ----------
    spans : Spans
    source : Source
    file : int
        The number of the source.
    numbers : ndarray of int64
        The numbers of the wanted tensors.
    indices : mapping of int to index or Indices
        The indices of partly wanted tensors, by number.
    rows : mapping of int to Row
        Rows of partly wanted tensors that planning made.
    heads : Heads or None
        First bytes of quantised tensors, read while planning.
    gap : int
        Tensors with less than this many bytes between them are read together.
    within : (int, float)
        Gap and over-read that bound joining the ranges of a part into one read: see `files.join_ranges`.
    """

    spans: Spans
    source: Source
    file: int
    numbers: NDArray[np.int64]
    indices: Mapping[int, Any]
    rows: Mapping[int, Row]
    heads: Heads | None
    gap: int
    within: tuple[int, float]

    def bounds(self) -> Ranges:
        """Return begin and end of the bytes of each wanted tensor."""
        begins = self.spans.begin[self.numbers]
        return begins, begins + self.spans.nbytes[self.numbers]


class RunOptions(NamedTuple):
    """The arguments of `ReadPlan.run`, and two bounds.

    Attributes
    ----------
    chunk : int
        Bytes of one read; small neighbours are read together up to this size.
    window : int
        Bytes of a mapping to prefetch at once.
    """

    release: bool
    direct: bool
    verify: Check
    into: Callable[[str, int], NDArray[np.uint8] | None] | None
    cut: Callable[[str, Any], Iterable[Any]] | None
    chunk: int
    window: int


class PageRelease:
    """Gives the pages of consumed bytes back to the system.

    Parameters
    ----------
    share : FileShare
    options : RunOptions
    """

    def __init__(self, share: FileShare, options: RunOptions) -> None:
        self._share, self._min_nbytes = share, options.chunk + 2 * _PAGE_UNIT
        self._begin = self._end = 0  # the consumed bytes not yet given back
        self._released: list[Range] = []

    def consumed(self, begin: int, end: int) -> None:
        """Note that bytes were consumed; give pages back when there are enough of them."""
        if end <= begin:
            return
        if not self._begin <= begin <= self._end + self._share.gap:
            self._flush()
            self._begin = self._end = begin
        self._end = max(self._end, end)
        if self._end - self._begin >= self._min_nbytes:
            self._give_back([Range(self._begin, self._end)])
            # Partial use of the last unit may also have kept the unit before it: begin there again.
            self._begin = (self._end // _PAGE_UNIT - 1) * _PAGE_UNIT
            self._released.append(Range(self._begin, self._end))

    def _flush(self) -> None:
        if self._end > self._begin:
            self._give_back([Range(self._begin, self._end)])
            self._released.append(Range(self._begin, self._end))
            self._begin = self._end

    def finish(self) -> None:
        """Give back all consumed bytes, once more from the first: some may have been in use the first time."""
        self._flush()
        if self._released:
            self._give_back(self._released)

    def _give_back(self, ranges: Iterable[Range]) -> None:
        spans, file = self._share.spans, self._share.file
        give_back(self._share.source, [spans.with_edges(file, part) for part in ranges])


def mapped(
    share: FileShare, options: RunOptions, sums: Sequence[Sum], release: PageRelease | None
) -> Iterator[tuple[str, Any]]:
    """Yield names and views of the mapping; prefetch the next pages if the system does not."""
    spans, source, numbers, indices = share.spans, share.source, share.numbers, share.indices
    begins, ends = share.bounds()
    checked = Sums.of(share, options, sums, release) if sums else None
    prefetched = len(numbers) if reads_ahead(source) else 0
    for position, number in enumerate(numbers.tolist()):
        begin, end = int(begins[position]), int(ends[position])
        if prefetched < len(numbers) and begins[prefetched] <= begin + options.window // 2:
            last = max(int(np.searchsorted(begins, begin + options.window, side="left")), position + 1)
            for n in range(max(prefetched, position), last):
                if int(numbers[n]) not in indices:  # of a partly wanted tensor, only the part is touched
                    ask_for(source, Range(int(begins[n]), min(int(ends[n]), begin + options.window)))
            prefetched = last
        if checked is not None:
            if checked.takes:
                # Read the pages of the mapping: if the file has shrunk, this raises an error instead of faulting.
                checked.read(end)
            checked.finish(end)
        name = spans.name(number)
        source.check_unchanged()
        array = (share.rows.get(number) or spans.of(number)).array()
        if number in indices:
            for key in _pieces(name, indices[number], options):
                yield name, _selected(array, key, name)
        else:
            yield name, array
        del array
        if release is not None:
            release.consumed(begin, end)


def _pieces(name: str, key: Any, options: RunOptions) -> Iterable[Any]:
    """Return the indices of the pieces in which a partly wanted tensor is yielded."""
    keys = key if isinstance(key, Indices) else (key,)
    return keys if options.cut is None else (piece for key in keys for piece in options.cut(name, key))


class FileReader(PartReader):
    """Reads the wanted tensors of one file into new memory; small neighbours are read together.

    Parameters
    ----------
    share : FileShare
    options : RunOptions
    sums : sequence of Sum
        Checksums to verify.
    release : PageRelease or None
    reads : iterable of Range
        The reads of the plan in this file, for prefetching from a store.
    """

    def __init__(
        self,
        share: FileShare,
        options: RunOptions,
        sums: Sequence[Sum],
        release: PageRelease | None,
        reads: Iterable[Range],
    ) -> None:
        self._share, self._options, self._release = share, options, release
        self._sums = Sums.of(share, options, sums, release)
        source = share.source
        batches = self._batches()
        whole = (Range(begin, end) for batch, begin, end in batches if batch[0] not in share.indices)
        self._ahead = source.ahead(reads, arrays=whole)
        reader: Source | DirectReader = self._ahead
        if options.direct and source.has_pages:
            reader = DirectReader(source)
        super().__init__(reader, chunk=options.chunk, gap=share.within[0], max_over_read=share.within[1])

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield names and tensors, or their parts."""
        share = self._share
        for batch, begin, end in self._batches():
            number = batch[0]
            if number not in share.indices:
                yield from self._batch(batch, begin, end)
                continue
            self._sums.finish(end)
            name = share.spans.name(number)
            for key in _pieces(name, share.indices[number], self._options):
                yield name, self._part(number, name, key)
            self._consume(begin, end)

    def _batches(self) -> Iterator[tuple[list[int], int, int]]:
        """Yield tensors to read together, with begin and end of the read; partly wanted tensors one by one."""
        share = self._share
        batch: list[int] = []
        first = reached = 0
        for number, begin, end in zip(
            share.numbers.tolist(), *(column.tolist() for column in share.bounds()), strict=True
        ):
            joins = batch and begin - reached < max(share.gap, 1) and max(end, reached) - first <= self._options.chunk
            is_inside = batch and end <= reached  # an earlier tensor has the same bytes
            if batch and (number in share.indices or not (joins or is_inside)):
                yield batch, first, reached
                batch = []
            if number in share.indices:
                yield [number], begin, end
                continue
            if not batch:
                first = reached = begin
            batch.append(number)
            reached = max(reached, end)
        if batch:
            yield batch, first, reached

    def _batch(self, numbers: list[int], begin: int, end: int) -> Iterator[tuple[str, Any]]:
        """Yield whole tensors that lie from `begin` to `end` in the file, read into one piece of memory."""
        spans, octets = self._share.spans, self._fetch(begin, end)
        for number in numbers:
            self._sums.finish(int(spans.begin[number] + spans.nbytes[number]))
            yield spans.name(number), self._whole(number, octets, begin)
        del octets
        self._consume(begin, end)

    def _whole(self, number: int, octets: NDArray[np.uint8], at: int) -> Any:
        """Return a tensor over bytes of the file, which begin at `at`."""
        row = self._share.spans.of(number)
        if row.geometry is not None:
            name = self._share.spans.name(number)
            return _part_of_geometry(row, ..., name, lambda begin, end: octets[begin - at : end - at])
        return row.over(octets[row.offset - at : row.offset - at + row.nbytes])

    def _fetch(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return bytes of the file in new memory, aligned as in the file."""
        source = self._share.source
        source.check_unchanged()
        octets = self._ahead.received(begin, end)
        if octets is not None:
            self.note(begin, octets)
        else:
            skip = begin % 64
            octets = aligned(end - begin + skip)[skip:]
            self.fill(octets, begin)
        octets.flags.writeable = source.mode != "mmap"
        return octets

    def note(self, at: int, octets: NDArray[np.uint8]) -> None:
        """Add a chunk to the checksums, and note that it is consumed."""
        if self._sums.takes:
            self._sums.feed([at], [len(octets)], [checksums.crc32(octets)])
        self._consume(at, at + len(octets))

    def note_runs(self, starts: NDArray[np.int64], length: int) -> None:
        """Note that runs are consumed."""
        if self._release is not None:
            for start in starts.tolist():
                self._release.consumed(start, start + length)

    def _consume(self, begin: int, end: int) -> None:
        if self._release is not None:
            self._release.consumed(begin, end)

    def _part(self, number: int, name: str, key: Any) -> Any:
        """Return a part of a tensor, reading only the bytes of the part."""
        share = self._share
        share.source.check_unchanged()
        row = share.rows.get(number) or share.spans.of(number)
        if row.geometry is not None:
            return _part_of_geometry(row, key, name, self._fetch)
        if row.dtype.quantized:
            assert share.heads is not None  # noqa: S101 - planning read its head
            return _selected(self.quantized(row, key, name, share.heads, number), key, name)
        part = Runs(row, axes_of(key, row.viewed[1], name), name)
        target = None if self._options.into is None else self._options.into(name, part.nbytes)
        if target is None:
            target = np.empty(part.nbytes, np.uint8)
        self.gather(part, target)
        return part.arranged(target, key, writeable=share.source.mode != "mmap")


def _selected(tensor: Any, key: Any, name: str) -> Any:
    """Return the selection of an index in an array or a quantised tensor; decode only the blocks that it needs."""
    shape: tuple[int, ...] = tensor.shape
    if isinstance(tensor, QuantizedTensor):
        axes = axes_of(key, shape, name)
        starts, length = runs_of(axes, shape, name)
        # Close runs decode faster together with the elements between them.
        if len(starts) > 1 and _MIN_SPREAD * len(starts) * length < starts[-1] + length - starts[0]:
            return arranged(decode_runs(tensor, starts, length).reshape(-1), axes, key)
    return tensor[key.of(shape) if isinstance(key, Shard) else key]


def _part_of_geometry(row: Row, key: Any, name: str, fetch: Callable[[int, int], NDArray[np.uint8]]) -> Any:
    """Return the selection of an index in a tensor with a geometry; `fetch` returns bytes of the file."""
    assert row.geometry is not None  # noqa: S101 - the callers check it
    axes = axes_of(key, row.viewed[1], name)
    return arranged(row.geometry.part(row, axes, fetch(*row.geometry.extent(row, axes))), axes, key)
