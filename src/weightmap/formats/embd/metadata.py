"""The metadata section of EMBD: keys and values after their lengths."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from weightmap import kernels
from weightmap.errors import FormatError, LayoutError, TruncatedError
from weightmap.formats.embd.layout import PAIR, field_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def check_metadata(raw: bytes, offset: int, warnings: list[str]) -> None:
    """Check the structure of the metadata section, its UTF-8 and the uniqueness of its keys."""
    if not raw:
        return
    if len(raw) < PAIR.size:
        expected = "at least 8, the counts that the section begins with"
        raise field_error(LayoutError, "metadata_size", len(raw), expected)
    count, total = PAIR.unpack_from(raw)
    fault = kernels.pairs_check(raw[PAIR.size :], count)
    if fault is not None and fault.kind == "NAME_FLOOD":
        # All else is checked. Somebody made the hashes collide, or there are very many keys: a set is bounded for any
        # keys, because a secret keys its hash.
        keys: set[bytes] = set()
        for number, (key, _) in enumerate(_pairs(raw)):
            if key in keys:
                raise _repeated(number, offset)
            keys.add(key)
    elif fault is not None:
        raise _metadata_error(fault, count, raw, offset)
    if total != len(raw) - PAIR.size:
        expected = f"expected {len(raw) - PAIR.size} (at byte {offset + 4})"
        warnings.append(f"total_size of the metadata is {total}, {expected}")


def _metadata_error(fault: kernels.Fault, count: int, raw: bytes, offset: int) -> FormatError:
    at = offset + PAIR.size + fault.at
    if fault.kind == "NAME_UTF8":
        return FormatError(f"metadata entry {fault.row} is not UTF-8", field="metadata", offset=at)
    if fault.kind == "NAME_RANGE" and fault.row == count:
        expected = f"{fault.at + PAIR.size}: the {count} entries end there"
        return field_error(LayoutError, "metadata_size", len(raw), expected)
    if fault.kind == "NAME_RANGE":
        expected = f"fewer, or a section longer than {len(raw)} bytes: entry {fault.row} runs past its end"
        what = "metadata entry_count"
        return TruncatedError(what, field="entry_count", offset=offset, actual=count, expected=expected)
    return _repeated(fault.row, offset)


def _repeated(number: int, offset: int) -> FormatError:
    msg = f"metadata entry {number} repeats the key of an earlier entry"
    return LayoutError(msg, field="metadata", offset=offset)


def _pairs(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of the entries, after their structure was checked."""
    at = PAIR.size
    while at < len(raw):
        key, value = struct.unpack_from("<2H", raw, at)
        middle = at + 4 + key
        yield raw[at + 4 : middle], raw[middle : middle + value]
        at = middle + value


def load_metadata(raw: bytes, offset: int) -> dict[str, Any]:
    """Return the entries, in file order."""
    check_metadata(raw, offset, [])
    return {str(key, "utf-8"): str(value, "utf-8") for key, value in _pairs(raw)}
