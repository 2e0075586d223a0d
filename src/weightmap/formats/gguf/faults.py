"""Turns faults of the GGUF scan into errors with a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.errors import FormatError, LayoutError, LimitError, Remedy, UnsupportedError, cut_off, quoted, too_many

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap import native
    from weightmap.io.source import Source
    from weightmap.options import Options

_HINT = "(was the download complete?)"
_LENIENT = Remedy("{} reads the other tensors, and shows the bytes of this one", "strict", value=False)
# For each kind of fault: the class of the error, what is wrong, its field (if any), and what was expected.
_WORDS: dict[str, tuple[type[FormatError], str, str, str]] = {
    "GGUF_KEY": (FormatError, "length of its key", "key", "at most {}"),
    "GGUF_KEY_UTF8": (FormatError, "its key is not UTF-8", "key", ""),
    "GGUF_TYPE": (UnsupportedError, "type of a value", "value_type", "less than {}"),
    "GGUF_BOOL": (FormatError, "a bool", "value", "0 or 1"),
    "GGUF_UTF8": (FormatError, "its value is not UTF-8", "value", ""),
    "GGUF_DEPTH": (LimitError, "depth of nested arrays", "value", "at most {}"),
    "GGUF_BLOCK": (LayoutError, "its first dimension", "dimensions", "a multiple of {}, the elements of a block"),
    "TABLE_NDIM": (FormatError, "n_dimensions", "n_dimensions", "0 to {}"),
    "TABLE_DTYPE": (UnsupportedError, "type", "type", "one of {types}"),
    "TABLE_OVERFLOW": (LayoutError, "the product of its shape exceeds 2**63 - 1 bytes", "dimensions", ""),
    "TABLE_RANGE": (LayoutError, "offset", "offset", "at most {}, or the end of the tensor overflows"),
}


def check(
    fault: native.Fault,
    scan: native.GGUFHeader,
    data: bytes | bytearray,
    source: Source,
    options: Options,
    types: Mapping[int, str],
    *,
    of_tensors: bool,
) -> None:
    """Raise the error for a fault of a scan that knows `types`, by their codes.

    Keys with colliding hashes are compared first: they may all differ.
    """
    kind, at, actual, expected = fault.kind, fault.at, fault.actual, fault.expected
    if kind == "NAME_FLOOD":
        first, second = _repeated(data, scan)
        if second < 0:
            return
        raise _twice(data, scan, first, second)
    if kind == "NAME_DUPLICATE":
        raise _twice(data, scan, expected, fault.row)
    if kind in ("GGUF_END", "GGUF_COUNT"):
        wanted = at + (expected if kind == "GGUF_END" else actual)
        if scan.limit < source.size and wanted <= source.size:
            # A count tells only the least size of the items: the header needs at least one byte more than the limit.
            most = max(wanted, scan.limit + 1)
            options.limits.check("max_header_bytes", most, "size of the header (or more)", offset=at)
            raise LimitError(
                "size of the header", offset=at, actual=most, expected=f"at most {scan.limit}, for 32-bit positions"
            )
    label = f"tensor info {fault.row}" if of_tensors else _label(data, scan, fault)
    known = ", ".join(f"{code} {name}" for code, name in types.items())
    raise _error(fault, label, source.size, known, field="tensor_infos" if of_tensors else "metadata_kv")


def _error(fault: native.Fault, label: str, size: int, types: str, field: str) -> FormatError:
    if fault.kind == "GGUF_END":
        return cut_off(f"{label} {_HINT}", size, fault.at + fault.expected, field=field)
    if fault.kind == "GGUF_COUNT":
        what = f"the file ends within {label} {_HINT}: a count or length"
        return too_many(what, fault.actual, fault.expected, field=field, offset=fault.at)
    cls, what, its_field, expected = _WORDS.get(fault.kind, (FormatError, "the header is damaged", "", ""))
    error = cls(f"{label}: {what}", field=its_field or field, offset=fault.at)
    if expected:
        error.actual, error.expected = fault.actual, expected.format(fault.expected, types=types)
    if fault.kind == "TABLE_DTYPE" and fault.expected:  # not strict, and more types than a table tells apart
        error.expected = f"one of {types}, or of at most {fault.expected} others"
    elif fault.kind == "TABLE_DTYPE":
        error.remedy = _LENIENT
    return error


def _label(data: bytes | bytearray, scan: native.GGUFHeader, fault: native.Fault) -> str:
    """Name a key-value by its number, and by its key if that can be read."""
    label = f"key-value {fault.row}"
    width = 4 if scan.version == 1 else 8
    begin = scan.pos + width
    length = int.from_bytes(data[scan.pos : begin], "big" if scan.big else "little")
    if fault.at < begin + length:
        return label
    return f"{label}, {quoted(data[begin : begin + length].decode(errors='replace'))}"


def _repeated(data: bytes | bytearray, scan: native.GGUFHeader) -> tuple[int, int]:
    """Return the numbers of the first two equal keys, or (-1, -1); Python's hashes cannot be forced to collide."""
    seen: dict[bytes, int] = {}
    for row, (first, last) in enumerate(scan.keys().tolist()):
        other = seen.setdefault(bytes(data[first:last]), row)
        if other != row:
            return other, row
    return -1, -1


def _twice(data: bytes | bytearray, scan: native.GGUFHeader, first: int, second: int) -> LayoutError:
    begin, end = scan.keys()[second].tolist()
    key = quoted(bytes(data[begin:end]).decode(errors="replace"))
    what = f"key-values {first} and {second} both have the key {key}"
    return LayoutError(what, field="key", offset=begin - (4 if scan.version == 1 else 8))
