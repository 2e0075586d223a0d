"""Files in C: mapping, page advice, fstat, and whether a file changed."""

from __future__ import annotations

import errno
import os
from typing import Any

from weightmap.kernels._native import as_input, ffi, from_buffer, lib, module


def map_file(fd: int, size: int, *, cow: bool, sealed: bool = False) -> Any:
    """Map `size` bytes of a file; return a buffer that unmaps with its last user. Raises OSError.

    `cow` makes the buffer writable; `sealed` says that the file is sealed memory.
    """
    return module.map_file(fd, size, 2 if sealed and not cow else cow)


def advise(memory: Any, advice: int) -> None:
    """Advise the system on the use of a mapping: 0 normal, 1 random, 2 sequential. Ignores a refusal."""
    buffer = from_buffer("uint8_t[]", memory)
    lib.wm_advise(buffer, len(buffer), advice)


def populate(memory: Any, offset: int, size: int, *, scattered: bool = False) -> int:
    """Read and map pages of memory, and wait for them; `scattered` if the mapping is advised as random.

    Returns 0, or an errno.
    """
    buffer = as_input(memory)
    error: int = lib.wm_populate(buffer, len(buffer), offset, size, scattered)
    return error


def will_need(memory: Any, offset: int, size: int) -> None:
    """Ask the system to read pages of a mapping. Ignores a refusal."""
    buffer = from_buffer("uint8_t[]", memory)
    lib.wm_will_need(buffer, len(buffer), offset, size)


def fstat(fd: int) -> Any:
    """Return the state of an open file, a wm_file, with which `unchanged` compares a later state."""
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

# These own what the system returns from the first moment on: see csrc/python/owners.c.
Descriptor = module.Descriptor
take_ownership = module.own
with_temporary = module.with_temporary
# A bytearray of so many bytes, with any content.
new_buffer = module.new_buffer

# Whether the environment has a variable of this name.
is_set = module.is_set
