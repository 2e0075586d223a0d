"""Arrays of jax under the names of ``safetensors.flax``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.compat import _safe_open, _saving

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["load", "load_file", "save", "save_file"]


def load(data: Any) -> dict[str, Any]:
    """Return the arrays of jax in a file's content.

    Parameters
    ----------
    data : bytes-like
    """
    return _saving.load(data, "jax")


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
    """Return the arrays of jax in a file, shared with the mapping where they begin at a multiple of 64 bytes."""
    return _safe_open.load_file(filename, framework="jax", backend=backend)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return arrays of jax as the content of a safetensors file."""
    return _saving.save(tensors, metadata)


def save_file(
    tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays of jax to a safetensors file: see `weightmap.compat.save_file`."""
    _saving.save_file(tensors, filename, metadata)
