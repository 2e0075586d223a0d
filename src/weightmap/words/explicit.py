"""Explicit n-grams instead of buckets: a list of all n-grams of a vocabulary's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.core.table import StringTable
from weightmap.core.table.vocabulary import Subwords
from weightmap.errors import EncodeError
from weightmap.words.importers._words import Words, rows_in_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.core.arguments import Limits

# Words split at once; n-grams, and their characters, looked up at once.
_WORDS = 2048
_NGRAMS, _CHARACTERS = 1 << 16, 1 << 22
# Bytes per n-gram in a file besides its text: its length and its index.
_ENTRY = 12


def explicit(words: Words, limits: Limits) -> Words:
    """Return the words with a list of their n-grams, and only the rows of these.

    N-grams of one bucket share a row. As in finalfusion, rows are ordered by their first n-gram, in the order of words
    and of n-grams within a word. N-grams that no word has become unknown. Each n-gram takes about 40 bytes of memory
    and its text.

    Raises
    ------
    EncodeError
        When the vocabulary has no buckets.
    LimitError
        When the n-grams, or the n-grams of one word counted with repetitions, would take more than
        ``Limits.max_header_bytes`` in the file.
    """
    subwords, gather = words.subwords, words.gather
    if subwords is None or gather is None or subwords.kind == "explicit":
        kind = "simple" if subwords is None else subwords.kind
        raise EncodeError(f"the vocabulary is {kind}: explicit n-grams are made of buckets", format=words.format)
    table, indices, rows = _listed(words, subwords, limits)
    count = len(words.table)

    def blocks() -> Iterator[NDArray[np.float32]]:
        yield from words.word_blocks()
        step = rows_in_block(words.dims)
        for first in range(0, len(rows), step):
            yield gather(rows[first : first + step])

    def regather(selected: NDArray[np.int64]) -> NDArray[np.float32]:
        return gather(np.where(selected < count, selected, rows[np.maximum(selected - count, 0)]))

    listed = Subwords("explicit", count, subwords.min_n, subwords.max_n, len(rows), lambda: (table, indices))
    return words._replace(rows=count + len(rows), make=blocks, gather=regather, subwords=listed)


class _Distinct:
    """Different n-grams in the order of their first appearance, and the row of each."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nbytes = 0
        # Each has less than half the length of the one before: tables stay few, and n-grams are copied rarely.
        self._tables: list[StringTable] = []
        self._rows: list[NDArray[np.uint64]] = []

    def add(self, ngrams: list[str], rows: NDArray[np.uint64]) -> None:
        """Add the n-grams that are new, with their rows."""
        some = StringTable.of(ngrams, "n-gram")
        new = some.find_many(ngrams) == np.arange(len(ngrams))
        for table in self._tables:
            new &= table.find_many(ngrams) < 0
        chosen = np.flatnonzero(new)
        fresh = StringTable.of([ngrams[i] for i in chosen.tolist()], "n-gram")
        self._nbytes += fresh.nbytes + _ENTRY * len(fresh)
        # Check before keeping them: here memory grows with the length of words, not with their number.
        self._limits.check("max_header_bytes", self._nbytes, "size of the n-grams of the words (or more)")
        self._rows.append(rows[chosen])
        self._tables.append(fresh)
        while len(self._tables) > 1 and len(self._tables[-2]) <= 2 * len(self._tables[-1]):
            self._tables[-2:] = [StringTable.joined(self._tables[-2:], "n-gram")]

    def result(self) -> tuple[StringTable, NDArray[np.uint64], NDArray[np.int64]]:
        """Return the n-grams, their indices, in order of the rows' first appearance, and the old row of each index."""
        table = StringTable.joined(self._tables, "n-gram")
        if not len(table):
            return table, np.empty(0, np.uint64), np.empty(0, np.int64)
        distinct, first, number = np.unique(np.concatenate(self._rows), return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), np.uint64)
        rank[order] = np.arange(len(order), dtype=np.uint64)
        return table, rank[number], distinct[order].astype(np.int64)


def _listed(
    words: Words, subwords: Subwords, limits: Limits
) -> tuple[StringTable, NDArray[np.uint64], NDArray[np.int64]]:
    """Return the n-grams, their indices, and the old row of each index."""
    distinct = _Distinct(limits)
    for first in range(0, len(words.table), _WORDS):
        some = [words.table[i] for i in range(first, min(first + _WORDS, len(words.table)))]
        for word in some:
            limits.check("max_header_bytes", _size_of(word, subwords), "size of the n-grams of a word")
        for at, rows, bounds in subwords.parts(some):
            # Every n-gram has a bucket, so there are as many rows as n-grams.
            done = 0
            for ngrams in _some(some[at : at + len(bounds) - 1], subwords):
                some_rows = rows[done : done + len(ngrams)]
                done += len(ngrams)
                if subwords.kind == "fasttext" and subwords.min_n == 1:  # fastText has no n-gram of a bracket alone
                    listed = [i for i, text in enumerate(ngrams) if text not in {"<", ">"}]
                    distinct.add([ngrams[i] for i in listed], some_rows[listed])
                else:
                    distinct.add(ngrams, some_rows)
            assert done == len(rows)  # noqa: S101 - see above
    return distinct.result()


def _size_of(word: str, subwords: Subwords) -> int:
    """Return the number of characters in all n-grams of a word, a lower bound for their bytes."""
    length = len(word) + 2
    longest = min(subwords.max_n, length)
    if longest < subwords.min_n:
        return 0
    below = subwords.min_n - 1
    # Each n from min_n to `longest` has length + 1 - n n-grams: the result needs the sums of n and of its square.
    lengths = longest * (longest + 1) // 2 - below * (below + 1) // 2
    squares = (longest * (longest + 1) * (2 * longest + 1) - below * (below + 1) * (2 * below + 1)) // 6
    return (length + 1) * lengths - squares


def _some(words: list[str], subwords: Subwords) -> Iterator[list[str]]:
    """Yield the n-grams of words in the order of `Subwords.rows_of`, some at a time."""
    some: list[str] = []
    characters = 0
    min_n, max_n = subwords.min_n, subwords.max_n
    for word in words:
        text = f"<{word}>"
        for start in range(len(text) - min_n + 1):
            longest = min(max_n, len(text) - start)
            some += [text[start : start + n] for n in range(longest, min_n - 1, -1)]
            characters += (longest - min_n + 1) * (longest + min_n) // 2
            if len(some) >= _NGRAMS or characters >= _CHARACTERS:
                yield some
                some, characters = [], 0
    yield some
