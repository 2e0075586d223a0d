"""Drop-in for gguf-py's `GGUFReader`, which opens in milliseconds.

Change the import, keep the code::

    from weightmap.compat.gguf import GGUFReader

    reader = GGUFReader("model.gguf")
    print(reader.get_field("general.architecture").contents())
    for tensor in reader.tensors:
        print(tensor.name, tensor.tensor_type.name, tensor.shape)

What differs from gguf-py 0.19:

- Fields and tensors are made when they are asked for, and the parts of an array when they are looked at. `parts` is a
  sequence and no list, and so is `data`.
- The file is checked when it is opened; errors are weightmap's, and ValueErrors, as in gguf-py.
- Version 1 is read too. Mode "r+", which writes into the file, is a ValueError: use `weightmap.save`.
- The first part of a split model opens alone, as in gguf-py.
"""

from __future__ import annotations

import enum
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, overload

import numpy as np

from weightmap.core.arguments import DEFAULT_LIMITS, Options, as_path
from weightmap.core.formats.gguf import BLOCKS, NUMBERS, TYPES, Header, array_at
from weightmap.core.model.internals import parts_of
from weightmap.core.model.single import open_file

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray


__all__ = ["GGMLQuantizationType", "GGUFEndian", "GGUFReader", "GGUFValueType", "ReaderField", "ReaderTensor"]


class GGUFValueType(enum.IntEnum):
    """The types of values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class GGUFEndian(enum.IntEnum):
    """The orders of bytes."""

    LITTLE = 0
    BIG = 1


_DENSE = {
    "float32": "F32",
    "float16": "F16",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float64": "F64",
    "bfloat16": "BF16",
}
GGMLQuantizationType = enum.IntEnum(  # type: ignore[misc]  # from a table
    "GGMLQuantizationType", {_DENSE.get(name, name.upper()): code for code, name in TYPES.items()}
)
GGMLQuantizationType.__doc__ = "The types of tensors."
_MODES = {"r": "mmap", "c": "cow"}
_STRING, _ARRAY = GGUFValueType.STRING, GGUFValueType.ARRAY


class _Parts(Sequence[Any]):
    """A sequence whose items are made when they are looked at."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, i: int) -> Any: ...
    @overload
    def __getitem__(self, i: slice) -> list[Any]: ...
    def __getitem__(self, i: int | slice) -> Any:
        numbers = range(self._count)[i]
        return self._make(numbers) if isinstance(numbers, int) else [self._make(k) for k in numbers]

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, range(self._count))


class ReaderField(NamedTuple):
    """A key-value, or a tensor info: see gguf-py.

    Attributes
    ----------
    offset : int
        Where it begins in the file.
    name : str
    parts : sequence of ndarray
        Its fields: length and bytes of the key, the type, and the value; of an array the type and number of its items,
        and these.
    data : sequence of int
        Which of the parts are the value.
    types : list of GGUFValueType
        Of the value; of an array ARRAY, and the type of its items.
    """

    offset: int
    name: str
    parts: Sequence[NDArray[Any]] = ()
    data: Sequence[int] = (-1,)
    types: list[GGUFValueType] = []  # noqa: RUF012 - as gguf-py has it

    def contents(self, index_or_slice: int | slice = slice(None)) -> Any:
        """Return the value: a number, a truth value, a text, or a list; of an array the items that are asked for."""
        if not self.types:
            return None
        if self.types[0] == _ARRAY:
            chosen = self.data[index_or_slice]
            if self.types[-1] == _STRING:
                return _text(self.parts[chosen]) if isinstance(chosen, int) else [_text(self.parts[i]) for i in chosen]
            if isinstance(chosen, int):
                return self.parts[chosen].tolist()[0]
            return [value for i in chosen for value in self.parts[i].tolist()]
        return _text(self.parts[-1]) if self.types[0] == _STRING else self.parts[-1].tolist()[0]


def _text(octets: NDArray[np.uint8]) -> str:
    return str(octets.tobytes(), "utf-8")


class ReaderTensor(NamedTuple):
    """A tensor: see gguf-py.

    Attributes
    ----------
    name : str
    tensor_type : GGMLQuantizationType
    shape : ndarray of uint64
        In the order of the file, the fastest dimension first.
    n_elements, n_bytes, data_offset : int
    data : ndarray
        A view of the file: of the type's dtype, or of uint8 for blocks and BF16, the last dimension in bytes.
    field : ReaderField
    """

    name: str
    tensor_type: Any
    shape: NDArray[np.uint64]
    n_elements: int
    n_bytes: int
    data_offset: int
    data: NDArray[Any]
    field: ReaderField


class GGUFReader:
    """A GGUF file, as gguf-py reads it.

    Parameters
    ----------
    path : str or os.PathLike
    mode : {"r", "c"}
        "r": arrays are read-only; "c": they can be written to, and the file stays as it is.

    Attributes
    ----------
    data : ndarray of uint8
        The bytes of the file.
    byte_order : {"I", "S"}
        "S" if it differs from this machine's.
    endianess : GGUFEndian
    alignment, data_offset : int

    Raises
    ------
    FormatError
        For a file that is damaged or of another format.
    """

    gguf_scalar_to_np: ClassVar[dict[GGUFValueType, type[np.generic]]] = {
        GGUFValueType(code): np.dtype(spelling).type for code, spelling in NUMBERS.items()
    }

    def __init__(self, path: os.PathLike[str] | str, mode: Literal["r", "c"] = "r") -> None:
        if mode not in _MODES:
            msg = f"mode is {mode!r}, expected 'r' or 'c': files are not written to in place"
            raise ValueError(msg)
        name = as_path("path", path)
        handle = open_file(name, name, Options(DEFAULT_LIMITS, format="gguf", mode=_MODES[mode]))
        content: Any
        source, content, _ = parts_of(handle)
        header: Header = content.header
        self._header = header
        self.data: NDArray[np.uint8] = source.octets
        self.endianess: GGUFEndian = GGUFEndian(int(header.order == ">"))
        self.byte_order: Literal["I", "S"] = "I" if (header.order == "<") == (sys.byteorder == "little") else "S"
        self.alignment: int = header.alignment
        self.data_offset: int = header.base

    def get_field(self, key: str) -> ReaderField | None:
        """Return the field of this key; None where there is none."""
        return self.fields.get(key)

    def get_tensor(self, idx: int) -> ReaderTensor:
        """Return the tensor of this number."""
        return self.tensors[idx]

    def _get(self, offset: int, dtype: str, count: int = 1) -> NDArray[Any]:
        return np.ndarray((count,), np.dtype(self._header.order + dtype), self.data, offset)

    def _number(self, offset: int) -> NDArray[Any]:
        """Return a length, count or dimension."""
        return self._get(offset, f"u{self._header.width}")

    @cached_property
    def fields(self) -> OrderedDict[str, ReaderField]:
        """The key-values by key, and three fields of the beginning."""
        header, width = self._header, self._header.width
        kind = GGUFValueType.UINT32 if width == _NARROW else GGUFValueType.UINT64
        fields = OrderedDict(
            {
                "GGUF.version": ReaderField(4, "GGUF.version", [self._get(4, "u4")], [0], [GGUFValueType.UINT32]),
                "GGUF.tensor_count": ReaderField(8, "GGUF.tensor_count", [self._number(8)], [0], [kind]),
                "GGUF.kv_count": ReaderField(8 + width, "GGUF.kv_count", [self._number(8 + width)], [0], [kind]),
            }
        )
        for first, last in header.scan.keys().tolist():
            name = str(header.data[first:last], "utf-8")
            head = [self._number(first - width), self.data[first:last], self._get(last, "u4")]
            fields[name] = ReaderField(first - width, name, *self._value(head, last))
        return fields

    def _value(self, head: list[Any], at: int) -> tuple[Sequence[Any], Sequence[int], list[GGUFValueType]]:
        """Return parts, data and types of a key-value whose type stands at `at`."""
        header, begin = self._header, at + 4
        kind = GGUFValueType(header.u32(at))
        if kind == _STRING:
            return [*head, *self._string(begin)], [4], [kind]
        if kind != _ARRAY:
            return [*head, self._get(begin, NUMBERS[kind])], [3], [kind]
        inner, count, first = header.array(begin)
        head += [self._get(begin, "u4"), self._number(begin + 4)]
        types = [_ARRAY, GGUFValueType(inner)] if count else [_ARRAY]
        if inner == _ARRAY:
            return self._nested(head, begin)
        start = len(head)
        if inner == _STRING:
            table = array_at(header, begin).table

            def text(i: int) -> NDArray[Any]:
                bounds = table.bounds
                octets = self.data[first + int(bounds[i // 2]) : first + int(bounds[i // 2 + 1]) - header.width]
                return octets if i % 2 else self._number(first + int(bounds[i // 2]) - header.width)

            parts = _Parts(start + 2 * count, lambda i: head[i] if i < start else text(i - start))
            return parts, range(start + 1, start + 1 + 2 * count, 2), types
        values = self._get(first, NUMBERS[inner], count)
        parts = _Parts(start + count, lambda i: head[i] if i < start else values[i - start : i - start + 1])
        return parts, range(start, start + count), types

    def _string(self, at: int) -> list[Any]:
        begin = at + self._header.width
        return [self._number(at), self.data[begin : begin + self._header.count(at)]]

    def _nested(self, head: list[Any], begin: int) -> tuple[list[Any], list[int], list[GGUFValueType]]:
        """Return an array of arrays, flattened as gguf-py does; the first items decide the types."""
        parts, data, types = list(head), [], [_ARRAY]

        def walk(at: int, *, first: bool) -> int:
            inner, count, position = self._header.array(at)
            for i in range(count):
                if first and i == 0:
                    types.append(GGUFValueType(inner))
                if inner == _ARRAY:
                    parts.extend((self._get(position, "u4"), self._number(position + 4)))
                    position = walk(position, first=first and i == 0)
                    continue
                if inner == _STRING:
                    parts.extend(self._string(position))
                else:
                    parts.append(self._get(position, NUMBERS[inner]))
                data.append(len(parts) - 1)
                position += sum(part.nbytes for part in parts[-2 if inner == _STRING else -1 :])
            return position

        walk(begin, first=True)
        return parts, data, types

    @cached_property
    def tensors(self) -> list[ReaderTensor]:
        """The tensors, in the order in which the header lists them."""
        tensors, at, width = [], self._header.scan.pos, self._header.width
        for _ in range(self._header.scan.n_tensors):
            start = at
            length, name = self._string(at)
            at += width + name.nbytes
            n_dims = self._get(at, "u4")
            dims = self._get(at + 4, f"u{width}", int(n_dims[0]))
            at += 4 + dims.nbytes
            kind, offset = self._get(at, "u4"), self._get(at + 4, "u8")
            at += 12
            field = ReaderField(start, _text(name), [length, name, n_dims, dims, kind, offset], [1, 3, 4, 5])
            tensors.append(self._tensor(field, dims, int(kind[0]), self.data_offset + int(offset[0])))
        return tensors

    def _tensor(self, field: ReaderField, dims: NDArray[Any], code: int, offset: int) -> ReaderTensor:
        name, shape = TYPES[code], tuple(dims[::-1].tolist())
        count = int(np.prod(dims, dtype=object)) if len(dims) else 1
        elements, octets = BLOCKS.get(name, (1, 2))
        if name in BLOCKS or name == "bfloat16":
            dtype, size = np.dtype(np.uint8), count // elements * octets
            shape = (*shape[:-1], shape[-1] // elements * octets) if shape else (octets,)
        else:
            dtype = np.dtype(name).newbyteorder(">" if self.endianess else "<")
            size = count * dtype.itemsize
        data = np.ndarray(shape, dtype, self.data, offset if size else 0)
        return ReaderTensor(field.name, GGMLQuantizationType(code), dims, count, size, offset, data, field)


_NARROW = 4
