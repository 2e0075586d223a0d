"""The tensors of a model as torch lists those of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata

from weightmap.errors import TensorFileError, TensorNotFoundError, UnsupportedError
from weightmap.model.foreign import PAIRS
from weightmap.model.parts import name_of, not_found, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.index.row import Row
    from weightmap.model.file import TensorFile


class Kind(NamedTuple):
    """How a file's tensor appears in torch.

    Attributes
    ----------
    dtype : torch.dtype
    shape : tuple of int
        In elements of that type.
    octets : bool
        Whether `weightmap` returns it as bytes, an array of one dimension.
    decoded : bool
        Whether it is quantised in the file.
    swapped : bool
        Whether it is big-endian in the file.
    """

    dtype: Any
    shape: tuple[int, ...]
    octets: bool = False
    decoded: bool = False
    swapped: bool = False

    @classmethod
    def of(cls, row: Row) -> Kind:
        name, shape = row.dtype.name, row.shape
        if row.dtype.quantized:
            return cls(torch.float32, shape, decoded=True)
        if not row.dtype.packed:
            found = getattr(torch, name, None)
            if not isinstance(found, torch.dtype):
                raise UnsupportedError("data type", expected="one that torch has", actual=name)
            return cls(found, shape, swapped=row.dtype.swapped)
        pairs = getattr(torch, PAIRS, None)
        if name == "float4_e2m1fn" and pairs is not None and shape and shape[-1] % 2 == 0:
            return cls(pairs, (*shape[:-1], shape[-1] // 2), octets=True)
        return cls(torch.uint8, (row.nbytes,), octets=True)


class TensorMetadata(Mapping[str, Any]):
    """The metadata of all tensors, each made at its first use: a model may have half a million.

    Parameters
    ----------
    file : TensorFile
    names : mapping of str to str
        The file's names for some names of the state dict.
    """

    def __init__(self, file: TensorFile, names: Mapping[str, str]) -> None:
        self.file, self._names = file, names
        # Those used so far.
        self._found: dict[str, tuple[str, Row, Kind]] = {}
        for name in names.values():
            if name not in file:
                raise not_found(file, name)

    def __getitem__(self, name: str) -> TensorStorageMetadata:
        try:
            kind = self.found(name)[2]
        except TensorNotFoundError:
            raise KeyError(name) from None
        size = torch.Size(kind.shape)
        whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
        return TensorStorageMetadata(TensorProperties(dtype=kind.dtype), size, [whole])

    def found(self, name: str) -> tuple[str, Row, Kind]:
        """Return the file's name for a tensor, its place, and its form in torch."""
        found = self._found.get(name)
        if found is None:
            own = self._names.get(name, name)
            ref = row_of(self.file, own)
            try:
                found = self._found[name] = own, ref, Kind.of(ref)
            except TensorFileError as error:
                raise error.located(path=name_of(self.file), format=self.file.format) from None
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self.file

    def __iter__(self) -> Iterator[str]:
        yield from self.file
        yield from (name for name in self._names if name not in self.file)

    def __len__(self) -> int:
        return len(self.file) + sum(name not in self.file for name in self._names)


class Unreadable(Mapping[str, Any]):
    """The metadata of a model that could not be opened: asking for anything raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _fail(self, *_: object) -> NoReturn:
        raise self._error

    __getitem__ = __contains__ = __iter__ = __len__ = _fail
