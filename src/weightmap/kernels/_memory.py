"""Arrays for large results, in memory that is quick to fill."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.kernels._native import module

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["check_out", "empty", "given_array"]

# Up to this size glibc's malloc comes to use memory again, and numpy asks for huge pages; beyond, each array would be
# made of fresh pages, which the system clears first.
_LARGE = 32 << 20


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array to be filled, like `numpy.empty`.

    A large one, from 32 MiB on, is backed by huge pages where the system has them, and takes the memory of a large one
    that was freed before. One such region of at most 1 GiB is kept for that; the system may take it back at any time.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype_like

    Returns
    -------
    ndarray
        C-contiguous and writeable, its elements undefined.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * kind.itemsize
    if size < _LARGE or (memory := module.new_memory(size)) is None:
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, memory)


def given_array(out: object) -> NDArray[Any]:
    """Return what somebody gave as `out`. Raises TypeError when it is no array."""
    if not isinstance(out, np.ndarray):
        msg = f"out must be an array, not {type(out).__name__}"
        raise TypeError(msg)
    return out


def check_out(out: object, shape: tuple[int, ...], what: str) -> None:
    """Raise TypeError or ValueError when `out` is no writeable array of this shape, that of `what`."""
    array = given_array(out)
    if array.shape != shape:
        msg = f"out has shape {array.shape}, {what} has {shape}"
        raise ValueError(msg)
    if not array.flags.writeable:
        msg = "out is read-only"
        raise ValueError(msg)
