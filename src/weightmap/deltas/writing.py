"""Writes the files of a version: the bytes of the version before, with changed tensors decoded over them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from weightmap.core.bytes.sink import Sink, write_all
from weightmap.core.native import files as native_files
from weightmap.core.ranges import Range
from weightmap.deltas.frames import BLOCK
from weightmap.deltas.overlay import AT_ONCE, Patched
from weightmap.deltas.publishing import exhaust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.sink import WritePlan
    from weightmap.core.bytes.source import Source
    from weightmap.core.native.access import Descriptor
    from weightmap.core.table.table import Row

# Bytes of unchanged data that are copied at once, and that a thread copies before it takes other work.
_COPIED, _SHARE = 1 << 20, 64 << 20
# Bytes after which the disk begins with them, instead of when all is written.
_FLUSHED = 8 << 20


def segments(source: Source, changed: Sequence[Row]) -> Iterator[tuple[int, int, Row | None]]:
    """Yield the parts of a file in order: offset, bytes, and the row of a changed tensor or None for what stays."""
    at = 0
    for row in sorted(changed, key=lambda row: row.offset):
        if row.offset > at:
            yield at, row.offset - at, None
        yield row.offset, row.nbytes, row
        at = row.offset + row.nbytes
    if at < source.size:
        yield at, source.size - at, None


def pieces(source: Source, offset: int, nbytes: int, row: Row | None) -> Iterator[memoryview]:
    """Yield the new bytes of a segment."""
    if row is None:
        return source.ahead([Range(offset, offset + nbytes)]).chunks(offset, nbytes, _COPIED)
    assert isinstance(row.geometry, Patched)  # noqa: S101 - that is what changed rows have
    return row.geometry.pieces(row)


def write_files(
    files: Iterable[tuple[Source, Sequence[Row], Descriptor, bool]],
    threads: int,
    progress: Callable[[int], None],
) -> None:
    """Write files, each from its source and its changed rows, and flush them to the disk.

    Of a file that shares the bytes of its source already, by the last entry, the changed rows alone are written.
    `progress` is called with the bytes that were written since its last call. The first error ends the work.
    """

    def write(fd: Descriptor, source: Source, segment: tuple[int, int, Row | None]) -> Iterator[int]:
        offset, nbytes, row = segment
        if row is None:
            stages = [pieces(source, *segment)]
        else:
            assert isinstance(row.geometry, Patched)  # noqa: S101 - that is what changed rows have
            at_once = max(1, AT_ONCE // threads)
            stages = [*row.geometry.stages(row, at_once, lambda: _written(fd, offset, nbytes))]
        for stage in stages:
            begun = at = offset
            for piece in stage:
                write_all(fd, piece, at)
                at += len(piece)
                if at - begun >= _FLUSHED:
                    native_files.begin_flush(fd, begun, at - begun)
                    begun = at
                yield len(piece) if stage is stages[-1] else 0

    listed = list(files)
    work = list(_to_write(listed, progress))
    # The largest first, so that no thread is left with one at the end.
    work.sort(key=lambda each: -each[2][1])
    exhaust([write(*each) for each in work], threads, progress)
    for _, _, fd, _ in listed:
        os.fsync(fd)


def _to_write(
    files: Iterable[tuple[Source, Sequence[Row], Descriptor, bool]], progress: Callable[[int], None]
) -> Iterator[tuple[Descriptor, Source, tuple[int, int, Row | None]]]:
    for source, rows, fd, shares in files:
        for part in _shared(segments(source, rows)):
            if shares and part[2] is None:
                progress(part[1])
            else:
                yield fd, source, part


def _written(fd: Descriptor, offset: int, nbytes: int) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes of a file in blocks."""
    room = np.empty(min(BLOCK, nbytes), np.uint8)
    for at in range(offset, offset + nbytes, BLOCK):
        block, got = room[: min(BLOCK, offset + nbytes - at)], 0
        while got < len(block):
            got += os.preadv(fd, [block[got:]], at + got)
        yield block


def write_planned(plan: WritePlan, fd: Descriptor, progress: Callable[[int], None]) -> None:
    """Write a planned file as `write_files` does."""
    done = 0

    def reached(now: int, _total: int) -> None:
        nonlocal done
        progress(now - done)
        done = now

    sink = Sink(fd, plan.size, reached, durable=True)
    plan.write(sink)
    sink.finish()
    os.fsync(fd)


def _shared(parts: Iterable[tuple[int, int, Row | None]]) -> Iterator[tuple[int, int, Row | None]]:
    """Yield parts, long ones that stay in shares."""
    for offset, nbytes, row in parts:
        step = nbytes if row is not None else _SHARE
        for start in range(offset, offset + nbytes, step or 1):
            yield start, min(step, offset + nbytes - start), row
