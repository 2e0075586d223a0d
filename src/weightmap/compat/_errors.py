"""Errors that are weightmap's and, at once, of the built-in class that safetensors raises in their place."""

from __future__ import annotations

from typing import Any

from weightmap.errors import EncodeError, TensorFileError


class MissingFileError(FileNotFoundError):
    """There is no such file: the error of the system, in the words of safetensors."""

    def __str__(self) -> str:
        return f"No such file or directory: {self.filename}"


class SliceError(TensorFileError, IndexError):
    """A slice asks for more than the tensor has."""

    @classmethod
    def of(cls, index: tuple[Any, ...], shape: tuple[int, ...], error: IndexError) -> SliceError:
        """Return the error for an index that numpy refused, in the words of safetensors where it has some."""
        given = index[: index.index(Ellipsis)] if Ellipsis in index[:-1] else index[:-1]
        for dim, (part, size) in enumerate(zip(given, shape, strict=False)):
            if not isinstance(part, int):
                continue
            if part < -size:
                return cls(f"Invalid index {part} for dimension {dim} of size {size}")
            if part >= size:
                what = f"Error during slicing [{', '.join(map(_spelt, given))}] with shape {list(shape)}"
                return cls(f"{what}: index {part} out of bounds for tensor dimension #{dim} of size {size}")
        return cls(str(error))


class TorchEncodeError(EncodeError, RuntimeError):
    """Tensors of torch cannot be written as they are: some share memory, or have no data."""


def _spelt(part: Any) -> str:
    if not isinstance(part, slice):
        return str(part)
    start, stop = ("" if bound is None else str(bound) for bound in (part.start, part.stop))
    return f"{start}:{stop}" + ("" if part.step is None else f":{part.step}")
