"""Sealed memory (Linux): a file without a name that nobody can write to, shrink or extend any more.

A mapping of it cannot change and cannot fault, and whoever is given its descriptor has the same pages. See memfd_create
and F_ADD_SEALS in the Linux manual, memfd_create(2) and fcntl(2).
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from weightmap.io.descriptor import Descriptor, own

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AVAILABLE", "is_sealed", "seal", "to_child"]

AVAILABLE = hasattr(os, "memfd_create")
# Of the headers of Linux 6.3: no program can be run from it. Some systems allow no other sealed memory.
_NOEXEC_SEAL = 0x0008


def is_sealed(fd: int) -> bool:
    """Whether nobody can change the bytes behind this descriptor or take them away, now and later."""
    if not AVAILABLE:
        return False
    import fcntl  # noqa: PLC0415 - there is none on Windows

    needed = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & needed == needed
    except OSError:  # EINVAL: a file on a disk
        return False


def seal(pieces: Iterable[memoryview]) -> Descriptor:
    """Return a new descriptor of sealed memory that holds these pieces one after another. Raises `OSError`."""
    import fcntl  # noqa: PLC0415 - there is none on Windows

    file = _new()
    offset = 0
    for piece in pieces:
        while piece:
            count = os.pwrite(file, piece, offset)
            offset += count
            piece = piece[count:]  # noqa: PLW2901 - what is left of it
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _new() -> Descriptor:
    """Return a descriptor of new memory that can be sealed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return own(os.memfd_create, "weightmap", flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what an older kernel says to a flag that it does not know
            raise
    return own(os.memfd_create, "weightmap", flags)


def to_child(fd: int) -> Any:
    """Return the descriptor as a new process will have it, while `multiprocessing` is starting one; else None.

    It can be pickled, and its `detach` returns the descriptor in the new process.
    """
    context: Any = sys.modules.get("multiprocessing.context")
    if context is None or context.get_spawning_popen() is None:
        return None
    from multiprocessing.reduction import DupFd  # noqa: PLC0415 - loaded already when this is reached

    return DupFd(int(fd))  # a `Descriptor` would be one there, too, and close what it stands for
