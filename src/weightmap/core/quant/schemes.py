"""Schemes of low-bit integers with scales: the byte layout of a quantised tensor.

===============  ==========================================================================================
scheme           bytes of a tensor of n elements, flattened in row-major order
===============  ==========================================================================================
``int8``         one scale, then n codes of 8 bits
``int4 int5``    one scale, then n codes of 4 or 5 bits
``int4_block``   ``[scale][codes]`` for each block of `block_size` elements; the last block is stored whole
``int5_block``   the same with codes of 5 bits
``adaptive``     ``[mask][scales][codes]``: 2 bits of the mask make each block INT4 (0), INT5 (1) or FP16 (2)
===============  ==========================================================================================

A value is ``scale * q``, one multiplication of float32; a scale is a float32 or a float16. Codes are two's complement,
back to back, the first one in the lowest bits of byte 0: the low nibble holds the first of two int4, and eight int5
take five bytes. Everything is little-endian, at any alignment. In an adaptive tensor the mask is padded to a whole
byte, blocks of FP16 have no scale, and the codes of each block begin at a byte.
"""

from __future__ import annotations

import contextlib
import math
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from weightmap.errors import QuantError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

# Bits of a code, for schemes with a single kind of code.
BITS = {"int8": 8, "int4": 4, "int5": 5, "int4_block": 4, "int5_block": 5}
BLOCKED = ("int4_block", "int5_block")
SCALE: dict[str, np.dtype[Any]] = {"fp16": np.dtype("<f2"), "fp32": np.dtype("<f4")}
# numpy's limit of dimensions; the limit of elements exceeds any memory.
_MAX_DIMENSIONS, _MAX_ELEMENTS = 64, 1 << 56


def block_bytes(scheme: str, block_size: int, scale_type: str) -> int:
    """Return the bytes of a block, including its scale."""
    return SCALE[scale_type].itemsize + (BITS[scheme] * block_size + 7) // 8


def checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape as integers. Raises `QuantError` when no array, even an empty one, can have it."""
    dims = tuple(map(index, shape))
    if min(dims, default=0) < 0 or len(dims) > _MAX_DIMENSIONS or math.prod(dim or 1 for dim in dims) > _MAX_ELEMENTS:
        expected = f"up to {_MAX_DIMENSIONS} dimensions, none negative; the product of all but 0 is at most 2**56"
        raise QuantError("shape", field="shape", actual=list(dims), expected=expected)
    return dims


def no_scheme(scheme: object, schemes: Iterable[str] = (*BITS, "adaptive"), hint: str = "") -> QuantError:
    """Return the error for an unknown scheme."""
    expected = f"one of {', '.join(schemes)}{hint}"
    return QuantError("scheme", field="quant_type", actual=repr(scheme), expected=expected)


# ----------------------------------------------------------------------------------------------------
# The rows of a quantised tensor that an index selects, in groups to decode together.


def selected(key: Any, shape: tuple[int, ...]) -> tuple[range | NDArray[np.intp] | None, tuple[Any, ...]]:
    """Return the rows that `key` selects, and the index to apply to the decoded rows.

    The rows are a range, or an array of any dimensions. Only an integer, a slice, or a list or array of integers or
    truth values on the first axis selects rows; any other key returns None: decode the whole tensor.
    """
    first, others = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
    every = (slice(None), *others)
    if not shape or any(isinstance(part, (list, np.ndarray)) for part in others):
        return None, ()
    if isinstance(first, slice):
        return range(*first.indices(shape[0])), every
    if isinstance(first, (list, np.ndarray)):
        picked = np.asarray(first)
        if picked.dtype.kind in "iu" and picked.ndim and not others:
            return _row_numbers(picked, shape[0]), every
        if picked.dtype.kind == "b" and picked.shape == shape[:1] and not others:
            return np.flatnonzero(picked), every
    elif hasattr(first, "__index__") and not isinstance(first, (bool, np.bool_)):
        with contextlib.suppress(TypeError):  # arrays of other libraries have an __index__ that may refuse
            row = _row_number(first, shape[0])
            return range(row, row + 1), (0, *others)
    return None, ()


def _row_number(key: SupportsIndex, count: int) -> int:
    row = index(key)
    if not -count <= row < count:
        raise IndexError(f"index {row} is out of bounds for axis 0 with size {count}")
    return row + count if row < 0 else row


def _row_numbers(picked: NDArray[Any], count: int) -> NDArray[np.intp]:
    rows = picked.astype(np.intp)
    rows[rows < 0] += count
    bad = picked[(rows < 0) | (rows >= count)]
    if len(bad):
        raise IndexError(f"index {bad[0]} is out of bounds for axis 0 with size {count}")
    return rows


def groups(rows: NDArray[np.intp], width: int, block: int) -> Iterator[tuple[NDArray[np.intp], int, int]]:
    """Yield groups of rows to decode together: their positions in `rows`, the first row and the last one.

    A row of `width` elements joins the rows before it unless a whole block of `block` elements lies between them.
    """
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    ends = ((ordered + 1) * width - 1) // block
    cuts = np.flatnonzero(ordered[1:] * width // block > ends[:-1] + 1) + 1
    for run in np.split(order, cuts):
        yield run, int(rows[run[0]]), int(rows[run[-1]])
