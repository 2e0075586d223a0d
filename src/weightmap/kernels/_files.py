"""Mapping files in C, looking at them, and noticing that they changed. Used by weightmap.io.source."""

from __future__ import annotations

import errno
import os
from typing import Any

from weightmap.kernels._native import as_input, ffi, from_buffer, lib, module


def map_file(fd: int, size: int, *, cow: bool, sealed: bool = False) -> Any:
    """Map `size` bytes of a file; return a buffer that unmaps when its last user is gone. Raises OSError.

    It can be written to when `cow` says so. `sealed` says that the file is sealed memory.
    """
    return module.map_file(fd, size, 2 if sealed and not cow else cow)


def advise(memory: Any, advice: int) -> None:
    """Say how a mapping will be touched: 0 normally, 1 at random, 2 in sequence. A refusal does not matter."""
    buffer = from_buffer("uint8_t[]", memory)
    lib.wm_advise(buffer, len(buffer), advice)


def populate(memory: Any, offset: int, size: int, *, scattered: bool = False) -> int:
    """Bring in and map these pages of memory, `scattered` if it is advised so; return when they are there.

    The result is 0, or an errno.
    """
    buffer = as_input(memory)
    error: int = lib.wm_populate(buffer, len(buffer), offset, size, scattered)
    return error


def will_need(memory: Any, offset: int, size: int) -> None:
    """Ask the kernel for these pages of a mapping. A refusal does not matter: it is advice."""
    buffer = from_buffer("uint8_t[]", memory)
    lib.wm_will_need(buffer, len(buffer), offset, size)


def fstat(fd: int) -> Any:
    """Return what the file behind a descriptor is, a wm_file: `unchanged` compares it with what the file is then."""
    file = ffi.new("wm_file *")
    error = lib.wm_fstat(fd, file)
    if error == errno.ENOSYS and os.name == "nt":
        status = os.fstat(fd)
        ours = (fd, status.st_mode, status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)
        return ffi.new("wm_file *", ours)
    if error:
        raise OSError(error, os.strerror(error))
    return file


unchanged = lib.wm_unchanged

# What the system gives is owned from the moment that it is there: see csrc/python/owners.c.
Descriptor = module.Descriptor
own = module.own
with_temporary = module.with_temporary
