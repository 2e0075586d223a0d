"""Helpers for the tests of finalfusion: subwords by their plain definition, and matrices by product quantisation."""

from typing import Any, NamedTuple

import numpy as np

from weightmap.core.table import StringTable
from weightmap.core.table.vocabulary import Vocabulary


class Parts(NamedTuple):
    """Subwords with the attributes that `save` needs, without the package's class."""

    kind: str
    min_n: int
    max_n: int
    size: int
    ngrams: Any = None


class Words(list):
    """A list of words that has subwords."""

    def __init__(self, words: Any, subwords: Parts | None = None) -> None:
        super().__init__(words)
        self.subwords = subwords


def explicit(words: Any, pairs: Any, min_n: int, max_n: int) -> Words:
    """Words with explicit n-grams, which are pairs of text and index."""

    def ngrams() -> tuple[StringTable, Any]:
        texts = [text for text, _ in pairs]
        return StringTable.of(texts, "n-gram"), np.array([index for _, index in pairs], np.uint64)

    size = len({index for _, index in pairs})
    return Words(words, Parts("explicit", min_n, max_n, size, ngrams))


def pairs_of(vocab: Vocabulary) -> list[tuple[str, int]]:
    """The n-grams of an explicit vocabulary with their indices."""
    table, indices = vocab.subwords.ngrams()
    return list(zip(table, indices.tolist(), strict=True))


def reconstruct(matrix: Any) -> np.ndarray[Any, Any]:
    """The rows of a matrix by product quantisation, from its parts, by the definition."""
    codes, books = np.asarray(matrix.codes), np.asarray(matrix.codebooks)
    rows = np.concatenate([books[j][codes[:, j]] for j in range(codes.shape[1])], axis=1)
    if matrix.projection is not None:
        rows = rows @ matrix.projection.T
    return rows if matrix.norms is None else rows * matrix.norms[:, None]


def same_product(matrix: Any, parts: Any) -> bool:
    """Whether a matrix has these codes, codebooks, projection and norms, bit for bit."""
    found = (matrix.codes, matrix.codebooks, matrix.projection, matrix.norms)
    return all(
        (a is None and b is None) or (a is not None and b is not None and a.shape == b.shape and (a == b).all())
        for a, b in zip(found, parts, strict=True)
    )


def subwords_of(vocab: Vocabulary) -> tuple[Any, ...]:
    found = vocab.subwords
    return (found.kind, found.min_n, found.max_n, found.size)


__all__ = ["Parts", "Words", "explicit", "pairs_of", "reconstruct", "same_product", "subwords_of"]
