"""The errors for faults that scans of archives find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.errors import FormatError, LayoutError, UnsupportedError, shrank

if TYPE_CHECKING:
    from weightmap.io.source import Source
    from weightmap.kernels import Fault

__all__ = ["error_of"]

_CENTRAL = b"PK\1\2"


def _in_directory(row: int, signature: bytes, at: int, actual: int, expected: int) -> LayoutError:
    """Return the error for a damaged entry of the central directory."""
    field, entry = "central directory", f"entry {row} of the central directory"
    if signature != _CENTRAL:
        return LayoutError(
            f"signature of {entry}", field=field, offset=at, actual=repr(signature), expected=repr(_CENTRAL)
        )
    if actual > expected > 0:
        what = f"bytes of name, extra field and comment of {entry}"
        return LayoutError(what, field=field, offset=at, actual=actual, expected=f"at most {expected}, where it ends")
    return LayoutError(f"{entry} is damaged", field=field, offset=at)


def error_of(fault: Fault, begin: int, source: Source) -> FormatError | OSError:
    """Return the error for a fault of a scan; the central directory begins at `begin`."""
    kind, row, at, actual, expected = fault.kind, fault.row, fault.at, fault.actual, fault.expected
    if kind == "ZIP_READ":
        return OSError(actual, f"entry {row} cannot be read", source.name) if actual else shrank(at)
    if kind == "ZIP_DIRECTORY":
        return _in_directory(row, source.pread(begin + at, len(_CENTRAL)), begin + at, actual, expected)
    if kind == "ZIP_HEADER":
        parts = "sizes or CRC-32" if actual else "signature, name, flags or method"
        what = f"the header of entry {row} and its entry in the central directory differ in {parts}"
        return LayoutError(what, field="local header", offset=at)
    if kind == "ZIP_RANGE":
        what = f"the end of entry {row}"
        return LayoutError(
            what, field="local header offset", actual=actual, expected=f"at most {expected}, where the directory begins"
        )
    if kind == "ZIP_ENCRYPTED":
        return UnsupportedError(f"entry {row} is encrypted", field="flags", offset=begin + at)
    return FormatError(f"the central directory is damaged ({kind})", offset=begin + at)
