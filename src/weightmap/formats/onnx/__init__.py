"""ONNX models ``.onnx``, read only: initialisers and constants by name; onnx is not needed.

A model is one message of protobuf, ``ModelProto``, as onnx.proto of ONNX 1.23 (IR version 14) defines it::

    ModelProto   1 ir_version | 2 producer_name | 3 producer_version | 4 domain | 5 model_version | 6 doc_string
                 7 graph: GraphProto | 8 opset_import: {1 domain | 2 version} | 14 metadata_props: {1 key | 2 value}
                 20 training_info: {1 | 2 GraphProto} | 25 functions: {7 node}
    GraphProto   1 node: NodeProto | 5 initializer: TensorProto | 15 sparse_initializer
    NodeProto    2 output | 4 op_type | 5 attribute: AttributeProto | 7 domain
    Attribute    1 name | 5 t: TensorProto | 6 g: GraphProto | 10 tensors | 11 graphs | 22 23 sparse tensors
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
* The tensors are the initialisers of the graph and of the graphs within it (If, Loop, Scan, functions, training_info),
  and the tensors of Constant nodes (attribute ``value``), by the name of the node's output.
* Left out, and counted in warnings: tensors in other attributes; those outside the initialisers of the graph whose name
  is empty or taken, or that cannot be read; constants that are numbers or texts of an attribute; sparse tensors; what
  lies in more than 64 graphs. The graph's own initialisers come first for a name.
* An initialiser of strings is refused, and so is one that cannot be read, or whose file is missing. ``strict=False``
  leaves them out with a warning each.
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
from types import MappingProxyType
from typing import TYPE_CHECKING

from weightmap import native
from weightmap.dtypes import DECLARED, DTYPES, DType
from weightmap.errors import (
    FormatError,
    LayoutError,
    UnsupportedError,
    counted,
    quoted,
)
from weightmap.formats._base import Content, Format
from weightmap.index import Rules
from weightmap.index.columns import ColumnTable
from weightmap.index.strings import StringTable
from weightmap.io.geometry import Made
from weightmap.lazy import later, np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from weightmap.index.row import Row
    from weightmap.index.table import Table
    from weightmap.io.geometry import Geometry
    from weightmap.io.source import Source
    from weightmap.options import Options

# For models with data in other files
_join = later("weightmap.index.joined", "JoinedTable")
_open_all_beside = later("weightmap.io.beside", "open_all_beside")
_error_of = later(f"{__name__}.faults", "error_of")
_verify = later(f"{__name__}.verify", "verify")
# By data_type.
_NAMES = (
    *("", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64"),
    *("uint32", "uint64", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn"),
    *("float8_e8m0fnu", "uint2", "int2", "float6_e2m3fn", "float6_e3m2fn"),
)
_PACKED = {name: DType(name, int(name[-1])) for name in ("uint4", "int4", "uint2", "int2")}
TYPES = tuple(map((_PACKED | DTYPES).get, _NAMES))
# The messages that a fault may lie in.
MODEL, GRAPH, TENSOR, ENTRY, NODE = range(5)
_UNREAD, _STRING = 0, _NAMES.index("string")
# The fields of numbers by data_type, and the bits of a number that is not one element.
_FIELDS = {1: 4, 14: 4, 7: 7, 11: 10, 15: 10, 12: 11, 13: 11}
_INT32_DATA = 5
_COMPLEX = {"complex64": 32, "complex128": 64}
_UNUSED = (None,) * (native.ONNX_MADE - len(TYPES))
# Elements of fewer bits share a number.
_ALONE = 6


class _Rules(Rules):
    __slots__ = ()
    dtypes = (
        *(*TYPES, *_UNUSED),
        *(*(None if found is None else DType(found.name, DECLARED) for found in TYPES), *_UNUSED),
        *TYPES,  # in other files
    )
    scattered = True
    fields = MappingProxyType({"data_offset": ("raw_data", 0), "data_size": ("raw_data", 0), "shape": ("dims", 0)})


@functools.cache
def _external() -> type[Rules]:
    """Return the rules of tensors in another file."""
    names = {"data_offset": ("offset", 0), "data_size": ("length", 0), "shape": ("dims", 0)}
    return _Rules.varied(fields=MappingProxyType(names))


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Walk the fields of the model, and return the table of initialisers."""
    del head
    model, warnings = scan(source, options), list[str]()
    found = model.found
    sides: dict[str, Side] = {}
    left_out = _without_names(model) if found.n_nested else []
    for count, what, which in (
        (found.n_sparse, "sparse tensor", ""),
        (found.n_numbers, "constant", ", given as numbers or texts,"),
        (found.n_unlisted + len(left_out), "tensor", " in nodes, functions or inner graphs, or without a name,"),
    ):
        if count:
            warnings.append(f"{counted(count, what)}{which} left out")
    try:
        table: Table
        if found.n_strings or found.n_files or found.n_unread or left_out:
            table = _joined(source, model, left_out, sides, options, warnings)
        else:
            table = own_table(model.columns, model.at, source, options)
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


def scan(source: Source, options: Options) -> native.Initialisers:
    """Walk the fields of the model. Raises the error for the first refused field."""
    limits = options.limits
    scanned = source.scanned  # held until this returns
    asked = (scanned, source.size, limits.max_tensors, limits.max_header_bytes)
    model, fault = native.scan_model(*asked, lax=not options.strict)
    if fault is not None:
        raise _error_of(fault, model.found.message, model.found.number, source)
    return model


def _without_names(model: native.Initialisers) -> list[int]:
    """Return the rows of nested tensors whose name another tensor has, one of the graph's initialisers first."""
    columns, count = model.columns, model.columns.count
    bounds = columns.array(columns.bounds, count + 1, "<u4")
    names = StringTable(columns.text(), bounds, 0, "name of a tensor")
    if not names.duplicates()[0]:
        return []
    taken = {names.raw(row) for row in np.flatnonzero(~model.nested).tolist()}
    left_out = []
    for row in np.flatnonzero(model.nested).tolist():
        if names.raw(row) in taken:
            left_out.append(row)
        taken.add(names.raw(row))
    return left_out


# ------------------------------------------------------------------------------------------------------ tables
def own_table(columns: native.Columns, at: NDArray[np.uint64], source: Source, options: Options) -> ColumnTable:
    """Return the table of the initialisers in the model itself; `at` are their places."""

    def typed(row: int, _shape: tuple[int, ...]) -> tuple[DType, Geometry]:
        code = columns.dtype[row] - native.ONNX_MADE
        made = Made(columns.end[row] - columns.begin[row], functools.partial(_make, columns, row), options.limits)
        return TYPES[code], made

    return ColumnTable(columns, _Rules(0, source.size), utf8=True, locate=at.item, typed=typed)


def _make(columns: native.Columns, number: int, row: Row, data: bytes, out: NDArray[np.uint8]) -> None:
    """Make the tensor of this number from the fields of numbers in its message."""
    code, bits = columns.dtype[number] - native.ONNX_MADE, row.dtype.bits
    field, width = _FIELDS.get(code, _INT32_DATA), _COMPLEX.get(row.dtype.name, bits if bits >= _ALONE else 8)
    count = math.prod(row.shape) if width == bits else len(out) * 8 // width
    fault = native.make_numbers(data, field, width, out, count)
    if fault is not None:
        fault.at += row.offset
        raise _error_of(fault, TENSOR, field, row.source, f"tensor {_name(columns, number)}")


def _name(columns: native.Columns, number: int) -> str:
    """Return the name of a tensor as messages show it."""
    return quoted(columns.name(number).decode(errors="replace"))


class Side:
    """A side file: its source, and the model's checksums of it."""

    __slots__ = ("checksums", "source")

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self.checksums: set[str] = set()


def _joined(
    source: Source,
    model: native.Initialisers,
    left_out: list[int],
    sides: dict[str, Side],
    options: Options,
    warnings: list[str],
) -> Table:
    """Return the table of the tensors in the model and in other files, which it adds to `sides`."""
    columns, count = model.columns, model.columns.count
    codes = columns.array(columns.dtype, count, "u1")
    owners = np.where((codes == _STRING) | (codes == _UNREAD), -1, 0)
    for row in np.flatnonzero(owners).tolist():
        why = "holds strings, which are not read" if codes[row] == _STRING else "cannot be read: its type or its fields"
        what = f"initialiser {_name(columns, row)} {why}"
        options.tolerate(UnsupportedError(what, field="data_type", offset=model.at.item(row)), warnings)
    numbers = _number_files(source, model, sides, options, warnings)
    apart = codes >= native.ONNX_EXTERNAL
    if len(numbers):
        first = np.array([row for row, *_ in model.files])
        owners[apart] = numbers[np.searchsorted(first, np.flatnonzero(apart), "right") - 1]
    owners[left_out] = -1
    order = np.argsort(owners, kind="stable")[np.count_nonzero(owners < 0) :]
    own, *others = columns.groups(order, np.bincount(owners[order], minlength=1 + len(sides)))
    tables = [own_table(own, model.at[order[: own.count]], source, options)]
    for side, part in zip(sides.values(), others, strict=True):
        tables.append(ColumnTable(part, _external()(0, side.source.size), utf8=True))
        tables[-1].belongs_to(side.source, "onnx")
    table: Table = _join(tables, np.argsort(order))
    return table


def _number_files(
    source: Source, model: native.Initialisers, sides: dict[str, Side], options: Options, warnings: list[str]
) -> NDArray[np.int64]:
    """Open the other files, and return the number of each that the model names, from 1 on; -1 for one left out."""
    known, numbers = dict[str, int](), list[int]()
    sums = list[tuple[str, str]]()
    for _, at, size, sum_at, sum_size in model.files:
        name = _text(source.pread(at, size), "location", at)
        numbers.append(known.setdefault(name, len(known) + 1))
        if sum_size:
            options.limits.check("max_header_bytes", sum_size, "size of a checksum", offset=sum_at)
            sums.append((name, _text(source.pread(sum_at, sum_size), "checksum", sum_at)))
    options.limits.check("max_shards", len(known), "number of files with external data")
    places = np.arange(len(known) + 1)
    missing = [] if options.strict else _missing(source, known, warnings)
    for name in missing:
        places[known[name]] = -1
    there = [name for name in known if name not in missing]
    places[[known[name] for name in there]] = np.arange(len(there)) + 1
    sides |= zip(there, map(Side, _open_all_beside(source, there)), strict=True)
    for name, checksum in sums:
        if name in sides:
            sides[name].checksums.add(checksum.lower())
    return places[numbers]


def _missing(source: Source, names: Iterable[str], warnings: list[str]) -> set[str]:
    """Return the files with tensors that cannot be opened, and say why."""
    found = set()
    for name in names:
        try:
            _open_all_beside(source, [name])[0].close()
        except FormatError as error:
            found.add(name)
            warnings.append(f"{error}: its tensors are left out")
    return found


# ---------------------------------------------------------------------------------------------------- metadata
SCALARS = {
    1: "ir_version",
    2: "producer_name",
    3: "producer_version",
    4: "domain",
    5: "model_version",
    6: "doc_string",
}
OPSET, PROPS = 8, 14


def _metadata(kept: bytes, options: Options) -> dict[str, str]:
    """Return the metadata of these fields."""
    found, opsets, props = dict[str, str](), dict[str, str](), dict[str, str]()
    for number, value in _fields(kept):
        if number in SCALARS:
            found[SCALARS[number]] = _shown(value, SCALARS[number])
            continue
        pair = dict(_fields(value if isinstance(value, bytes) else b""))
        key = _shown(pair.get(1, b""), "domain" if number == OPSET else "key")
        if number == OPSET:
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
    """Return a signed number, or a text, as metadata."""
    if isinstance(value, bytes):
        return _text(value, field)
    return str(value - (value >> 63 << 64))


def _text(data: bytes, field: str, at: int | None = None) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{field} is not UTF-8 ({error.reason})", field=field, offset=at) from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place of a message, and its end. Raises IndexError for an unterminated one."""
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


# ------------------------------------------------------------------------------------------------------- sniff
_FIRST = {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, OPSET: _BYTES}
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
