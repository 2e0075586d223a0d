"""Checksums of a file, checked on the bytes of tensors as they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from weightmap.native import late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import ArrayLike

    from weightmap.formats._verification import Sum
    from weightmap.io.source import Source

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
                self._crc, self._at = late.crc32_combine(self._crc, crc, size), start + size
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
            self._crc = late.crc32(piece, self._crc)
            if self._consumed is not None:
                self._consumed(self._at, self._at + len(piece))
            self._at += len(piece)

    def _complete(self) -> None:
        stored, _ = self._left[-1]
        self._skip(stored.offset + stored.nbytes)
        stored.check(self._crc)
        self._left.pop()
        self._reached()
