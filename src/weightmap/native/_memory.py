"""Output arrays: memory that is quick to fill, and checks of those that callers pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from weightmap.lazy import np
from weightmap.native._native import module

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

# Up to this size, glibc's malloc reuses memory and numpy asks for huge pages. A larger array would get fresh pages,
# which the system clears first.
_LARGE = 32 << 20


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array, like `numpy.empty`.

    An array of 32 MiB or more is backed by huge pages if the system has them, and reuses the memory of a freed large
    array. One such region of at most 1 GiB is kept; the system may take it back at any time.

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
    """Return the caller's `out`. Raises TypeError when it is not an array."""
    if not isinstance(out, np.ndarray):
        msg = f"out must be an array, not {type(out).__name__}"
        raise TypeError(msg)
    return out


def check_out(out: object, shape: tuple[int, ...], what: str) -> None:
    """Raise TypeError or ValueError unless `out` is a writeable array with the shape of `what`."""
    array = given_array(out)
    if array.shape != shape:
        msg = f"out has shape {array.shape}, but {what} has {shape}"
        raise ValueError(msg)
    if not array.flags.writeable:
        msg = "out is read-only"
        raise ValueError(msg)
