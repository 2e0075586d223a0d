"""Comparison of two tensors of one type, in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.kernels._native import ffi, from_buffer, lib

if TYPE_CHECKING:
    from collections.abc import Buffer

__all__ = ["COMPARED", "differing"]

# The types that `differing` knows, by their names, as the kernel numbers them.
COMPARED = {"float32": (0, 4), "float64": (1, 8), "float16": (2, 2), "bfloat16": (3, 2)}


def differing(a: Buffer, b: Buffer, dtype: str) -> tuple[int, float, float]:
    """Return how many elements of two equally long buffers differ in their bytes, and by how much.

    Parameters
    ----------
    a, b : buffers
        Whole elements, little-endian, at any alignment.
    dtype : str
        A key of `COMPARED`.

    Returns
    -------
    count : int
    largest : float
        The largest absolute difference of elements that differ, in float64; NaN if one of these differences is.
    squares : float
        The sum of the squares of these differences.

    Examples
    --------
    >>> import numpy as np
    >>> differing(np.float32([1, 2, 3]), np.float32([1, 2.5, 3]), "float32")
    (1, 0.5, 0.25)
    """
    kind, size = COMPARED[dtype]
    left, right = from_buffer("uint8_t[]", a), from_buffer("uint8_t[]", b)
    if len(left) != len(right) or len(left) % size:
        raise ValueError("buffers of different sizes, or of parts of elements")
    found = ffi.new("double[2]")
    count = lib.wm_differing(left, right, len(left) // size, kind, found, found + 1)
    return count, found[0], found[1]
