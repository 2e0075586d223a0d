"""The changed words of files, in a file of their own: applied any number of times, whole or in part, they do the same.

That is what a journal needs: XOR applied twice undoes itself. A record is, little-endian (our own layout; the file
lives in ``.weight_sync/next/`` until its changes are made)::

    u32 number of the file | u32 count | u64 offset | u32 bytes | count x u16 word | count x u32 value | tail

The words of four bytes are counted from the offset; the tail is the bytes behind the last whole word. With
count = 2^32 - 1 all new bytes follow instead, which is shorter where most words change.
"""

from __future__ import annotations

import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from weightmap.deltas.frames import BLOCK
from weightmap.deltas.overlay import Patched
from weightmap.deltas.workers import exhaust
from weightmap.errors import DeltaError
from weightmap.io.sink import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.index.row import Row
    from weightmap.kernels import Descriptor

_HEAD, _WHOLE = struct.Struct("<IIQI"), (1 << 32) - 1
_WORD, _PLACE = np.dtype("<u4"), np.dtype("<u2")


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
        offset = row.offset
        for old, new in row.geometry.pairs(row):
            record = _record(number, offset, old, new)
            with lock:
                at, end = end, end + len(record)
            write_all(log, memoryview(record), at)
            offset += len(new)
            yield len(new)

    given = sorted(((number, row) for number, rows in enumerate(files) for row in rows), key=lambda one: -one[1].nbytes)
    exhaust([write(*one) for one in given], threads, progress)
    os.fsync(log)
    return end


def make_changes(log: Descriptor, files: Sequence[Descriptor], threads: int, step: Callable[[str], None]) -> None:
    """Make the changes that a log has, in files in the order of their numbers, and flush these.

    Raises `DeltaError` for a log that is damaged.
    """

    def make(share: int) -> None:
        room = memoryview(bytearray(BLOCK))
        for count, (number, changed, offset, nbytes, at, size) in enumerate(_records(log)):
            if count % threads != share:
                continue
            step("block")
            body = os.pread(log, size, at)
            if number >= len(files) or nbytes > BLOCK or len(body) != size:
                raise _damaged()
            if changed == _WHOLE:
                write_all(files[number], memoryview(body), offset)
                continue
            block = room[:nbytes]
            if os.preadv(files[number], [block], offset) != nbytes:
                raise _damaged()
            _change(np.frombuffer(block, np.uint8), body, changed)
            write_all(files[number], block, offset)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        for _ in pool.map(make, range(threads)):
            pass
    for file in files:
        os.fsync(file)


def _record(number: int, offset: int, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> bytes:
    """Return the record of a block; nothing if it did not change."""
    whole = len(new) // 4 * 4
    now = new[:whole].view(_WORD)
    words = np.flatnonzero(old[:whole].view(_WORD) != now)
    tail = new[whole:].tobytes()
    if not len(words) and tail == old[whole:].tobytes():
        return b""
    if 6 * len(words) >= whole:
        return _HEAD.pack(number, _WHOLE, offset, len(new)) + new.tobytes()
    values = words.astype(_PLACE).tobytes() + now[words].tobytes()
    return _HEAD.pack(number, len(words), offset, len(new)) + values + tail


def _records(log: Descriptor) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield number, count, offset and bytes of each record, and place and size of what follows them."""
    at, end = 0, os.fstat(log).st_size
    while at < end:
        head = os.pread(log, _HEAD.size, at)
        if len(head) != _HEAD.size:
            raise _damaged()
        number, count, offset, nbytes = _HEAD.unpack(head)
        size = nbytes if count == _WHOLE else 6 * count + nbytes % 4
        if nbytes > BLOCK or size > 2 * BLOCK:
            raise _damaged()
        at += _HEAD.size
        yield number, count, offset, nbytes, at, size
        at += size


def _change(block: NDArray[np.uint8], body: bytes, count: int) -> None:
    """Put the words and the tail of a record into a block."""
    whole = len(block) // 4 * 4
    places = np.frombuffer(body, _PLACE, count)
    if count and int(places.max()) >= whole // 4:
        raise _damaged()
    block[:whole].view(_WORD)[places] = np.frombuffer(body, _WORD, count, 2 * count)
    block[whole:] = np.frombuffer(body, np.uint8, -1, 6 * count)


def _damaged() -> DeltaError:
    return DeltaError("the list of changes that were to be made in place is damaged: pull a full version, or the base")
