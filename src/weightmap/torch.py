"""Tensors of PyTorch over the memory of arrays, and back; ``torch`` is imported at the first call.

PyTorch has no read-only tensors: `torch.from_numpy` over a read-only map warns, and the first write into the tensor
ends the process. No function here makes such a tensor: they copy, or refuse. Open the file with ``mode="cow"`` to get
tensors that share the mapped pages, may be written to, and leave the file as it was::

    with weightmap.open("model.safetensors", mode="cow") as f:
        weight = weightmap.torch.to_torch(f["weight"])

NumPy has no bfloat16 and float8 of its own; those of ml_dtypes cross over as integers of the same width.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import MissingDependencyError, UnsupportedError
from weightmap.model.foreign import CROSSING, from_torch
from weightmap.quant.blocks import QuantizedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["STAGE", "from_torch", "staged", "to_device", "to_torch", "torch_device"]

# What is copied at once on the way to another device: memory of our own, so that a driver never gets mapped pages.
STAGE = 4 << 20


def to_torch(array: np.ndarray[Any, Any] | QuantizedTensor, *, copy: bool | None = None) -> Any:
    """Return a CPU tensor with the values of `array`.

    Parameters
    ----------
    array : np.ndarray or QuantizedTensor
        Any shape; any numeric dtype of numpy that torch has, or bfloat16 and float8 of ml_dtypes. A quantised tensor is
        decoded to float32.
    copy : bool, optional
        None shares the memory where that is safe and copies otherwise: read-only, misaligned, byte-swapped and
        negatively strided arrays cannot be shared. True always copies. False never does.

    Returns
    -------
    torch.Tensor
        Same shape; it may be written to. When it shares memory, it also keeps the array, and so the mapping, alive.

    Raises
    ------
    UnsupportedError
        torch has no such dtype.
    ValueError
        ``copy=False`` and the memory cannot be shared. A read-only map can when the file is opened with ``mode="cow"``.
    MissingDependencyError
        torch is not installed.
    """
    torch = _torch()
    if isinstance(array, QuantizedTensor):
        if copy is False:
            raise ValueError("a quantised tensor is decoded into a new array: copy=False is impossible")
        return torch.from_numpy(array.dequantize())
    shareable = (
        array.flags.writeable
        and array.flags.aligned
        and array.dtype.isnative
        and all(stride >= 0 for stride in array.strides)
    )
    if copy is False and not array.flags.writeable:
        what = "a read-only array cannot be shared with torch, where the first write would end the process"
        raise ValueError(f'{what}: open the file with mode="cow", or copy')
    if copy is False and not shareable:
        raise ValueError("an array that is misaligned, byte-swapped or negatively strided cannot be shared with torch")
    if copy or not shareable:
        # order="C" also turns negative strides into positive ones; a plain copy keeps 0-d arrays arrays.
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    name = array.dtype.name
    try:
        if name in CROSSING:
            return torch.from_numpy(array.view(CROSSING[name])).view(getattr(torch, name))
        return torch.from_numpy(array)
    except (TypeError, AttributeError):
        raise _no_dtype(name) from None


def to_device(array: np.ndarray[Any, Any] | QuantizedTensor, device: Any) -> Any:
    """Return a new tensor on a device with the values of `array`, copied through a buffer of at most 4 MiB.

    So no driver is given pages of a mapping, which it would fault in, pin or migrate as it likes, and beside the new
    tensor there is never another copy of the values.

    Parameters
    ----------
    array : np.ndarray or QuantizedTensor
        As of `to_torch`; of any strides. A quantised tensor is decoded to float32, piece by piece.
    device : str, int or torch.device

    Returns
    -------
    torch.Tensor
        Same shape, contiguous.

    Raises
    ------
    UnsupportedError
        torch has no such dtype, or knows no such device.
    MissingDependencyError
        torch is not installed.
    """
    dtype = np.dtype(np.float32) if isinstance(array, QuantizedTensor) else array.dtype.newbyteorder("=")
    return staged(_parts(array, STAGE // dtype.itemsize), array.shape, dtype, device)


def staged(
    parts: Iterable[np.ndarray[Any, Any]], shape: tuple[int, ...], dtype: np.dtype[Any], device: str | int | Any
) -> Any:
    """Return a new tensor on a device, filled with the elements of these arrays: `to_device` for what comes in parts.

    Parameters
    ----------
    parts : iterable of np.ndarray
        Of `STAGE` bytes or less each, in row-major order; together they have the elements of `shape`.
    """
    torch = _torch()
    wanted = getattr(torch, dtype.name, None)
    if not isinstance(wanted, torch.dtype):
        raise _no_dtype(dtype.name)
    target = torch.empty(shape, dtype=wanted, device=torch_device(device))
    octets = target.reshape(-1).view(torch.uint8)
    stage = np.empty(min(target.numel(), STAGE // dtype.itemsize), dtype)
    done = 0
    for part in parts:
        piece = stage[: part.size]
        piece.reshape(part.shape)[...] = part
        raw = torch.from_numpy(piece.view(np.uint8))
        octets[done : done + len(raw)].copy_(raw)
        done += len(raw)
    return target


def _parts(array: Any, most: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements of an array or a quantised tensor in row-major order, at most `most` at a time."""
    if isinstance(array, QuantizedTensor):
        yield from array.in_runs(most)
    elif array.size <= most:
        yield array
    elif array.size // len(array) > most:
        for row in array:
            yield from _parts(row, most)
    else:
        step = most // (array.size // len(array))
        for start in range(0, len(array), step):
            yield array[start : start + step]


def torch_device(device: str | int) -> Any:
    """Return a ``torch.device``.

    Raises
    ------
    UnsupportedError
        torch knows no such device.
    MissingDependencyError
        torch is not installed.
    """
    torch = _torch()
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise UnsupportedError("device", expected="one that torch knows", actual=repr(device)) from None


def _no_dtype(name: str) -> UnsupportedError:
    return UnsupportedError("data type", expected="one that torch has", actual=name)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise MissingDependencyError("PyTorch is needed for this: pip install torch") from None
