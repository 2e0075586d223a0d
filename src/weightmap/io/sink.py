"""Writing a file from its beginning to its end: what a format planned, in pieces that make it quick to map."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightmap import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Plan", "Sink"]

# Readers pay for how a file was written: pieces of 2 MiB, at multiples of 2 MiB, give it pages of that size in the page
# cache, and a reader one fault for each instead of 512.
STAGE = 2 << 20
# Long things are written in pieces of this many bytes, without a copy; progress is reported after each.
DIRECT = 16 << 20


class Plan:
    """A file that can be written: its size in bytes, and the function that does it.

    The size is exact, unless `exact` is False: then it is an estimate, by which progress is told.
    """

    __slots__ = ("exact", "size", "write")

    def __init__(
        self,
        size: int,
        write: Callable[[Sink], None],
        *,
        exact: bool = True,
    ) -> None:
        self.size = size
        self.write = write
        self.exact = exact


class Sink:
    """Writes a file from its beginning to its end, in pieces of `STAGE` bytes or multiples of it.

    Small things are collected in a staging buffer. So is everything that a checksum is wanted of: it is summed up there
    and written from there, so a tensor that another thread changes meanwhile cannot make the checksum differ from the
    bytes. Long things without a checksum are written from where they are. The first piece, with the header, is written
    last.
    """

    def __init__(self, fd: int, total: int, progress: Callable[[int, int], None] | None, *, exact: bool = True) -> None:
        self._exact = exact
        self._fd = fd
        self._total = total
        self._progress = progress
        self._room = min(STAGE, max(total, 1)) if exact else STAGE
        self._view = memoryview(bytearray(self._room))
        self._filled = 0
        self._summing = False
        self._summed = 0
        self._crc = 0
        self._first: memoryview | None = None
        self.offset = 0
        self._tell(0)

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._total)

    @property
    def position(self) -> int:
        """Bytes taken so far."""
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
                self._flush()
            if self._filled or self._summing or self._first is None or len(view) < STAGE:
                count = min(len(view), self._room - self._filled)
                self._view[self._filled : self._filled + count] = view[:count]
                self._filled += count
            else:
                count = min(len(view) // STAGE * STAGE, DIRECT)
                # Of memory that is not there yet Linux copies ever smaller pieces: the file would have small pages.
                kernels.populate(view[:count], 0, count)
                _write_all(self._fd, view[:count], self.offset)
                self._advance(count)
            view = view[count:]

    def pad(self, count: int) -> None:
        """Append zero bytes."""
        if count:
            self.write(bytes(count))

    def begin_sum(self) -> None:
        """From here on, sum up what is appended."""
        self._summing, self._summed = True, self._filled

    def crc32(self) -> int:
        """Return the CRC-32 of what was appended since `begin_sum` or the last call."""
        self._sum()
        crc, self._crc = self._crc, 0
        return crc

    def _sum(self) -> None:
        if self._summing:
            self._crc = kernels.crc32(self._view[self._summed : self._filled], self._crc)
            self._summed = self._filled

    def _flush(self) -> None:
        self._sum()
        piece, count = self._view[: self._filled], self._filled
        if self._first is None:
            self._first = piece
            self._view = memoryview(bytearray(self._room))
        else:
            _write_all(self._fd, piece, self.offset)
        self._filled = self._summed = 0
        self._advance(count)

    def _advance(self, count: int) -> None:
        self.offset += count
        self._tell(min(self.offset, self._total - 1) if self.offset else 0)

    def finish(self) -> None:
        """Write what is left, and the first piece last."""
        if self._filled or self._first is None:
            self._flush()
        if self._first is not None:
            _write_all(self._fd, self._first, 0)
        if self._exact and self.offset != self._total:
            msg = f"the format planned {self._total} bytes and wrote {self.offset}"
            raise AssertionError(msg)


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    while len(view):
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count
