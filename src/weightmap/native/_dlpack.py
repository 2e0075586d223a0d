"""Memory for other libraries by DLPack, a capsule that keeps its owner: see csrc/python/dlpack.c."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.native._native import lib, module

if TYPE_CHECKING:
    from numpy.typing import NDArray

if lib.wm_python_dlpack():  # pragma: no cover
    raise ImportError("the built-in function dlpack of weightmap._kernels could not be added")


def dlpack_capsule(array: NDArray[Any], code: int, flags: int | None) -> object:
    """Return a capsule with the memory of an array whose strides are multiples of its elements.

    `code` is DLPack's for the kind of its type; `flags` those of version 1, or None for a capsule of version 0.
    """
    size = array.itemsize
    strides = tuple(stride // size for stride in array.strides)
    address = array.__array_interface__["data"][0]
    return module.dlpack(array, address, array.shape, strides, code, 8 * size, -1 if flags is None else flags)
