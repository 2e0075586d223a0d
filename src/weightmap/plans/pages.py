"""Pages of files in memory: counts them, brings them in, and gives them back.

The page cache belongs to the system: a count may be outdated a moment later.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import functools
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from weightmap.core.bytes import Range
from weightmap.core.bytes.memory import PerProcess
from weightmap.core.native import access, files
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source

    Key = tuple[int, tuple[Range, ...], bool]  # of a mapping, its ranges, and whether it is scattered


class FileSystem(NamedTuple):
    """A kind of file system.

    Attributes
    ----------
    name : str
        Such as "ext4" or "nfs"; a hexadecimal number if unknown.
    kind : str
        "local", "memory" (files are memory), "overlay" (the layers of a container), "network", "fuse", "store" (of
        objects), or "unknown".
    """

    name: str
    kind: str

    @property
    def is_remote(self) -> bool:
        """Whether a page of a mapping may come from another machine or process, so that reading is safer."""
        return self.kind in {"network", "fuse", "store"}


# The numbers of Linux (magic.h and the sources of file systems that are not part of it).
_KINDS = {
    "local": {
        0xEF53: "ext4",
        0x58465342: "xfs",
        0x9123683E: "btrfs",
        0x2FC12FC1: "zfs",
        0xCA451A4E: "bcachefs",
        0xF2F52010: "f2fs",
        0x73717368: "squashfs",
        0xE0F5E1E2: "erofs",
        0x4D44: "vfat",
        0x2011BAB0: "exfat",
        0x5346544E: "ntfs",
        0x7366746E: "ntfs3",
        0x9660: "iso9660",
        0x3153464A: "jfs",
        0x52654973: "reiserfs",
    },
    "memory": {0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs"},
    "overlay": {0x794C7630: "overlay", 0x61756673: "aufs"},
    "network": {
        0x6969: "nfs",
        0x517B: "smb",
        0xFF534D42: "cifs",
        0xFE534D42: "smb2",
        0x00C36400: "ceph",
        0x0BD00BD0: "lustre",
        0x47504653: "gpfs",
        0x19830326: "beegfs",
        0x01021997: "9p",
        0x5346414F: "afs",
        0x6B414653: "kafs",
        0x73757245: "coda",
        0xAAD7AAEA: "panfs",
        0x7461636F: "ocfs2",
        0x01161970: "gfs2",
        0x786F4256: "vboxsf",
        0xBACBACBC: "vmhgfs",
    },
    "fuse": {0x65735546: "fuse"},
}
_FILE_SYSTEMS = {number: FileSystem(name, kind) for kind, names in _KINDS.items() for number, name in names.items()}
_IN_MEMORY = FileSystem("memory", "memory")

# Bytes to check at a place of a file
_LOOK_BYTES = 64 << 10


def numbered(number: int) -> FileSystem:
    """Return the file system with this number of `statfs`; a negative number means that it is unknown."""
    if number < 0:
        return FileSystem("not told" if number == -errno.ENOSYS else "unknown", "unknown")
    return _FILE_SYSTEMS.get(number) or FileSystem(f"{number:#x}", "unknown")


def file_system_of(source: Source) -> FileSystem:
    """Return the kind of file system that holds a source; "memory" for bytes and copies."""
    if source.store is not None:
        return FileSystem(source.store, "store")
    file = source.descriptor
    return _IN_MEMORY if file < 0 else numbered(files.file_system(file))


# Up to this many bytes, ask the system about each page; beyond, only about halves whose pages differ.
_WINDOW = 8 << 20
# Bytes per read into the page cache, and so per request to a device with little read-ahead.
_READ_BYTES = 1 << 20
# With this much read-ahead, in bytes, the system needs no advice. Most have 128 KiB.
_READ_AHEAD_BYTES = 1 << 20


def resident_in(source: Source, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes in memory of each range of a source; ranges may overlap.

    Raises
    ------
    OSError
        If the system does not tell: outside Linux, and for files that we neither own nor can write to.
    """
    if not source.has_pages or not source.size:
        return sizes.copy() if source.in_memory else np.zeros_like(sizes)
    stops = starts + sizes
    edges = np.unique(np.concatenate([starts, stops]))
    order = np.argsort(starts, kind="stable")
    nowhere = np.zeros(len(starts), np.uint32)
    _, begins, ends, _ = files.join_ranges(nowhere, starts[order], stops[order], gap=1, max_over_read=1.0)
    counted = np.zeros(len(edges), np.int64)  # resident bytes before each edge
    total, ask = 0, _Pages(source)
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        for first, last, counts in ask.stretches(begin, end):
            low, high = np.searchsorted(edges, [first, last + 1]).tolist()
            before = ask.before(first, counts, np.append(edges[low:high], last))
            counted[low:high] = total + before[:-1]
            total += int(before[-1])
    places = np.searchsorted(edges, np.concatenate([starts, stops]))
    return counted[places[len(starts) :]] - counted[places[: len(starts)]]


def cached_in(source: Source, begin: int, end: int) -> int | None:
    """Return the bytes in memory of a range of a source; None if the system does not tell.

    Raises
    ------
    FileChangedError
        And other errors of the file itself, see `resident_in`.
    """
    try:
        return int(resident_in(source, np.array([begin]), np.array([end - begin]))[0])
    except TensorFileError:
        raise
    except OSError:
        return None


class _Pages:
    """Asks about the pages of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file = source.descriptor  # keeps it open
        # On an overlay, the layers hold the pages, not the visible file.
        self._counts = self._file >= 0 and numbered(files.file_system(self._file)).kind != "overlay"
        self._allowed = False
        self._page = files.page_size()

    def stretches(self, first: int, last: int) -> Iterator[tuple[int, int, NDArray[np.int64] | int]]:
        """Yield bytes from `first` to `last` in stretches: begin, end, and counts of pages in memory.

        The counts are 0 if no page is in memory, 1 if all are, else the number of pages in memory before each page.
        """
        page = self._page
        pages = -(-last // page) - first // page
        if self._counts:
            count = files.cached_pages(self._file, first, last - first)
            if count in (0, pages):
                yield first, last, int(count > 0)
                return
            self._counts = count >= 0
        if last - first > _WINDOW:
            middle = (first + last) // 2 // page * page
            yield from self.stretches(first, middle)
            yield from self.stretches(middle, last)
            return
        resident = files.resident_pages(self._source.octets, first, last - first)
        if isinstance(resident, int):
            self._fail(resident)
        if not self._allowed:
            self._check_allowed()
        yield first, last, np.concatenate([[0], np.cumsum(resident, dtype=np.int64)])

    def before(self, first: int, counts: NDArray[np.int64] | int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes in memory from the beginning of a stretch to each of these places."""
        if isinstance(counts, int):
            return (places - first) * counts
        page = self._page
        start = first - first % page
        inner = places - start
        # The last page counts up to the place, the first one from `first`.
        number = np.minimum(inner // page, len(counts) - 2)
        there = counts[number + 1] - counts[number]
        skipped = (first - start) * int(counts[1] - counts[0])
        counted: NDArray[np.int64] = counts[number] * page + there * (inner - number * page) - skipped
        return counted

    def _check_allowed(self) -> None:
        """Raise `PermissionError` if the system calls every page resident because the file is not ours."""
        self._allowed = True
        if self._file < 0 or os.geteuid() in (0, os.fstat(self._file).st_uid):
            return
        if not os.access(f"/proc/self/fd/{int(self._file)}", os.W_OK):
            self._fail(errno.EPERM)

    def _fail(self, error: int) -> NoReturn:
        raise OSError(error, os.strerror(error), self._source.name)


def bring_in(source: Source, part: Range) -> None:
    """Read bytes of a file into the page cache, and wait for them. Raises as `Source.chunks` does.

    Uses plain reads, one after another: the system reads ahead of them, and keeps the file in large pages.
    POSIX_FADV_WILLNEED would bring pages of 4 KiB, which take ten times as long to touch.
    """
    if source.has_pages:
        for _ in source.chunks(part.begin, part.nbytes, _READ_BYTES):
            pass


class Sample(NamedTuple):
    """The cost of mapping some bytes of a file.

    Attributes
    ----------
    mapped, large : int
        Mapped bytes, and the part of them in pages of 2 MiB.
    seconds : float
    """

    mapped: int
    large: int
    seconds: float


def sample(source: Source, part: Range) -> Sample | None:
    """Map resident pages of a file in a new mapping; None if the system does not tell the size of the pages.

    This touches no page, so that a file that shrinks meanwhile causes no fault.
    """
    begin, end = part
    if not source.has_pages or end <= begin:
        return None
    file = source.descriptor
    try:
        octets, memory = access.map_file(file, source.size, "mmap", None)
        started = time.perf_counter()
        error = access.populate(memory, begin, end - begin)
        seconds = time.perf_counter() - started
        fields = _smaps(octets.ctypes.data)
    except OSError:
        return None
    mapped, large = fields.get("Rss", 0), fields.get("FilePmdMapped", 0)
    return None if error or not mapped else Sample(mapped, large, seconds)


def _smaps(address: int) -> dict[str, int]:
    """Return the system's figures about this process's mapping at an address, in bytes."""
    figures: dict[str, int] = {}
    within = False
    with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            label, _, value = line.partition(" ")
            if not label.endswith(":"):  # "7f00-7f10 r--s …", the first line of a mapping
                if within:
                    break
                within = label.startswith(f"{address:x}-")
            elif within and value.endswith(" kB\n"):
                figures[label[:-1]] = int(value.split()[0]) * 1024
    return figures


class Ahead:
    """Asks the system for missing bytes of ranges that are about to be read one after another.

    Parameters
    ----------
    ranges : sequence of (Source, Range)
        In the order of the reads.
    window : int
        Bytes to ask for beyond the current read.
    """

    def __init__(self, ranges: Sequence[tuple[Source, Range]], window: int) -> None:
        self._ranges, self._window, self._next = ranges, window, 0
        self._before = [0, *np.cumsum([part.nbytes for _, part in ranges], dtype=np.int64).tolist()]

    def reading(self, number: int) -> None:
        """Ask for the bytes after a read, given by its number."""
        until = self._before[number + 1] + self._window
        while self._next < len(self._ranges) and self._before[self._next] < until:
            ask_for(*self._ranges[self._next])
            self._next += 1


def ask_for(source: Source, part: Range) -> None:
    """Ask the system to read bytes of a file into the page cache; returns at once."""
    if part.nbytes > 0 and source.has_pages and hasattr(os, "posix_fadvise") and not is_cached(source, part):
        with contextlib.suppress(OSError):  # another thread may have just closed the file: its next use raises
            os.posix_fadvise(source.descriptor, part.begin, part.nbytes, os.POSIX_FADV_WILLNEED)


def is_cached(source: Source, part: Range) -> bool:
    """Whether a range of a file seems to be in the page cache; False if the system does not tell.

    Samples large ranges at the beginning, middle and end: counting the pages of a GiB takes 2 ms.
    """
    begin, end = part
    looks = [part]
    if part.nbytes > 3 * _LOOK_BYTES:
        looks = [Range(at, at + _LOOK_BYTES) for at in (begin, (begin + end) // 2, end - _LOOK_BYTES)]
    page, file = files.page_size(), source.descriptor
    return all(files.cached_pages(file, at, stop - at) == -(-stop // page) - at // page for at, stop in looks)


def reads_ahead(source: Source) -> bool:
    """Whether the system reads at least a MiB ahead of a mapping by itself.

    Then prefetching gains nothing, and costs: prefetched bytes are kept in pages of 4 KiB.
    """
    file = source.descriptor
    return file >= 0 and not source.is_scattered and _ahead(os.fstat(file).st_dev) >= _READ_AHEAD_BYTES


@functools.cache
def _ahead(device: int) -> int:
    """Return the read-ahead of files on a device, in bytes; 0 if the system does not tell."""
    try:
        path = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        with open(path, encoding="ascii") as file:
            return int(file.read()) << 10
    except (OSError, ValueError, AttributeError):  # systems other than Linux have neither
        return 0


def give_back(source: Source, ranges: Iterable[Range]) -> None:
    """Give the pages of ranges of a file back to the system. Arrays over them stay valid.

    Touching such an array reads the file again. Pages that other processes have mapped stay, and so do changed pages in
    mode "cow", and pages, of whatever size, that lie only partly in a range. No effect on copies and on file systems in
    memory.
    """
    if not source.has_pages:
        return
    file, octets = source.descriptor, source.mapped
    for begin, end in ranges:
        if end > begin and octets is not None:
            files.drop_pages(octets, begin, end - begin, private=source.mode == "cow")
        if end > begin and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, begin, end - begin, os.POSIX_FADV_DONTNEED)


# ----------------------------------------------------------------------------------------------------
# Brings pages of mappings into memory in the background.
#
# One thread serves the whole process, first come, first served, and ends when its queue is empty: a thousand shards
# need one thread, and a program that forks later has none. Between two pieces the thread holds no reference to the
# mapping, so that closing the last user of a mapping also cancels its remaining work.

# Bytes per call: from the page cache some milliseconds, so that the thread rarely waits for the GIL; from a disk a
# fraction of a second.
PIECE_BYTES = 32 << 20
# Closer ranges are merged: reading the pages between them costs less than another call.
_GAP_BYTES = 1 << 16


class _Worker:
    """A queue of ranges to bring in, and the thread that empties it."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        # The first entry is being worked on and stays until done, so that another request for it adds nothing.
        self._queue: dict[Key, weakref.ref[Any]] = {}
        self._busy = False

    def add(self, memory: Any, ranges: tuple[Range, ...], *, scattered: bool) -> None:
        """Queue ranges of a mapping; start the thread if it is not running."""
        key = (id(memory), ranges, scattered)
        with self._lock:
            queued = self._queue.get(key)
            if queued is not None and queued() is memory:
                return
            self._queue[key] = weakref.ref(memory)
            if self._busy:
                return
            self._busy = True
        try:
            # The threading module takes milliseconds to import and waits for the thread to begin.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:  # without a thread, give the kernel advice, which returns at once
            with self._lock:
                self._busy = False
                self._queue.clear()
            for start, stop in ranges:
                access.will_need(memory, start, stop - start)

    def _work(self) -> None:
        try:
            while (first := self._first()) is not None:
                key, memory = first
                _, ranges, scattered = key
                for start, stop in ranges:
                    while start < stop and _populate(memory, start, stop, scattered=scattered):
                        start += PIECE_BYTES  # noqa: PLW2901 - piece by piece
                self._done(key, memory)
        except BaseException:
            self._busy = False
            raise

    def _first(self) -> tuple[Key, weakref.ref[Any]] | None:
        with self._lock:
            for first in self._queue.items():
                return first
            self._busy = False  # under the lock: the next `add` starts a thread
        return None

    def _done(self, key: Key, memory: weakref.ref[Any]) -> None:
        with self._lock:
            if self._queue.get(key) is memory:  # and not a newer mapping with the same id
                del self._queue[key]


def _populate(memory: weakref.ref[Any], start: int, stop: int, *, scattered: bool) -> bool:
    """Bring in one piece. Return False when the mapping is gone or the file became shorter."""
    mapped = memory()
    return (
        mapped is not None and access.populate(mapped, start, min(PIECE_BYTES, stop - start), scattered=scattered) == 0
    )


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sort ranges that are not empty, and merge neighbours."""
    merged: list[Range] = []
    for begin, end in sorted(ranges):
        if begin == end:
            continue
        if merged and begin <= merged[-1].end + _GAP_BYTES:
            merged[-1] = Range(merged[-1].begin, max(merged[-1].end, end))
        else:
            merged.append(Range(begin, end))
    return tuple(merged)


_worker = PerProcess(_Worker)


def prefetch(memory: Any, ranges: Iterable[Range], *, scattered: bool) -> None:
    """Bring ranges of a mapping into memory in the background; return at once.

    `scattered` says that the advice is "random": the kernel then reads nothing ahead.
    """
    merged = _merged(ranges)
    if merged:
        _worker.instance.add(memory, merged, scattered=scattered)
