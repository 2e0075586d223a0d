"""Rows of a dense or quantised matrix by their numbers: gathered, and summed to unit vectors.

A dense matrix is read in place. A quantised one decodes only the requested rows, for sums some thousands at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import LayoutError
from weightmap.native import late
from weightmap.quant.product import ProductQuantized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.quant.blocks import QuantizedTensor

_FLOAT32 = np.dtype(np.float32)
# Rows decoded at once for sums.
_ROWS = 8192


def _some(matrix: NDArray[Any] | QuantizedTensor, rows: NDArray[np.int64], threads: int) -> NDArray[Any]:
    """Return rows of a matrix, decoded if it is quantised."""
    if isinstance(matrix, ProductQuantized):
        return matrix.gather(rows, threads=threads)
    some: NDArray[Any] = matrix[rows]
    return some


def gather(
    matrix: NDArray[Any] | QuantizedTensor, rows: NDArray[np.int64], out: NDArray[Any], *, threads: int = 1
) -> None:
    """Fill `out` with rows of a matrix.

    Parameters
    ----------
    matrix : ndarray or QuantizedTensor, shape (m, d)
    rows : ndarray of int64, shape (k,)
        Less than m; a negative number stands for a row of zeros.
    out : ndarray, shape (k, d)
        C-contiguous.
    threads : int
        At most this many threads share the work.
    """
    if isinstance(matrix, np.ndarray) and matrix.dtype == out.dtype and matrix.flags.c_contiguous:
        late.gather_rows(matrix, rows, out, threads=threads)
        return
    found = rows >= 0
    out[found] = _some(matrix, rows[found], threads)
    out[~found] = 0


def unit_sums(
    matrix: NDArray[Any] | QuantizedTensor,
    rows: NDArray[np.uint64],
    bounds: NDArray[np.uint64],
    out: NDArray[np.float32],
    *,
    places: NDArray[np.uint64] | None = None,
    norms: NDArray[np.float32] | None = None,
    threads: int = 1,
) -> None:
    """Fill rows of `out` with sums of rows of a matrix, each divided by its L2 norm.

    Parameters are those of `native.late.unit_sums`, but the matrix may have any dtype or be quantised; its rows are
    added as float32.

    Raises
    ------
    LayoutError
        For a row that the matrix does not have.
    """
    height = matrix.shape[0]
    if len(rows) and int(rows.max()) >= height:
        raise LayoutError("row of an n-gram", actual=int(rows.max()), expected=f"less than {height}")
    if isinstance(matrix, np.ndarray) and matrix.dtype == _FLOAT32 and matrix.flags.c_contiguous:
        late.unit_sums(matrix, rows, bounds, out, places=places, norms=norms, threads=threads)
        return
    # Some rows at a time, always those of whole sums.
    first, last = 0, len(bounds) - 1
    while first < last:
        start = int(bounds[first])
        stop = max(first + 1, int(np.searchsorted(bounds, start + _ROWS, "right")) - 1)
        wanted = rows[start : int(bounds[stop])].astype(np.int64)
        late.unit_sums(
            np.ascontiguousarray(_some(matrix, wanted, threads), np.float32),
            np.arange(len(wanted), dtype=np.uint64),
            bounds[first : stop + 1] - bounds[first],
            out if places is not None else out[first:stop],
            places=None if places is None else places[first:stop],
            norms=None if norms is None else norms[first:stop],
            threads=threads,
        )
        first = stop
