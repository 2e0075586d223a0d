"""One tensor: an array becomes a tensor of the CPU, shared or copied, or of another device through a small buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import MissingDependencyError, UnsupportedError
from weightmap.model.foreign import CROSSING
from weightmap.quant.blocks import QuantizedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "STAGE",
    "copy_in_pieces",
    "decoded_dtype",
    "imported_torch",
    "pieces_of",
    "staged",
    "to_device",
    "to_torch",
    "torch_device",
]

# Size of the private buffer for copies to other devices: a driver never gets mapped pages.
STAGE = 4 << 20
# `np.dtype.isbuiltin` of types that another package registers, such as ml_dtypes; their name takes a microsecond.
_REGISTERED = 2


def to_torch(array: np.ndarray[Any, Any] | QuantizedTensor, *, copy: bool | None = None) -> Any:
    """Return a CPU tensor with the values of `array`.

    Parameters
    ----------
    array : np.ndarray or QuantizedTensor
        Any shape; any numeric dtype that torch has, bfloat16 and float8 of ml_dtypes included. A quantised tensor is
        decoded to float32.
    copy : bool, optional
        None shares the memory where that is safe and copies otherwise: read-only, misaligned, byte-swapped and
        negatively strided arrays cannot be shared. True always copies. False never does.

    Returns
    -------
    torch.Tensor
        Same shape, writable. A tensor that shares memory also keeps the array, and so the mapping, alive.

    Raises
    ------
    UnsupportedError
        torch has no such dtype.
    ValueError
        ``copy=False`` and the memory cannot be shared; files opened with ``mode="cow"`` give arrays that can be.
    MissingDependencyError
        torch is not installed.
    """
    torch = imported_torch()
    if isinstance(array, QuantizedTensor):
        if copy is False:
            raise ValueError("a quantised tensor is decoded into a new array: copy=False is impossible")
        return torch.from_numpy(array.dequantize())
    flags = array.flags
    shareable = (
        flags.writeable
        and flags.aligned
        and array.dtype.isnative
        and (flags.c_contiguous or all(stride >= 0 for stride in array.strides))
    )
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
        raise _no_dtype(dtype.name) from None


def to_device(array: np.ndarray[Any, Any] | QuantizedTensor, device: Any) -> Any:
    """Return a new tensor on a device with the values of `array`, copied through a buffer of at most 4 MiB.

    A driver that gets mapped pages may fault them in, pin or migrate them. The buffer avoids that, without a second
    copy of all values.

    Parameters
    ----------
    array : np.ndarray or QuantizedTensor
        As for `to_torch`, with any strides. A quantised tensor is decoded to float32, piece by piece.
    device : str, int or torch.device
        Anything that `torch.device` takes.

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
    return staged(pieces_of(array), array.shape, decoded_dtype(array), device)


def staged(
    parts: Iterable[np.ndarray[Any, Any]], shape: tuple[int, ...], dtype: np.dtype[Any], device: str | int | Any
) -> Any:
    """Return a new tensor on a device, filled from arrays of at most `STAGE` bytes in row-major order."""
    torch = imported_torch()
    wanted = getattr(torch, dtype.name, None)
    if not isinstance(wanted, torch.dtype):
        raise _no_dtype(dtype.name)
    target = torch.empty(shape, dtype=wanted, device=torch_device(device))
    copy_in_pieces(parts, dtype, target, raw=True)
    return target


def copy_in_pieces(parts: Iterable[np.ndarray[Any, Any]], dtype: np.dtype[Any], target: Any, *, raw: bool) -> None:
    """Copy arrays to a tensor on a device, one after another through one buffer.

    Parameters
    ----------
    parts : iterable of np.ndarray
        The elements in row-major order, at most `STAGE` bytes at a time.
    dtype : np.dtype
        Of the parts, native.
    target : torch.Tensor
        Of any strides.
    raw : bool
        Whether the tensor has this type too, so that its bytes are copied; otherwise torch converts the values.
    """
    torch = imported_torch()
    flat = target.detach()
    if not flat.is_contiguous():
        flat = torch.empty_like(flat, memory_format=torch.contiguous_format)
    whole, flat = flat, flat.reshape(-1)
    flat = flat.view(torch.uint8) if raw else flat
    stage = np.empty(min(target.numel(), STAGE // dtype.itemsize), dtype)
    done = 0
    for part in parts:
        piece = stage[: part.size]
        piece.reshape(part.shape)[...] = part
        chunk = torch.from_numpy(piece.view(np.uint8)) if raw else to_torch(piece)
        flat[done : done + len(chunk)].copy_(chunk)
        done += len(chunk)
    if not target.is_contiguous():
        target.detach().copy_(whole)


def decoded_dtype(array: Any) -> np.dtype[Any]:
    """Return the type of an array in torch: the native one, or float32 for a quantised tensor, which is decoded."""
    return np.dtype(np.float32) if isinstance(array, QuantizedTensor) else array.dtype.newbyteorder("=")


def pieces_of(array: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements of an array or a quantised tensor in row-major order, at most `STAGE` bytes at a time."""
    return _runs(array, STAGE // decoded_dtype(array).itemsize)


def _runs(array: Any, most: int) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(array, QuantizedTensor):
        yield from array.in_runs(most)
    elif array.size <= most:
        yield array
    elif array.size // len(array) > most:
        for row in array:
            yield from _runs(row, most)
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
    torch = imported_torch()
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise UnsupportedError("device", expected="one that torch knows", actual=repr(device)) from None


def _no_dtype(name: str) -> UnsupportedError:
    return UnsupportedError("data type", expected="one that torch has", actual=name)


def imported_torch() -> Any:
    """Return the module ``torch``. Raises `MissingDependencyError` where it is not installed."""
    try:
        import torch  # the statement takes a tenth of the time of import_module
    except ImportError:
        raise MissingDependencyError("PyTorch is needed for this: pip install torch") from None
    return torch
