"""Makes a CPU tensor from an array, shared or copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.arguments import mistyped
from weightmap.core.dtypes import CROSSING, PAIRS
from weightmap.core.model.internals import row_of
from weightmap.core.model.single import mode_of
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row
    from weightmap.typing import Mode

# `np.dtype.isbuiltin` of types registered by other packages, such as ml_dtypes; getting their name takes 1 us.
_REGISTERED = 2


def to_torch(array: np.ndarray[Any, Any] | QuantizedTensor, *, copy: bool | None = None) -> Any:
    """Return a CPU tensor with the values of `array`.

    Parameters
    ----------
    array : np.ndarray or QuantizedTensor
        Any shape; any numeric dtype that torch has, also bfloat16 and float8 of ml_dtypes. A quantised tensor is
        decoded to its `dtype`.
    copy : bool, optional
        None shares the memory if that is safe, and copies otherwise: read-only, misaligned, byte-swapped and negatively
        strided arrays cannot be shared. True always copies. False never copies.

    Returns
    -------
    torch.Tensor
        Same shape, writable. A tensor that shares memory also keeps the array, and so the mapping, alive.

    Raises
    ------
    UnsupportedError
        torch lacks the dtype.
    ValueError
        ``copy=False`` and the memory cannot be shared. Arrays of files opened with ``mode="cow"`` can be shared.
    MissingDependencyError
        torch is not installed.
    """
    torch = imported_torch()
    if isinstance(array, QuantizedTensor):
        if copy is False:
            raise ValueError("a quantised tensor is decoded into a new array: copy=False is impossible")
        return to_torch(array.dequantize())
    if not hasattr(array, "flags"):
        raise mistyped("array", array, "a numpy array or a QuantizedTensor")
    flags = array.flags
    # Even a contiguous array may have a negative stride, on an axis of one element.
    shareable = flags.writeable and flags.aligned and array.dtype.isnative and all(step >= 0 for step in array.strides)
    if copy is False and not flags.writeable:
        what = "a read-only array cannot be shared with torch: the first write would end the process"
        raise ValueError(f'{what}; open the file with mode="cow", or copy')
    if copy is False and not shareable:
        raise ValueError("an array that is misaligned, byte-swapped or negatively strided cannot be shared with torch")
    if copy or not shareable:
        # order="C" also turns negative strides into positive ones; a plain copy keeps 0-d arrays arrays.
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    dtype = array.dtype
    try:
        if dtype.isbuiltin == _REGISTERED and (name := dtype.name) in CROSSING:
            return torch.from_numpy(array.view(CROSSING[name])).view(getattr(torch, name))
        return torch.from_numpy(array)
    except (TypeError, AttributeError):
        raise no_dtype(dtype.name) from None


def in_pairs(tensor: Any, row: Row) -> Any:
    """Return the bytes of a whole float4 tensor as torch's type for it, if torch has one and rows are whole bytes."""
    pairs = pairs_of(row)
    if pairs is None or tuple(tensor.shape) != (row.nbytes,):
        return tensor
    dtype, shape = pairs
    return tensor.view(dtype).reshape(shape)


def pairs_of(row: Row) -> tuple[Any, tuple[int, ...]] | None:
    """Return torch's type for two elements of float4, and the shape in it; None if it does not fit the tensor."""
    pairs = getattr(imported_torch(), PAIRS, None) if row.dtype.name == "float4_e2m1fn" else None
    if pairs is None or not row.shape or row.shape[-1] % 2:
        return None
    return pairs, (*row.shape[:-1], row.shape[-1] // 2)


class DeviceError(UnsupportedError, RuntimeError):
    """A device is missing on this machine; PyTorch and safetensors raise RuntimeError."""


def torch_device(device: str | int, *, here: bool = True) -> Any:
    """Return a ``torch.device``, which torch must have `here` if that is set.

    Raises
    ------
    UnsupportedError
        torch does not know the device, or this machine lacks it.
    MissingDependencyError
        torch is not installed.
    """
    torch = imported_torch()
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        raise UnsupportedError("device", expected="one that torch knows", actual=repr(device)) from None
    if here and where.type not in {"cpu", "meta"}:
        try:
            torch.empty(0, device=where)
        except (AssertionError, RuntimeError) as error:
            why = str(error).partition("\n")[0]
            raise DeviceError("device", expected="one that torch has here", actual=f"'{where}' ({why})") from None
    return where


def no_dtype(name: str) -> UnsupportedError:
    """Return the error for a type that torch lacks."""
    return UnsupportedError("data type", expected="one that torch has", actual=name)


def imported_torch() -> Any:
    """Return the module ``torch``. Raises `MissingDependencyError` if it is not installed."""
    try:
        import torch  # the statement takes a tenth of the time of import_module
    except ImportError:
        raise MissingDependencyError("PyTorch is needed for this: pip install '.[torch]' in a checkout") from None
    return torch


def writable_mode() -> Mode:
    """Return the mode for tensors of the CPU: "cow", or "copy" if WEIGHTMAP_MODE asks for private memory."""
    return "cow" if mode_of(None) in {"mmap", "cow"} else "copy"


def read_tensor(file: TensorFile, name: str, array: np.ndarray[Any, Any] | None = None) -> Any:
    """Return a tensor of an open file on the CPU.

    Parameters
    ----------
    file : TensorFile
    name : str
    array : np.ndarray, optional
        Its values, if already read.

    Returns
    -------
    torch.Tensor
        float4 becomes torch's type with two elements per byte, if torch has it and rows are whole bytes.
    """
    row = row_of(file, name)
    if row.dtype.quantized and array is None:
        return to_torch(file.read(name, np.float32))
    bits, kind = CROSSING.get(row.dtype.name), getattr(imported_torch(), row.dtype.name, None)
    if array is None and bits is not None and kind is not None and row.geometry is None:
        row.source.check_unchanged()
        # `file[name]` would import ml_dtypes, which takes 6 ms.
        return to_torch(row.source.array(np.dtype(bits), row.shape, row.offset, row.nbytes)).view(kind)
    return in_pairs(to_torch(file[name] if array is None else array), row)
