"""The errors for faults that scans of archives find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.errors import FormatError, LayoutError, UnsupportedError, shrank

if TYPE_CHECKING:
    from weightmap.io.source import Source
    from weightmap.native import Fault

_CENTRAL = b"PK\1\2"
# Refused entries: encrypted ones (0) and, by WM_ZIP_ constants, those with a name that readers may take differently.
_ANEW = "write the archive anew, as numpy.savez, torch.save and Python's zipfile do"
_REFUSED: dict[int, tuple[type[FormatError], str, str]] = {
    0: (UnsupportedError, "flags", "entry {} is encrypted"),
    1: (LayoutError, "name", "the name of entry {} contains a zero byte, where other readers end it"),
    2: (UnsupportedError, "name", f"the name of entry {{}} is neither ASCII nor marked as UTF-8 (flag 0x800): {_ANEW}"),
    3: (UnsupportedError, "name", f"entry {{}} has a second name, in an extra field (0x7075): {_ANEW}"),
}


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
    if kind in ("ZIP_ENCRYPTED", "ZIP_NAME"):
        error, field, what = _REFUSED[actual]
        return error(what.format(row), field=field, offset=begin + at)
    return FormatError(f"the central directory is damaged ({kind})", offset=begin + at)
