"""safetensors: ``u64 n | JSON header of n bytes | data``, all little-endian. Most weights are published in it.

The header is one JSON object, ``{`` at its first byte, padded behind with white space, by most writers with spaces::

    {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

* n is at most 100,000,000, or ``Limits.max_header_bytes``; a file has at least 10 bytes.
* ``data_offsets`` count from the first byte after the header. Sorted by them, the tensors follow each other from 0 to
  the end of the file without overlap or hole.
* ``dtype``: BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32
  C64 F64 I64 U64. F4 and F6 pack elements below the byte, the first one in the lowest bits: ``f[name]`` has their
  bytes, and `read` their values.
* ``__metadata__`` maps strings to strings. null is not metadata: mlx writes it.
* Keys in a tensor's object besides these three mean nothing: they are skipped, with a warning that names the first one.

Ours
----
* Repeated keys are errors (safetensors 0.8.0 accepts them), and so are tensors as lists of their three values, numbers
  that are not plain integers, lone surrogates, values nested more than 64 deep, and anything that is not strict JSON.
* Elements below the byte that fill no whole bytes are read, with the rest of their last byte unused. safetensors reads
  no such tensors, and none are written.
* Tensors are listed in the order of their data. They are written as safetensors writes them: larger types first, then
  by name, so that each is naturally aligned; the header is padded to a multiple of 8. With ``align=``, the data
  begins at a multiple of that in the file, and tensors whose size is a multiple come first.
* ``weightmap.types`` in the metadata, from `convert`, records the types of texts before: see `conversion.metadata`.
* `convert` adds ``"format": "pt"`` to the metadata of a model of Hugging Face: accelerate refuses metadata without.
* ``strict=False`` tolerates trailing bytes, holes and overlaps, as warnings.
* A file that one rank of ``torch.distributed.checkpoint`` saved (``HuggingFaceStorageWriter(save_distributed=True)``)
  opens as it is, with a warning that its tensors are parts of larger ones. The files of all ranks are not a sharded
  model.
"""

from __future__ import annotations

import functools
import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap._messages import counted, quoted
from weightmap.core.dtypes import DTYPES
from weightmap.core.faults import trailing_bytes
from weightmap.core.formats import is_safetensors
from weightmap.core.formats._base import CONSOLIDATE, LENGTH, Content, Format, read_header, trailing, verifier
from weightmap.core.hooks import later
from weightmap.core.native import access, scans
from weightmap.core.table import Rules
from weightmap.core.table.columns import ColumnTable
from weightmap.errors import FormatError, LayoutError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source

# In the order of safetensors' own list, by which it sorts tensors: from small to large.
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


_FIELDS = b"".join(name.encode().ljust(16, b"\0") for name in DTYPE_NAMES)
# Only metadata need a JSON parser in Python, whose import takes a tenth of the package's.
_loads: Callable[..., dict[str, Any]] = later("weightmap.core.bytes.strict_json", "loads")
_kind_of: Callable[..., str] = later("weightmap.core.bytes.strict_json", "kind_of")
# The key of torch.distributed.checkpoint for the indices at which a file's parts of tensors begin; and the names of
# files with whole tensors, which one rank saves for all.
_SHARDING, _WHOLE = "DCP_SHARDING_INFO", "model-"
_MAX_NDIM = 255
# Most bytes of metadata that are cached: many files share short metadata, and it costs little memory.
_REMEMBERED = 4096


class _Rules(Rules):
    __slots__ = ()
    dtypes = tuple(DTYPES[name] for name in DTYPE_NAMES.values())
    fields = MappingProxyType({"data_offset": ("data_offsets", 0), "data_size": ("data_offsets", 0)})


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header and return the table of tensors."""
    header = read_header(source, head, options)
    base = LENGTH.size + len(header)
    scanned = scans.scan_json(header, _FIELDS, options.limits.max_tensors + 1)
    if isinstance(scanned, access.Fault):
        if scanned.kind == "CAPACITY":
            options.limits.check("max_tensors", scanned.row, "number of tensors (or more)")
        raise scan_error(scanned, header)
    columns, scan = scanned
    options.limits.check("max_tensors", columns.count, "number of tensors")
    warnings: list[str] = [] if not scan.undefined_keys else [undefined_keys(header, scan)]
    rules = _Rules(base, source.size, lax=not options.strict)

    def locate(row: int) -> int | None:
        again = scans.scan_json(source.pread(LENGTH.size, base - LENGTH.size), _FIELDS, row)
        return LENGTH.size + again.at if isinstance(again, access.Fault) else None

    if scan.backwards < columns.count:
        raise backwards(columns, scan.backwards, locate(scan.backwards))
    trailing(source, base + scan.data_end, options, warnings, "data_offsets")
    # The header may list tensors in another order than their data.
    ordered = scan.ordered
    in_order = columns if ordered else columns.take(columns.order())
    table = ColumnTable(in_order, rules, utf8=False, locate=locate if ordered else None)
    if options.checked:
        table.check()
    metadata = {}
    if scan.metadata_begin:
        raw = header[scan.metadata_begin : scan.metadata_end]
        parsed = _metadata if len(raw) <= _REMEMBERED else _metadata.__wrapped__
        metadata = parsed(raw, LENGTH.size + scan.metadata_begin)
        if _SHARDING in metadata:
            warnings += _of_rank(metadata[_SHARDING], source.name)
    verify = verifier(header, table)
    content = Content("safetensors", table, metadata.copy, verify, warnings)
    content.has_metadata = content.may_hold_frames = scan.metadata_begin != 0
    return content


@functools.lru_cache(maxsize=32)
def _metadata(raw: bytes, at: int) -> dict[str, str]:
    """Return the metadata. The last few are cached, because many files have the same."""
    metadata = _loads(raw, "__metadata__", offset=at)
    for key, value in metadata.items():
        if not isinstance(value, str):
            what, actual = f"__metadata__: value of {quoted(key)}", _kind_of(value)
            raise FormatError(what, field="__metadata__", offset=at, actual=actual, expected="a string")
    return metadata


def _of_rank(sharding: str, path: str) -> list[str]:
    """Return the warnings for a file saved by a rank, from its `DCP_SHARDING_INFO`.

    A rank that saves the beginnings of tensors, and one that saves all of them, write the same.
    """
    try:
        parts = _loads(sharding.encode(), _SHARDING)
    except FormatError:
        parts = {}
    offsets = ((name, part.get("saved_offsets") if isinstance(part, dict) else None) for name, part in parts.items())
    example = next((f"{quoted(name)} begins at {at} of its tensor" for name, at in offsets if _is_inside(at)), None)
    if example is None and os.path.basename(path).startswith(_WHOLE):
        return []
    kind = "may be parts of larger ones" if example is None else f"are parts of larger ones ({example})"
    return [f"a rank of torch.distributed.checkpoint saved this file, and its tensors {kind}: {CONSOLIDATE}"]


def _is_inside(offsets: object) -> bool:
    return isinstance(offsets, list) and len(offsets) <= _MAX_NDIM and any(type(at) is int and at for at in offsets)


# ----------------------------------------------------------------------------------------------------
# The text of errors in the header of safetensors.

# Bytes of the header that a message shows, and bytes before these that it searches for the tensor's name.
_SHOWN, _BEFORE = 24, 4096
_NAME = rb'"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*(\{|\Z)'
_KEYS = {b"dtype", b"shape", b"data_offsets"}
_LIST = rb'"(shape|data_offsets)"[ \t\r\n]*:'
_NUMBER = rb"[],} \t\r\n]"
_WORDS = {
    "JSON_UTF8": "a string of the header is not UTF-8",
    "JSON_SURROGATE": "a string of the header has a lone surrogate",
    "JSON_METADATA": "__metadata__ is repeated or is not an object, or a value of the header is nested too deeply",
    "CAPACITY": "the header lists more tensors or dimensions than its size allows",
    "DIMS": "a tensor has more than 255 dimensions",
}


def backwards(columns: scans.Columns, row: int, at: int | None) -> LayoutError:
    """Return the error for a tensor whose data ends before it begins; `at` is the place of its entry."""
    first, end = columns.bounds[row], columns.bounds[row + 1]
    what = f"tensor {quoted(columns.text()[first:end].decode())}: data_offsets"
    actual = [columns.begin[row], columns.end[row]]
    return LayoutError(what, field="data_offsets", offset=at, actual=actual, expected="begin <= end")


def scan_error(fault: access.Fault, header: bytes) -> FormatError:
    """Return the error for a fault of the scan."""
    kind, at = fault.kind, LENGTH.size + fault.at
    if kind == "JSON_TRAILING":
        return trailing_bytes(len(header), fault.at, field="header", offset=at, whole="the header")
    label, tail = _label(fault.at, fault.row, header), header[fault.at : fault.at + _SHOWN]
    if kind == "JSON_DTYPE":
        name, requirement = _string(tail) or "unknown", f"one of {', '.join(DTYPE_NAMES)}"
        return UnsupportedError(f"dtype of {label}", field="dtype", offset=at, actual=name, expected=requirement)
    keys = "dtype, shape and data_offsets, each once"
    words: dict[str, tuple[str, str | None, str]] = {
        "JSON_SYNTAX": (
            f"JSON of the header, in {label},",
            repr(tail),
            "an object with dtype, shape and data_offsets for each tensor",
        ),
        "JSON_KEY": (f"a key of {label}", _string(tail) or repr(tail), keys),
        "JSON_MISSING": (f"{label} lacks a key", None, keys),
        "JSON_NUMBER": (
            f"a number in {_list(fault.at, header)} of {label}",
            repr(re.split(_NUMBER, tail, maxsplit=1)[0]),
            "an integer from 0 to 2**64 - 1",
        ),
    }
    if kind == "JSON_SYNTAX" and not tail:
        return FormatError(f"the header ends before its JSON does, in {label}", field="header", offset=at)
    if kind not in words:
        return FormatError(_WORDS.get(kind, "the header is damaged"), field="header", offset=at)
    what, actual, expected = words[kind]
    return FormatError(what, field="header", offset=at, actual=actual, expected=expected)


def undefined_keys(header: bytes, scan: Any) -> str:
    """Return the warning for the keys of tensors' objects that the format does not define."""
    at, count = scan.undefined_at, scan.undefined_keys
    first = f"{_string(header[at : at + _BEFORE]) or 'a long one'} of {_label(at, -1, header)}"
    return f"{counted(count, 'key')} of tensors that the format does not define, left out: the first is {first}"


def _label(at: int, row: int, header: bytes) -> str:
    """Return the tensor whose entry includes this place: its name if the bytes before show it, else its number."""
    keys = re.findall(_NAME, header[max(at - _BEFORE, 0) : at])
    names = [name for name, brace in keys if brace or name not in _KEYS]
    return f"tensor {quoted(names[-1].decode(errors='replace'))}" if names else f"tensor {row}"


def _list(at: int, header: bytes) -> str:
    """Return the key of the list that the number at this place is in."""
    keys = re.findall(_LIST, header[max(at - _BEFORE, 0) : at])
    return keys[-1].decode() if keys else "a list"


def _string(raw: bytes) -> str:
    """Return the string at the beginning of JSON text, in quotes; "" if there is no whole one."""
    pieces = raw.split(b'"')[1:2] if raw.count(b'"') > 1 else []
    return repr(pieces[0].decode(errors="replace")) if pieces else ""


FORMAT = Format(
    name="safetensors",
    title="safetensors",
    suffixes=(".safetensors",),
    layouts=("safetensors",),
    sniff=is_safetensors,
    parse=parse,
    plan=later(f"{__name__}.writing", "plan"),
    carries={"safetensors": frozenset({"metadata"})},
    dtypes={"safetensors": frozenset(DTYPE_NAMES.values())},
    aligns={"safetensors": 4096},
    usual_metadata={"format": "pt"},
)
