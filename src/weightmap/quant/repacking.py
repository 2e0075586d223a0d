"""ggml's blocks of the integers and scales of checkpoints: nothing is decoded, nothing is rounded.

Blocks have 32 elements of a row. ``q4_0`` and ``q8_0`` begin with a float16 scale, which is repeated where a group of
the checkpoint is longer, ``mxfp4`` with an exponent. Of 4 bits, element j is the low nibble of byte j, element j + 16
the high one; those of q4_0 have 8 added, as in checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 32
# The schemes of ggml that hold integers of so many bits.
BY_BITS = {4: "q4_0", 8: "q8_0"}


def integers_fit(bits: int, columns: int, width: int, scales: NDArray[Any]) -> str | None:
    """Return the scheme for integers with a scale for each `width` columns; None where float16 lacks a scale."""
    if bits not in BY_BITS or columns % _BLOCK or (width % _BLOCK and width < columns):
        return None
    exact = scales.astype(np.float32)
    with np.errstate(over="ignore"):
        fits = bool((exact.astype(np.float16).astype(np.float32) == exact).all())  # a NaN is not equal to itself
    return BY_BITS[bits] if fits and bool(np.isfinite(exact).all()) else None


def integer_blocks(bits: int, codes: NDArray[Any], scales: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the blocks of rows: unsigned codes of 4 bits, or signed ones of 8, and a scale for each element.

    Parameters
    ----------
    codes : ndarray of uint8 or int8, shape (rows, columns)
    scales : ndarray, shape (rows, columns / 32)

    Returns
    -------
    ndarray of uint8, shape (rows, bytes)
    """
    rows, count = len(codes), codes.shape[1] // _BLOCK
    grouped = codes.reshape(rows, count, _BLOCK)
    parts = np.ascontiguousarray(scales.astype(np.float16))[..., None].view(np.uint8)
    packed = _halves(grouped) if bits < 8 else grouped.view(np.uint8)
    return np.concatenate([parts, packed], -1).reshape(rows, -1)


def float_blocks(codes: NDArray[np.uint8], exponents: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the blocks of mxfp4 of rows of e2m1 codes, with an exponent for each 32 of them."""
    grouped = codes.reshape(len(codes), -1, _BLOCK)
    return np.concatenate([exponents.reshape(len(codes), -1, 1), _halves(grouped)], -1).reshape(len(codes), -1)


def per_block(scales: NDArray[Any], columns: int, width: int, rows: int) -> NDArray[Any]:
    """Return the scale of each block of 32, given those of groups of columns: of each row, or of all."""
    found = np.atleast_2d(scales)[:, np.arange(0, columns, _BLOCK) // width]
    return np.broadcast_to(found, (rows, columns // _BLOCK))


def _halves(codes: NDArray[Any]) -> NDArray[np.uint8]:
    octets: NDArray[np.uint8] = (codes[..., :16] | codes[..., 16:] << 4).astype(np.uint8)
    return octets
