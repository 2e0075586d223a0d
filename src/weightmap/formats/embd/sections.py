"""The metadata and the vocabulary of EMBD."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from weightmap import kernels
from weightmap.embeddings.vocabulary import Vocabulary
from weightmap.errors import FormatError, LayoutError, TruncatedError
from weightmap.formats._base import take
from weightmap.formats.embd.layout import NO_ID, PAIR, SPECIAL, SPECIAL_NAMES, VOCAB_HEADER, Header, field_error
from weightmap.index.strings import StringTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from weightmap.io.source import Source


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


def vocabulary(source: Source, head: bytes, header: Header) -> Vocabulary:
    """Read the sub-header; special ids and tokens are read at the first use."""
    start, size = header.vocab_offset, header.vocab_size
    least = VOCAB_HEADER.size + SPECIAL.size
    if size < least:
        raise field_error(TruncatedError, "vocab_size", size, f"at least {least}")
    count, total, special = VOCAB_HEADER.unpack(take(source, head, start, VOCAB_HEADER.size))
    if count > (size - least) // 2:
        what, expected = "vocabulary token_count", f"at most {(size - least) // 2}: a token takes 2 bytes or more"
        raise TruncatedError(what, field="token_count", offset=start, actual=count, expected=expected)
    if total != size - least:
        cls = TruncatedError if total > size - least else LayoutError
        what, expected = "vocabulary total_size", f"{size - least}, from vocab_size"
        raise cls(what, field="total_size", offset=start + 4, actual=total, expected=expected)
    # Absolute when that lies within the vocabulary, else relative to it.
    behind, before = start + size - SPECIAL.size, start + VOCAB_HEADER.size
    at = special if start <= special <= behind else start + special
    if at not in (behind, before):
        what, expected = "vocabulary special_tokens", f"{behind} or {before}: the ids lie behind or before the tokens"
        raise LayoutError(what, field="special_tokens", offset=start + 8, actual=special, expected=expected)
    first = before if at == behind else before + SPECIAL.size

    def load() -> StringTable:
        return string_table(source.section(first, first + total), count, first, 2)

    def special_ids() -> dict[str, int]:
        ids = SPECIAL.unpack(source.pread(at, SPECIAL.size))
        return {name: i for name, i in zip(SPECIAL_NAMES, ids, strict=True) if i != NO_ID}

    return Vocabulary(load, count, special_ids)


def string_table(data: NDArray[np.uint8] | bytes, count: int, at: int, width: int) -> StringTable:
    """Return the table of tokens. Raises `LayoutError` when they do not fill their section exactly."""
    bounds = np.empty(count + 1, np.uint32)
    walked = kernels.walk_strings(data, count, width, bounds)
    if walked != len(data):
        what = f"token {-1 - walked} runs past the end of the vocabulary"
        if walked >= 0:
            what = f"the {count} tokens end before the vocabulary does"
        raise LayoutError(what, field="vocabulary", offset=at + max(walked, 0))
    table = StringTable(data, bounds, width, "token")
    table.end = at + len(data)
    return table
