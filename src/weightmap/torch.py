"""Tensors of PyTorch over the memory of arrays, and back; ``torch`` is imported at the first call.

PyTorch has no read-only tensors: `torch.from_numpy` over a read-only map warns, and the first write into the tensor
ends the process. Open the file with ``mode="cow"`` to get tensors that share the mapped pages, may be written to, and
leave the file as it was::

    with weightmap.open("model.safetensors", mode="cow") as f:
        weight = weightmap.torch.to_torch(f["weight"])

NumPy has no bfloat16 and float8 of its own; those of ml_dtypes cross over as integers of the same width.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from weightmap.errors import EncodeError, MissingDependencyError, UnsupportedError

__all__ = ["from_torch", "to_torch", "torch_device"]

# Names that torch and ml_dtypes share, with the integer type of the same width.
_CROSSING: dict[str, type[np.generic]] = {
    "bfloat16": np.int16,
    "float8_e4m3fn": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e5m2fnuz": np.uint8,
    "float8_e8m0fnu": np.uint8,
}


def to_torch(array: np.ndarray[Any, Any], *, copy: bool | None = None) -> Any:
    """Return a CPU tensor with the values of `array`.

    Parameters
    ----------
    array : np.ndarray
        Any shape; any numeric dtype of numpy that torch has, or bfloat16 and float8 of ml_dtypes.
    copy : bool, optional
        None shares the memory where that is safe and copies otherwise: read-only, misaligned, byte-swapped and
        negatively strided arrays cannot be shared. True always copies. False never does.

    Returns
    -------
    torch.Tensor
        Same shape. When it shares memory, it also keeps the array, and so the mapping, alive.

    Raises
    ------
    UnsupportedError
        torch has no such dtype.
    ValueError
        ``copy=False`` and the memory cannot be shared.
    MissingDependencyError
        torch is not installed.
    """
    torch = _torch()
    shareable = (
        array.flags.writeable
        and array.flags.aligned
        and array.dtype.isnative
        and all(stride >= 0 for stride in array.strides)
    )
    if copy is False and not shareable:
        raise ValueError(
            "an array that is read-only, misaligned, byte-swapped or negatively strided cannot be shared with torch"
        )
    if copy or not shareable:
        # order="C" also turns negative strides into positive ones; a plain copy keeps 0-d arrays arrays.
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    name = array.dtype.name
    try:
        if name in _CROSSING:
            return torch.from_numpy(array.view(_CROSSING[name])).view(getattr(torch, name))
        return torch.from_numpy(array)
    except (TypeError, AttributeError):
        raise UnsupportedError("data type", expected="one that torch has", actual=name) from None


def from_torch(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the values of a tensor as an array.

    Parameters
    ----------
    tensor : torch.Tensor
        Dense, on any device, with or without gradient.

    Returns
    -------
    np.ndarray
        Same shape and strides; shares the memory of a CPU tensor. bfloat16 and float8 come as types of ml_dtypes.

    Raises
    ------
    EncodeError
        The tensor is sparse or quantised, or of a dtype that numpy and ml_dtypes lack.
    """
    torch = _torch()
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise EncodeError("a sparse or quantised torch tensor cannot be written")
    # Conjugation and negation are flags on the tensor that numpy would not see.
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        if name in _CROSSING:
            import ml_dtypes

            integers: np.ndarray[Any, Any] = plain.view(getattr(torch, np.dtype(_CROSSING[name]).name)).numpy()
            return integers.view(getattr(ml_dtypes, name))
        array: np.ndarray[Any, Any] = plain.numpy()
    except TypeError:
        raise EncodeError("data type", expected="one that numpy or ml_dtypes has", actual=str(tensor.dtype)) from None
    return array


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


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise MissingDependencyError("PyTorch is needed for this: pip install torch") from None
