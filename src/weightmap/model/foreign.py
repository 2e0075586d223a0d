"""Turns torch tensors into arrays. Never imports torch: a caller that has a tensor has imported it."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.arguments import mistyped
from weightmap.dtypes import DTYPES
from weightmap.errors import EncodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.dtypes import DType

# Names that torch and ml_dtypes share, with the integer type of the same width.
CROSSING: dict[str, type[np.generic]] = {
    "bfloat16": np.int16,
    "float8_e4m3fn": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e5m2fnuz": np.uint8,
    "float8_e8m0fnu": np.uint8,
}
# An element of this type of torch is a byte that holds two elements of float4_e2m1fn.
PAIRS = "float4_e2m1fn_x2"


def is_torch(value: Any) -> bool:
    """Whether this is a torch tensor; parameters are."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def torch_info(tensor: Any) -> tuple[DType, tuple[int, ...], int]:
    """Return dtype, shape and size in bytes that a tensor has in a file, without touching its data.

    Raises
    ------
    EncodeError
        The tensor is sparse or quantised, has no data, or is of a dtype that files lack.
    """
    name, shape = _dense(tensor), tuple(tensor.shape)
    if tensor.device.type == "meta":
        raise EncodeError("a torch tensor on the device meta has no data")
    if name == PAIRS and shape:
        name, shape = "float4_e2m1fn", (*shape[:-1], 2 * shape[-1])
    dtype = DTYPES.get(name)
    if dtype is None:
        raise EncodeError("data type", expected="one that formats store", actual=str(tensor.dtype))
    return dtype, shape, math.prod(shape) * dtype.bits // 8


def torch_elements(tensor: Any) -> NDArray[Any]:
    """Return the elements of a tensor that `torch_info` has accepted; copied if it is on another device."""
    if _dense(tensor) == PAIRS:
        tensor = tensor.detach().cpu().view(sys.modules["torch"].uint8)
    return from_torch(tensor)


def check_module(name: str, given: Any) -> None:
    """Raise TypeError for an argument that is no module of torch, nor works like one."""
    if isinstance(given, type) or not hasattr(given, "load_state_dict"):
        raise mistyped(name, given, "a torch.nn.Module")


def from_torch(tensor: Any) -> NDArray[Any]:
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
    if not is_torch(tensor):
        raise mistyped("tensor", tensor, "a torch.Tensor")
    name = _dense(tensor)
    # Conjugation and negation are flags on the tensor that numpy would not see.
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        if name in CROSSING:
            import ml_dtypes  # noqa: PLC0415 - costs 10 ms, needed by few tensors

            crossing = getattr(sys.modules["torch"], np.dtype(CROSSING[name]).name)
            integers: NDArray[Any] = plain.view(crossing).numpy()
            return integers.view(getattr(ml_dtypes, name))
        array: NDArray[Any] = plain.numpy()
    except TypeError:
        raise EncodeError("data type", expected="one that numpy or ml_dtypes has", actual=str(tensor.dtype)) from None
    except RuntimeError:  # a subclass that holds its values elsewhere
        raise EncodeError(f"a torch tensor of class {type(tensor).__name__} cannot be written") from None
    return array


def _dense(tensor: Any) -> str:
    """Return the name of a tensor's dtype. Raises `EncodeError` when the tensor is not dense."""
    try:
        tensor.shape  # noqa: B018 - nested tensors and uninitialised parameters have none
    except RuntimeError:
        raise EncodeError("a torch tensor that is nested or not initialised cannot be written") from None
    if tensor.layout is not sys.modules["torch"].strided or tensor.is_quantized:
        raise EncodeError("a sparse or quantised torch tensor cannot be written")
    return str(tensor.dtype).removeprefix("torch.")
