"""The changed bytes of files, in a file of their own: applied any number of times, whole or in part, they do the same.

That is what a journal needs: XOR applied twice undoes itself. A record is, in the byte order of this machine (our own
layout; the file lives in ``.weight_sync/next/`` until its changes are made)::

    u32 number of the file | u32 count | u64 offset | u32 bytes | count x u32: place << 8 | new byte

Places are counted from the offset. With count = 2^32 - 1 all new bytes follow instead, where a quarter of them changes.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING

import numpy as np

from weightmap.core.bytes.sink import write_all
from weightmap.core.native import files as native_files
from weightmap.deltas.frames import BLOCK
from weightmap.deltas.overlay import Patched
from weightmap.deltas.publishing import exhaust
from weightmap.errors import DeltaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightmap.core.native.access import Descriptor
    from weightmap.core.table.table import Row

# Blocks of a thread after which the disk begins with them, instead of when all are written.
_FLUSHED = (8 << 20) // BLOCK
_HEAD, _WHOLE = struct.Struct("=IIQI"), (1 << 32) - 1


def write_changes(
    files: Sequence[Sequence[Row]], log: Descriptor, threads: int, progress: Callable[[int], None]
) -> int:
    """Write what changes in the changed rows of files, each compared with its checksum, and flush it.

    Returns the size of the log. `progress` is called with the bytes of tensors that were compared since its last call.
    """
    lock, end = threading.Lock(), 0

    def write(number: int, row: Row) -> Iterator[int]:
        nonlocal end
        assert isinstance(row.geometry, Patched)  # noqa: S101 - that is what changed rows have
        offset, before = row.offset, np.empty(min(BLOCK, row.nbytes), np.uint8)
        for new in row.geometry.pieces(row, before):
            block = np.frombuffer(new, np.uint8)
            places = np.flatnonzero(before[: len(block)] != block)
            count, body = _WHOLE, new
            if 4 * len(places) < len(block):
                count, body = len(places), (places.astype(np.uint32) << 8 | block[places]).data
            record = b"".join((_HEAD.pack(number, count, offset, len(new)), body)) if count else b""
            with lock:
                at, end = end, end + len(record)
            write_all(log, memoryview(record), at)
            if at >> 20 < at + len(record) >> 20:  # the disk begins with each MiB
                native_files.begin_flush(log, 0, 0)
            offset += len(new)
            yield len(new)

    work = sorted(((number, row) for number, rows in enumerate(files) for row in rows), key=lambda one: -one[1].nbytes)
    exhaust([write(*one) for one in work], threads, progress)
    os.fsync(log)
    return end


def make_changes(log: Descriptor, files: Sequence[Descriptor], threads: int, step: Callable[[str], None]) -> None:
    """Make the changes that a log has, in files in the order of their numbers, and flush these.

    Raises `DeltaError` for a log that is damaged.
    """

    def make(share: int) -> Iterator[int]:
        room = memoryview(bytearray(BLOCK))
        for count, (number, changed, offset, nbytes, at, size) in enumerate(_records(log)):
            if count % threads != share:
                continue
            step("block")
            body = os.pread(log, size, at)
            if number >= len(files) or nbytes > BLOCK or len(body) != size:
                raise _damaged()
            block = memoryview(body)
            if changed != _WHOLE:
                block = room[:nbytes]
                listed = np.frombuffer(body, np.uint32)
                places = listed >> 8
                if os.preadv(files[number], [block], offset) != nbytes or places.max(initial=0) >= nbytes:
                    raise _damaged()
                np.frombuffer(block, np.uint8)[places] = listed.astype(np.uint8)
            write_all(files[number], block, offset)
            yield nbytes
            if count // threads % _FLUSHED == _FLUSHED - 1:
                native_files.begin_flush(files[number], 0, 0)

    exhaust([make(share) for share in range(threads)], threads, lambda _: None)
    for file in files:
        os.fsync(file)


def _records(log: Descriptor) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield number, count, offset and bytes of each record, and place and size of what follows them."""
    at, end = 0, os.fstat(log).st_size
    while at < end:
        head = os.pread(log, _HEAD.size, at)
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
