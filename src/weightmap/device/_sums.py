"""Checksums of a file, computed from the pieces that go to a device, as they lie in the slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap import kernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightmap.formats._verifying import Sum
    from weightmap.index.table import Row
    from weightmap.io.source import Source

__all__ = ["Sums"]


class Sums:
    """The checksums that cover what is loaded of a file, checked as its bytes come by in their order.

    What is covered and does not go to the device, such as the bytes between tensors, is read from the file.

    Parameters
    ----------
    source : Source
    sums : sequence of Sum
        All that the file has.
    rows : sequence of Row
        The tensors that are loaded.
    """

    def __init__(self, source: Source, sums: Sequence[Sum], rows: Sequence[Row]) -> None:
        self._source = source
        ranges = sorted((row.offset, row.offset + row.nbytes) for row in rows if row.nbytes)
        self._left = [stored for stored in sorted(sums, reverse=True) if _meets(stored, ranges)]
        self._upto = 0
        self._reached()

    def _reached(self) -> None:
        """Begin with the next checksum."""
        self._at, self._crc = (self._left[-1].offset, 0) if self._left else (0, 0)

    def join(self, end: int, begin: int) -> bool:
        """Whether a checksum covers bytes before `end` and bytes from `begin` on."""
        return any(stored.offset < end and begin < stored.offset + stored.nbytes for stored in self._left)

    def upto(self, end: int) -> None:
        """Say where the bytes end that come before the next `finish`."""
        self._upto = end

    def feed(self, starts: Iterable[int], sizes: Iterable[int], crcs: Iterable[int]) -> None:
        """Take the checksums of runs of the file, in its order."""
        for start, size, crc in zip(starts, sizes, crcs, strict=True):
            while self._left and self._left[-1].offset + self._left[-1].nbytes <= start:
                self._complete()
            if not self._left or start + size <= self._at:
                continue
            end = self._left[-1].offset + self._left[-1].nbytes
            self._skip(start)
            if self._at == start and start + size <= end:
                self._crc, self._at = kernels.crc32_combine(self._crc, crc, size), start + size
            else:
                self._skip(min(start + size, end))

    def finish(self) -> None:
        """Check what covers the bytes until now. Raises `ChecksumError`."""
        while self._left and self._left[-1].offset < self._upto:
            self._complete()

    def _skip(self, to: int) -> None:
        """Read on to a place in the file."""
        if to > self._at:
            for piece in self._source.chunks(self._at, to - self._at):
                self._crc = kernels.crc32(piece, self._crc)
            self._at = to

    def _complete(self) -> None:
        stored = self._left[-1]
        self._skip(stored.offset + stored.nbytes)
        stored.check(self._crc)
        self._left.pop()
        self._reached()


def _meets(stored: Sum, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether a checksum covers a byte of these ranges."""
    return any(begin < stored.offset + stored.nbytes and end > stored.offset for begin, end in ranges)
