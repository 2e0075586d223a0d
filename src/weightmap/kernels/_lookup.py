"""Values of codes by tables: how parameters of quantised checkpoints are decoded. Used by `weightmap.quant.pieced`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import as_input, as_items, as_output, lib, thread_count

if TYPE_CHECKING:
    from numpy.typing import NDArray


def look_up(
    codes: NDArray[Any],
    bits: int,
    which: NDArray[np.uint32],
    height: int,
    width: int,
    tables: NDArray[Any],
    out: NDArray[Any],
    *,
    threads: int = 1,
) -> None:
    """Fill an array with ``tables[which[r // height, c // width], code of row r, column c]``.

    Parameters
    ----------
    codes : ndarray, shape (rows, bytes), C-contiguous
        Of 8 bits, one to a byte; or of 4 bits, two to a byte, the first in its low half.
    bits : int
        8 or 4.
    which : ndarray of uint32, shape (ceil(rows / height), ceil(columns / width)), C-contiguous
        The number of the table for each block.
    height, width : int
        Rows and columns of a block; those at the edges may be smaller.
    tables : ndarray, shape (n, 2**bits), C-contiguous
        Elements of 2 or 4 bytes.
    out : ndarray of the type of `tables`, shape (rows, columns), C-contiguous, writeable
    threads : int
        At most this many threads share the work.

    Raises
    ------
    ValueError
        When sizes do not fit together, or the memory overlaps.
    """
    rows, columns = out.shape
    failed = lib.wm_lookup(
        as_input(codes.reshape(-1).view(np.uint8)),
        codes.nbytes,
        bits,
        rows,
        columns,
        as_items("uint32_t[]", which.reshape(-1)),
        which.size,
        height,
        width,
        as_input(tables.reshape(-1).view(np.uint8)),
        tables.nbytes,
        tables.dtype.itemsize,
        as_output(out.reshape(-1).view(np.uint8), "uint8_t[]"),
        out.nbytes,
        thread_count(threads),
    )
    if failed:
        raise ValueError(
            "codes, tables and output do not fit together" if failed == -1 else "the output overlaps an input"
        )
