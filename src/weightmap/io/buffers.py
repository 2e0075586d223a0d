"""Buffers that work on many files uses again: in a fresh one, each 4 KiB costs a page fault."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["keeping", "put", "take"]

# A file takes one for reading and two for writing, or three where blocks are quantised; the last piece of a tensor may
# hold one more of the former.
_MOST = 4


class _Kept(threading.local):
    """The buffers that this thread keeps; None outside `keeping`."""

    buffers: list[bytearray] | None = None


_kept = _Kept()


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Keep the buffers that this thread puts back, for those that it takes; free them at the end."""
    before = _kept.buffers
    _kept.buffers = [] if before is None else before
    try:
        yield
    finally:
        _kept.buffers = before


def take(nbytes: int) -> bytearray:
    """Return a buffer of at least so many bytes, with any content."""
    buffers = _kept.buffers
    if not buffers:
        return bytearray(nbytes)
    for at in sorted(range(len(buffers)), key=lambda at: len(buffers[at])):
        if len(buffers[at]) >= nbytes and _is_free(buffers[at]):
            return buffers.pop(at)
    return bytearray(nbytes)


def put(buffer: bytearray) -> None:
    """Give a buffer back. It may still be looked at: then nobody gets it."""
    buffers = _kept.buffers
    if buffers is not None:
        buffers.append(buffer)
        if len(buffers) > _MOST:
            del buffers[0]


def _is_free(buffer: bytearray) -> bool:
    """Say whether nobody looks at a buffer: Python refuses to resize it then."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
