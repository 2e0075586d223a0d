"""Values of codes: by tables, or by scales and zero points of groups. Used by parameters of quantised checkpoints."""

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


# The types that `decode_groups` makes, as C numbers them.
GROUPED = {"float32": 0, "float16": 1, "bfloat16": 2}


def decode_groups(
    words: NDArray[Any],
    bits: int,
    group: NDArray[np.uint32],
    scales: NDArray[np.float32],
    zeros: NDArray[np.float32],
    out: NDArray[Any],
    *,
    by_rows: bool = False,
    threads: int = 1,
) -> None:
    """Fill an array with ``scales[group[c], r] * (code of row r, column c - zeros[group[c], r])``.

    The operations are of float32, and are rounded once more for other types of `out`.

    Parameters
    ----------
    words : ndarray of int32, C-contiguous
        Of little-endian bytes. Shape (columns * bits / 32, rows), with the codes of a row end to end along the first
        axis, lowest bits first; or with `by_rows` (columns, rows / 8): the codes of eight rows in AWQ's order.
    bits : int
        2, 3, 4 or 8; 4 with `by_rows`.
    group : ndarray of uint32, shape (columns,)
    scales, zeros : ndarray of float32, shape (groups, rows), C-contiguous
    out : ndarray of float32, float16 or bfloat16, shape (rows, columns), C-contiguous, writeable
    threads : int
        At most this many threads share the work.

    Raises
    ------
    ValueError
        When sizes do not fit together, a group has no scales, or the memory overlaps.
    """
    rows, columns = out.shape
    if scales.size != zeros.size or group.size != columns:
        raise ValueError("codes, scales and output do not fit together")
    failed = lib.wm_groups_decode(
        as_input(words.reshape(-1).view(np.uint8)),
        words.nbytes,
        bits,
        int(by_rows),
        as_items("uint32_t[]", group),
        columns,
        as_items("float[]", scales.reshape(-1)),
        as_items("float[]", zeros.reshape(-1)),
        scales.size,
        rows,
        GROUPED[out.dtype.name],
        as_output(out.reshape(-1).view(np.uint8), "uint8_t[]"),
        out.nbytes,
        thread_count(threads),
    )
    if failed:
        raise ValueError(
            "codes, scales and output do not fit together" if failed == -1 else "the output overlaps an input"
        )
