"""The text of errors in the header of safetensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weightmap.errors import FormatError, LayoutError, UnsupportedError, quoted, trailing_bytes
from weightmap.formats._cursor import LENGTH
from weightmap.formats.safetensors import DTYPE_NAMES

if TYPE_CHECKING:
    from weightmap import native

# Bytes of the header that a message shows, and bytes before these that it searches for the tensor's name.
_SHOWN, _BEFORE = 24, 4096
_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*(\{|\Z)')
_NUMBER = re.compile(rb"[],} \t\r\n]")
_WORDS = {
    "JSON_UTF8": "a string of the header is not UTF-8",
    "JSON_SURROGATE": "a string of the header has a lone surrogate",
    "JSON_METADATA": "__metadata__ is repeated, is not an object or is nested too deeply",
    "CAPACITY": "the header lists more tensors or dimensions than its size allows",
    "DIMS": "a tensor has more than 255 dimensions",
}


def backwards(columns: native.Columns, row: int, at: int | None) -> LayoutError:
    """Return the error for a tensor whose data ends before it begins; `at` is the place of its entry."""
    first, end = columns.bounds[row], columns.bounds[row + 1]
    what = f"tensor {quoted(columns.text()[first:end].decode())}: data_offsets"
    actual = [columns.begin[row], columns.end[row]]
    return LayoutError(what, field="data_offsets", offset=at, actual=actual, expected="begin <= end")


def scan_error(fault: native.Fault, header: bytes) -> FormatError:
    """Return the error for a fault of the scan."""
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


def _label(fault: native.Fault, header: bytes) -> str:
    """Return the name of the faulty tensor as far as the header shows it, else its number."""
    keys = _NAME.findall(header[max(fault.at - _BEFORE, 0) : fault.at])
    names = [name for name, brace in keys if brace or name not in {b"dtype", b"shape", b"data_offsets"}]
    return f"tensor {quoted(names[-1].decode(errors='replace'))}" if names else f"tensor {fault.row}"


def _string(raw: bytes) -> str:
    """Return the string at the beginning of JSON text, in quotes; "" if there is no whole one."""
    found = raw.split(b'"')[1:2] if raw.count(b'"') > 1 else []
    return repr(found[0].decode(errors="replace")) if found else ""
