"""Character n-grams, and gathering and summing of rows, in C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.native._native import NULL, as_input, as_items, as_output, ffi, from_buffer, lib, module, thread_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_KINDS = {
    "bucket": lib.WM_SUBWORDS_BUCKET,
    "fasttext": lib.WM_SUBWORDS_FASTTEXT,
    "explicit": lib.WM_SUBWORDS_EXPLICIT,
}
NGRAMS_MOST: int = lib.WM_NGRAMS_MOST
# Room for rows at first, for each text and at least: a word of 15 characters has 54 n-grams of 3 to 6 characters.
_ROOM, _ROOM_LEAST = 64, 256


lib.wm_python_texts()


def pack_texts(texts: Sequence[str], before: str = "", after: str = "") -> tuple[bytes, NDArray[np.uint32]] | None:
    """Return the UTF-8 of texts back to back, each between `before` and `after` (ASCII), and their bounds.

    Lone surrogates are encoded like characters, which no valid UTF-8 contains. Returns None for 4 GiB or more in all.
    Raises TypeError for an item that is not a str.
    """
    bounds = np.empty(len(texts) + 1, np.uint32)
    packed = module.pack_texts(texts, before, after, bounds)
    return None if packed is None else (packed, bounds)


class Ngrams:
    """The n-grams of a vocabulary as a wm_subwords of kernels.h; keeps their arrays alive.

    Parameters
    ----------
    kind : str
        "bucket", "fasttext" or "explicit".
    min_n, max_n : int
    size : int
    first_row : int
        Added to each index.
    table : tuple, optional
        Of an explicit vocabulary: data, bounds, gap and slots of the index over its n-grams, and their indices, uint64.
    """

    __slots__ = ("_keep", "_struct")

    def __init__(self, kind: str, min_n: int, max_n: int, size: int, first_row: int, table: Any = None) -> None:
        index, indices, count = NULL, NULL, 0
        if table is not None:
            data, bounds, gap, slots, numbers = table
            buffer, starts = as_input(data), as_items("uint32_t[]", bounds)
            places, indices, count = as_items("uint32_t[]", slots), as_items("uint64_t[]", numbers), len(numbers)
            index = ffi.new("wm_index *", (buffer, len(buffer), starts, len(bounds) - 1, gap, places, len(slots)))
            table = (buffer, starts, places, indices, index)
        self._keep = table
        size = 0 if kind == "explicit" else size
        self._struct = ffi.new("wm_subwords *", (_KINDS[kind], min_n, max_n, size, first_row, index, indices, count))

    def rows(
        self, blob: bytes, bounds: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | int | None:
        """Return the rows of the n-grams of many texts, and their bounds.

        None for several texts with more than `NGRAMS_MOST` rows in all; a single one may have as many.

        Parameters
        ----------
        blob, bounds
            The texts in brackets, as `pack_texts` returns them.

        Returns
        -------
        rows : ndarray of uint64
        row_bounds : ndarray of uint64, shape (texts + 1,)
            Or, instead of both, the number of the first text with more than `NGRAMS_MOST` n-grams.
        """
        texts = len(bounds) - 1
        row_bounds = np.empty(texts + 1, np.uint64)
        starts, ends = as_items("uint32_t[]", bounds), as_output(row_bounds, "uint64_t[]")
        room = max(_ROOM_LEAST, _ROOM * texts)
        while True:
            rows = np.empty(room, np.uint64)
            out = as_output(rows, "uint64_t[]")
            total: int = lib.wm_subword_rows(self._struct, blob, len(blob), starts, texts, out, room, ends)
            if total < 0:
                assert total != -1  # noqa: S101 - Subwords and pack_texts check the arguments
                return -2 - total
            if total <= room:
                return rows[:total], row_bounds
            if total > NGRAMS_MOST and texts > 1:
                return None
            room = total


def gather_rows(matrix: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any], *, threads: int = 1) -> NDArray[Any]:
    """Copy rows of `matrix` to `out`, and return it; a row that is negative or too large gives zeros.

    Parameters
    ----------
    matrix : ndarray, shape (n, d)
        C-contiguous, at any alignment.
    rows : ndarray of int64, shape (k,)
    out : ndarray, shape (k, d)
        Of the same type, C-contiguous.
    threads : int
        At most this many threads share the work.
    """
    source, target = from_buffer("uint8_t[]", _octets(matrix)), as_output(_octets(out), "uint8_t[]")
    width, numbers = matrix.shape[1] * matrix.itemsize, as_items("int64_t[]", rows)
    if lib.wm_gather_rows(source, matrix.nbytes, width, numbers, len(rows), target, out.nbytes, thread_count(threads)):
        raise ValueError(f"out has shape {out.shape}, expected {len(rows)} rows of {matrix.shape[1]}")
    return out


def _octets(matrix: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of the bytes of a contiguous array of any type and alignment."""
    octets: NDArray[np.uint8] = matrix.reshape(-1).view(np.uint8)
    return octets


def unit_sums(
    matrix: NDArray[np.float32],
    rows: NDArray[np.uint64],
    bounds: NDArray[np.uint64],
    out: NDArray[np.float32],
    *,
    places: NDArray[np.uint64] | None = None,
    norms: NDArray[np.float32] | None = None,
    threads: int = 1,
) -> int:
    """Fill rows `places` of `out` with sums of rows of `matrix`, each divided by its L2 norm.

    Parameters
    ----------
    matrix : ndarray of float32, shape (n, d)
        C-contiguous, at any alignment.
    rows : ndarray of uint64
        The numbers of the rows.
    bounds : ndarray of uint64, shape (k + 1,)
        Sum i adds the rows ``rows[bounds[i]:bounds[i + 1]]`` in this order in float32.
    out : ndarray of float32, shape (m, d)
        C-contiguous.
    places : ndarray of uint64, shape (k,), optional
        The row of `out` for each sum, all different; by default 0, 1, 2 …
    norms : ndarray of float32, shape (k,), optional
        Filled with the norms: roots of the sums of the squares in double precision.
    threads : int
        At most this many threads share the work. The result does not depend on it.

    Returns
    -------
    int
        -1, or the number of the first sum with a row that `matrix` does not have.

    Raises
    ------
    ValueError
        When bounds or places do not fit.
    """
    bad: int = lib.wm_unit_sums(
        from_buffer("uint8_t[]", _octets(matrix)),
        matrix.nbytes,
        matrix.shape[1],
        as_items("uint64_t[]", rows),
        len(rows),
        as_items("uint64_t[]", bounds),
        NULL if places is None else as_items("uint64_t[]", places),
        len(bounds) - 1,
        as_output(out, "float[]"),
        len(out),
        NULL if norms is None else as_output(norms, "float[]"),
        thread_count(threads),
    )
    if bad == -2:
        raise ValueError("bounds or places do not fit the rows or the output")
    return bad
