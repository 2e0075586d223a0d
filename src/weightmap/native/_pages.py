"""Pages of files in memory: which there are, reading runs of bytes through them, and giving them back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.native._native import as_input, as_items, as_output, ffi, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray


def page_size() -> int:
    """Return the bytes of a page of memory."""
    size: int = lib.wm_page_size()
    return size


def drop_pages(memory: Any, offset: int, size: int, *, private: bool) -> int:
    """Unmap pages of a mapping, which touching brings back; of a `private` one changed pages stay. 0, or an errno."""
    buffer = as_input(memory)
    error: int = lib.wm_drop(buffer, len(buffer), offset, size, private)
    return error


def resident_pages(memory: Any, offset: int, size: int) -> NDArray[np.uint8] | int:
    """Return for each page that holds one of these bytes of a mapping whether it is in memory; or an errno."""
    buffer, page = as_input(memory), page_size()
    skipped = (int(ffi.cast("uintptr_t", buffer)) + offset) % page
    pages = np.empty(-(-(skipped + size) // page), np.uint8)
    error: int = lib.wm_resident(buffer, len(buffer), offset, size, as_output(pages, "uint8_t[]"), len(pages))
    return error or pages


def cached_pages(fd: int, offset: int, size: int) -> int:
    """Return how many pages of a file that hold one of these bytes are in the page cache; or a negative errno."""
    count: int = lib.wm_cached(fd, offset, size)
    return count


def file_system(fd: int) -> int:
    """Return the number of the kind of file system of a file, as statfs has it; or a negative errno."""
    number: int = lib.wm_file_system(fd)
    return number


def begin_flush(fd: int, offset: int, size: int) -> None:
    """Let the disk begin to write these bytes of a file, without waiting for it: a hint, on Linux alone.

    With size 0 they go up to its end.
    """
    lib.wm_begin_flush(fd, offset, size)


def read_runs(fd: int, starts: NDArray[np.int64], length: int, target: NDArray[np.uint8], gap: int = 0) -> int:
    """Fill `target` with runs of `length` bytes of a file, which begin at `starts` in rising order.

    What is not in the page cache comes from the disk with gaps between runs below `gap` bytes, which takes less time.
    Returns how many bytes there were. Raises OSError.
    """
    if len(target) != len(starts) * length or (len(starts) and starts[0] < 0):
        raise ValueError(f"{len(starts)} runs of {length} bytes do not fill {len(target)}")
    places = as_items("uint64_t[]", np.ascontiguousarray(starts, np.uint64))
    error = ffi.new("int *")
    got: int = lib.wm_read_runs(
        fd, ffi.cast("uint64_t *", places), len(starts), length, gap, as_output(target, "uint8_t[]"), error
    )
    if error[0]:
        raise OSError(error[0], os.strerror(error[0]))
    return got
