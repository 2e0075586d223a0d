"""Copying bytes of one file to another, in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.native._native import as_output, ffi, lib, thread_count
from weightmap.native._outcome import check_outcome

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def copy_range(
    source: int,
    begin: int,
    target: int,
    at: int,
    count: int,
    *,
    piece: int,
    room: NDArray[np.uint8],
    threads: int,
) -> None:
    """Copy `count` bytes of the file `source`, from `begin` on, to byte `at` of the file `target`.

    Parameters
    ----------
    source, target : int
        Descriptors.
    begin, at, count : int
    piece : int
        Bytes that a thread reads and writes at once.
    room : ndarray of uint8
        Memory to work in: `piece` bytes for each thread.
    threads : int
        At most this many share the work.

    Raises
    ------
    Failed
    """
    asked, outcome = ffi.new("wm_copied *", (source, target, begin, at, count, piece)), ffi.new("wm_outcome *")
    lib.wm_copy_range(asked, as_output(room, "uint8_t[]"), room.size, thread_count(threads), outcome)
    check_outcome(outcome)
