"""PyTorch tensors that share memory with arrays and files, and the way back; the first call imports ``torch``.

PyTorch has no read-only tensors: `torch.from_numpy` over a read-only map warns, and the first write into the tensor
ends the process. These functions never make such a tensor: they copy or refuse. Open the file with ``mode="cow"`` to
get writable tensors that share the mapped pages and never change the file::

    with weightmap.open("model.safetensors", mode="cow") as f:
        weight = weightmap.torch.to_torch(f["weight"])

`load_file` returns all tensors of a file so, and `load_into` fills a module. For other devices than the CPU, files are
mapped read-only and copied through a small buffer.

NumPy has no bfloat16 and float8 of its own; those of ml_dtypes cross over as integers of the same width.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import MissingDependencyError, TensorFileError, UnsupportedError, quoted
from weightmap.model.foreign import CROSSING, PAIRS, from_torch
from weightmap.model.opening import open as open_model
from weightmap.model.parts import locate
from weightmap.quant.blocks import QuantizedTensor
from weightmap.quant.ref import in_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from weightmap.model.file import TensorFile

__all__ = [
    "STAGE",
    "StateError",
    "from_torch",
    "load_file",
    "load_into",
    "load_state",
    "read_tensor",
    "staged",
    "to_device",
    "to_torch",
    "torch_device",
    "writable_mode",
]

# Bytes of the private buffer on the way to another device: a driver never gets mapped pages.
STAGE = 4 << 20


class StateError(TensorFileError, RuntimeError):
    """The tensors of a file do not fit a module, which is as it was."""


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
        what = "a read-only array cannot be shared with torch: the first write would end the process"
        raise ValueError(f'{what}; open the file with mode="cow", or copy')
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
    dtype = _stored(array)
    return staged(_parts(array, STAGE // dtype.itemsize), array.shape, dtype, device)


def staged(
    parts: Iterable[np.ndarray[Any, Any]], shape: tuple[int, ...], dtype: np.dtype[Any], device: str | int | Any
) -> Any:
    """Return a new tensor on a device, filled from arrays of at most `STAGE` bytes in row-major order."""
    torch = _torch()
    wanted = getattr(torch, dtype.name, None)
    if not isinstance(wanted, torch.dtype):
        raise _no_dtype(dtype.name)
    target = torch.empty(shape, dtype=wanted, device=torch_device(device))
    _pour(parts, dtype, target, raw=True)
    return target


def _pour(parts: Iterable[np.ndarray[Any, Any]], dtype: np.dtype[Any], target: Any, *, raw: bool) -> None:
    """Copy arrays to a tensor on a device, one after another through one buffer; `raw` if it is of their type."""
    torch = _torch()
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


def _stored(array: Any) -> np.dtype[Any]:
    """Return the type that an array has in torch: of a quantised tensor, that of its decoded values."""
    return np.dtype(np.float32) if isinstance(array, QuantizedTensor) else array.dtype.newbyteorder("=")


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


# ------------------------------------------------------------------------------------------------------------ files


def writable_mode() -> str:
    """Return the mode in which files become tensors of the CPU: "cow", or "copy" if WEIGHTMAP_MODE asks for copies."""
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
        return {name: _delivered(array, where) for name, array in plan.run()}
    with open_model(path, mode=writable_mode() if where.type == "cpu" else None) as file:
        return {name: read_tensor(file, name, where) for name in file}


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
        runs = (run for tensor in in_pieces(place) for run in tensor.in_runs(STAGE // 4))
        return staged(runs, row.shape, np.dtype(np.float32), device)
    tensor = _delivered(file[name] if array is None else array, device)
    pairs = getattr(_torch(), PAIRS, None)
    if row.dtype.name != "float4_e2m1fn" or pairs is None or not row.shape or row.shape[-1] % 2:
        return tensor
    return tensor.view(pairs).reshape(*row.shape[:-1], row.shape[-1] // 2)


def _delivered(array: Any, device: Any) -> Any:
    return to_torch(array) if device.type == "cpu" else to_device(array, device)


# ---------------------------------------------------------------------------------------------------------- modules


def load_into(module: Any, path: Any, *, strict: bool = True, assign: bool = False) -> Any:
    """Fill the parameters and buffers of a module with the tensors of a file.

    All names, shapes and types are checked before anything is changed, by `torch.nn.Module.load_state_dict` itself: the
    hooks and methods of a module count, and run once more than there.

    Parameters
    ----------
    module : torch.nn.Module
        On any device. What is not on the CPU is filled through a buffer of a few MiB.
    path : str or os.PathLike
        Anything that `weightmap.open` takes. Of parameters that are tied, the file needs one.
    strict : bool
        Whether missing and unexpected names are errors, as in torch; and tied parameters whose values differ.
    assign : bool
        Put tensors into the module instead of copying their values: those of the CPU and the device "meta" share the
        pages of the file, may be written to, and leave it as it was. They have the types that the file has, and tied
        ones stay tied.

    Returns
    -------
    missing_keys, unexpected_keys
        As `torch.nn.Module.load_state_dict` returns them.

    Raises
    ------
    StateError
        Names, shapes or types do not fit: a value would lose its kind (complex to real, float to integer), or a
        parameter is on the device "meta" and ``assign=False``. It is a RuntimeError; the module is as it was.
    FormatError, OSError
        As `weightmap.open`.
    """
    own = {name: value for name, value in module.state_dict(keep_vars=True).items() if hasattr(value, "device")}
    with open_model(path, mode=writable_mode()) as file:
        state = {name: read_tensor(file, name, torch_device("cpu")) for name in file}
        named = file.path
    try:
        _tie(own, state, strict=strict)
        result = _rehearse(module, state, strict=strict, assign=assign)
    except StateError as error:
        raise error.located(path=named) from None
    if all(tensor.device.type in {"cpu", "meta"} for tensor in own.values()):
        _finish(module, state, own, None, assign=assign)
    else:
        with open_model(path) as file:  # read-only
            _finish(module, state, own, file, assign=assign)
    return result


def load_state(
    module: Any, state: dict[str, Any], *, strict: bool, duplicates: Collection[str]
) -> tuple[set[str], list[str]]:
    """Do what `weightmap.compat.torch.load_model` does with the tensors of a file.

    Parameters
    ----------
    duplicates : collection of str
        The names of parameters that others stand for: these are not missing, and unexpected when they are there.
    """
    result = _rehearse(module, state, strict=False, assign=False)
    missing = set(result.missing_keys) - set(duplicates)
    unexpected = [*result.unexpected_keys, *sorted(set(duplicates) - set(result.missing_keys))]
    if strict and (missing or unexpected):
        wrong = f"Error(s) in loading state_dict for {type(module).__name__}:"
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                wrong += f" {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
        raise StateError(wrong)
    _finish(module, state, {}, None, assign=False)
    return missing, unexpected


def _tie(own: Mapping[str, Any], state: dict[str, Any], *, strict: bool) -> None:
    """Give all names of one parameter or buffer the one tensor that the file has for them."""
    names: dict[int, list[str]] = {}
    for name, tensor in own.items():
        names.setdefault(id(tensor), []).append(name)
    for tied in names.values():
        present = [name for name in tied if name in state]
        if len(tied) < 2 or not present:
            continue
        first, *others = present
        differ = not all(_same(state[first], state[name]) for name in others)
        if differ and strict:
            raise StateError(f"{', '.join(map(quoted, present))} are one tensor in the module, and differ in the file")
        kept = state[present[-1] if differ else first]  # the last one wins, as in torch
        state.update(dict.fromkeys(tied, kept))


def _same(a: Any, b: Any) -> bool:
    torch = _torch()
    alike: bool = a.dtype == b.dtype and a.shape == b.shape
    return alike and torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (a, b)))


def _rehearse(module: Any, state: Mapping[str, Any], *, strict: bool, assign: bool) -> Any:
    """Let torch load a state with every copy left out, and return its result. Raises `StateError` for what fails."""
    torch = _torch()
    copies: list[tuple[Any, Any]] = []

    def note(_: Any, target: Any, source: Any) -> None:
        copies.append((target, source))

    try:
        with _copying()(note), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of copies to the device "meta"
            result = module.load_state_dict(state, strict=strict)
    except RuntimeError as error:
        raise StateError(" ".join(str(error).split())) from None
    names = {id(tensor): name for name, tensor in reversed(list(state.items()))}
    for target, source in copies:
        what = f"tensor {quoted(names[id(source)])}" if id(source) in names else "a tensor"
        if assign:
            if target.requires_grad and not (source.is_floating_point() or source.is_complex()):
                raise StateError(f"{what} is {source.dtype}, and the parameter has gradients, which take floats")
        elif target.is_meta:
            raise StateError(f"{what} belongs to a parameter without memory, on the device meta: load with assign=True")
        elif source.dtype != target.dtype and not torch.can_cast(source.dtype, target.dtype):
            raise StateError(f"{what} is {source.dtype}, which {target.dtype} of the module cannot hold")
    return result


def _finish(
    module: Any, state: dict[str, Any], own: Mapping[str, Any], file: TensorFile | None, *, assign: bool
) -> None:
    """Load a state that was rehearsed. Tensors for other devices are read again from `file`, which is read-only."""
    torch = _torch()
    names = {id(tensor): name for name, tensor in reversed(list(state.items()))}
    if assign:
        made: dict[int, Any] = {}
        for name, tensor in state.items():
            old = own.get(name)
            if old is not None and id(tensor) not in made:
                away = old.device.type not in {"cpu", "meta"}
                new = read_tensor(file, names[id(tensor)], old.device) if away and file is not None else tensor
                parameter = isinstance(old, torch.nn.Parameter)
                made[id(tensor)] = torch.nn.Parameter(new, old.requires_grad) if parameter else new
        placed = {name: made.get(id(tensor), tensor) for name, tensor in state.items()}
        module.load_state_dict(placed, strict=False, assign=True)
        return
    done: list[tuple[Any, Any]] = []

    def fill(copy: Any, target: Any, source: Any) -> None:
        if any(target is other and source is given for other, given in done):  # of tied parameters
            return
        done.append((target, source))
        if target.device.type == "cpu" or source.device.type != "cpu":
            copy(target, source)
            return
        name = names.get(id(source))  # None for what a hook has made
        array = from_torch(source) if name is None or file is None else file[name]
        dtype = _stored(array)
        _pour(_parts(array, STAGE // dtype.itemsize), dtype, target, raw=source.dtype == target.dtype)

    with _copying()(fill):
        module.load_state_dict(state, strict=False)


@functools.cache
def _copying() -> Any:
    """Return the class of contexts in which ``target.copy_(source)`` of torch calls ``instead(copy, target, source)``.

    It is made once: a class for each context would keep what its function refers to until garbage is collected.
    """
    torch = _torch()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copying(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, instead: Callable[[Any, Any, Any], None]) -> None:
            super().__init__()
            self.instead = instead

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not torch.ops.aten.copy_.default:
                return func(*args, **(kwargs or {}))
            self.instead(func, *args[:2])
            return args[0]

    return Copying


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
