"""Explicit n-grams in place of buckets: those of the words of a vocabulary, listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.embeddings.subwords import Subwords
from weightmap.errors import EncodeError
from weightmap.importers.words import rows_in_block
from weightmap.index.strings import StringTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.importers.words import Words

__all__ = ["explicit"]

# Words that are taken apart at once.
_WORDS = 2048


def explicit(words: Words) -> Words:
    """Return the same words with the n-grams that they have listed, and the rows of those alone.

    n-grams that had one bucket share a row. Rows are numbered by the first appearance of one of their n-grams, in the
    order of the words and of the n-grams in them, as finalfusion has it. An n-gram that none of the words has is
    unknown from here on.

    Raises
    ------
    EncodeError
        When the vocabulary has no buckets.
    """
    subwords, gather = words.subwords, words.gather
    if subwords is None or gather is None or subwords.kind == "explicit":
        kind = "simple" if subwords is None else subwords.kind
        msg = f"the vocabulary is {kind}: explicit n-grams are made of buckets"
        raise EncodeError(msg, format=words.format)
    ngrams, indices, kept = _listed(words, subwords)
    count = len(words.table)
    table = StringTable.of(ngrams, "n-gram")
    rows = np.array(kept, np.int64)

    def blocks() -> Iterator[NDArray[np.float32]]:
        yield from words.word_blocks()
        step = rows_in_block(words.dims)
        for first in range(0, len(rows), step):
            yield gather(rows[first : first + step])

    def regather(wanted: NDArray[np.int64]) -> NDArray[np.float32]:
        return gather(np.where(wanted < count, wanted, rows[np.maximum(wanted - count, 0)]))

    listed = Subwords("explicit", count, subwords.min_n, subwords.max_n, len(rows), lambda: (table, indices))
    return words.replaced(rows=count + len(rows), blocks=blocks, gather=regather, subwords=listed)


def _listed(words: Words, subwords: Subwords) -> tuple[list[str], NDArray[np.uint64], list[int]]:
    """Return the n-grams, the index of each, and which row of the matrix each index had."""
    known: dict[str, int] = {}
    numbers: dict[int, int] = {}
    for first in range(0, len(words.table), _WORDS):
        some = [words.table[i] for i in range(first, min(first + _WORDS, len(words.table)))]
        found, bounds = subwords.rows_of(some)
        rows, ends = found.tolist(), bounds.tolist()
        for i, word in enumerate(some):
            # Buckets give every n-gram a row, so that the two lists have one length.
            mine = zip(_ngrams(word, subwords.min_n, subwords.max_n), rows[ends[i] : ends[i + 1]], strict=True)
            for ngram, row in mine:
                if ngram not in known:
                    known[ngram] = numbers.setdefault(row, len(numbers))
    return list(known), np.array(list(known.values()), np.uint64), list(numbers)


def _ngrams(word: str, min_n: int, max_n: int) -> Iterator[str]:
    """Yield the n-grams of a word in the order of `Subwords.rows_of`."""
    text = f"<{word}>"
    for start in range(len(text)):
        for n in range(min(max_n, len(text) - start), min_n - 1, -1):
            yield text[start : start + n]
