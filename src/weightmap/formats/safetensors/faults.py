"""The text of errors in the header of safetensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightmap.errors import FormatError, LayoutError, UnsupportedError, counted, quoted, trailing_bytes
from weightmap.formats._cursor import LENGTH
from weightmap.formats.safetensors import DTYPE_NAMES

if TYPE_CHECKING:
    from weightmap import native

# Bytes of the header that a message shows, and bytes before these that it searches for the tensor's name.
_SHOWN, _BEFORE = 24, 4096
_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*(\{|\Z)')
_KEYS = {b"dtype", b"shape", b"data_offsets"}
_LIST = re.compile(rb'"(shape|data_offsets)"[ \t\r\n]*:')
_NUMBER = re.compile(rb"[],} \t\r\n]")
_WORDS = {
    "JSON_UTF8": "a string of the header is not UTF-8",
    "JSON_SURROGATE": "a string of the header has a lone surrogate",
    "JSON_METADATA": "__metadata__ is repeated or is not an object, or a value of the header is nested too deeply",
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
    label, rest = _label(fault.at, fault.row, header), header[fault.at : fault.at + _SHOWN]
    if kind == "JSON_DTYPE":
        name, known = _string(rest) or "unknown", f"one of {', '.join(DTYPE_NAMES)}"
        return UnsupportedError(f"dtype of {label}", field="dtype", offset=at, actual=name, expected=known)
    keys = "dtype, shape and data_offsets, each once"
    words: dict[str, tuple[str, str | None, str]] = {
        "JSON_SYNTAX": (
            f"JSON of the header, in {label},",
            repr(rest),
            "an object with dtype, shape and data_offsets for each tensor",
        ),
        "JSON_KEY": (f"a key of {label}", _string(rest) or repr(rest), keys),
        "JSON_MISSING": (f"{label} lacks a key", None, keys),
        "JSON_NUMBER": (
            f"a number in {_list(fault.at, header)} of {label}",
            repr(_NUMBER.split(rest, 1)[0]),
            "an integer from 0 to 2**64 - 1",
        ),
    }
    if kind == "JSON_SYNTAX" and not rest:
        return FormatError(f"the header ends before its JSON does, in {label}", field="header", offset=at)
    if kind not in words:
        return FormatError(_WORDS.get(kind, "the header is damaged"), field="header", offset=at)
    what, actual, expected = words[kind]
    return FormatError(what, field="header", offset=at, actual=actual, expected=expected)


def undefined_keys(header: bytes, found: Any) -> str:
    """Return the warning for the keys of tensors' objects that the format does not define."""
    at, count = found.undefined_at, found.undefined_keys
    first = f"{_string(header[at : at + _BEFORE]) or 'a long one'} of {_label(at, -1, header)}"
    return f"{counted(count, 'key')} of tensors that the format does not define, left out: the first is {first}"


def _label(at: int, row: int, header: bytes) -> str:
    """Return the name of the tensor at this place as far as the header shows it, else its number."""
    keys = _NAME.findall(header[max(at - _BEFORE, 0) : at])
    names = [name for name, brace in keys if brace or name not in _KEYS]
    return f"tensor {quoted(names[-1].decode(errors='replace'))}" if names else f"tensor {row}"


def _list(at: int, header: bytes) -> str:
    """Return the key of the list that the number at this place is in."""
    keys = _LIST.findall(header[max(at - _BEFORE, 0) : at])
    return keys[-1].decode() if keys else "a list"


def _string(raw: bytes) -> str:
    """Return the string at the beginning of JSON text, in quotes; "" if there is no whole one."""
    found = raw.split(b'"')[1:2] if raw.count(b'"') > 1 else []
    return repr(found[0].decode(errors="replace")) if found else ""
