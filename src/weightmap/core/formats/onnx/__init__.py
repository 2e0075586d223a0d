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

csrc/formats/onnx.c documents how fields are encoded, and walks them.

Data
----
* ``raw_data`` is the tensor, little-endian and row-major. ``float_data`` (float32, complex64) and ``double_data``
  (float64, complex128) are the same if they lie in one piece: these are views of the file, too.
* Other data in fields of numbers is decoded at each use. ``int64_data`` holds int64, ``uint64_data`` holds uint64 and
  uint32, and ``int32_data`` holds all remaining types below 64 bits: floats as bits, elements below six bits as packed
  bytes.
* External data is a part of another file, in the directory of the model or below it. ``location`` is the path of the
  file; ``offset`` (by default 0) and ``length`` (by default from the shape) are decimal; ``checksum`` is the file's
  SHA-1 in hexadecimal digits, which `verify` compares. Other keys, and external_data of a tensor with the default
  location, are ignored.
* Types smaller than a byte are int4, uint4, int2, uint2, float4_e2m1fn, float6_e2m3fn, float6_e3m2fn: ``f[name]`` has
  packed bytes, with the first element in the lowest bits; `read` returns the values.

Metadata are texts: the fields 1 to 6 of the model by their names; ``opset_import``, or ``opset_import.<domain>`` for a
domain other than ""; and ``metadata_props`` by their keys, or ``metadata_props.<key>`` if the key is taken.

Ours
----
* The tensors are the initialisers of the graph and of the graphs within it (If, Loop, Scan, functions, training_info),
  and the tensors of Constant nodes (attribute ``value``), by the name of the node's output.
* Left out, and counted in warnings: tensors in other attributes; tensors outside the graph's initialisers that have an
  empty or taken name, or cannot be read; constants that are numbers or texts of an attribute; sparse tensors; tensors
  nested in more than 64 graphs. The graph's own initialisers take precedence for a name.
* An initialiser of strings is refused, and so is an initialiser that cannot be read, or whose file is missing.
  ``strict=False`` leaves these out, with a warning for each.
* A model without a graph counts as cut off: otherwise the beginning of a file could pass as a whole model.
* As in protobuf, fields come in any order, the last of several scalars counts, the graph may come in several pieces,
  and unknown fields are ignored. Groups, known fields of another wire type, and numbers that do not fit their type
  (protobuf would keep the low bits) are refused.
* A file is recognised if it begins with ir_version, as all serialisers write it, and only fields listed above follow,
  up to the graph. ``format="onnx"`` opens other files.
* Errors are: data in two fields, in a field of another type, or both inside and external; tensors in segments or
  without a name; and a repeated key of the metadata (with ``strict=False``, its last value counts).
"""

from __future__ import annotations

import functools
import math
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

import weightmap.errors as errors
from weightmap._messages import counted, quoted
from weightmap.core.bytes.geometry import Geometry, Reencoded
from weightmap.core.dtypes import DECLARED, DTYPES, DType
from weightmap.core.faults import cut_off, shrank
from weightmap.core.formats import fields, is_onnx
from weightmap.core.formats._base import Content, Format
from weightmap.core.hooks import later
from weightmap.core.native import scans
from weightmap.core.table import Rules, StringTable
from weightmap.core.table.columns import ColumnTable
from weightmap.core.table.table import Row, Run, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification
    from weightmap.core.native.access import Fault

# For models with data in other files.
_open_all_beside = later("weightmap.core.bytes.open_source", "open_all_beside")
# By data_type.
_NAMES = (
    *("", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64"),
    *("uint32", "uint64", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn"),
    *("float8_e8m0fnu", "uint2", "int2", "float6_e2m3fn", "float6_e3m2fn"),
)
_PACKED = {name: DType(name, int(name[-1])) for name in ("uint4", "int4", "uint2", "int2")}
TYPES = tuple(map((_PACKED | DTYPES).get, _NAMES))
# The messages that a fault may be in.
MODEL, GRAPH, TENSOR, ENTRY, NODE = range(5)
_UNREAD, _STRING = 0, _NAMES.index("string")
# The fields of numbers by data_type, and the bits of a number if it is not a single element.
_FIELDS = {1: 4, 14: 4, 7: 7, 11: 10, 15: 10, 12: 11, 13: 11}
_INT32_DATA = 5
_COMPLEX = {"complex64": 32, "complex128": 64}
_UNUSED = (None,) * (scans.ONNX_MADE - len(TYPES))
# Elements of fewer bits share a number.
_ALONE = 6


class _Rules(Rules):
    __slots__ = ()
    dtypes = (
        *(*TYPES, *_UNUSED),
        *(*(None if dtype is None else DType(dtype.name, DECLARED) for dtype in TYPES), *_UNUSED),
        *TYPES,  # in other files
    )
    scattered = True
    fields = MappingProxyType({"data_offset": ("raw_data", 0), "data_size": ("raw_data", 0), "shape": ("dims", 0)})


# The names of the fields of tensors in other files
_EXTERNAL = MappingProxyType({"data_offset": ("offset", 0), "data_size": ("length", 0), "shape": ("dims", 0)})


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Walk the fields of the model, and return the table of initialisers."""
    del head
    model, warnings = scan(source, options), list[str]()
    scan_result = model.scan
    sides: dict[str, Side] = {}
    left_out = _without_names(model) if scan_result.n_nested else []
    for count, what, which in (
        (scan_result.n_sparse, "sparse tensor", ""),
        (scan_result.n_numbers, "constant", ", given as numbers or texts,"),
        (scan_result.n_unlisted + len(left_out), "tensor", " in nodes, functions or inner graphs, or without a name,"),
    ):
        if count:
            warnings.append(f"{counted(count, what)}{which} left out")
    try:
        table: Table
        if scan_result.n_strings or scan_result.n_files or scan_result.n_unread or left_out:
            table = _spread(source, model, left_out, sides, options, warnings)
        else:
            table = InitialiserTable(model.columns, model.at, source.size, options)
        if options.checked:
            table.check()
    except BaseException:
        for side in sides.values():
            side.source.close()
        raise
    metadata = functools.partial(_metadata, model.fields, options)
    content = Content("onnx", table, metadata, functools.partial(verify, model, sides, metadata), warnings)
    local = np.flatnonzero(model.in_function).tolist() if scan_result.n_nested else []
    content.ambiguous = frozenset(model.columns.name(row).decode(errors="replace") for row in [*left_out, *local])
    content.has_metadata = bool(model.fields)
    content.sources = tuple(side.source for side in sides.values())
    return content


def scan(source: Source, options: Options) -> scans.Initialisers:
    """Walk the fields of the model. Raises the error for the first refused field."""
    limits = options.limits
    scanned = source.c_input  # must live until this returns
    arguments = (scanned, source.size, limits.max_tensors, limits.max_header_bytes)
    model, fault = scans.scan_model(*arguments, lax=not options.strict)
    if fault is not None:
        raise error_of(fault, model.scan.message, model.scan.number, source)
    return model


def _without_names(model: scans.Initialisers) -> list[int]:
    """Return the rows of nested tensors whose name belongs to another tensor; the graph's initialisers win."""
    columns = model.columns
    names = StringTable(columns.text(), columns.words(columns.bounds, columns.count + 1), 0, "tensor name")
    if not names.duplicates()[0]:
        return []
    used = {names.raw(row) for row in np.flatnonzero(~model.nested).tolist()}
    left_out = []
    for row in np.flatnonzero(model.nested).tolist():
        if names.raw(row) in used:
            left_out.append(row)
        used.add(names.raw(row))
    return left_out


class InitialiserTable(ColumnTable):
    """The tensors of a model; `at` are their places, and `nbytes` is the size of the largest file with tensors."""

    def __init__(self, columns: scans.Columns, at: NDArray[np.uint64], nbytes: int, options: Options) -> None:
        def typed(row: int, _shape: tuple[int, ...]) -> tuple[DType, Geometry]:
            nbytes = columns.end[row] - columns.begin[row]
            geometry = Reencoded(nbytes, functools.partial(_make, columns, row), options.limits)
            return TYPES[columns.dtype[row] - scans.ONNX_MADE], geometry

        super().__init__(columns, _Rules(0, nbytes), utf8=True, locate=at.item, typed=typed)


class _SpreadTable(InitialiserTable):
    """Tensors, some of them in other files.

    Attributes
    ----------
    files : sequence of Source
        The model, then the other files.
    numbers : ndarray of int64
        The number of each tensor's file.
    """

    files: Sequence[Source]
    numbers: NDArray[np.int64]

    def row(self, i: int) -> Row:
        """Return row i, checked."""
        dtype, shape, offset, nbytes, row = super().place(i)
        number = self.numbers.item(i)
        file = self.files[number]
        if number and offset + nbytes > file.size:
            self.refuse("TABLE_TRUNCATED", i, offset + nbytes, file.size)
        return Row(dtype, shape, file, offset, nbytes, None if row is None else row.geometry)

    def place(self, i: int) -> tuple[DType, tuple[int, ...], int, int, Row]:
        """Return row i: see `Table.place`. Raises `FileChangedError` if its file has changed."""
        row = self.row(i)
        row.source.check_unchanged()
        return row.dtype, row.shape, row.offset, row.nbytes, row

    def rows(self) -> Iterator[Row]:
        """Yield every row, checked, in order."""
        return map(self.row, range(self.count))

    def runs(self) -> Iterator[Run]:
        """Yield each row as a run: see `Table.runs`. Raises `FileChangedError` if a file has changed."""
        for file in self.files:
            file.check_unchanged()
        return ((row, 1, 0) for row in self.rows())

    def owners(self, numbers: Mapping[Source, int]) -> NDArray[np.int32]:
        """Return the number of the source of each row."""
        return np.array([numbers[file] for file in self.files], np.int32)[self.numbers]

    def check(self) -> None:
        """Check every row, and that names are unique."""
        super().check()
        ends, sizes = self._columns.array(self._columns.end, self.count, "<u8"), [file.size for file in self.files]
        for row in np.flatnonzero(ends > np.array(sizes, np.uint64)[self.numbers]).tolist():
            self.row(row)  # refuses it

    def fail(self, fault: Fault) -> NoReturn:
        """Raise the error for a fault, with special words for a tensor in another file."""
        number = self.numbers.item(fault.row) if fault.kind.startswith("TABLE_") else 0
        if number:
            file = self.files[number]
            side = ColumnTable(self._columns, _Rules.varied(fields=_EXTERNAL)(0, file.size), utf8=True)
            side.belongs_to(file, "onnx")
            side.fail(fault)
        super().fail(fault)


def _make(columns: scans.Columns, number: int, row: Row, data: bytes, out: NDArray[np.uint8]) -> None:
    """Make the tensor with this number from the fields of numbers in its message."""
    code, bits = columns.dtype[number] - scans.ONNX_MADE, row.dtype.bits
    field, width = _FIELDS.get(code, _INT32_DATA), _COMPLEX.get(row.dtype.name, bits if bits >= _ALONE else 8)
    count = math.prod(row.shape) if width == bits else len(out) * 8 // width
    fault = scans.make_numbers(data, field, width, out, count)
    if fault is not None:
        fault.at += row.offset
        raise error_of(fault, TENSOR, field, row.source, f"tensor {_name(columns, number)}")


def _name(columns: scans.Columns, number: int) -> str:
    """Return the name of a tensor for messages."""
    return quoted(columns.name(number).decode(errors="replace"))


class Side:
    """A side file: its source, and the model's checksums of it."""

    __slots__ = ("checksums", "source")

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self.checksums: set[str] = set()


def _spread(
    source: Source,
    model: scans.Initialisers,
    left_out: list[int],
    sides: dict[str, Side],
    options: Options,
    warnings: list[str],
) -> Table:
    """Return the table of the tensors in the model and in other files, which it adds to `sides`."""
    columns, at, count = model.columns, model.at, model.columns.count
    codes = columns.array(columns.dtype, count, "u1")
    numbers = np.where((codes == _STRING) | (codes == _UNREAD), -1, 0)
    for row in np.flatnonzero(numbers).tolist():
        why = "holds strings, which are not read" if codes[row] == _STRING else "cannot be read: its type or its fields"
        what = f"initialiser {_name(columns, row)} {why}"
        options.tolerate(errors.UnsupportedError(what, field="data_type", offset=at.item(row)), warnings)
    if model.files:
        external = codes >= scans.ONNX_EXTERNAL
        runs = np.searchsorted([row for row, *_ in model.files], np.flatnonzero(external), "right") - 1
        numbers[external] = _number_files(source, model, sides, options, warnings)[runs]
    numbers[left_out] = -1
    rows = np.flatnonzero(numbers >= 0)
    if len(rows) < count:
        columns, at, numbers = columns.take(rows), at[rows], numbers[rows]
    files = [source, *(side.source for side in sides.values())]
    table = _SpreadTable(columns, at, max(file.size for file in files), options)
    table.files, table.numbers = files, numbers
    for file in files:
        file.format = "onnx"
    return table


def _number_files(
    source: Source, model: scans.Initialisers, sides: dict[str, Side], options: Options, warnings: list[str]
) -> NDArray[np.int64]:
    """Open the other files that the model names, and return the number of each, from 1 on; -1 for an omitted file."""
    names = [_text(source.pread(at, size), "location", at) for _, at, size, _, _ in model.files]
    locations = list(dict.fromkeys(names))
    options.limits.check("max_shards", len(locations), "number of files with external data")
    missing = [] if options.strict else _missing(source, locations, warnings)
    locations = [name for name in locations if name not in missing]
    sides |= zip(locations, map(Side, _open_all_beside(source, locations)), strict=True)
    for name, (_, _, _, at, size) in zip(names, model.files, strict=True):
        if size and name in sides:
            options.limits.check("max_header_bytes", size, "size of a checksum", offset=at)
            sides[name].checksums.add(_text(source.pread(at, size), "checksum", at).lower())
    numbers = {name: number for number, name in enumerate(locations, 1)}
    return np.array([numbers.get(name, -1) for name in names])


def _missing(source: Source, names: Iterable[str], warnings: list[str]) -> set[str]:
    """Return the files with tensors that cannot be opened, and add the reasons to `warnings`."""
    missing = set()
    for name in names:
        try:
            _open_all_beside(source, [name])[0].close()
        except errors.FormatError as error:
            missing.add(name)
            warnings.append(f"{error}: its tensors are left out")
    return missing


# ---------------------------------------------------------------------------------------------------- metadata
SCALARS = {1: "ir_version", 2: "producer_name", 3: "producer_version", 4: "domain", 5: "model_version", 6: "doc_string"}
OPSET, PROPS = 8, 14
# The words for damaged records, and their field.
_RECORDS = "opset_import or metadata_props", "metadata_props"


def _metadata(records: bytes, options: Options) -> dict[str, str]:
    """Return the metadata from these fields."""
    metadata, opsets, props = dict[str, str](), dict[str, str](), dict[str, str]()
    for number, value in fields(records, *_RECORDS):
        if number in SCALARS:
            metadata[SCALARS[number]] = _shown(value, SCALARS[number])
            continue
        pair = dict(fields(value if isinstance(value, bytes) else b"", *_RECORDS))
        key = _shown(pair.get(1, b""), "domain" if number == OPSET else "key")
        if number == OPSET:
            _add(opsets, f"opset_import.{key}" if key else "opset_import", _shown(pair.get(2, 0), "version"), options)
        else:
            _add(props, key, _shown(pair.get(2, b""), "value"), options)
    metadata |= opsets
    return metadata | {f"metadata_props.{key}" if key in metadata else key: text for key, text in props.items()}


def _add(texts: dict[str, str], key: str, text: str, options: Options) -> None:
    if key in texts:
        options.tolerate(errors.LayoutError(f"key {quoted(key)} comes twice", field="metadata_props"), [])
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
        raise errors.FormatError(f"{field} is not UTF-8 ({error.reason})", field=field, offset=at) from None


# ----------------------------------------------------------------------------------------------------
# The errors for faults of an ONNX model, each with its message and field.

# The names of fields, by message and number.
_FIELD_NAMES = {
    MODEL: {
        **SCALARS,
        7: "graph",
        OPSET: "opset_import",
        PROPS: "metadata_props",
        20: "training_info",
        25: "functions",
    },
    GRAPH: {1: "node", 5: "initializer"},
    NODE: {},
    TENSOR: dict(
        enumerate(
            (
                *("dims", "data_type", "segment", "float_data", "int32_data", "string_data", "int64_data", "name"),
                *("raw_data", "double_data", "uint64_data", "doc_string", "external_data", "data_location"),
            ),
            1,
        )
    ),
    ENTRY: dict.fromkeys((1, 2), "external_data"),
}
_CODES = ", ".join(f"{code} {dtype.name}" for code, dtype in enumerate(TYPES) if dtype is not None)
# By fault: the class of the error, its text, and the expected value. With an asterisk, the message leaves out the value
# in the file.
_WORDS: dict[str, tuple[type[errors.FormatError], str, str]] = {
    "END": (errors.LayoutError, "{whole} ends within its field {field}: number of bytes left", "at least {expected}"),
    "VARINT": (errors.FormatError, "{whole}: a number of more than 64 bits*", ""),
    "TAG": (errors.FormatError, "{whole}: tag of a field", "a number from 1 to 2**29 - 1, and a wire type"),
    "KIND": (errors.FormatError, "{whole}: wire type of field {field}", "0, 1, 2 or 5"),
    "WIRE": (errors.FormatError, "{whole}: wire type of {field}", "{expected}"),
    "DIM": (errors.LayoutError, "{whole}: a dimension", "0 or more"),
    "NAME": (errors.FormatError, "{whole}: bytes of its name", "1 to {expected}"),
    "NAMES": (errors.LimitError, "bytes of all names", "at most {expected} (Limits.max_header_bytes)"),
    "KEPT": (errors.LimitError, "bytes of metadata", "at most {expected} (Limits.max_header_bytes)"),
    "TWICE": (errors.LayoutError, "{whole} has data in {field} and in {other}*", ""),
    "FIELD": (errors.LayoutError, "{whole}: data_type of a tensor with {field}", "a type that this field holds"),
    "PACKED": (errors.LayoutError, "{whole}: bytes of {field}", "a multiple of {expected}"),
    "COUNT": (errors.LayoutError, "{whole}: bytes of {field}", "bytes of {expected} numbers, by dims and data_type"),
    "NUMBER": (errors.LayoutError, "{whole}: a number in {field}", "one of {expected} bits"),
    "SEGMENT": (errors.UnsupportedError, "{whole} is in segments, which are not read*", ""),
    "LOCATION": (errors.UnsupportedError, "{whole}: data_location", "0 (here) or 1 (external)"),
    "DECIMAL": (errors.FormatError, "{whole}: its offset or length*", "1 to {expected} decimal digits"),
    "PATH": (errors.LayoutError, "{whole}: bytes of its location", "1 to {expected}"),
    "GRAPH": (errors.TruncatedError, "the file ends before the graph of the model*", ""),
    "CAPACITY": (errors.LimitError, "number of initialisers", "at most {expected} (Limits.max_tensors)"),
    "TABLE_NDIM": (errors.LimitError, "{whole}: number of dimensions", "at most {expected}"),
    "TABLE_DTYPE": (errors.UnsupportedError, "{whole}: data_type", f"one of {_CODES}"),
}
_FIELD_OF = {"PATH": "location", "CAPACITY": "max_tensors"}


def error_of(
    fault: Fault, message: int, number: int, source: Source, tensor: str = ""
) -> errors.TensorFileError | OSError:
    """Return the error for a fault in a message, at the field with this number."""
    kind, at, names = fault.kind.removeprefix("ONNX_"), fault.at, _FIELD_NAMES[message]
    field = _FIELD_OF.get(kind, names.get(number, str(number)))
    if kind == "READ":
        return OSError(fault.actual, os.strerror(fault.actual), source.name) if fault.actual else shrank(at)
    if kind == "END" and message == MODEL:
        return cut_off(f"field {field} of the model", source.size, at + fault.expected, field=field)
    tensor = tensor or f"initialiser {fault.row}"
    whole = ("the model", "the graph", tensor, f"external_data of {tensor}", "a node")[message]
    cls, what, expected = _WORDS[kind]
    words = {"whole": whole, "field": field, "other": names.get(fault.actual, ""), "expected": fault.expected}
    actual = None if what.endswith("*") else fault.actual - (fault.actual >> 63 << 64)
    what, expectation = what.rstrip("*").format(**words), expected.format(**words) or None
    return cls(what, field=field, offset=at, actual=actual, expected=expectation)


# ----------------------------------------------------------------------------------------------------
# The checks of `TensorFile.verify` for an ONNX model: its fields again, decoded tensors, checksums of other files.


def verify(
    model: scans.Initialisers, sides: dict[str, Side], metadata: Callable[[], object], run: Verification
) -> None:
    """Check that the fields have not changed since opening, and compare side files with their SHA-1."""
    source = run.source
    if _contents(scan(source, run.options)) != _contents(model):
        raise errors.FileChangedError("its fields changed after it was opened", path=source.name)
    metadata()
    run.checked("fields and metadata")
    columns = model.columns
    table = InitialiserTable(columns, model.at, source.size, run.options)
    table.belongs_to(source, "onnx")
    marks = columns.array(columns.dtype, columns.count, "u1") & scans.ONNX_MADE
    decoded = np.flatnonzero(marks).tolist()
    for i in decoded:
        row = table.row(i)
        assert row.geometry is not None  # noqa: S101 - for the type checker
        run.until(columns.end[i])
        row.geometry.array(row)
    if decoded:
        run.checked(f"numbers of {counted(len(decoded), 'tensor')}")
    run.until(source.size)
    summed = [side for side in sides.values() if side.checksums]
    for side in summed:
        _check_sum(run, side)
    if summed:
        run.checked(f"SHA-1 of {counted(len(summed), 'file')}")
    run.finish()


def _check_sum(run: Verification, side: Side) -> None:
    run.turn(side.source)
    import hashlib  # noqa: PLC0415 - with OpenSSL it takes as long as all else of opening, and few models have checksums

    digest = hashlib.sha1(usedforsecurity=False)
    for piece in run.chunks(0, side.source.size):
        digest.update(piece)
    for checksum in side.checksums - {digest.hexdigest()}:
        what, expected = "its SHA-1 in the model", f"{digest.hexdigest()}, computed from its bytes"
        raise errors.ChecksumError(
            what, path=side.source.name, field="checksum", actual=quoted(checksum), expected=expected
        )


def _contents(model: scans.Initialisers) -> tuple[Any, ...]:
    """Return the content of the fields, for comparison."""
    return *model.columns.content(), model.at.tobytes(), model.files, model.fields


FORMAT = Format(
    name="onnx", title="ONNX", suffixes=(".onnx",), layouts=("onnx",), parse=parse, sniff=is_onnx, leads=b"\x08"
)
