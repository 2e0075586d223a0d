"""Tensors of TensorFlow under the names of ``safetensors.tensorflow``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.compat import _safe_open, _saving

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["load", "load_file", "save", "save_file"]


def load(data: Any) -> dict[str, Any]:
    """Return the tensors of TensorFlow in a file's content.

    Parameters
    ----------
    data : bytes-like
    """
    return _saving.load(data, "tf")


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
    """Return the tensors of TensorFlow in a file, copied by TensorFlow."""
    return _safe_open.load_file(filename, framework="tf", backend=backend)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors of TensorFlow as the content of a safetensors file."""
    return _saving.save(tensors, metadata)


def save_file(
    tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors of TensorFlow to a safetensors file: see `weightmap.compat.save_file`."""
    _saving.save_file(tensors, filename, metadata)
