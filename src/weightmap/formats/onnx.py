"""ONNX models ``.onnx``, read only: the initialisers of the graph, by name; onnx is not needed.

A model is one message of protobuf, ``ModelProto``, as onnx.proto of ONNX 1.23 (IR version 14) defines it::

    ModelProto   1 ir_version | 2 producer_name | 3 producer_version | 4 domain | 5 model_version | 6 doc_string
                 7 graph: GraphProto | 8 opset_import: {1 domain | 2 version} | 14 metadata_props: {1 key | 2 value}
    GraphProto   5 initializer: TensorProto | 15 sparse_initializer
    TensorProto  1 dims | 2 data_type | 3 segment | 8 name | 14 data_location (0 default, 1 external)
                 4 float_data | 5 int32_data | 6 string_data | 7 int64_data | 10 double_data | 11 uint64_data
                 9 raw_data | 13 external_data: {1 key | 2 value}

csrc/onnx.c documents how fields are encoded, and walks them.

Data
----
* ``raw_data`` is the tensor, little-endian and row-major. So are ``float_data`` (float32, complex64) and
  ``double_data`` (float64, complex128) where they lie in one piece: these are views of the file too.
* Other data in fields of numbers is decoded at each use. ``int64_data`` holds int64, ``uint64_data`` uint64 and uint32,
  ``int32_data`` all remaining types below 64 bits: floats as their bits, elements below six bits as packed bytes.
* External data is a part of another file, which lies in the directory of the model or below it: ``location`` is its
  path, ``offset`` (0) and ``length`` (as the shape says) are decimal, ``checksum`` is its SHA-1 in hexadecimal digits,
  which `verify` compares. Other keys, and external_data of a tensor with the default location, are ignored.
* Types below the byte are listed, copied between files, and returned as packed bytes: int4, uint4, int2, uint2,
  float4_e2m1fn, float6_e2m3fn, float6_e3m2fn, the first element in the lowest bits.

Metadata are texts: the fields 1 to 6 of the model by their names; ``opset_import``, or ``opset_import.<domain>`` of a
domain other than ""; and ``metadata_props`` by their keys, or ``metadata_props.<key>`` where that is taken.

Ours
----
* Left out, since they have no name or are no array: tensors in attributes of nodes (of Constant nodes, and all that is
  in the sub-graphs of If, Loop and Scan), in functions and in training_info. Sparse initialisers are left out with a
  warning. Tensors of strings are refused; ``strict=False`` leaves them out with a warning.
* A model without a graph counts as cut off: otherwise every beginning of a file would be a model.
* As in protobuf, fields come in any order, the last of several scalars counts, the graph may come in several pieces,
  and unknown fields are ignored. Groups, known fields of another wire type, and numbers that do not fit their type
  (protobuf would keep the low bits) are refused.
* A file is recognised when it begins with ir_version, as all serialisers write it, and its next fields are those above,
  up to the graph. Other ones open with ``format="onnx"``.
* Errors are data in two fields, in a field of another type, or both here and external; tensors in segments or without a
  name; and a repeated key of the metadata (with ``strict=False`` its last value counts).
"""

from __future__ import annotations

import functools
import math
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.dtypes import DECLARED, DTYPES, DType
from weightmap.errors import (
    ChecksumError,
    FileChangedError,
    FormatError,
    LayoutError,
    LimitError,
    TruncatedError,
    UnsupportedError,
    counted,
    cut_off,
    quoted,
    shrank,
)
from weightmap.formats._base import Content, Format
from weightmap.index import Rules
from weightmap.index.columns import ColumnTable
from weightmap.io.geometry import Made
from weightmap.lazy import later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.errors import TensorFileError
    from weightmap.formats._verifying import Verification
    from weightmap.index.row import Row
    from weightmap.index.table import Table
    from weightmap.io.geometry import Geometry
    from weightmap.io.source import Source
    from weightmap.options import Options

# Of models with data in other files.
_join = later("weightmap.index.joined", "JoinedTable")
_open_all_beside = later("weightmap.io.beside", "open_all_beside")
# By data_type.
_NAMES = (
    *("", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64"),
    *("uint32", "uint64", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn"),
    *("float8_e8m0fnu", "uint2", "int2", "float6_e2m3fn", "float6_e3m2fn"),
)
_PACKED = {name: DType(name, int(name[-1])) for name in ("uint4", "int4", "uint2", "int2")}
_TYPES = tuple((_PACKED | DTYPES).get(name) for name in _NAMES)
_STRING = _NAMES.index("string")
# The fields of numbers by data_type, and the bits of a number where that is not one element.
_FIELDS = {1: 4, 14: 4, 7: 7, 11: 10, 15: 10, 12: 11, 13: 11}
_INT32_DATA = 5
_COMPLEX = {"complex64": 32, "complex128": 64}
_UNUSED = (None,) * (kernels.ONNX_MADE - len(_TYPES))
# Fewest bits of an element with a number of its own.
_ALONE = 6


class _Rules(Rules):
    __slots__ = ()
    dtypes = (
        *(*_TYPES, *_UNUSED),
        *(*(None if found is None else DType(found.name, DECLARED) for found in _TYPES), *_UNUSED),
        *_TYPES,  # in other files
    )
    scattered = True
    fields = MappingProxyType({"data_offset": ("raw_data", 0), "data_size": ("raw_data", 0), "shape": ("dims", 0)})


class _Rest(_Rules):
    """The rules of tensors in another file."""

    __slots__ = ()
    fields = MappingProxyType({"data_offset": ("offset", 0), "data_size": ("length", 0), "shape": ("dims", 0)})


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Walk the fields of the model, and return the table of initialisers."""
    del head
    model, warnings = _scan(source, options), list[str]()
    found = model.found
    sides: dict[str, _Side] = {}
    if found.n_sparse:
        warnings.append(f"{counted(found.n_sparse, 'sparse initialiser')} left out")
    try:
        table: Table
        if found.n_strings or found.n_files:
            table = _joined(source, model, sides, options, warnings)
        else:
            table = _table(model.columns, model.at, source, options)
        if options.checked:
            table.check()
    except BaseException:
        for side in sides.values():
            side.source.close()
        raise
    metadata = functools.partial(_metadata, model.kept, options)
    content = Content("onnx", table, metadata, functools.partial(_verify, model, sides, metadata), warnings)
    content.has_metadata = bool(model.kept)
    content.sources = tuple(side.source for side in sides.values())
    return content


def _scan(source: Source, options: Options) -> kernels.Initialisers:
    limits = options.limits
    scanned = source.scanned  # held until this returns
    model, fault = kernels.scan_model(scanned, source.size, limits.max_tensors, limits.max_header_bytes)
    if fault is not None:
        raise _error(fault, model.found.message, model.found.number, source)
    return model


# ------------------------------------------------------------------------------------------------------ tables
def _table(columns: kernels.Columns, at: NDArray[np.uint64], source: Source, options: Options) -> ColumnTable:
    """Return the table of the initialisers in the model itself, which begin `at` these places."""

    def typed(row: int, _shape: tuple[int, ...]) -> tuple[DType, Geometry]:
        code = columns.dtype[row] - kernels.ONNX_MADE
        made = Made(columns.end[row] - columns.begin[row], functools.partial(_make, columns, row), options.limits)
        return _TYPES[code], made

    return ColumnTable(columns, _Rules(0, source.size), utf8=True, locate=at.item, typed=typed)


def _make(columns: kernels.Columns, number: int, row: Row, data: bytes, out: NDArray[np.uint8]) -> None:
    """Make the tensor of this number from the fields of numbers in its message."""
    code, bits = columns.dtype[number] - kernels.ONNX_MADE, row.dtype.bits
    field, width = _FIELDS.get(code, _INT32_DATA), _COMPLEX.get(row.dtype.name, bits if bits >= _ALONE else 8)
    count = math.prod(row.shape) if width == bits else len(out) * 8 // width
    fault = kernels.make_numbers(data, field, width, out, count)
    if fault is not None:
        fault.at += row.offset
        raise _error(fault, _TENSOR, field, row.source, f"tensor {_name(columns, number)}")


def _name(columns: kernels.Columns, number: int) -> str:
    """Return the name of a tensor as messages show it."""
    return quoted(columns.name(number).decode(errors="replace"))


class _Side:
    """Another file: its source, and the checksums that the model has of it."""

    __slots__ = ("checksums", "source")

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self.checksums: set[str] = set()


def _joined(
    source: Source, model: kernels.Initialisers, sides: dict[str, _Side], options: Options, warnings: list[str]
) -> Table:
    """Return the table of the initialisers in the model and in other files, which it adds to `sides`."""
    columns, count = model.columns, model.columns.count
    codes = columns.array(columns.dtype, count, "u1")
    owners = np.where(codes == _STRING, -1, 0)
    for row in np.flatnonzero(owners).tolist():
        what = f"initialiser {_name(columns, row)} holds strings, which are not read"
        options.tolerate(UnsupportedError(what, field="data_type", offset=model.at.item(row)), warnings)
    numbers = _number_files(source, model, sides, options)
    apart = codes >= kernels.ONNX_EXTERNAL
    if len(numbers):
        first = np.array([row for row, *_ in model.files])
        owners[apart] = numbers[np.searchsorted(first, np.flatnonzero(apart), "right") - 1]
    order = np.argsort(owners, kind="stable")[np.count_nonzero(owners < 0) :]
    own, *others = columns.groups(order, np.bincount(owners[order], minlength=1 + len(sides)))
    tables = [_table(own, model.at[order[: own.count]], source, options)]
    for side, part in zip(sides.values(), others, strict=True):
        tables.append(ColumnTable(part, _Rest(0, side.source.size), utf8=True))
        tables[-1].belongs_to(side.source, "onnx")
    table: Table = _join(tables, np.argsort(order))
    return table


def _number_files(
    source: Source, model: kernels.Initialisers, sides: dict[str, _Side], options: Options
) -> NDArray[np.int64]:
    """Open the other files, and return the number of each that the model names, from 1 on."""
    known, numbers = dict[str, int](), list[int]()
    sums = list[tuple[str, str]]()
    for _, at, size, sum_at, sum_size in model.files:
        name = _text(source.pread(at, size), "location", at)
        numbers.append(known.setdefault(name, len(known) + 1))
        if sum_size:
            options.limits.check("max_header_bytes", sum_size, "size of a checksum", offset=sum_at)
            sums.append((name, _text(source.pread(sum_at, sum_size), "checksum", sum_at)))
    options.limits.check("max_shards", len(known), "number of files with external data")
    sides |= zip(known, map(_Side, _open_all_beside(source, known)), strict=True)
    for name, checksum in sums:
        sides[name].checksums.add(checksum.lower())
    return np.array(numbers, np.int64)


# ---------------------------------------------------------------------------------------------------- metadata
_SCALARS = {
    1: "ir_version",
    2: "producer_name",
    3: "producer_version",
    4: "domain",
    5: "model_version",
    6: "doc_string",
}
_OPSET, _PROPS = 8, 14


def _metadata(kept: bytes, options: Options) -> dict[str, str]:
    """Return the metadata of these fields."""
    found, opsets, props = dict[str, str](), dict[str, str](), dict[str, str]()
    for number, value in _fields(kept):
        if number in _SCALARS:
            found[_SCALARS[number]] = _shown(value, _SCALARS[number])
            continue
        pair = dict(_fields(value if isinstance(value, bytes) else b""))
        key = _shown(pair.get(1, b""), "domain" if number == _OPSET else "key")
        if number == _OPSET:
            _add(opsets, f"opset_import.{key}" if key else "opset_import", _shown(pair.get(2, 0), "version"), options)
        else:
            _add(props, key, _shown(pair.get(2, b""), "value"), options)
    found |= opsets
    return found | {f"metadata_props.{key}" if key in found else key: text for key, text in props.items()}


def _add(texts: dict[str, str], key: str, text: str, options: Options) -> None:
    if key in texts:
        options.tolerate(LayoutError(f"key {quoted(key)} comes twice", field="metadata_props"), [])
    texts[key] = text


def _shown(value: int | bytes, field: str) -> str:
    """Return a number, which has a sign, or a text as metadata."""
    if isinstance(value, bytes):
        return _text(value, field)
    return str(value - (value >> 63 << 64))


def _text(data: bytes, field: str, at: int | None = None) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{field} is not UTF-8 ({error.reason})", field=field, offset=at) from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place of a message, and where it ends. Raises IndexError for one that does not end."""
    value = 0
    for shift in range(0, _BITS, 7):
        byte = data[at]
        at += 1
        value |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return value & _U64, at
    raise IndexError


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message by number: varints, and the bytes of texts and messages."""
    at = 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            kind = tag & 7
            value, at = (_FIXED[kind], at) if kind in _FIXED else _varint(data, at)
            if kind == _VARINT:
                yield tag >> 3, value
                continue
            at += value
            if kind == _BYTES and at <= len(data):
                yield tag >> 3, data[at - value : at]
    except IndexError:
        at = len(data) + 1
    if at > len(data):
        what = "opset_import or metadata_props is no message of protobuf"
        raise FormatError(what, field="metadata_props")


_MORE, _BITS, _U64 = 0x80, 64, (1 << 64) - 1
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}


# ------------------------------------------------------------------------------------------------------ verify
def _verify(
    model: kernels.Initialisers, sides: dict[str, _Side], metadata: Callable[[], object], run: Verification
) -> None:
    source = run.source
    if _contents(_scan(source, run.options)) != _contents(model):
        raise FileChangedError("its fields changed after it was opened", path=source.name)
    metadata()
    run.checked("fields and metadata")
    columns = model.columns
    table = _table(columns, model.at, source, run.options)
    table.belongs_to(source, "onnx")
    marks = columns.array(columns.dtype, columns.count, "u1") & kernels.ONNX_MADE
    made = np.flatnonzero(marks).tolist()
    for i in made:
        row = table.row(i)
        assert row.geometry is not None  # noqa: S101 - for the type checker
        run.until(columns.end[i])
        row.geometry.array(row)
    if made:
        run.checked(f"numbers of {counted(len(made), 'tensor')}")
    run.until(source.size)
    summed = [side for side in sides.values() if side.checksums]
    for side in summed:
        _check_sum(run, side)
    if summed:
        run.checked(f"SHA-1 of {counted(len(summed), 'file')}")
    run.rest()


def _check_sum(run: Verification, side: _Side) -> None:
    import hashlib  # noqa: PLC0415 - few files have checksums

    run.turn(side.source)
    found = hashlib.sha1(usedforsecurity=False)
    for piece in run.chunks(0, side.source.size):
        found.update(piece)
    for checksum in side.checksums - {found.hexdigest()}:
        what, expected = "its SHA-1 in the model", f"{found.hexdigest()}, computed from its bytes"
        raise ChecksumError(what, path=side.source.name, field="checksum", actual=quoted(checksum), expected=expected)


def _contents(model: kernels.Initialisers) -> tuple[Any, ...]:
    """Return the content of the fields, for comparison."""
    return *model.columns.content(), model.at.tobytes(), model.files, model.kept


# ------------------------------------------------------------------------------------------------------ errors
_MODEL, _GRAPH, _TENSOR, _ENTRY = range(4)
# The names of fields, by message and number.
_FIELD_NAMES = {
    _MODEL: {**_SCALARS, 7: "graph", _OPSET: "opset_import", _PROPS: "metadata_props"},
    _GRAPH: {5: "initializer"},
    _TENSOR: dict(
        enumerate(
            (
                *("dims", "data_type", "segment", "float_data", "int32_data", "string_data", "int64_data", "name"),
                *("raw_data", "double_data", "uint64_data", "doc_string", "external_data", "data_location"),
            ),
            1,
        )
    ),
    _ENTRY: dict.fromkeys((1, 2), "external_data"),
}
_KNOWN = ", ".join(f"{code} {dtype.name}" for code, dtype in enumerate(_TYPES) if dtype is not None)
# By fault: the class of the error; what is wrong; what is expected, where the value found says it. With an asterisk the
# value found stays unsaid.
_WORDS: dict[str, tuple[type[FormatError], str, str]] = {
    "END": (LayoutError, "{whole} ends within its field {field}: number of bytes left", "at least {expected}"),
    "VARINT": (FormatError, "{whole}: a number of more than 64 bits*", ""),
    "TAG": (FormatError, "{whole}: tag of a field", "a number from 1 to 2**29 - 1, and a wire type"),
    "KIND": (FormatError, "{whole}: wire type of field {field}", "0, 1, 2 or 5"),
    "WIRE": (FormatError, "{whole}: wire type of {field}", "{expected}"),
    "DIM": (LayoutError, "{whole}: a dimension", "0 or more"),
    "NAME": (FormatError, "{whole}: bytes of its name", "1 to {expected}"),
    "NAMES": (LimitError, "bytes of all names", "at most {expected} (Limits.max_header_bytes)"),
    "KEPT": (LimitError, "bytes of metadata", "at most {expected} (Limits.max_header_bytes)"),
    "TWICE": (LayoutError, "{whole} has data in {field} and in {other}*", ""),
    "FIELD": (LayoutError, "{whole}: data_type of a tensor with {field}", "one that this field is for"),
    "PACKED": (LayoutError, "{whole}: bytes of {field}", "a multiple of {expected}"),
    "COUNT": (LayoutError, "{whole}: bytes of {field}", "those of {expected} numbers by dims and data_type"),
    "NUMBER": (LayoutError, "{whole}: a number in {field}", "one of {expected} bits"),
    "SEGMENT": (UnsupportedError, "{whole} is in segments, which are not read*", ""),
    "LOCATION": (UnsupportedError, "{whole}: data_location", "0 (here) or 1 (external)"),
    "DECIMAL": (FormatError, "{whole}: its offset or length*", "1 to {expected} decimal digits"),
    "PATH": (LayoutError, "{whole}: bytes of its location", "1 to {expected}"),
    "GRAPH": (TruncatedError, "the file ends before the graph of the model*", ""),
    "CAPACITY": (LimitError, "number of initialisers", "at most {expected} (Limits.max_tensors)"),
    "TABLE_NDIM": (LimitError, "{whole}: number of dimensions", "at most {expected}"),
    "TABLE_DTYPE": (UnsupportedError, "{whole}: data_type", f"one of {_KNOWN}"),
}
_FIELD_OF = {"PATH": "location", "CAPACITY": "max_tensors"}


def _error(
    fault: kernels.Fault, message: int, number: int, source: Source, tensor: str = ""
) -> TensorFileError | OSError:
    """Return the error for a fault in this message, at the field of this number."""
    kind, at, names = fault.kind.removeprefix("ONNX_"), fault.at, _FIELD_NAMES[message]
    field = _FIELD_OF.get(kind, names.get(number, str(number)))
    if kind == "READ":
        return OSError(fault.actual, os.strerror(fault.actual), source.name) if fault.actual else shrank(at)
    if kind == "END" and message == _MODEL:
        return cut_off(f"field {field} of the model", source.size, at + fault.expected, field=field)
    tensor = tensor or f"initialiser {fault.row}"
    whole = ("the model", "the graph", tensor, f"external_data of {tensor}")[message]
    cls, what, expected = _WORDS[kind]
    words = {"whole": whole, "field": field, "other": names.get(fault.actual, ""), "expected": fault.expected}
    actual = None if what.endswith("*") else fault.actual - (fault.actual >> 63 << 64)
    what, wanted = what.rstrip("*").format(**words), expected.format(**words) or None
    return cls(what, field=field, offset=at, actual=actual, expected=wanted)


# ------------------------------------------------------------------------------------------------------- sniff
_FIRST = {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, _OPSET: _BYTES}
_GRAPH_AT, _DOC_STRING, _NEWEST = 7 << 3 | _BYTES, 6, 255


def _sniff(head: bytes, _size: int) -> bool:
    """Recognise a model by its first fields, up to the graph or to a long text before it."""
    if head[4:8] == bytes(4):  # the length of a header
        return False
    tag = at = 0
    try:
        while True:
            first = not at
            tag, at = _varint(head, at)
            if tag == _GRAPH_AT or first != (tag == 1 << 3):
                return tag == _GRAPH_AT and not first
            value, at = _varint(head, at)
            kind = _FIRST.get(tag >> 3)
            if kind != tag & 7 or (first and not 0 < value <= _NEWEST):
                return False
            at += value if kind == _BYTES else 0
    except IndexError:
        return tag >> 3 == _DOC_STRING and at > len(head)


FORMAT = Format(
    name="onnx",
    title="ONNX",
    suffixes=(".onnx",),
    layouts=("onnx",),
    parse=parse,
    sniff=_sniff,
    leads=b"\x08",
)
