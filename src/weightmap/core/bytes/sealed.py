"""Sealed memory (Linux): a nameless file in memory that no process can write to, shrink or extend any more.

A mapping of it cannot change or fault, and every process with its descriptor shares its pages. See memfd_create(2), and
F_ADD_SEALS in fcntl(2).
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

if sys.platform != "win32":
    import fcntl

from weightmap.core.native.access import Descriptor, take_ownership

if TYPE_CHECKING:
    from collections.abc import Iterable

AVAILABLE = hasattr(os, "memfd_create")
# Memory without executable code, since Linux 6.3. Some systems allow no other kind.
_NOEXEC_SEAL = 0x0008


def is_sealed(fd: int) -> bool:
    """Whether the bytes behind this descriptor can never change or go away."""
    if not AVAILABLE:
        return False
    needed = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & needed == needed
    except OSError:  # EINVAL: a file on a disk
        return False


def seal(pieces: Iterable[memoryview]) -> Descriptor:
    """Return a new descriptor of sealed memory that holds these pieces one after another. Raises `OSError`."""
    file = _new()
    offset = 0
    for piece in pieces:
        while piece:
            count = os.pwrite(file, piece, offset)
            offset += count
            piece = piece[count:]  # noqa: PLW2901 - the rest of it
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _new() -> Descriptor:
    """Return a descriptor of new, empty memory that can be sealed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return take_ownership(os.memfd_create, "weightmap", flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older kernel that does not know the flag
            raise
    return take_ownership(os.memfd_create, "weightmap", flags)


def to_child(fd: int) -> Any:
    """Return a picklable duplicate for the process that `multiprocessing` is starting; None if it starts none.

    In the new process its `detach` returns the descriptor.
    """
    context: Any = sys.modules.get("multiprocessing.context")
    if context is None or context.get_spawning_popen() is None:
        return None
    from multiprocessing.reduction import DupFd  # noqa: PLC0415 - loaded already when this is reached

    return DupFd(int(fd))  # a `Descriptor` would be pickled as one, and close the number in the new process
