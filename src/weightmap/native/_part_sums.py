"""CRC-32 of parts of files, in C: each byte is read once, by several threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.native._native import NULL, U32_MAX, as_items, as_output, ffi, lib, thread_count
from weightmap.native._outcome import check_outcome, place_of
from weightmap.native._rooms import room

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PartSummer:
    """Computes checksums of parts of a file. Its buffer serves all calls.

    Parameters
    ----------
    threads : int
        At most this many share the work; fewer where there is too little to gain.
    """

    def __init__(self, threads: int) -> None:
        self._threads = thread_count(threads)
        self._room = np.empty(0, np.uint8)

    def __call__(
        self, source: int | NDArray[np.uint8], offset: int, nbytes: int, value: int, gaps: NDArray[np.uint64]
    ) -> tuple[int, NDArray[np.bool_]]:
        """Return the CRC-32 of `nbytes` bytes from `offset` on, and which gaps have a byte there that is not 0.

        Parameters
        ----------
        source : int or ndarray of uint8
            The descriptor of a file, or bytes that nobody can take away.
        offset, nbytes : int
        value : int
            The CRC-32 of what precedes.
        gaps : ndarray of uint64, shape (n, 2)
            Begin and end of ranges of padding, in rising order and apart; they may lie anywhere.

        Returns
        -------
        crc : int
        filled : ndarray of bool, shape (n,)

        Raises
        ------
        Failed
        """
        filled = np.zeros(len(gaps), np.bool_)
        fd, memory, size = place_of(source)
        if fd >= 0 and not self._room.size:
            self._room = room(self._threads * lib.WM_SUM_ROOM)
        ranges = as_items("uint64_t[]", gaps) if len(gaps) else NULL
        part = ffi.new("wm_summed *", (fd, memory, size, offset, nbytes, ranges, len(gaps)))
        crc, outcome = ffi.new("uint32_t *", value & U32_MAX), ffi.new("wm_outcome *")
        buffer, flags = as_output(self._room, "uint8_t[]"), as_output(filled.view(np.uint8), "uint8_t[]")
        lib.wm_crc32_of_part(part, flags, len(filled), crc, buffer, self._room.size, self._threads, outcome)
        check_outcome(outcome)
        return crc[0], filled
