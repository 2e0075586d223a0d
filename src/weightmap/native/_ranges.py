"""Ranges of files joined into reads, in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.native._native import as_output, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray


def join_ranges(
    files: NDArray[np.integer], starts: NDArray[np.int64], stops: NDArray[np.int64], *, gap: int, most: float
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the reads that cover ranges: file, start, stop and wanted bytes of each.

    Parameters
    ----------
    files, starts, stops : ndarray, shape (n,)
        In order of file, then of start.
    gap : int
        Ranges less than this many bytes apart are joined into one read.
    most : float
        Ranges are joined as long as the read has at most this many times its wanted bytes.
    """
    # Copies, which become the result.
    joined = np.array(files, np.uint32), np.array(starts, np.uint64), np.array(stops, np.uint64)
    columns = (*joined, np.empty(len(starts), np.uint64))
    pointers = (as_output(column, f"uint{8 * column.itemsize}_t[]") for column in columns)
    count = lib.wm_join_ranges(*pointers, len(starts), min(gap, (1 << 63) - 1), most)
    reads = [column[:count] for column in columns]
    return reads[0], *(column.view(np.int64) for column in reads[1:])  # type: ignore[return-value]
