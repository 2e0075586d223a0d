"""Finds the rows of a quantised tensor that an index selects, and those to decode together."""

from __future__ import annotations

import contextlib
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


def selected(key: Any, shape: tuple[int, ...]) -> tuple[range | NDArray[np.intp] | None, tuple[Any, ...]]:
    """Return the rows that `key` selects of a tensor, and the index that then applies to the decoded rows.

    The rows are a range, or an array of any dimensions. None says that the key applies to the whole tensor: only an
    integer, a slice, and a list or array of integers or truth values on the first axis select rows.
    """
    first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
    every = (slice(None), *rest)
    if not shape or any(isinstance(part, (list, np.ndarray)) for part in rest):
        return None, ()
    if isinstance(first, slice):
        return range(*first.indices(shape[0])), every
    if isinstance(first, (list, np.ndarray)):
        picked = np.asarray(first)
        if picked.dtype.kind in "iu" and picked.ndim and not rest:
            return _row_numbers(picked, shape[0]), every
        if picked.dtype.kind == "b" and picked.shape == shape[:1] and not rest:
            return np.flatnonzero(picked), every
    elif hasattr(first, "__index__") and not isinstance(first, (bool, np.bool_)):
        with contextlib.suppress(TypeError):  # an array of another library says that it may be an integer
            row = _row_number(first, shape[0])
            return range(row, row + 1), (0, *rest)
    return None, ()


def _row_number(key: SupportsIndex, count: int) -> int:
    row = index(key)
    if not -count <= row < count:
        msg = f"index {row} is out of bounds for axis 0 with size {count}"
        raise IndexError(msg)
    return row + count if row < 0 else row


def _row_numbers(picked: NDArray[Any], count: int) -> NDArray[np.intp]:
    rows = picked.astype(np.intp)
    rows[rows < 0] += count
    bad = picked[(rows < 0) | (rows >= count)]
    if len(bad):
        msg = f"index {bad[0]} is out of bounds for axis 0 with size {count}"
        raise IndexError(msg)
    return rows


def groups(rows: NDArray[np.intp], width: int, block: int) -> Iterator[tuple[NDArray[np.intp], int, int]]:
    """Yield rows that are decoded together: their positions in `rows`, the first row and the last one.

    A row of `width` elements joins the rows before it unless a whole block of `block` elements lies between them.
    """
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    ends = ((ordered + 1) * width - 1) // block
    cuts = np.flatnonzero(ordered[1:] * width // block > ends[:-1] + 1) + 1
    for run in np.split(order, cuts):
        yield run, int(rows[run[0]]), int(rows[run[-1]])
