"""Exact search by cosine for the rows of a matrix that are nearest to a vector.

The search walks the matrix in blocks, so that memory stays flat: it reads a float32 matrix in place, converts or
decodes others block by block, and does not decode product quantisation at all. The first search computes the norms of
the rows and keeps them, four bytes a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.quant.product import ProductQuantized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.core.quant.blocks import QuantizedTensor

# Elements of a block: 4 MiB of float32; 64 MiB without a copy, since each product may wait for BLAS threads.
_BLOCK, _VIEW = 1 << 20, 1 << 24
# The range of norms whose squares float32 holds well; others are computed again in double precision.
_SMALL, _LARGE = 1e-15, 1e15


def unit(vector: NDArray[Any]) -> NDArray[np.float32]:
    """Return a vector divided by its L2 norm, in double precision, as float32; zeros stay zeros.

    Raises
    ------
    ValueError
        When an element is NaN or infinite.
    """
    wide = np.asarray(vector).astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("a vector with NaN or infinite elements has no direction")
    largest = np.abs(wide).max(initial=0)
    if largest:
        wide /= largest  # so that no square overflows or vanishes
        wide /= np.linalg.norm(wide)
    return wide.astype(np.float32)


class Search:
    """A search among the first `count` rows of a matrix of shape (m, d)."""

    __slots__ = ("_count", "_matrix", "_norms", "_step")

    def __init__(self, matrix: NDArray[Any] | QuantizedTensor, count: int) -> None:
        self._matrix = matrix
        self._count = count
        self._norms: NDArray[np.float32] | None = None
        flags = matrix.flags if isinstance(matrix, np.ndarray) and matrix.dtype == np.float32 else None
        view = flags is not None and flags.c_contiguous and flags.aligned
        self._step = max(1, (_VIEW if view else _BLOCK) // max(1, matrix.shape[1]))

    def _block(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows as float32: a view if they are contiguous, aligned float32 already."""
        return np.require(self._matrix[start:stop], np.float32, ("A", "C"))

    def _row_norms(self, start: int, stop: int) -> NDArray[np.float32]:
        if isinstance(self._matrix, ProductQuantized):
            return self._matrix.row_norms(start, stop)
        rows = self._block(start, stop)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            norms: NDArray[np.float32] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            odd = np.flatnonzero(~((norms > _SMALL) & (norms < _LARGE)))
            if len(odd):
                norms[odd] = np.linalg.norm(rows[odd].astype(np.float64), axis=1)
        return norms

    @property
    def norms(self) -> NDArray[np.float32]:
        """L2 norms of the rows, shape (count,); computed at the first use."""
        norms = self._norms
        if norms is None:
            norms = np.empty(self._count, np.float32)
            for start in range(0, self._count, self._step):
                stop = min(start + self._step, self._count)
                norms[start:stop] = self._row_norms(start, stop)
            self._norms = norms
        return norms

    def _cosines(self, query: NDArray[np.float32], start: int, stop: int) -> NDArray[np.float32]:
        """Return the cosines of rows with a unit vector; 0 for rows of zeros, NaN for rows with NaN or infinity."""
        norms = self.norms[start:stop]
        pq = isinstance(self._matrix, ProductQuantized)
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            dots = self._matrix.dots(query, start, stop) if pq else self._block(start, stop) @ query  # type: ignore[union-attr]
            cosines: NDArray[np.float32] = np.where(norms == 0, np.float32(0), dots / norms)
        return np.clip(cosines, -1, 1, out=cosines)

    def nearest(self, query: NDArray[np.float32], k: int, skip: set[int]) -> list[tuple[int, float]]:
        """Return the rows with the largest cosines.

        Parameters
        ----------
        query : ndarray of float32, shape (d,)
            A unit vector.
        k : int
            At most this many.
        skip : set of int
            Rows to leave out. Rows with NaN are left out, too.

        Returns
        -------
        list of (int, float)
            Row and cosine, the largest first; of equal ones the earlier row.
        """
        rows, best = np.empty(0, np.int64), np.empty(0, np.float32)
        left_out = np.array(sorted(skip), np.int64)
        for start in range(0, self._count, self._step):
            stop = min(start + self._step, self._count)
            cosines = self._cosines(query, start, stop)
            cosines[np.isnan(cosines)] = -np.inf
            cosines[left_out[(left_out >= start) & (left_out < stop)] - start] = -np.inf
            bar = best[-1] if len(best) == k else -np.inf  # only larger cosines get in: earlier rows come first
            if len(cosines) > k:
                bar = max(bar, np.nextafter(np.partition(cosines, -k)[-k], np.float32(-np.inf)))
            hits = np.flatnonzero(cosines > bar)
            rows, best = np.append(rows, hits + start), np.append(best, cosines[hits])
            order = np.lexsort((rows, -best))[:k]
            rows, best = rows[order], best[order]
        return list(zip(rows.tolist(), best.tolist(), strict=True))
