"""The tensors of one file on the CPU, where they share its pages, or on another device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.checkpoints.handle import Weights, stored_model
from weightmap.core.arguments import mistyped, names_moved
from weightmap.core.dtypes import FLOATING
from weightmap.core.model.codes import check_computable
from weightmap.core.model.internals import check_copied, is_remote, row_of
from weightmap.core.model.opening import Model, as_handle
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.plans.planning import ParameterPlan, ReadPlan
from weightmap.plans.planning import plan as make_plan
from weightmap.torch._device import load_plan, to_device
from weightmap.torch._tensors import imported_torch, in_pairs, read_tensor, to_torch, torch_device, writable_mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightmap.core.model.file import TensorFile

_OCTET = np.dtype(np.uint8)


@names_moved
def load_file(
    path: Model,
    device: Any = "cpu",
    *,
    plan: ReadPlan | None = None,
    verify: bool = False,
    dtype: Any = None,
) -> dict[str, Any]:
    """Return the tensors of a file.

    Parameters
    ----------
    path : TensorFile, or anything that `weightmap.open` takes
        A handle stays open; the parameters of ``f.weights`` are decoded to the model's own type.
    device : str, int or torch.device
        On the CPU, tensors share the pages of the file and are writable, but never change it; from a handle in the
        read-only modes "mmap" and "sealed", they are copies. `weightmap.device` copies them to any other device: there,
        the tensors of a file share one piece of memory, and quantised tensors are decoded if Triton is installed.
    plan : ReadPlan, optional
        What to read: a plan of `weightmap.plan` for this file, such as the slices of one rank. The plan has the file
        open, and `path` is not opened. Tensors come in the plan's order; on the CPU they are copies.
    verify : bool
        Check the checksums of the file, if it has any, before returning a tensor.
    dtype : torch.dtype, optional
        The type of floating-point and quantised tensors; values of parameters are only rounded once, to this type.
        Default: the file's type, and float32 for quantised tensors. Other devices convert the values themselves.

    Returns
    -------
    dict of str to torch.Tensor
        In the order of the file.

    Raises
    ------
    FormatError, OSError
        As `weightmap.open`. On devices also for a file that is truncated or written to meanwhile.
    UnsupportedError
        torch lacks the device, or the type of a tensor; with `dtype`, for a quantised checkpoint whose codes would be
        converted without their scales: ``f.weights`` has its parameters.
    MissingDependencyError
        torch is not installed.
    """
    where = torch_device(device)
    if where.type == "cpu" and dtype is not None and not isinstance(dtype, imported_torch().dtype):
        raise mistyped("dtype", dtype, "a torch.dtype")
    if plan is not None:
        if not hasattr(plan, "run"):
            raise mistyped("plan", plan, "a weightmap.ReadPlan")
        if where.type != "cpu":
            return dict(load_plan(plan, where, dtype=dtype, verify=verify))
        if not isinstance(plan, ParameterPlan):
            _check_cast(plan.file, plan.names, dtype)
        tensors = {}
        for name, array in plan.run(verify=verify):
            if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
                check_copied(plan.file, name, array.nbytes)
            tensor = to_torch(array)
            # The file does not have the names of parameters.
            tensors[name] = tensor if isinstance(plan, ParameterPlan) else in_pairs(tensor, row_of(plan.file, name))
        return tensors if dtype is None else {name: _cast(plan.file, name, t, dtype) for name, t in tensors.items()}
    mode = writable_mode() if where.type == "cpu" else None
    with as_handle(path, mode=mode, private=False) as file:
        weights = isinstance(file, Weights)
        _check_cast(file, () if weights else file, dtype)
        if not weights and where.type != "cpu":
            return load_tensors(file, list(file), where, verify=verify, dtype=dtype)
        tensors = _decoded(file, where, None if dtype is None else str(dtype).removeprefix("torch."), verify=verify)
        if dtype is None:
            return tensors
        return {name: _cast(file, name, tensor, dtype) for name, tensor in tensors.items()}


def _check_cast(file: TensorFile, names: Iterable[str], dtype: Any) -> None:
    """Refuse to convert codes without their scales."""
    if dtype is not None:
        check_computable(file, set(names).__contains__, "dtype=")


def _decoded(model: TensorFile, device: Any, dtype: str | None, *, verify: bool) -> dict[str, Any]:
    """Return the tensors of a model, decoded by the CPU, on a device: see `shared`."""
    if verify:
        for _ in make_plan(stored_model(model)).run("map", verify=True):
            pass
    if device.type == "cpu":
        return shared(model, dtype=dtype)
    return {name: to_device(_for_type(model[name], dtype), device) for name in model}


def _for_type(array: Any, dtype: str | None) -> Any:
    """Return a parameter in float32, its computed type, if it becomes another type, so that it is rounded only once."""
    if dtype is None or not isinstance(array, QuantizedTensor) or array.dtype == dtype:
        return array
    return array.dequantize(np.float32)


def _cast(file: TensorFile, name: str, tensor: Any, dtype: Any) -> Any:
    """Return a tensor of a file, converted to `dtype` if it holds floating-point numbers."""
    if str(tensor.dtype).removeprefix("torch.") not in FLOATING:
        return tensor
    if not tensor.is_contiguous():
        check_copied(file, name, tensor.numel() * tensor.itemsize)
    return tensor.to(dtype)


def shared(file: TensorFile, names: Iterable[str] | None = None, dtype: str | None = None) -> dict[str, Any]:
    """Return tensors, by default all, of a file opened in `writable_mode`, on the CPU, as `read_tensor` does for one.

    Parameters of a quantised checkpoint that will be converted to `dtype` are float32.
    """
    tensors, remote = {}, is_remote(file)
    for name, array in file.items() if names is None else ((name, file[name]) for name in names):
        value = _for_type(array, dtype)
        # Only an array of numbers determines the tensor: bytes may be pairs of float4.
        alone = type(value) is np.ndarray and value.dtype != _OCTET
        tensors[name] = to_torch(value) if alone else read_tensor(file, name, value if remote else None)
    return tensors


def load_tensors(
    file: TensorFile, wants: Any, device: Any, *, verify: bool = False, dtype: Any = None
) -> dict[str, Any]:
    """Return tensors of an open file on a device other than the CPU.

    Parameters
    ----------
    file : TensorFile
    wants
        Names, or any other wants of `weightmap.plan`. Tensors come in the order of names.
    device : torch.device
    verify, dtype
        As for `load_file`.
    """
    with make_plan(file, wants) as plan:
        tensors = dict(load_plan(plan, device, verify=verify, dtype=dtype))
    return {name: tensors[name] for name in wants}
