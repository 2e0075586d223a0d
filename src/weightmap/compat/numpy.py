"""Arrays of numpy under the names of ``safetensors.numpy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.compat import _safe_open, _saving

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["load", "load_file", "save", "save_file"]


def load(data: Any) -> dict[str, Any]:
    """Return the arrays of a file's content, as read-only views of it.

    Parameters
    ----------
    data : bytes-like
    """
    return _saving.load(data, "np")


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
    """Return the arrays of a file, as read-only views of its mapping; with ``backend="pread"``, in new memory."""
    return _safe_open.load_file(filename, framework="np", backend=backend)


def save(tensor_dict: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return arrays of any strides and byte order as the content of a safetensors file."""
    return _saving.save(tensor_dict, metadata)


def save_file(
    tensor_dict: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays of any strides and byte order to a safetensors file: see `weightmap.compat.save_file`."""
    _saving.save_file(tensor_dict, filename, metadata)
