"""A drop-in for gguf-py's `GGUFReader` that opens in milliseconds; and `patched`, for llama.cpp's own converter.

Change the import, keep the code::

    from weightmap.compat.gguf import GGUFReader

    reader = GGUFReader("model.gguf")
    print(reader.get_field("general.architecture").contents())
    for tensor in reader.tensors:
        print(tensor.name, tensor.tensor_type.name, tensor.shape)

llama.cpp's `convert_hf_to_gguf.py` knows many more architectures than `convert`; `patched` makes it faster, with little
memory: ``python -m weightmap.compat.gguf convert_hf_to_gguf.py MODEL --outfile x.gguf --outtype q8_0``.

Differences from gguf-py 0.19:

- Fields and tensors are made at their first access, and so are the parts of an array. `parts` and `data` are sequences,
  not lists.
- The file is checked when it is opened; errors are weightmap's, and ValueErrors, as in gguf-py.
- Version 1 is also read. Mode "r+", which writes into the file, is a ValueError: use `weightmap.save`.
- The first part of a split model opens alone, as in gguf-py.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import runpy
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, overload

import ml_dtypes
import numpy as np

import weightmap as wm
from weightmap.compat._frameworks import imported
from weightmap.core.arguments import DEFAULT_LIMITS, Options, as_path
from weightmap.core.formats.gguf import BLOCKS, NUMBERS, TYPES, Header, array_at
from weightmap.core.model.internals import parts_of
from weightmap.core.model.single import open_file
from weightmap.core.native import access, floats, quantised

if TYPE_CHECKING:
    from numpy.typing import NDArray


__all__ = [
    "GGMLQuantizationType",
    "GGUFEndian",
    "GGUFReader",
    "GGUFValueType",
    "ReaderField",
    "ReaderTensor",
    "patched",
]


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


GGMLQuantizationType = enum.IntEnum(  # type: ignore[misc]  # from a table; "float16" is F16, "int8" is I8
    "GGMLQuantizationType",
    {name.upper().replace("FLOAT", "F").replace("INT", "I"): code for code, name in TYPES.items()},
)
GGMLQuantizationType.__doc__ = "The types of tensors."
_MODES = {"r": "mmap", "c": "cow"}
_STRING, _ARRAY = GGUFValueType.STRING, GGUFValueType.ARRAY


class _Parts(Sequence[Any]):
    """A sequence whose items are made at each access."""

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
        Offset in the file.
    name : str
    parts : sequence of ndarray
        Its fields: length and bytes of the key, the type, and the value; for an array, type and number of the items,
        then the items.
    data : sequence of int
        The indices of the parts that are the value.
    types : list of GGUFValueType
        The value's type; for an array ARRAY, and the type of its items.
    """

    offset: int
    name: str
    parts: Sequence[NDArray[Any]] = ()
    data: Sequence[int] = (-1,)
    types: list[GGUFValueType] = []  # noqa: RUF012 - as gguf-py has it

    def contents(self, index_or_slice: int | slice = slice(None)) -> Any:
        """Return the value: a number, truth value, text or list; for an array, the selected items."""
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
        "r": arrays are read-only; "c": they are writable, and the file stays unchanged.

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
            raise ValueError(f"mode is {mode!r}, expected 'r' or 'c': files are not written to in place")
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
        """Return the field of this key, or None."""
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
        """Return parts, data and types of a key-value whose type is at `at`."""
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


# ----------------------------------------------------------------------------------------------------
# llama.cpp's converter. It describes each tensor as a tree of operations, which gguf-py evaluates whole when it writes
# the tensor. `patched` evaluates the tree a few rows at a time, as far down as its operations work on rows.

# For values that float16 can hold, our quantisers of these types give gguf-py's bytes, unless a scale or a minimum is 0
# in float16: gguf-py's bytes then depend on the CPU. The number is how many bytes of a block, the first ones, these
# take; none for q8_0, whose bytes are the same for a scale of 0 too.
_SAME = {"q8_0": 0, "q4_0": 2, "q5_0": 2, "q4_1": 4, "q5_1": 4}
_HALF_MAX = 65504.0
_ROW_ELEMENTS = 1 << 20  # in the rows to evaluate together
# Qualified names of operations of a tree that work row by row; `_ROW_METHODS` has the methods.
_CAST = "LazyNumpyTensor.astype.<locals>.<lambda>"
_ROW_OPERATIONS = ("__Quant.__quantize_array", _CAST, "LazyTorchTensor.numpy.<locals>.<lambda>")
_METHOD = "LazyMeta.__new__.<locals>.__getattr__.<locals>.<lambda>"
_ROW_METHODS = ("to", "float", "half", "bfloat16", "contiguous")
_INDEX, _STACK = "TensorBase.__getitem__", "_VariableFunctionsClass.stack"  # of torch


def _fits_half(values: NDArray[np.float32]) -> bool:
    """Whether float16 can hold all values, and none is a NaN."""
    return bool(values.max() <= _HALF_MAX and values.min() >= -_HALF_MAX)


def _converting(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a conversion of rows by our kernels, or by `theirs` if the bytes could differ."""

    def convert(func: Any, arr: NDArray[Any], otype: Any, oshape: Sequence[int]) -> Any:
        name, kind = func.__name__, func.__self__.qtype.name.lower()
        octets = arr.dtype == np.uint8 and arr.flags.c_contiguous  # `theirs` raises an error for some others
        if name == "dequantize_rows" and octets and arr.size and kind in quantised.GGML_TYPES:
            values = quantised.decode_ggml(arr, math.prod(oshape), kind, threads=access.cpus())
            if not np.isnan(values.min()):  # `theirs` keeps the bits of a NaN
                return values.reshape(oshape)
        if name == "quantize_rows" and arr.dtype == np.float32 and arr.size:
            if kind == "bf16" and not np.isnan(arr.max()):
                return arr.astype(ml_dtypes.bfloat16, order="C").view(np.uint8).reshape(oshape)
            if kind in _SAME and _fits_half(arr):
                blocks = quantised.encode_ggml(arr, kind, threads=access.cpus())
                blocks = blocks.reshape(-1, quantised.GGML_TYPES[kind].block_bytes)
                if blocks[:, : _SAME[kind]].view(np.float16).all():
                    return blocks.reshape(oshape)
        return theirs(func, arr, otype, oshape)

    return convert


def _whole(tree: Any) -> Any:
    """Evaluate a tree, without its cache of results."""
    if tree._data is not None:
        return tree._data
    return tree._func(*tree._recurse_apply(tree._args, _whole), **tree._kwargs)


def _is_by_row(name: str, func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation works row by row."""
    if name == _METHOD:
        method = func.__closure__[0].cell_contents
        return method in _ROW_METHODS or (method == "transpose" and args[1:] == (-1, -2) and args[0]._meta.ndim > 2)
    if name == _INDEX and isinstance(index := args[1], tuple) and 0 < len(index) <= args[0]._meta.ndim:
        return all(part is ... or isinstance(part, slice) for part in index) and index[0] in (..., slice(None))
    return name in _ROW_OPERATIONS


def _rows(tree: Any, start: int, stop: int) -> Any:
    """Evaluate some rows of a tree; cache the results of operations that need all rows."""
    if tree._data is None:
        func, args, kwargs = tree._func, tree._args, tree._kwargs
        name = getattr(func, "__qualname__", "")
        if _is_by_row(name, func, args):
            rows = _rows(args[0], start, stop)
            if name == _CAST and (rows.dtype, args[1]) == (np.float32, np.float16) and _fits_half(rows):
                return floats.in_type(rows, np.dtype(np.float16))  # 10 times as fast as numpy
            return func(rows, *args[1:], **kwargs)
        if name == _STACK and not any(args[1:]) and not any(kwargs.values()):
            parts = tree._recurse_apply(args[0][start:stop], _whole)
            return func(parts) if len(parts) > 1 else parts[0][None]
    return type(tree).to_eager(tree)[start:stop]


def _write(tree: Any, *args: Any, **kwargs: Any) -> None:
    """Write a tensor some rows at a time: the `tofile` of a tree."""
    shape = tree._meta.shape
    if len(shape) < 2 or not math.prod(shape):  # a single dimension is one row
        type(tree).to_eager(tree).tofile(*args, **kwargs)
        return
    step = max(1, _ROW_ELEMENTS // math.prod(shape[1:]))
    for start in range(0, shape[0], step):
        np.ascontiguousarray(_rows(tree, start, start + step)).tofile(*args, **kwargs)


def _checking(theirs: Callable[..., None]) -> Callable[..., None]:
    """Return an `__init__` of a safetensors file that checks it first."""

    def init(local: Any, filename: Any) -> None:
        wm.open(filename, format="safetensors").close()
        theirs(local, filename)

    return init


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Make gguf-py, and so llama.cpp's `convert_hf_to_gguf.py`, faster, with little memory, within a ``with`` block.

    Tensors are computed and written some rows at a time. Our kernels make float16, bfloat16, and blocks of q8_0, q4_0,
    q4_1, q5_0 and q5_1; they decode all blocks. The written bytes stay the same: where ours would differ, gguf-py's own
    code runs. Safetensors files are checked as by `weightmap.open`.

    Raises
    ------
    MissingDependencyError
        When gguf is not installed.

    Notes
    -----
    The block affects the whole process. The script comes with its own gguf-py: put that first on `sys.path`, as
    ``python -m weightmap.compat.gguf convert_hf_to_gguf.py ARGS...`` does.
    """
    imported("gguf", "gguf")
    quants, lazy, utility = (import_module(f"gguf.{part}") for part in ("quants", "lazy", "utility"))
    changes: list[tuple[Any, str, Any]] = [
        (quants, "_apply_over_grouped_rows", _converting(quants._apply_over_grouped_rows)),
        (lazy.LazyNumpyTensor, "tofile", _write),
    ]
    if files := getattr(utility, "SafetensorsLocal", None):  # older versions lack it
        changes.append((files, "__init__", _checking(files.__init__)))
    with contextlib.ExitStack() as restored:
        for place, name, ours in changes:
            restored.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, ours)
        yield


def _main(arguments: list[str]) -> None:
    """Run a script of llama.cpp within `patched`, with the gguf-py beside it, if any."""
    script = arguments[0] if arguments else ""
    if not os.path.isfile(script):
        raise SystemExit(f"{script!r} is no file; usage: python -m weightmap.compat.gguf convert_hf_to_gguf.py ARGS...")
    folder = os.path.dirname(os.path.realpath(script))
    sys.path[0] = folder
    if "NO_LOCAL_GGUF" not in os.environ and os.path.isdir(package := os.path.join(folder, "gguf-py")):
        sys.path.insert(1, package)
    sys.argv = arguments
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads of torch would take CPUs from our kernels
    with patched():
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _main(sys.argv[1:])
