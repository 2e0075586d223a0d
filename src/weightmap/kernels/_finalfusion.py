"""Lists of strings of finalfusion vocabularies in C. Used by weightmap.formats.finalfusion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.kernels._native import as_input, as_output, ffi, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.kernels._native import Buffer


def fifu_skip(data: Buffer, count: int, tail: int) -> tuple[int, int]:
    """Walk as many of `count` entries as lie whole in `data`: a u32 length, that many bytes, and `tail` bytes.

    Returns the bytes that they take, and their number.
    """
    buffer = as_input(data)
    walked = ffi.new("uint64_t *")
    size: int = lib.wm_finalfusion_skip(buffer, len(buffer), count, tail, walked)
    return size, walked[0]


def fifu_ngrams(data: Buffer, count: int) -> tuple[int, NDArray[np.uint32], NDArray[np.uint64]]:
    """Walk `count` n-grams, each with an index behind it.

    `count` is at most a twelfth of the bytes: the caller has seen to that.

    Returns
    -------
    walked : int
        Bytes walked, or -1 - i when n-gram i does not fit.
    bounds : ndarray of uint32, shape (count + 1,)
        As of `weightmap.index.strings.StringTable`, gap 12.
    indices : ndarray of uint64, shape (count,)
    """
    buffer = as_input(data)
    bounds, indices = np.empty(count + 1, np.uint32), np.empty(count, np.uint64)
    walked: int = lib.wm_finalfusion_ngrams(
        buffer, len(buffer), count, as_output(bounds, "uint32_t[]"), as_output(indices, "uint64_t[]")
    )
    return walked, bounds, indices
