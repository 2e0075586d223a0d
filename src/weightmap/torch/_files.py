"""One file: its tensors on the CPU, where they share its pages, or on another device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.model.foreign import PAIRS
from weightmap.model.opening import open as open_model
from weightmap.model.parts import locate
from weightmap.quant.ref import in_pieces
from weightmap.torch._tensors import imported_torch, pieces_of, staged, to_device, to_torch, torch_device

if TYPE_CHECKING:
    from weightmap.model.file import TensorFile
    from weightmap.typing import Mode

__all__ = ["load_file", "read_tensor", "shared", "writable_mode"]

_OCTET = np.dtype(np.uint8)


def writable_mode() -> Mode:
    """Return the mode for tensors of the CPU: "cow", or "copy" where WEIGHTMAP_MODE asks for private memory."""
    return "copy" if os.environ.get("WEIGHTMAP_MODE") in {"copy", "sealed"} else "cow"


def load_file(path: Any, device: str | int = "cpu", *, plan: Any = None) -> dict[str, Any]:
    """Return the tensors of a file.

    Parameters
    ----------
    path : str or os.PathLike
        Anything that `weightmap.open` takes.
    device : str, int or torch.device
        On the CPU, tensors share the pages of the file, may be written to, and leave it as it was. For any other
        device the file is mapped read-only and copied through a buffer of a few MiB.
    plan : ReadPlan, optional
        What to read, and how: a plan of `weightmap.plan` for this file. Its tensors come in its order, copied.

    Returns
    -------
    dict of str to torch.Tensor
        In the order of the file. Quantised tensors are decoded to float32.

    Raises
    ------
    FormatError, OSError
        As `weightmap.open`.
    UnsupportedError
        torch has no such device, or lacks the type of a tensor.
    MissingDependencyError
        torch is not installed.
    """
    where = torch_device(device)
    if plan is not None:
        return {name: _on_device(array, where) for name, array in plan.run()}
    if where.type == "cpu":
        with open_model(path, mode=writable_mode()) as file:
            return shared(file)
    with open_model(path) as file:
        return {name: read_tensor(file, name, where) for name in file}


def shared(file: TensorFile) -> dict[str, Any]:
    """Return all tensors of a file opened in `writable_mode`, on the CPU: those that `read_tensor` returns, at once."""
    cpu, tensors = torch_device("cpu"), {}
    for name, array in file.items():
        # Only an array of numbers says by itself what the tensor is: bytes may be pairs of float4.
        alone = type(array) is np.ndarray and array.dtype != _OCTET
        tensors[name] = to_torch(array) if alone else read_tensor(file, name, cpu)
    return tensors


def read_tensor(file: TensorFile, name: str, device: Any, array: np.ndarray[Any, Any] | None = None) -> Any:
    """Return a tensor of an open file on a device.

    Parameters
    ----------
    file : TensorFile
    name : str
    device : torch.device
    array : np.ndarray, optional
        Its values, where they have been read.

    Returns
    -------
    torch.Tensor
        float4 is the type of torch that has two elements in a byte, if torch has that and rows are whole bytes.
    """
    place = locate(file, name)
    row = place.row
    if row.dtype.quantized and array is None:
        if device.type == "cpu":
            return to_torch(file.read(name, np.float32))
        runs = (run for tensor in in_pieces(place) for run in pieces_of(tensor))
        return staged(runs, row.shape, np.dtype(np.float32), device)
    tensor = _on_device(file[name] if array is None else array, device)
    pairs = getattr(imported_torch(), PAIRS, None)
    if row.dtype.name != "float4_e2m1fn" or pairs is None or not row.shape or row.shape[-1] % 2:
        return tensor
    return tensor.view(pairs).reshape(*row.shape[:-1], row.shape[-1] // 2)


def _on_device(array: Any, device: Any) -> Any:
    return to_torch(array) if device.type == "cpu" else to_device(array, device)
