"""Vocabularies of EMBD: tokens after their lengths, in both layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap import kernels
from weightmap.embeddings.vocabulary import Vocabulary
from weightmap.errors import LayoutError, TruncatedError
from weightmap.formats._base import take
from weightmap.formats.embd.layout import NO_ID, SPECIAL, SPECIAL_NAMES, VOCAB_HEADER, Header, field_error
from weightmap.index.strings import StringTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.io.source import Source


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
