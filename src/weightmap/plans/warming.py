"""Bringing the bytes of a plan into the page cache, by several threads; each local rank reads its share."""

from __future__ import annotations

from _thread import allocate_lock
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.arguments import as_threads, check_progress
from weightmap.core.bytes import Range
from weightmap.core.native import files as native_files
from weightmap.errors import TensorFileError
from weightmap.plans.pages import bring_in, resident_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source

    Columns = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]

# Threads wait for disks and servers most of the time.
_THREADS = 8
# Bytes that each thread reads in one run, if there are enough for all: long runs get large pages.
_STRETCH = 64 << 20


def share(reads: Columns, rank: int, world_size: int) -> Columns:
    """Return one rank's part of reads (file, start, stop): to a page, as many bytes as any other rank's."""
    files, starts, stops = reads
    ends = np.cumsum(stops - starts)
    if world_size == 1 or not len(ends):
        return reads
    total, page = int(ends[-1]), native_files.page_size()
    # The begin of each rank's part among the bytes of all reads, and the read that contains it.
    cuts = [total * number // world_size for number in (rank, rank + 1)]
    first, last = np.searchsorted(ends, cuts, side="right").tolist()

    def place(read: int, cut: int) -> int:
        """Return the begin of a rank's part in its file: at a page, so that no two ranks read the same page."""
        at = int(stops[read] - (ends[read] - cut))
        return max(int(starts[read]), at - at % page)

    part = slice(first, min(last + 1, len(ends)))
    begins, limits = starts[part].copy(), stops[part].copy()
    if len(begins):
        begins[0] = place(first, cuts[0])
        if last < len(ends):
            limits[-1] = place(last, cuts[1])
    return files[part], begins, limits


def pieces(reads: Columns, chunk: int) -> Columns:
    """Return reads in pieces that end at multiples of `chunk`."""
    files, starts, stops = reads
    counts = -(-stops // chunk) - starts // chunk
    counts[stops <= starts] = 0
    number = np.repeat(np.arange(len(starts)), counts)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.maximum(starts[number], (starts[number] // chunk + within) * chunk)
    ends = np.minimum(stops[number], (starts[number] // chunk + within + 1) * chunk)
    return files[number], begins, ends


def cold_in(sources: Sequence[Source], reads: Columns) -> tuple[NDArray[np.int64], bool]:
    """Return the bytes of each read that are not in memory, and whether that is exact; reads are in file order.

    If the system does not tell, all bytes count.
    """
    files, starts, stops = reads
    cold, exact = stops - starts, True
    bounds = np.searchsorted(files, np.arange(len(sources) + 1)).tolist()
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        of_file = slice(*bounds[number : number + 2])
        try:
            cold[of_file] -= resident_in(sources[number], starts[of_file], cold[of_file])
        except TensorFileError:
            raise
        except OSError:
            exact = False
    return cold, exact


def warm(
    sources: Sequence[Source],
    reads: Columns,
    chunk: int,
    budget: int | None,
    threads: int | None,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Bring reads into the page cache, in order, up to `budget` cold bytes; return the number of cold bytes read."""
    check_progress(progress)
    files, starts, stops = pieces(reads, chunk)
    cold, _ = cold_in(sources, (files, starts, stops))
    # Objects in a store have no pages.
    missing = (cold > 0) & np.array([source.store is None for source in sources])[files]
    if budget is not None:
        missing &= np.cumsum(cold) <= budget
    count = min(_THREADS if threads is None else as_threads(threads), 64)
    joined = native_files.join_ranges(files[missing], starts[missing], stops[missing], gap=0, max_over_read=1.0)[:3]
    stretch = min(_STRETCH, int((stops - starts)[missing].sum()) // count)
    columns = [column.tolist() for column in pieces(joined, max(stretch // chunk, 1) * chunk)]
    work = list(zip(*columns, strict=True))
    _bring_in(sources, work, chunk, min(count, len(work)), progress)
    return int(cold[missing].sum())


def _bring_in(
    sources: Sequence[Source],
    work: list[tuple[int, int, int]],
    chunk: int,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Bring pieces into memory by several threads, in order; the first error ends it."""
    pending, total, done = iter(work), sum(stop - start for _, start, stop in work), 0
    lock, interrupted = allocate_lock(), False
    errors: list[Exception] = []

    def read() -> None:
        nonlocal done
        try:
            for file, start, stop in pending:
                for at in range(start, stop, chunk):
                    if errors or interrupted:
                        return
                    part = Range(at, min(at + chunk, stop))
                    bring_in(sources[file], part)
                    with lock:
                        done += part.nbytes
                        if progress is not None:
                            progress(done, total)
        except Exception as error:  # noqa: BLE001 - raised by the thread that asked
            errors.append(error)

    if progress is not None:
        progress(0, total)
    from threading import Thread  # noqa: PLC0415 - imported during a fork, it would register its hook too late

    others: list[Thread] = []
    try:
        with suppress(RuntimeError):  # without more threads, fewer do the work
            for _ in range(threads - 1):
                thread = Thread(target=read, name="weightmap-warm")
                thread.start()
                others.append(thread)
        read()
    except BaseException:  # an interrupted caller waits only for the current chunks
        interrupted = True
        raise
    finally:
        for other in others:
            other.join()
    if errors:
        del errors[1:]
        raise errors.pop()  # keep none: an error refers to this frame, and so to the memory being read
