"""The functions of a module such as ``safetensors.flax``, made for one library of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from weightmap.compat import _safe_open, _saving

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


class Load(Protocol):
    """``load`` of a module, for type checkers."""

    def __call__(self, data: Any) -> dict[str, Any]: ...


class LoadFile(Protocol):
    """``load_file`` of a module, for type checkers."""

    def __call__(self, filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]: ...


class Save(Protocol):
    """``save`` of a module, for type checkers."""

    def __call__(self, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes: ...


class SaveFile(Protocol):
    """``save_file`` of a module, for type checkers."""

    def __call__(
        self, tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
    ) -> None: ...


def functions(module: str, framework: str, arrays: str, how: str) -> tuple[Load, LoadFile, Save, SaveFile]:
    """Return ``load``, ``load_file``, ``save`` and ``save_file`` of a module.

    Parameters
    ----------
    module : str
        Its ``__name__``, under which its functions are pickled.
    framework : str
        As for `safe_open`.
    arrays, how : str
        For docstrings: the kind of arrays, and their place when they come from a file.
    """

    def load(data: Any) -> dict[str, Any]:
        return _saving.load(data, framework)

    def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
        return _safe_open.load_file(filename, framework=framework, backend=backend)

    def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
        return _saving.save(tensors, metadata)

    def save_file(
        tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
    ) -> None:
        _saving.save_file(tensors, filename, metadata)

    load.__doc__ = f"Return the {arrays} in a file's content.\n\nParameters\n----------\ndata : bytes-like\n"
    load_file.__doc__ = f"Return the {arrays} in a file, {how}."
    save.__doc__ = f"Return {arrays} as the content of a safetensors file."
    save_file.__doc__ = f"Write {arrays} to a safetensors file: see `weightmap.compat.save_file`."
    for function in (load, load_file, save, save_file):
        function.__module__, function.__qualname__ = module, function.__name__
    return load, load_file, save, save_file
