"""Reads the part of a tensor that an index selects, and no other bytes than joining neighbours takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.native import files
from weightmap.plans.direct import DirectReader
from weightmap.plans.pages import file_system_of
from weightmap.plans.wants import arranged, ranges_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row
    from weightmap.plans.places import Heads
    from weightmap.plans.wants import Axis


class Runs:
    """A part of a dense tensor, as runs of elements that are put together.

    Parameters
    ----------
    row : Row
    axes : list of Axis
        The part, of `Row.viewed`.
    what : str
        The tensor in messages.

    Attributes
    ----------
    starts : ndarray of int64
        Where the runs begin in the file, in order.
    length, nbytes : int
        Bytes of a run and of all.
    """

    starts: NDArray[np.int64]

    def __init__(self, row: Row, axes: list[Axis], what: str) -> None:
        self._axes = axes
        self._dtype, shape = row.viewed
        starts, length = runs_of(axes, shape, what)
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
        """Yield first run, last run, begin and end of each read; one of several runs has at most `chunk` bytes."""
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
        """Return the array that the index gives, over the bytes of all runs in the order of the file."""
        if not writeable:
            octets.flags.writeable = False
        return arranged(octets.view(self._dtype) if len(octets) else np.empty(0, self._dtype), self._axes, key)


class PartReader:
    """Reads parts of the tensors of one file to memory, a chunk at a time.

    Parameters
    ----------
    source : Source or DirectReader
        Of the rows; one that `Source.ahead` returned fetches in advance.
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
        """Take note of a chunk that was read, from `at` on."""

    def note_runs(self, starts: NDArray[np.int64], length: int) -> None:
        """Take note of runs that were read, and nothing between them."""

    def fill(self, octets: NDArray[np.uint8], at: int) -> None:
        """Read into memory, a chunk at a time."""
        for start in range(0, len(octets), self.chunk):
            part = octets[start : start + self.chunk]
            self._reader.read_into(at + start, part)
            self.note(at + start, part)

    def gather(self, part: Runs, target: NDArray[np.uint8]) -> None:
        """Read the runs of a part; those that lie close to each other with what is between them."""
        if len(part.starts) == 1:
            self.fill(target, int(part.starts[0]))
            return
        starts, stops = part.starts, part.starts + part.length
        nowhere = np.zeros(len(starts), np.uint32)
        _, begins, ends, _ = files.join_ranges(nowhere, starts, stops, gap=self.gap, max_over_read=self.max_over_read)
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
            if bool((np.diff(places) == step).all()):  # columns of a matrix: one copy, where each row would be one
                rows[...] = np.ndarray(rows.shape, np.uint8, octets, int(places[0]), (step, 1))
                continue
            for row, start in zip(rows, places.tolist(), strict=True):
                row[:] = octets[start : start + part.length]

    def _gather_runs(self, starts: NDArray[np.int64], length: int, target: NDArray[np.uint8]) -> None:
        """Read runs that are no neighbours, about a chunk at a time; what lies between them stays on a network."""
        reader = self._reader
        gap = 0 if isinstance(reader, DirectReader) or file_system_of(reader).is_remote else self.gap
        step = max(self.chunk // max(length, 1), 1)
        for low in range(0, len(starts), step):
            some = starts[low : low + step]
            reader.read_runs(some, length, target[low * length : (low + len(some)) * length], gap)
            self.note_runs(some, length)

    def quantized(self, row: Row, key: Any, name: str, heads: Heads, number: int) -> Any:
        """Return a quantised tensor, number `number` of `heads`, of which only the blocks of a part are read."""
        starts, stops = ranges_of(heads.of(number, row), key, name)
        order = np.argsort(starts, kind="stable")
        nowhere = np.zeros(len(order), np.uint32)
        _, begins, ends, _ = files.join_ranges(
            nowhere, starts[order], stops[order], gap=self.gap, max_over_read=self.max_over_read
        )
        # Zeros are memory that is never touched where nothing is read.
        new = np.zeros if int((ends - begins).sum()) < row.nbytes else np.empty
        octets = new(row.nbytes, np.uint8)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            head = heads.known(number, begin)[: end - begin]
            at = begin + len(head)
            octets[begin - row.offset : at - row.offset] = np.frombuffer(head, np.uint8)
            self.fill(octets[at - row.offset : end - row.offset], at)
        return row.over(octets)
