"""Comparison of two tensors of one type, in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.native._native import as_items, as_output, ffi, from_buffer, lib, thread_count
from weightmap.native._outcome import check_outcome
from weightmap.native._rooms import room

if TYPE_CHECKING:
    from collections.abc import Buffer

    from numpy.typing import NDArray

# The types that `differing` knows, by their names, as the kernel numbers them.
COMPARED = {"float32": (0, 4), "float64": (1, 8), "float16": (2, 2), "bfloat16": (3, 2)}

# Bytes of each file that are compared at once: both pieces stay in the second-level cache.
_PIECE = 1 << 17


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
    >>> from weightmap.native.late import differing
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


class FileComparer:
    """Compares tensors of files, many in a call. Its buffers serve all calls.

    Parameters
    ----------
    threads : int
        At most this many share the work; fewer where there is too little to gain.
    """

    def __init__(self, threads: int) -> None:
        self._threads = thread_count(threads)
        self._room = room(2 * _PIECE * self._threads)

    def __call__(
        self, files: tuple[int, int], offsets: NDArray[np.int64], counts: NDArray[np.int64], dtype: str
    ) -> list[tuple[int, float, float]]:
        """Compare tensors that lie in two files, given by their descriptors.

        Parameters
        ----------
        files : tuple of int
        offsets : ndarray of int64, shape (2, n)
            Where each tensor lies in the first file and in the second.
        counts : ndarray of int64, shape (n,)
            The elements of each: at least one.
        dtype : str
            A key of `COMPARED`.

        Returns
        -------
        list of (int, float, float)
            For each tensor what `differing` returns.

        Raises
        ------
        Failed
        """
        kind, width = COMPARED[dtype]
        most = _PIECE // width
        pieces = (counts + (most - 1)) // most
        begins = np.cumsum(pieces) - pieces
        part = np.arange(int(pieces.sum()), dtype=np.int64) - np.repeat(begins, pieces)
        left = np.minimum(np.repeat(counts, pieces) - part * most, most)
        places = [np.repeat(offset, pieces) + part * _PIECE for offset in offsets]
        different, found = np.empty(len(part), np.int64), np.empty((len(part), 2), np.float64)
        columns = [as_items("uint64_t[]", column) for column in (*places, left)]
        pairs = ffi.new("wm_pairs *", (*files, kind, *columns, len(part), _PIECE))
        outcome, buffer = ffi.new("wm_outcome *"), as_output(self._room, "uint8_t[]")
        out = as_output(different, "int64_t[]"), as_output(found, "double[]")
        lib.wm_differing_files(pairs, *out, buffer, len(buffer), self._threads, outcome)
        check_outcome(outcome)
        return list(
            zip(
                np.add.reduceat(different, begins).tolist(),
                np.maximum.reduceat(found[:, 0], begins).tolist(),
                np.add.reduceat(found[:, 1], begins).tolist(),
                strict=True,
            )
        )
