"""Files in C: mapping, page advice, fstat, and whether a file changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightmap.native._native import as_input, from_buffer, lib, module

if TYPE_CHECKING:
    from weightmap._kernels import State


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


def fstat(fd: int) -> State:
    """Return the state of an open file, which tells later whether it is `unchanged`. Raises OSError."""
    if os.name != "nt":
        return module.fstat(fd)
    status = os.fstat(fd)
    return module.fstat(fd, status.st_mode, status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)


# These own what the system returns from the first moment on: see csrc/python/owners.c.
Descriptor = module.Descriptor
take_ownership = module.own
with_temporary = module.with_temporary
# A bytearray of so many bytes, with any content.
new_buffer = module.new_buffer

# Whether the environment has a variable of this name.
is_set = module.is_set
