"""Reading safetensors: from the header to the table of tensors."""

from __future__ import annotations

import functools
import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from weightmap import kernels
from weightmap.dtypes import DTYPES
from weightmap.errors import FormatError, LayoutError, UnsupportedError, quoted, trailing_bytes
from weightmap.formats._base import Content, trailing
from weightmap.formats._cursor import LENGTH, read_header, verifier
from weightmap.formats.safetensors import DTYPE_NAMES
from weightmap.index import Rules
from weightmap.index.columns import ColumnTable
from weightmap.io import strict_json

if TYPE_CHECKING:
    from weightmap.io.source import Source
    from weightmap.options import Options

_FIELDS = b"".join(name.encode().ljust(16, b"\0") for name in DTYPE_NAMES)
# Most bytes of metadata that are remembered: many files share such metadata, and it costs little memory.
_REMEMBERED = 4096


class _Rules(Rules):
    __slots__ = ()
    dtypes = tuple(DTYPES[name] for name in DTYPE_NAMES.values())
    fields = MappingProxyType({"data_offset": ("data_offsets", 0), "data_size": ("data_offsets", 0)})


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header and return the table of tensors."""
    header = read_header(source, head, options)
    base = LENGTH.size + len(header)
    scanned = kernels.scan_json(header, _FIELDS, options.limits.max_tensors + 1)
    if isinstance(scanned, kernels.Fault):
        if scanned.kind == "CAPACITY":
            options.limits.check("max_tensors", scanned.row, "number of tensors (or more)")
        raise _scan_error(scanned, header)
    columns, found = scanned
    if columns.count > options.limits.max_tensors:
        options.limits.check("max_tensors", columns.count, "number of tensors")
    warnings: list[str] = []
    rules = _Rules(base, source.size, lax=not options.strict)

    def locate(row: int) -> int | None:
        again = kernels.scan_json(source.pread(LENGTH.size, base - LENGTH.size), _FIELDS, row)
        return LENGTH.size + again.at if isinstance(again, kernels.Fault) else None

    if found.backwards < columns.count:
        raise _backwards(columns, found.backwards, locate(found.backwards))
    trailing(source, base + found.data_end, options, warnings, "data_offsets")
    # The header may list tensors in another order than their data.
    ordered = found.ordered
    in_order = columns if ordered else columns.take(columns.order())
    table = ColumnTable(in_order, rules, utf8=False, locate=locate if ordered else None)
    if options.checked:
        table.check()
    metadata = {}
    if found.metadata_begin:
        raw = header[found.metadata_begin : found.metadata_end]
        parsed = _metadata if len(raw) <= _REMEMBERED else _metadata.__wrapped__
        metadata = parsed(raw, LENGTH.size + found.metadata_begin)
    verify = verifier(header, table)
    content = Content("safetensors", table, metadata.copy, verify, warnings)
    content.has_metadata = found.metadata_begin != 0
    return content


def _backwards(columns: kernels.Columns, row: int, at: int | None) -> LayoutError:
    first, end = columns.bounds[row], columns.bounds[row + 1]
    what = f"tensor {quoted(columns.text()[first:end].decode())}: data_offsets"
    actual = [columns.begin[row], columns.end[row]]
    return LayoutError(what, field="data_offsets", offset=at, actual=actual, expected="begin <= end")


@functools.lru_cache(maxsize=32)
def _metadata(raw: bytes, at: int) -> dict[str, str]:
    """Return the metadata. The last few are remembered, because many files have the same."""
    metadata = strict_json.loads(raw, "__metadata__", offset=at)
    for key, value in metadata.items():
        if not isinstance(value, str):
            what, actual = f"__metadata__: value of {quoted(key)}", strict_json.kind_of(value)
            raise FormatError(what, field="__metadata__", offset=at, actual=actual, expected="a string")
    return metadata


_WORDS = {
    "JSON_UTF8": "a string of the header is not UTF-8",
    "JSON_SURROGATE": "a string of the header has a lone surrogate",
    "JSON_METADATA": "__metadata__ is repeated, is not an object or is nested too deeply",
    "CAPACITY": "the header lists more tensors or dimensions than its size allows",
    "DIMS": "a tensor has more than 255 dimensions",
}


def _scan_error(fault: kernels.Fault, header: bytes) -> FormatError:
    kind, at = fault.kind, LENGTH.size + fault.at
    if kind == "JSON_TRAILING":
        return trailing_bytes(len(header), fault.at, field="header", offset=at, whole="the header")
    label, rest = _label(fault, header), header[fault.at : fault.at + _SHOWN]
    if kind == "JSON_DTYPE":
        name, known = _string(rest) or "unknown", f"one of {', '.join(DTYPE_NAMES)}"
        return UnsupportedError(f"dtype of {label}", field="dtype", offset=at, actual=name, expected=known)
    keys = "dtype, shape and data_offsets, each once"
    words: dict[str, tuple[str, str | None, str]] = {
        "JSON_SYNTAX": (
            f"JSON of the header, in {label},",
            repr(rest) if rest else "at its end",
            "an object with dtype, shape and data_offsets for each tensor",
        ),
        "JSON_KEY": (f"a key of {label}", _string(rest) or repr(rest), keys),
        "JSON_MISSING": (f"{label} lacks a key", None, keys),
        "JSON_NUMBER": (f"a number of {label}", repr(_NUMBER.split(rest, 1)[0]), "an integer from 0 to 2**64 - 1"),
    }
    if kind not in words:
        return FormatError(_WORDS.get(kind, "the header is damaged"), field="header", offset=at)
    what, actual, expected = words[kind]
    return FormatError(what, field="header", offset=at, actual=actual, expected=expected)


# Bytes of the header that a message shows, and those before them in which it looks for the name of the tensor.
_SHOWN, _BEFORE = 24, 4096
_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*(\{|\Z)')
_NUMBER = re.compile(rb"[],} \t\r\n]")


def _label(fault: kernels.Fault, header: bytes) -> str:
    """Return the name of the tensor in whose object a fault lies, as far as the header shows it, else its number."""
    keys = _NAME.findall(header[max(fault.at - _BEFORE, 0) : fault.at])
    names = [name for name, brace in keys if brace or name not in {b"dtype", b"shape", b"data_offsets"}]
    return f"tensor {quoted(names[-1].decode(errors='replace'))}" if names else f"tensor {fault.row}"


def _string(raw: bytes) -> str:
    """Return the string that JSON begins with, in quotes; nothing where it begins with no whole one."""
    found = raw.split(b'"')[1:2] if raw.count(b'"') > 1 else []
    return repr(found[0].decode(errors="replace")) if found else ""
