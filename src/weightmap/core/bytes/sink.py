"""Writes a planned file from beginning to end, in pieces whose pages are fast to map."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightmap.core.native import access, checksums, files, quantised

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.core.bytes.source import Source

# Pieces of 2 MiB, at multiples of 2 MiB, get pages of 2 MiB in the page cache: a reader takes one fault per piece
# instead of 512.
STAGE = 2 << 20
# On tmpfs, large pages are useless. If a piece fits into the second-level cache, copying it to the buffer and then by
# the kernel takes less time than the kernel's copy alone, which pauses after each page.
STAGE_IN_MEMORY = 256 << 10
# Long data is written in pieces of this many bytes, without a copy; progress is reported after each.
DIRECT = 16 << 20
# First bytes of the file, which `fill` writes last: without them no format recognises the file.
_BEGINNING = 4096
# Room behind a staging buffer for the last unit of `fill`, in bytes.
_MARGIN_NBYTES = 4096


class WritePlan(NamedTuple):
    """A file that is ready to be written: its size in bytes, and the function that writes it.

    If `exact` is False, the size is an estimate for reporting progress.
    """

    size: int
    write: Callable[[Sink], None]
    exact: bool = True


class Sink:
    """Writes a file from beginning to end, in multiples of `STAGE` bytes.

    A staging buffer collects small data, and all data that needs a checksum: because the checksum is computed from that
    buffer, it matches the written bytes even if another thread changes the tensor meanwhile. Long data without a
    checksum is written directly. The first piece, with the header, is written last; `fill` holds back only its
    beginning.

    Parameters
    ----------
    in_memory : bool
        Whether the file lies on tmpfs: then all data is staged, in pieces of `STAGE_IN_MEMORY` except in `fill`.

    Attributes
    ----------
    digest : int or None
        The CRC-32 of all bytes written so far; not computed while it is None, the default.
    """

    def __init__(
        self,
        fd: int,
        total: int,
        progress: Callable[[int, int], None] | None,
        *,
        exact: bool = True,
        durable: bool = False,
        in_memory: bool = False,
    ) -> None:
        self._exact, self._flushes, self._in_memory = exact, durable and not in_memory, in_memory
        self._fd = fd
        self._total = total
        self._progress = progress
        self._room = self._stage_size(STAGE_IN_MEMORY if in_memory else STAGE)
        self._view = self._new_buffer()
        self._filled = 0
        self._summing = False
        self._summed = 0
        self._crc = 0
        self._first: memoryview | None = None
        # While `fill` runs: a full buffer, which `encode` writes while it fills the next one, and a free buffer.
        self._filling = False
        self._waiting: quantised.Unwritten | None = None
        self._other: memoryview | None = None
        self.offset: int = 0
        self.digest: int | None = None
        self._tell(0)

    def _stage_size(self, stage: int) -> int:
        return min(stage, max(self._total, 1)) if self._exact else stage

    def _new_buffer(self) -> memoryview:
        return memoryview(np.empty(self._room + _MARGIN_NBYTES, np.uint8))

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._total)

    @property
    def position(self) -> int:
        """Number of bytes appended so far."""
        return self.offset + self._filled

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        filled = self._filled
        end = filled + len(data)
        if end <= self._room:
            self._view[filled:end] = data
            self._filled = end
        else:
            self._write_long(memoryview(data))

    def _write_long(self, view: memoryview) -> None:
        while len(view):
            if self._filled == self._room:
                self._flush_full()
            if self._filled or self._in_memory or self._summing or self._first is None or len(view) < STAGE:
                count = min(len(view), self._room - self._filled)
                self._view[self._filled : self._filled + count] = view[:count]
                self._filled += count
            else:
                count = min(len(view) // STAGE * STAGE, DIRECT)
                # Source pages not yet faulted in would split the write, and the file would get small pages.
                access.populate(view[:count], 0, count)
                self._put(view[:count], self.offset)
                self._advance(view[:count])
            view = view[count:]

    def read(self, source: Source, offset: int, count: int) -> None:
        """Append bytes of a source, through the buffer."""
        end = offset + count
        while offset < end:
            if self._filled == self._room:
                self._flush_full()
            size = min(end - offset, self._room - self._filled)
            source.read_into(offset, np.frombuffer(self._view[self._filled : self._filled + size], np.uint8))
            self._filled += size
            offset += size

    def fill(
        self, count: int, unit: int, encode: Callable[[memoryview, int, quantised.Unwritten | None], None]
    ) -> None:
        """Append `count` bytes in whole units; ``encode(out, at, earlier)`` makes the bytes from `at` on.

        `encode` fills `out`, a few units long, and meanwhile writes `earlier`, so that no thread waits for the file.
        """
        if (room := self._stage_size(STAGE)) > self._room:  # in a larger piece, threads share the work
            before, self._room = self._view, room
            self._view = self._new_buffer()
            self._view[: self._filled] = before[: self._filled]
        self._filling = True
        done = 0
        while done < count:
            if self._filled == self._room:
                self._flush_full()
            view, begin, earlier = self._view, self._filled, self._waiting
            size = min(count - done, (self._room + _MARGIN_NBYTES - begin) // unit * unit)
            # A large unit across the end of the buffer goes through a buffer of its own.
            out = view[begin : begin + size] if size else memoryview(bytearray(unit))
            encode(out, done, earlier)
            self._waiting = None
            done += size or unit
            end = begin + size
            if not size:
                self.write(out)
            elif end <= self._room:
                self._filled = end
            else:
                self._filled = self._room
                self._flush_full()
                self._filled = end - self._room
                self._view[: self._filled] = view[self._room : end]
        self._filling = False

    def pad(self, count: int) -> None:
        """Append zero bytes."""
        while count > STAGE:  # a file may declare any alignment
            self.write(bytes(STAGE))
            count -= STAGE
        if count:
            self.write(bytes(count))

    def begin_sum(self) -> None:
        """Start a checksum over everything appended from here on."""
        self._summing, self._summed = True, self._filled

    def crc32(self) -> int:
        """Return the CRC-32 of the bytes appended since `begin_sum` or the last call."""
        self._sum()
        crc, self._crc = self._crc, 0
        return crc

    def _sum(self) -> None:
        if self._summing:
            self._crc = checksums.crc32(self._view[self._summed : self._filled], self._crc)
            self._summed = self._filled

    def _flush_full(self) -> None:
        """Empty a full buffer for more bytes: write it, or set the first one aside."""
        waits = self._first is None and not self._filling
        self._flush()
        if waits:
            self._view = self._new_buffer()

    def _flush(self) -> None:
        self._sum()
        piece = self._view[: self._filled]
        if self._filling:
            self._settle()
            begin = 0
            if self._first is None:
                self._first, begin = memoryview(bytes(piece[:_BEGINNING])), _BEGINNING
            self._waiting = quantised.Unwritten(self._fd, piece[begin:], self.offset + begin, self._flushes)
            self._view, self._other = self._other or self._new_buffer(), self._view
        elif self._first is None:
            self._first = piece
        else:
            self._settle()
            self._put(piece, self.offset)
        self._filled = self._summed = 0
        self._advance(piece)

    def _settle(self) -> None:
        """Write the full buffer if `encode` has not."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._put(waiting.data, waiting.offset)

    def _put(self, data: memoryview, offset: int) -> None:
        """Write bytes, and start writing them out to the disk at once."""
        write_all(self._fd, data, offset)
        if self._flushes:
            files.begin_flush(self._fd, offset, len(data))

    def _advance(self, piece: memoryview) -> None:
        if self.digest is not None:
            self.digest = checksums.crc32(piece, self.digest)
        self.offset += len(piece)
        self._tell(min(self.offset, self._total - 1) if self.offset else 0)

    def finish(self) -> None:
        """Write the rest, and the first piece last."""
        if self._filled or self._first is None:
            self._flush()
        self._settle()
        if self._first is not None:
            write_all(self._fd, self._first, 0)
        if self._exact and self.offset != self._total:
            raise AssertionError(f"the format planned {self._total} bytes and wrote {self.offset}")
        self._view = self._first = self._other = memoryview(b"")


class _Memory(Sink):
    """Collects a planned file in memory."""

    def __init__(self, total: int) -> None:
        super().__init__(-1, 0, None)
        self._room = total
        self._view = memoryview(bytearray(total))

    def content(self) -> bytes:
        """Return the whole file."""
        return bytes(self._view[: self._filled])


def to_bytes(plan: WritePlan) -> bytes:
    """Return a planned file as bytes. Its size must be exact."""
    sink = _Memory(plan.size)
    plan.write(sink)
    return sink.content()


def write_all(fd: int, view: memoryview, offset: int) -> None:
    """Write all of a view to an offset."""
    while len(view):
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count
