"""Buffers reused across many files: in a fresh one, each 4 KiB costs a page fault."""

from __future__ import annotations

import contextlib
from _thread import _local
from typing import TYPE_CHECKING

from weightmap import native
from weightmap.native._rooms import LINE, to_line

if TYPE_CHECKING:
    from collections.abc import Iterator

# A file takes one to read, up to three to write, one to quantise; the last piece of a tensor may hold one more.
_MOST = 6


class _Kept(_local):
    """The buffers that this thread keeps; None outside `keeping`. `threading.local`, without importing its module."""

    buffers: list[bytearray] | None = None


_kept = _Kept()


@contextlib.contextmanager
def keeping(*, afterwards: bool = False) -> Iterator[None]:
    """Keep the buffers that this thread asks for, and hand them out again.

    They are freed at the end, or with the thread if it keeps them `afterwards`, as workers do from call to call.
    """
    before = _kept.buffers
    _kept.buffers = [] if before is None else before
    try:
        yield
    finally:
        if not afterwards:
            _kept.buffers = before


def room(nbytes: int) -> memoryview:
    """Return uninitialised memory of so many bytes, aligned to a cache line.

    It is reused once nothing refers to it.
    """
    buffers, size = _kept.buffers, nbytes + LINE
    if buffers is None:
        return _from_line(native.new_buffer(size), nbytes)
    for buffer in sorted(buffers, key=len):
        if len(buffer) >= size and _is_free(buffer):
            return _from_line(buffer, nbytes)
    buffers.append(native.new_buffer(size))
    if len(buffers) > _MOST:
        del buffers[0]
    return _from_line(buffers[-1], nbytes)


def _from_line(buffer: bytearray, nbytes: int) -> memoryview:
    begin = to_line(buffer)
    return memoryview(buffer)[begin : begin + nbytes]


def _is_free(buffer: bytearray) -> bool:
    """Whether nothing views a buffer: otherwise Python refuses to resize it."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
