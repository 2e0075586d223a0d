"""Tensors of PyTorch under the names of ``safetensors.torch``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from weightmap._messages import quoted
from weightmap.compat import _safe_open, _saving
from weightmap.core.model.saving import check_module
from weightmap.errors import EncodeError
from weightmap.torch import StateError
from weightmap.torch._modules import load_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model", "storage_ptr", "storage_size"]


def load(data: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a file's content, in new memory.

    Parameters
    ----------
    data : bytes-like
    """
    return _saving.load(data, "pt")


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
) -> dict[str, torch.Tensor]:
    """Return the tensors of a file; on the CPU they share its pages; writing to them does not change the file."""
    return _safe_open.load_file(filename, device, framework="pt", backend=backend)


def save(tensors: dict[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as the content of a safetensors file. Raises as `save_file`."""
    _check(tensors)
    return _saving.save(tensors, metadata)


def save_file(
    tensors: dict[str, torch.Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors on any device to a safetensors file, atomically.

    Raises
    ------
    EncodeError
        A value is not a dense, contiguous tensor (`weightmap.save` takes any strides), or safetensors lacks its type.
        If tensors share memory or have no data, it is a RuntimeError too, as in safetensors: `save_model` writes one
        of the tensors that share memory.
    OSError
        The file cannot be written.
    """
    _check(tensors)
    _saving.save_file(tensors, filename, metadata)


def save_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    force_contiguous: bool = True,  # noqa: FBT001, FBT002 - the signature of safetensors
) -> None:
    """Write the parameters and buffers of a module to a safetensors file, shared memory only once.

    Parameters
    ----------
    model : torch.nn.Module
    filename : str or os.PathLike
    metadata : mapping of str to str, optional
        The names that are left out are added, each with the name that replaces it.
    force_contiguous : bool
        False refuses tensors that are not contiguous; True writes them row-major.

    Raises
    ------
    EncodeError
        As `save_file`; if none of the tensors that share memory covers all of it (a RuntimeError too); and with
        ``force_contiguous=False`` for tensors that are not contiguous.
    """
    check_module("model", model)
    state = model.state_dict()
    recorded = dict(metadata or {})
    for written, others in _remove_duplicate_names(state).items():
        for name in others:
            recorded.setdefault(name, written)
            del state[name]
    _check(state, strided=force_contiguous)
    _saving.save_file(state, filename, recorded or metadata)


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,  # noqa: FBT001, FBT002 - the signature of safetensors
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Copy the tensors of a file into a module.

    The file has only one of the parameters that share memory, as `save_model` writes it.

    Parameters
    ----------
    model : torch.nn.Module
    filename : str or os.PathLike
    strict : bool
        Whether missing and unexpected names are errors.
    device, backend
        As for `load_file`: the device that holds tensors on their way into the module.

    Returns
    -------
    missing, unexpected : set of str, list of str

    Raises
    ------
    StateError
        Names or shapes do not fit: a RuntimeError, as in safetensors. The module is unchanged.
    """
    check_module("model", model)
    state = load_file(filename, device, backend=backend)
    removed = _remove_duplicate_names(model.state_dict(), preferred_names=state)
    duplicates = {name for names in removed.values() for name in names}
    try:
        return load_state(model, state, strict=strict, duplicates=duplicates)
    except StateError as error:
        raise error.located(path=os.fsdecode(filename)) from None


def storage_ptr(tensor: torch.Tensor) -> int:
    """Return the address of the memory behind a tensor; 0 without memory."""
    return _saving.storage_of(tensor)[0]


def storage_size(tensor: torch.Tensor) -> int:
    """Return the bytes of the memory behind a tensor."""
    return _saving.storage_of(tensor)[1]


def _end_ptr(tensor: torch.Tensor) -> int:
    """Return the address after the last byte of a tensor."""
    return _saving.extent(tensor)[1]


def _find_shared_tensors(state_dict: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Return the names of tensors in groups that share memory."""
    return _saving.shared(state_dict)


def _is_complete(tensor: torch.Tensor) -> bool:
    """Whether a tensor covers all the memory behind it."""
    return (tensor.data_ptr(), tensor.nbytes) == _saving.storage_of(tensor)


def _remove_duplicate_names(
    state_dict: Mapping[str, torch.Tensor],
    *,
    preferred_names: Iterable[str] | None = None,
    discard_names: Iterable[str] | None = None,
) -> dict[str, list[str]]:
    """Return the names to keep among tensors that share memory, each with the names that it replaces."""
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    duplicates: dict[str, list[str]] = {}
    for names in _saving.shared(state_dict):
        complete = {name for name in names if _is_complete(state_dict[name])}
        if not complete:
            what = f"none of the tensors {', '.join(map(quoted, sorted(names)))} covers the memory that they share"
            raise _saving.TorchEncodeError(f"{what}: found no suitable name to keep for saving")
        chosen = min(preferred & complete or complete - discarded or complete)
        others = sorted(names - {chosen})
        if others:
            duplicates[chosen] = others
    return duplicates


def _check(tensors: Any, *, strided: bool = False) -> None:
    """Refuse anything but a dictionary of dense tensors, contiguous or `strided`, in the words of safetensors."""
    if not isinstance(tensors, dict):
        raise EncodeError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise EncodeError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(value)}")
    sparse = [name for name, value in tensors.items() if value.layout is not torch.strided]
    if sparse:
        raise EncodeError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support. You can make it"
            " a dense tensor before saving with `.to_dense()` but be aware this might make a much larger file than"
            " needed."
        )
    if strided_names := [name for name, value in tensors.items() if not (strided or value.is_contiguous())]:
        what = f"tensors that are not contiguous: {', '.join(map(quoted, strided_names))}"
        raise EncodeError(f"{what}; call .contiguous() on them, or use save_model(..., force_contiguous=True)")
