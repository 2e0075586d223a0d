"""Writes the files of a version, or the list of changes for a step in place, by several threads.

A file has the bytes of the version before, with changed tensors decoded over them.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import stat
import struct
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.bytes import Range
from weightmap.core.bytes.atomic import Folder, place
from weightmap.core.bytes.open_source import MAX_OPEN
from weightmap.core.bytes.sink import Sink, WritePlan, write_all
from weightmap.core.native import files as native_files
from weightmap.core.native.access import Descriptor, read_bytes, read_into, take_ownership, with_temporary
from weightmap.deltas.frames import AT_ONCE, BLOCK
from weightmap.errors import DeltaError, NotRegularFileError, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.native.access import Temporary
    from weightmap.core.table.table import Row

# Errors of opening a link, or anything but a directory, as a directory
_LINKED = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
# The identity of a missing file
MISSING = -1, -1
# The file of changes in place, whose place `weightmap.core.model.sharded` knows; the name of other new files in errors
CHANGES, _NEW = "changes", "the new version"
# Do not follow a link, nor wait for a FIFO.
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def _is_impossible(error: OSError) -> bool:
    """Whether the error means an impossible file name: the path leads through a link, or the name is too long."""
    return isinstance(error, TargetError) or error.errno == errno.ENAMETOOLONG


class Tree:
    """An open directory, below which no link is followed: a stranger's model may have links that lead elsewhere.

    Every file and folder is reached from the descriptor of its folder. Names are paths from the directory, with ``/``
    between their parts.
    """

    def __init__(self, folder: Folder, path: str) -> None:
        self._folder = folder
        self.path = path

    @classmethod
    def of(cls, path: str) -> Tree:
        """Open a directory. A link to it is followed: its path comes from the caller."""
        return cls(Folder(path), path)

    def _parent(self, name: str, *, make: bool = False) -> tuple[Folder, str]:
        """Return the folder of a file, and its name there."""
        folder = self._folder
        *folders, last = name.split("/")
        for part in folders:
            folder = self._inner(folder, part, make=make)
        return folder, last

    def _where(self, name: str, *, make: bool = False) -> tuple[str, Descriptor | None]:
        """Return path and `dir_fd` of a file, for system calls."""
        folder, last = (self._folder, name) if "/" not in name else self._parent(name, make=make)
        return os.path.join(folder.path, last), folder.fd

    def _call(self, function: Callable[..., Any], name: str, *arguments: Any, at: str = "dir_fd", **named: Any) -> Any:
        """Call a function of the system, whose errors name a file's path; `at` is its parameter for the folder."""
        folder, last = (self._folder, name) if "/" not in name else self._parent(name)
        try:
            return function(os.path.join(folder.path, last), *arguments, **{at: folder.fd}, **named)
        except OSError as error:
            error.filename = os.path.join(self.path, name)
            raise

    def _inner(self, folder: Folder, name: str, *, make: bool) -> Folder:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(os.path.join(folder.path, name), dir_fd=folder.fd)
            return Folder(name, folder)
        except OSError as error:
            if error.errno not in _LINKED:
                error.filename = os.path.join(self.path, name)
                raise
            msg = f"{name!r} is a link or not a directory: remove it, or choose another directory"
            raise TargetError(msg, path=self.path) from None

    def folder(self, name: str, *, make: bool = False) -> Tree:
        """Open a folder; make it if it may be missing. Raises `TargetError` for a link."""
        parent, last = (self._folder, name) if "/" not in name else self._parent(name)
        return Tree(self._inner(parent, last, make=make), os.path.join(self.path, name))

    def make(self, name: str, mode: int = 0o777) -> Tree:
        """Make a folder, which must be new, and open it."""
        self._call(os.mkdir, name, mode)
        return self.folder(name)

    def open(self, name: str, flags: int) -> Descriptor:
        """Open a regular file. Raises `NotRegularFileError` for anything else, such as a link."""
        path, at = self._where(name)
        try:
            file = take_ownership(partial(os.open, path, flags | _CAREFUL, 0o666, dir_fd=at))
        except OSError as error:
            if isinstance(error, FileNotFoundError) or self.is_free(name) or self.status(name) is not None:
                error.filename = os.path.join(self.path, name)
                raise
            raise self._irregular(name) from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise self._irregular(name)
        return file

    def _irregular(self, name: str) -> NotRegularFileError:
        what = "this is a link or not a regular file: remove it"
        return NotRegularFileError(what, path=os.path.join(self.path, name))

    def _lstat(self, name: str) -> os.stat_result | None:
        """Return the status of a file, folder or link; None if there is none, or no file can have the name.

        Another OSError means that the system cannot tell: taken for a missing file, it would cost a model its files.
        """
        try:
            return self._call(os.stat, name, follow_symlinks=False)  # type: ignore[no-any-return]
        except OSError as error:
            if isinstance(error, FileNotFoundError) or _is_impossible(error):
                return None
            raise

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a regular file; None for anything else."""
        status = self._lstat(name)
        return status if status is not None and stat.S_ISREG(status.st_mode) else None

    def is_free(self, name: str) -> bool:
        """Whether no file, folder or link has a name."""
        return self._lstat(name) is None

    def identity(self, name: str) -> tuple[int, int]:
        """Return size and modification time of a file or link; `MISSING` if there is none."""
        status = self._lstat(name)
        return MISSING if status is None or stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)

    def takes(self, name: str) -> bool:
        """Whether a file can get a name: the name is not a folder's, and its path leads through no link."""
        try:
            return not stat.S_ISDIR(self._call(os.stat, name, follow_symlinks=False).st_mode)
        except FileNotFoundError:  # its folder will be made
            return True
        except OSError as error:
            if _is_impossible(error):
                return False
            raise

    def names(self) -> list[str]:
        """Return the names in the directory itself, sorted."""
        return sorted(os.listdir(self._folder.path if self._folder.fd is None else self._folder.fd))

    def move(self, name: str, to: Tree, new: str) -> None:
        """Move a file to a name in another tree, replacing a file there. Do nothing if it was moved before."""
        path, folder = to._where(new, make=True)
        try:
            self._call(os.replace, name, path, at="src_dir_fd", dst_dir_fd=folder)
        except FileNotFoundError:
            if to.is_free(new):
                msg = "another program changed or removed this file of the model meanwhile: pull again"
                raise TargetError(msg, path=os.path.join(self.path, name)) from None

    def link(self, name: str, to: Tree, new: str) -> None:
        """Give a file a second name in another tree."""
        path, folder = to._where(new)
        self._call(os.link, name, path, at="src_dir_fd", dst_dir_fd=folder, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file, or a link."""
        self._call(os.unlink, name)

    def clear(self, name: str) -> None:
        """Remove a file, link, or folder with all in it, if the directory itself has the name. Follows no links."""
        status = self._lstat(name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            self.remove(name)
            return
        tree = self.folder(name)
        while names := tree.names():
            for each in names:
                tree.flatten(each)
        self._rmdir(name)

    def flatten(self, name: str) -> None:
        """Remove a file, or a folder with its files; move subfolders up into this folder, to cope with any depth."""
        if not self.is_folder(name):
            self.remove(name)
            return
        tree, number = self.folder(name), 0
        for inner in tree.names():
            if not tree.is_folder(inner):
                tree.remove(inner)
                continue
            while not self.is_free(f"{number}"):
                number += 1
            tree.move(inner, self, f"{number}")
        self._rmdir(name)

    def is_folder(self, name: str) -> bool:
        """Whether a name belongs to a folder, not to a link to one."""
        status = self._lstat(name)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def _rmdir(self, name: str) -> None:
        self._call(os.rmdir, name)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file in the directory itself, atomically, and flush it."""
        with_temporary(_write_small, self._folder, name, data)
        self._folder.flush()

    def flush(self, name: str = "") -> None:
        """Flush the entries of the directory, or of a file's folder, to the disk."""
        (self._parent(name)[0] if name else self._folder).flush()

    def is_at(self, path: str) -> bool:
        """Whether a path leads to this directory."""
        here, at = self._where(os.curdir)
        return os.path.samestat(os.stat(here, dir_fd=at), os.stat(path))


def _write_small(temporary: Temporary, folder: Folder, name: str, data: bytes) -> None:
    """Write a small file as a whole, and move it to its place."""
    hidden = folder.create(temporary, name)
    write_all(temporary.fileno(), memoryview(data), 0)
    place(temporary, hidden, folder, name, durable=True, overwrite=True)


# Bytes of unchanged data to copy at once, and to copy before a thread takes other work
_COPY_BYTES, _SHARE_BYTES = 1 << 20, 64 << 20
# Written bytes after which their flush begins, instead of at the end
_FLUSH_BYTES = 8 << 20


# Threads that work on the tensors of a version. The first error, or an interrupt, ends all work.
#
# A signal's handler raises in the main thread, perhaps within a condition or while starting or joining a thread, which
# loses a lock or the thread. The main thread therefore does none of these: one thread starts the others and waits.

# Seconds between checks whether a thread has ended, and whether all work has
_THREAD_POLL_S, _WORK_POLL_S = 0.001, 0.1


def exhaust(work: Sequence[Iterator[int]], threads: int, progress: Callable[[int], None]) -> None:
    """Exhaust iterators, each in a thread; call `progress` with the values they yield, from one thread at a time.

    Iterators start in order. After an error or an interrupt no more start, and running ones stop at their next
    ``yield``. All threads have ended when this returns or raises.
    """
    crew = _Crew(work, min(threads, len(work)), progress)
    try:
        try:
            _thread.start_new_thread(crew.supervise, ())
        except RuntimeError:  # no thread to be had: this one does it all
            crew.work()
        else:
            crew.wait()
    finally:
        try:
            crew.end()
        except BaseException:  # `end` was interrupted
            crew.end()
            raise
    first = crew.errors[:1]
    crew.errors.clear()  # the error's traceback refers to this crew, and to this frame
    if first:
        raise first.pop()


class _Crew:
    """Threads and their work."""

    def __init__(self, work: Sequence[Iterator[int]], threads: int, progress: Callable[[int], None]) -> None:
        self._pending, self._threads, self._progress = list(reversed(work)), threads, progress
        self._lock, self._reporting, self._wakeup = threading.Lock(), threading.Lock(), threading.Lock()
        self._wakeup.acquire()
        self._stopped = self._begun = self._ended = False
        self.errors: list[BaseException] = []

    def supervise(self) -> None:
        """Start the threads, and wait for their end: in a thread of its own, whose caller waits for it."""
        try:
            self._supervise()
        except BaseException as error:  # noqa: BLE001 - of memory, say: the caller gets it
            self._fail(error)
        finally:
            self._ended = True
            self._wakeup.release()

    def _supervise(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._begun = True
        crew: list[threading.Thread] = []
        with contextlib.suppress(RuntimeError, MemoryError):  # no more threads to be had: fewer do it all
            for _ in range(self._threads):
                # Without `daemon=`, and in `join`, Python would ask for the current thread and so register this one.
                thread = threading.Thread(target=self.work, daemon=False)
                thread.start()
                crew.append(thread)
        if not crew:
            self.work()
        for thread in crew:
            while thread.is_alive():
                time.sleep(_THREAD_POLL_S)
        with self._lock:
            self._pending.clear()  # this thread ends a moment after the caller's wait, and must not hold the files

    def wait(self) -> None:
        """Wait for the end of all work."""
        while not self._ended:
            self._wakeup.acquire(timeout=_WORK_POLL_S)

    def end(self) -> None:
        """Start no more work, and wait for the end of running work."""
        with self._lock:
            self._stopped, begun = True, self._begun
            self._pending.clear()  # a supervisor that begins later must not hold the files
        if begun:
            self.wait()
        self._progress = lambda _: None  # the supervisor ends a moment later, and must not hold its caller's objects

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.errors.append(error)
            self._stopped = True

    def _next(self) -> Iterator[int] | None:
        with self._lock:
            return self._pending.pop() if self._pending and not self._stopped else None

    def work(self) -> None:
        """Take work until none is left."""
        try:
            while (steps := self._next()) is not None:
                for done in steps:
                    if self._stopped:
                        return
                    if done:
                        with self._reporting:
                            self._progress(done)
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._fail(error)


def segments(source: Source, changed: Sequence[Row]) -> Iterator[tuple[int, int, Row | None]]:
    """Yield the segments of a file in order: offset, bytes, and a changed tensor's row, or None for unchanged bytes."""
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
        return source.ahead([Range(offset, offset + nbytes)]).chunks(offset, nbytes, _COPY_BYTES)
    return row.geometry.pieces(row)  # type: ignore[union-attr,no-any-return]  # a changed row has a `Patched` one


def write_files(
    files: Iterable[tuple[Source, Sequence[Row], Descriptor, bool]],
    threads: int,
    progress: Callable[[int], None],
) -> None:
    """Write files, each from its source and its changed rows, and flush them to the disk.

    If the last entry is true, a file shares the bytes of its source, and only changed rows are written. `progress` is
    called with the bytes written since its last call. The first error ends the work.
    """

    def write(fd: Descriptor, source: Source, segment: tuple[int, int, Row | None]) -> Iterator[int]:
        offset, nbytes, row = segment
        if row is None:
            stages = [pieces(source, *segment)]
        else:
            at_once, back = max(1, AT_ONCE // threads), partial(_written, fd, offset, nbytes)
            stages = [*row.geometry.stages(row, at_once, back)]  # type: ignore[union-attr]  # as above
        for stage in stages:
            flushed = at = offset
            for piece in stage:
                write_all(fd, piece, at)
                at += len(piece)
                if at - flushed >= _FLUSH_BYTES:
                    native_files.begin_flush(fd, flushed, at - flushed)
                    flushed = at
                yield len(piece) if stage is stages[-1] else 0

    listed = list(files)
    work = list(_to_write(listed, progress))
    # Start with the largest, so that no thread begins a large one at the end.
    work.sort(key=lambda entry: -entry[2][1])
    exhaust([write(*entry) for entry in work], threads, progress)
    for _, _, fd, _ in listed:
        os.fsync(fd)


def _to_write(
    files: Iterable[tuple[Source, Sequence[Row], Descriptor, bool]], progress: Callable[[int], None]
) -> Iterator[tuple[Descriptor, Source, tuple[int, int, Row | None]]]:
    """Yield the parts of files to write: changed tensors, and long unchanged ones in shares."""
    for source, rows, fd, shares in files:
        for offset, nbytes, row in segments(source, rows):
            step = nbytes if row is not None else _SHARE_BYTES
            for at in range(offset, offset + nbytes, step or 1):
                part = min(step, offset + nbytes - at)
                if shares and row is None:
                    progress(part)
                else:
                    yield fd, source, (at, part, row)


def _written(fd: Descriptor, offset: int, nbytes: int) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes of a file in blocks."""
    room = np.empty(min(BLOCK, nbytes), np.uint8)
    for at in range(offset, offset + nbytes, BLOCK):
        block = room[: min(BLOCK, offset + nbytes - at)]
        if read_into(fd, block.data, at, _NEW) != len(block):
            raise TargetError("another program cut off a file of the new version meanwhile: pull again")
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


# A log of changes has the new bytes of files, so that applying it twice, or twice in part, does no harm, unlike XOR. A
# record is, in the byte order of this machine::
#
#     u32 number of the file | u32 count | u64 offset | u32 bytes | count x u32: position << 8 | new byte
#
# Positions count from the offset. If a quarter of the bytes or more changes, count is _WHOLE, and all new bytes follow.

# Blocks written by a thread after which their flush begins
_FLUSH_BLOCKS = _FLUSH_BYTES // BLOCK
_HEAD, _WHOLE = struct.Struct("=IIQI"), (1 << 32) - 1


def write_changes(
    files: Sequence[Sequence[Row]], log: Descriptor, threads: int, progress: Callable[[int], None]
) -> int:
    """Write the log of the changes to files, and flush it. New tensors are compared with their checksums.

    Returns the size of the log. `progress` is called with the bytes of tensors compared since its last call.
    """
    lock, end = threading.Lock(), 0

    def write(number: int, row: Row) -> Iterator[int]:
        nonlocal end
        offset, before = row.offset, np.empty(min(BLOCK, row.nbytes), np.uint8)
        for new in row.geometry.pieces(row, before):  # type: ignore[union-attr]  # as above
            block = np.frombuffer(new, np.uint8)
            positions = np.flatnonzero(before[: len(block)] != block)
            count, body = _WHOLE, new
            if 4 * len(positions) < len(block):
                count, body = len(positions), (positions.astype(np.uint32) << 8 | block[positions]).data
            record = b"".join((_HEAD.pack(number, count, offset, len(new)), body)) if count else b""
            with lock:
                at, end = end, end + len(record)
            write_all(log, memoryview(record), at)
            if at >> 20 < at + len(record) >> 20:  # begin to flush each MiB
                native_files.begin_flush(log, 0, 0)
            offset += len(new)
            yield len(new)

    work = sorted(
        ((number, row) for number, rows in enumerate(files) for row in rows), key=lambda entry: -entry[1].nbytes
    )
    exhaust([write(*entry) for entry in work], threads, progress)
    os.fsync(log)
    return end


def make_changes(
    log: Descriptor, openers: Sequence[Callable[[], Descriptor]], threads: int, step: Callable[[str], None]
) -> None:
    """Apply a log of changes to files, which are opened in the order of their numbers, some at a time; flush them.

    Raises `DeltaError` for a damaged log.
    """

    def make(share: int, files: Mapping[int, Descriptor]) -> Iterator[int]:
        room = memoryview(bytearray(BLOCK))
        for count, (number, changed, offset, nbytes, at, size) in enumerate(_records(log)):
            if number >= len(openers):
                raise _damaged()
            if count % threads != share or number not in files:
                continue
            step("block")
            body = read_bytes(log, size, at, CHANGES)
            if nbytes > BLOCK or len(body) != size:
                raise _damaged()
            block = memoryview(body)
            if changed != _WHOLE:
                block = room[:nbytes]
                listed = np.frombuffer(body, np.uint32)
                positions = listed >> 8
                if read_into(files[number], block, offset, CHANGES) != nbytes or positions.max(initial=0) >= nbytes:
                    raise _damaged()
                np.frombuffer(block, np.uint8)[positions] = listed.astype(np.uint8)
            write_all(files[number], block, offset)
            yield nbytes
            if count // threads % _FLUSH_BLOCKS == _FLUSH_BLOCKS - 1:
                native_files.begin_flush(files[number], 0, 0)

    for first in range(0, len(openers), MAX_OPEN):
        files = {number: opened() for number, opened in enumerate(openers[first : first + MAX_OPEN], first)}
        exhaust([make(share, files) for share in range(threads)], threads, lambda _: None)
        for file in files.values():
            os.fsync(file)


def _records(log: Descriptor) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield the fields of each record: number, count, offset, bytes; then position and size of its body in the log."""
    at, end = 0, os.fstat(log).st_size
    while at < end:
        head = read_bytes(log, _HEAD.size, at, CHANGES)
        if len(head) != _HEAD.size:
            raise _damaged()
        number, count, offset, nbytes = _HEAD.unpack(head)
        size = nbytes if count == _WHOLE else 4 * count
        if nbytes > BLOCK or size > BLOCK:
            raise _damaged()
        at += _HEAD.size
        yield number, count, offset, nbytes, at, size
        at += size


def _damaged() -> DeltaError:
    return DeltaError("the list of changes that were to be made in place is damaged: pull a full version, or the base")
