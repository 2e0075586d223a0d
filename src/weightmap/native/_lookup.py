"""Values of codes with scales of blocks, or of groups of columns. Used by parameters of quantised checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.native._native import NULL, as_input, as_items, as_output, lib, thread_count

if TYPE_CHECKING:
    from numpy.typing import NDArray


# The types that these functions make, as C numbers them.
CODED = {"float32": 0, "float16": 1, "bfloat16": 2}
_UNFIT = "codes, scales and output do not fit together"
_NO_MEMORY = -3


def look_up(
    codes: NDArray[Any],
    bits: int,
    values: NDArray[np.float32],
    scales: NDArray[np.float32],
    out: NDArray[Any],
    *,
    height: int,
    width: int,
    before: int = 0,
    zeros: NDArray[np.float32] | None = None,
    which: NDArray[np.uint8] | None = None,
    factor: float = 1,
    high_first: bool = False,
    threads: int = 1,
) -> None:
    """Fill an array with ``(values[code of row r, column c] - zeros[b]) * scales[b] * factor``.

    The operations are of float32, and are rounded once more for other types of `out`. Of two NaNs that are
    multiplied, either is the result.

    Parameters
    ----------
    codes : ndarray, shape (rows, bytes), C-contiguous
        Of 8 bits, one to a byte; or of 4 bits, two to a byte. A row may have more bytes than its codes take.
    bits : int
        8 or 4.
    values : ndarray of float32, shape (2**bits,)
        What codes stand for.
    scales, zeros : ndarray of float32, C-contiguous
        One for each block, shape (ceil((before + rows) / height), ceil(columns / width)); or at most 256.
    out : ndarray of float32, float16 or bfloat16, shape (rows, columns), C-contiguous, writeable
    height, width : int
        Rows and columns of a block; those at the edges may be smaller.
    before : int
        Rows of the first blocks that are not among these, fewer than `height`.
    which : ndarray of uint8, C-contiguous
        The number of the scale of each block; otherwise these are in order.
    factor : float
        A number of float32.
    high_first : bool
        Whether the first of two codes in a byte is its high half.
    threads : int
        At most this many threads share the work.

    Raises
    ------
    ValueError
        When sizes do not fit together, or the memory overlaps.
    """
    rows, columns = out.shape
    if len(codes) != rows or values.size != 1 << bits or (zeros is not None and zeros.size != scales.size):
        raise ValueError(_UNFIT)
    _checked(
        lib.wm_lookup(
            as_input(codes.reshape(-1).view(np.uint8)),
            codes.nbytes,
            bits,
            int(high_first),
            codes.nbytes // max(rows, 1),
            rows,
            columns,
            before,
            height,
            width,
            as_items("float[]", values),
            as_items("float[]", scales.reshape(-1)),
            NULL if zeros is None else as_items("float[]", zeros.reshape(-1)),
            scales.size,
            NULL if which is None else as_input(which.reshape(-1)),
            0 if which is None else which.size,
            factor,
            CODED[out.dtype.name],
            as_output(out.reshape(-1).view(np.uint8), "uint8_t[]"),
            out.nbytes,
            thread_count(threads),
        )
    )


def _checked(failed: int) -> None:
    if failed == _NO_MEMORY:
        raise MemoryError
    if failed:
        raise ValueError(_UNFIT if failed == -1 else "the output overlaps an input")


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
        1 to 8; 4 with `by_rows`.
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
        raise ValueError(_UNFIT)
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
        CODED[out.dtype.name],
        as_output(out.reshape(-1).view(np.uint8), "uint8_t[]"),
        out.nbytes,
        thread_count(threads),
    )
    _checked(failed)
