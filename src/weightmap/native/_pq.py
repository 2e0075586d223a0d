"""Product quantisation in C: decoding of codes, and sums over a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.native._native import NULL, as_input, as_items, as_output, ffi, lib, thread_count

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ProductCodes:
    """Codes and codebooks as a wm_pq of kernels.h; keeps their arrays alive.

    Parameters
    ----------
    codes : ndarray of uint8, shape (n, m)
    codebooks : ndarray of float32, shape (m, centroids, width)
    turned : ndarray of float32, shape (m * width, m * width), optional
        The projection, transposed.
    norms : ndarray of float32, shape (n,), optional
        All are C-contiguous, and all but the codes aligned.
    """

    __slots__ = ("_dims", "_keep", "_struct", "_turned", "count")

    def __init__(
        self,
        codes: NDArray[np.uint8],
        codebooks: NDArray[np.float32],
        turned: NDArray[np.float32] | None,
        norms: NDArray[np.float32] | None,
    ) -> None:
        pieces, centroids, width = codebooks.shape
        self.count: int = len(codes)
        self._dims = pieces * width
        self._turned = turned is not None
        pointers = [NULL if array is None else as_items("float[]", array) for array in (codebooks, turned, norms)]
        self._keep: tuple[Any, ...] = (as_input(codes), *pointers)
        sizes = [0 if array is None else array.size for array in (codes, codebooks, turned, norms)]
        self._struct = ffi.new("wm_pq *", (*self._keep, *sizes, self.count, pieces, centroids, width))

    def decode(
        self, out: NDArray[np.float32], *, first: int = 0, rows: NDArray[np.uint64] | None = None, threads: int = 1
    ) -> int:
        """Fill `out`, float32 and C-contiguous, with the values of rows.

        Parameters
        ----------
        out : ndarray of float32
            As many elements as the rows have.
        first : int
            The first row, without `rows`.
        rows : ndarray of uint64, optional
            The rows, in this order.
        threads : int
            At most this many threads share the work. The result does not depend on it.

        Returns
        -------
        int
            -1, or the position among all codes of one without a centroid; then `out` is filled in part.

        Raises
        ------
        IndexError
            For rows that do not exist.
        """
        threads, count = thread_count(threads), out.size // self._dims if self._dims else 0
        room = lib.WM_PQ_TOGETHER * self._dims * min(threads, 64)
        scratch = np.empty(room if self._turned else 0, np.float32)
        numbers, count = (NULL, count) if rows is None else (as_items("uint64_t[]", rows), len(rows))
        target, memory = as_output(out, "float[]"), as_output(scratch, "float[]")
        bad: int = lib.wm_pq_decode(
            self._struct, numbers, first, count, target, out.size, memory, len(scratch), threads
        )
        if bad == -2:
            raise IndexError(f"row numbers out of range: there are {self.count} rows")
        return bad

    def sums(self, table: NDArray[np.float32], out: NDArray[np.float32], *, first: int = 0, threads: int = 1) -> int:
        """Fill `out`, shape (k,), with the sums over j of ``table[j, code j]`` for the rows from `first` on.

        `table` is float32, C-contiguous, of shape (m, centroids); terms are added in the order of j in float32. Returns
        and raises as `decode` does.
        """
        source, target = as_items("float[]", table), as_output(out, "float[]")
        bad: int = lib.wm_pq_sums(self._struct, source, table.size, first, len(out), target, thread_count(threads))
        if bad == -2:
            raise IndexError(f"row numbers out of range: there are {self.count} rows")
        return bad
