"""Reading past the page cache: by O_DIRECT if the file system has it, else by giving pages back after each read."""

from __future__ import annotations

import errno
import mmap
import os
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from weightmap.core.bytes import Range
from weightmap.core.native import files
from weightmap.core.native.access import Descriptor, take_ownership

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source

# O_DIRECT needs offsets, sizes and addresses that are multiples of the device's block, which is at most this large.
ALIGN = 4096
# Bytes read at once if the caller's memory is not aligned.
READ_BYTES = 4 << 20
# Smaller pieces, in bytes, go through the page cache: for them, the number of requests decides.
_MIN_DIRECT_READ = 64 << 10
# Runs with fewer bytes than this between them are read together.
JOIN_GAP_BYTES = 64 << 10
# IOV_MAX of Linux
_MAX_IOVECS = 1024
# Errors of file systems without O_DIRECT, and of systems without /proc.
_LACKING = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT, errno.EACCES, errno.EPERM)


def window(begin: int, end: int) -> Range:
    """Return the whole pages around some bytes: one read of them is faster than reading head, middle and tail."""
    return Range(begin // ALIGN * ALIGN, -(-end // ALIGN) * ALIGN)


class DirectReader:
    """Reads the bytes of a source into the caller's memory, and leaves none of them in the page cache.

    It never touches a mapping, so that a file that was cut off raises an error instead of faulting. Many threads may
    use it at once.

    Parameters
    ----------
    source : Source
    direct : bool
        Whether to read past the page cache. Has no effect on sources in memory or in a store.
    """

    def __init__(self, source: Source, *, direct: bool = True) -> None:
        self._source = source
        self._file: Descriptor | None = None
        self._drops = False
        self._rooms: list[memoryview] = []  # free memory for pieces
        self._unwanted = memoryview(b"")  # memory for the bytes between windows
        if not direct or source.in_memory or not source.has_pages or source.store is not None:
            return
        flag = getattr(os, "O_DIRECT", None)
        try:
            if flag is not None:
                # Open it by its descriptor: another file may have taken the path.
                self._file = take_ownership(os.open, f"/proc/self/fd/{int(source.descriptor)}", os.O_RDONLY | flag)
        except OSError as error:
            if error.errno not in _LACKING:
                raise
        self._drops = self._file is None
        if self._file is not None:
            self._unwanted = memoryview(mmap.mmap(-1, JOIN_GAP_BYTES))

    @property
    def passes_cache(self) -> bool:
        """Whether the file system has O_DIRECT, as far as known."""
        return self._file is not None

    def read(self, at: int, end: int, parts: Sequence[memoryview]) -> None:
        """Read a window from `at` on, with wanted bytes up to `end`, at once into several places.

        Parameters
        ----------
        at, end : int
        parts : sequence of memoryview
            Together as large as the window; each has the window's alignment and whole pages.

        Raises
        ------
        FileChangedError, TruncatedError, ClosedError, OSError
        """
        source, file, got = self._source, self._file, 0
        source.check_unchanged()
        pending = list(parts)
        while file is not None and at + got < end:
            try:
                more = os.preadv(file, pending[:_MAX_IOVECS], at + got)
            except OSError as error:
                if error.errno not in _LACKING:
                    source.fail_reading(at + got, end, error.errno or 0)
                file = self._file = None
                self._drops = True
                break
            got += more
            while pending and more >= len(pending[0]):
                more -= len(pending.pop(0))
            if pending:
                pending[0] = pending[0][more:]
            if more == 0 or got % ALIGN:  # the end of the file, or of its server's answer
                break
        for part in pending:
            if part := part[: max(end - at - got, 0)]:
                source.read_into(at + got, np.frombuffer(part, np.uint8))
                got += len(part)
        # A read while a file is being cut finds zeros in its last page.
        source.check_unchanged()
        if self._drops and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(source.descriptor, at, sum(map(len, parts)), os.POSIX_FADV_DONTNEED)

    def read_windows(self, windows: list[tuple[int, int, memoryview]]) -> int:
        """Read windows (begin, end, memory) of `read`, close neighbours in one call. Sorts them.

        Returns
        -------
        int
            Bytes that were read.
        """
        windows.sort(key=itemgetter(0))
        if self._source.store is not None:
            return self._request(windows)
        total, place, close = 0, 0, JOIN_GAP_BYTES if self._file is not None else 0
        while place < len(windows):
            low, end, last = windows[place]
            high, parts, shared = low + len(last), [last], []
            place += 1
            while place < len(windows) and high - low < READ_BYTES:
                begin, stop, memory = windows[place]
                gap = begin - high
                if not -ALIGN <= gap <= close:
                    break
                if gap > 0:
                    parts.append(self._unwanted[:gap])
                elif gap < 0:  # neighbours share a page
                    shared.append((last, memory))
                if part := memory[max(-gap, 0) :]:
                    parts.append(part)
                high, end, last = begin + len(memory), max(end, stop), memory
                place += 1
            self.read(low, end, parts)
            for before, after in shared:
                after[:ALIGN] = before[-ALIGN:]
            total += high - low
        return total

    def _request(self, windows: list[tuple[int, int, memoryview]]) -> int:
        """Request sorted windows of a store all at once, close neighbours in one request."""
        missing: list[Range] = []
        total = reached = 0
        for low, end, _ in windows:
            begin = min(max(low, reached), end)
            missing.append(Range(begin, end))
            joins = missing[1:] and reached < begin <= reached + JOIN_GAP_BYTES
            total += end - (reached if joins else begin)
            reached = max(reached, end)
        source = self._source.ahead(missing, JOIN_GAP_BYTES)
        reached, place, widest = 0, 0, memoryview(b"")  # of the window that reaches furthest: end, begin, memory
        for (low, end, memory), (begin, _) in zip(windows, missing, strict=True):
            memory[: begin - low] = widest[low - place : begin - place]
            if begin < end:
                source.read_into(begin, np.frombuffer(memory[begin - low : end - low], np.uint8))
            if end > reached:
                reached, place, widest = end, low, memory
        return total

    def stage(
        self,
        pieces: tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]],
        out: NDArray[np.uint8],
        *,
        crcs: NDArray[np.uint32] | None = None,
        threads: int = 1,
    ) -> tuple[int, int]:
        """Copy pieces of the file to a buffer: see `files.stage`.

        Pieces of whole blocks, in the file and in memory, go past the page cache. Others, such as the head and the tail
        of a tensor, go through it; so do all pieces once the file system has refused one.
        """
        starts, to, sizes = pieces
        file = self._file
        blocks = (starts | sizes | (to + np.uint64(out.ctypes.data))) % np.uint64(ALIGN) == 0
        whole = blocks & (sizes >= _MIN_DIRECT_READ) & (file is not None)
        for chosen, descriptor in ((np.flatnonzero(whole), file), (np.flatnonzero(~whole), self._source.descriptor)):
            if not len(chosen) or descriptor is None:
                continue
            some = None if crcs is None else np.empty(len(chosen), np.uint32)
            columns = starts[chosen], to[chosen], sizes[chosen]
            failed, error = files.stage(int(descriptor), columns, out, crcs=some, threads=threads)
            if failed >= 0 and descriptor is file and error in _LACKING:
                self._file = None
                return self.stage(pieces, out, crcs=crcs, threads=threads)
            if failed >= 0:
                return int(chosen[failed]), error
            if crcs is not None and some is not None:
                crcs[chosen] = some
        return -1, 0

    def pieces(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield these bytes in pieces; each is valid until the next one."""
        room = self._rooms.pop() if self._rooms else memoryview(mmap.mmap(-1, READ_BYTES))
        try:
            while begin < end:
                low, high = window(begin, min(end, begin // ALIGN * ALIGN + READ_BYTES))
                stop = min(high, end)
                self.read(low, stop, [room[: high - low]])
                yield room[begin - low : stop - low]
                begin = stop
        finally:
            self._rooms.append(room)

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill a contiguous array with the bytes from `offset` on: see `Source.read_into`."""
        at = 0
        for piece in self.pieces(offset, offset + len(target)):
            target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)

    def read_runs(self, starts: NDArray[np.int64], length: int, target: NDArray[np.uint8], gap: int = 0) -> None:  # noqa: ARG002 - see Source
        """Fill a contiguous array with runs of `length` bytes: see `Source.read_runs`."""
        rows, place = target.reshape(len(starts), length), 0
        while place < len(starts):
            # Read close neighbours together, because no page cache keeps the bytes between them.
            low = int(starts[place])
            fits = int(np.searchsorted(starts, low + READ_BYTES - 2 * ALIGN - length, side="right"))
            gaps = np.flatnonzero(np.diff(starts[place:fits]) > length + JOIN_GAP_BYTES)
            last = max(place + int(gaps[0]) + 1 if len(gaps) else fits, place + 1)
            if last == place + 1:
                self.read_into(low, rows[place])
            else:
                octets = np.empty(int(starts[last - 1]) + length - low, np.uint8)
                self.read_into(low, octets)
                for number in range(place, last):
                    begin = int(starts[number]) - low
                    rows[number] = octets[begin : begin + length]
            place = last

    def close(self) -> None:
        """Close its descriptor, and free its memory."""
        self._file = None
        self._rooms.clear()
        self._unwanted = memoryview(b"")
