"""safetensors: ``u64 n | JSON header of n bytes | data``, all little-endian. Where the weights of today live.

The header is one JSON object, ``{`` at its first byte, padded with spaces (0x20)::

    {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

* n is at most 100,000,000; a header that begins before 10 bytes are there is none.
* ``data_offsets`` count from the first byte after the header. Sorted by them, the tensors follow each other from 0 to
  the end of the file without overlap and without a hole.
* ``dtype``: BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32
  C64 F64 I64 U64. F4 and F6 pack elements below the byte: they are listed, and numpy cannot view them.
* ``__metadata__`` maps strings to strings.

Ours
----
* Repeated keys are errors (safetensors 0.8.0 accepts them), and so are unknown keys in a tensor's object, numbers that
  are not plain integers, lone surrogates, and anything that is not strict JSON.
* The order of a file is that of its data. Tensors are written as safetensors writes them: larger types first, then by
  name, so that each is naturally aligned; the header is padded to a multiple of 8.
* ``strict=False`` lets trailing bytes, holes and overlaps pass, as warnings.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import numpy as np

from weightmap import kernels, strict_json
from weightmap.dtypes import DTYPES
from weightmap.errors import FormatError, LayoutError, UnsupportedError, quoted
from weightmap.faults import NUMPY_MAX_NDIM
from weightmap.formats._base import Content, Format, Options, Plan, Request, encodable, refuse
from weightmap.formats._framed import LENGTH, MAX_HEADER, check_end, read_header, verifier, writer
from weightmap.table import ColumnTable, Rules, bits_of

if TYPE_CHECKING:
    from weightmap.source import Source

# In the order of safetensors' own list, which is the order of size by which it sorts tensors.
DTYPE_NAMES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn",
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
_DTYPES = tuple(DTYPES[name] for name in DTYPE_NAMES.values())
_BITS = bits_of(_DTYPES)
_FIELDS = b"".join(name.encode().ljust(16, b"\0") for name in DTYPE_NAMES)
# What tables call these two.
_NAMES = {"data_offset": ("data_offsets", 0), "data_size": ("data_offsets", 0)}
_CODE = {canonical: code for code, canonical in enumerate(DTYPE_NAMES.values())}
_THEIRS = {canonical: theirs for theirs, canonical in DTYPE_NAMES.items()}
# Metadata of at most this many bytes is worth remembering, and costs little memory.
_REMEMBERED = 4096


def sniff(head: bytes, size: int) -> bool:
    """Say whether this looks like safetensors: a plausible length, then a JSON object."""
    if size < 10 or head[8:9] != b"{" or head[9:10] not in b'"} \t\n\r':
        return False
    length: int = LENGTH.unpack_from(head)[0]
    return 2 <= length <= MAX_HEADER


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header and return the table of tensors."""
    header = read_header(source, head, options)
    base = LENGTH.size + len(header)
    scanned = kernels.safetensors_scan(header, _FIELDS, options.limits.max_tensors + 1)
    if isinstance(scanned, kernels.Fault):
        if scanned.kind == "CAPACITY":
            options.limits.check("max_tensors", scanned.row, "number of tensors (or more)")
        raise _scan_error(scanned, header)
    columns, found = scanned
    if columns.count > options.limits.max_tensors:
        options.limits.check("max_tensors", columns.count, "number of tensors")
    warnings: list[str] = []

    def locate(row: int) -> int | None:
        again = kernels.safetensors_scan(source.pread(LENGTH.size, base - LENGTH.size), _FIELDS, row)
        return LENGTH.size + again.at if isinstance(again, kernels.Fault) else None

    if found.backwards < columns.count:
        raise _backwards(columns, found.backwards, locate(found.backwards))
    check_end(found.data_end, base, source.size, options, warnings)
    lax = not options.strict
    rules = Rules(_DTYPES, _BITS, base, source.size - base, 0, NUMPY_MAX_NDIM, 1, 0, lax=lax, fields=_NAMES)

    # The order of a file is that of its data; the header may list it otherwise.
    ordered = found.ordered
    table = ColumnTable(columns if ordered else _sorted(columns), rules, utf8=False, locate=locate if ordered else None)
    if options.checked:
        table.check()
    metadata = {}
    if found.metadata_begin:
        raw = header[found.metadata_begin : found.metadata_end]
        parsed = _metadata if len(raw) <= _REMEMBERED else _metadata.__wrapped__
        metadata = parsed(raw, LENGTH.size + found.metadata_begin)
    verify = verifier(header, table, "safetensors")
    has, load = found.metadata_begin != 0, metadata.copy
    return Content("safetensors", table, load_metadata=load, has_metadata=has, verify=verify, warnings=warnings)


def _backwards(columns: kernels.Columns, row: int, at: int | None) -> LayoutError:
    first, end = columns.bounds[row], columns.bounds[row + 1]
    what = f"tensor {quoted(columns.text()[first:end].decode())}: data_offsets"
    actual = [columns.begin[row], columns.end[row]]
    return LayoutError(what, field="data_offsets", offset=at, actual=actual, expected="begin <= end")


def _sorted(columns: kernels.Columns) -> kernels.Columns:
    """Return the columns in the order of the data."""
    n = columns.count
    begin, end = columns.array(columns.begin, n, "<u8"), columns.array(columns.end, n, "<u8")
    return columns.take(np.lexsort((end, begin)))


@functools.lru_cache(maxsize=32)
def _metadata(raw: bytes, at: int) -> dict[str, str]:
    """Return the metadata. Most files have the same few bytes there, so the last ones parsed are remembered."""
    metadata = strict_json.loads(raw, "__metadata__", offset=at)
    for key, value in metadata.items():
        if not isinstance(value, str):
            what = f"__metadata__: value of {quoted(key)}"
            raise FormatError(what, field="__metadata__", offset=at, actual=type(value).__name__, expected="a string")
    return metadata


_WORDS = {
    "JSON_SYNTAX": "the header is not valid JSON",
    "JSON_UTF8": "a string of the header is not UTF-8",
    "JSON_SURROGATE": "a string of the header has a lone surrogate",
    "JSON_KEY": "a tensor has an unknown or repeated key",
    "JSON_MISSING": "a tensor lacks one of dtype, shape and data_offsets",
    "JSON_NUMBER": "a number of the header is not an integer from 0 to 2**64 - 1",
    "JSON_TRAILING": "something other than spaces follows the header's JSON object",
    "JSON_METADATA": "__metadata__ is repeated, is not an object or is nested too deeply",
    "CAPACITY": "the header lists more tensors or dimensions than its size allows",
    "DIMS": "a tensor has more than 255 dimensions",
}


def _scan_error(fault: kernels.Fault, header: bytes) -> FormatError:
    kind = fault.kind
    if kind == "JSON_DTYPE":
        found = header[fault.at : fault.at + 24].split(b'"')[1:2]
        actual = repr(found[0].decode(errors="replace")) if found else "unknown"
        expected = f"one of {', '.join(DTYPE_NAMES)}"
        return UnsupportedError(
            f"dtype of tensor {fault.row}", field="dtype", offset=8 + fault.at, actual=actual, expected=expected
        )
    return FormatError(_WORDS.get(kind, "the header is damaged"), field="header", offset=8 + fault.at)


# ------------------------------------------------------------------------------------------------------- writing
def plan(request: Request) -> Plan:
    """Lay out a safetensors file."""
    reasons = []
    for tensor in request.tensors:
        if tensor.dtype.name not in _CODE:
            reasons.append(f"tensor {tensor.name!r}: dtype {tensor.dtype.name}")
        if tensor.name == "__metadata__":
            reasons.append("tensor '__metadata__': the name is taken")
        if not encodable(tensor.name):
            reasons.append(f"tensor {tensor.name!r}: its name is not Unicode text")
    metadata = request.metadata
    if metadata is not None:
        for key, value in metadata.items():
            if not (isinstance(key, str) and isinstance(value, str) and encodable(key) and encodable(value)):
                reasons.append(f"metadata {key!r}: keys and values must be strings")
    if reasons:
        refuse("safetensors", reasons)
    ordered = sorted(request.tensors, key=lambda tensor: (-_CODE[tensor.dtype.name], tensor.name.encode()))
    compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    # Entry by entry: a dictionary of a dictionary for each tensor would take longer to make than to encode.
    entries = [] if metadata is None else [f'"__metadata__":{compact(dict(sorted(metadata.items())))}']
    offset = 0
    for tensor in ordered:
        name, code, shape = compact(tensor.name), _THEIRS[tensor.dtype.name], ",".join(map(str, tensor.shape))
        end = offset + tensor.nbytes
        entries.append(f'{name}:{{"dtype":"{code}","shape":[{shape}],"data_offsets":[{offset},{end}]}}')
        offset = end
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        refuse("safetensors", [f"a header of {len(text)} bytes, more than {MAX_HEADER}"])
    return Plan(LENGTH.size + len(text) + offset, writer(text, ordered))


FORMAT = Format(
    name="safetensors",
    title="safetensors",
    suffixes=(".safetensors",),
    layouts=("safetensors",),
    sniff=sniff,
    parse=parse,
    plan=plan,
    carries={"safetensors": frozenset({"metadata"})},
    dtypes={"safetensors": frozenset(_CODE)},
    text_metadata=True,
)
