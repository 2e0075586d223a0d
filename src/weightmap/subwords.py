"""How a vocabulary takes apart words that it does not have: character n-grams, and their rows in the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.strings import StringTable

__all__ = ["Subwords"]


class Subwords:
    """The parameters of a subword vocabulary.

    Parameters
    ----------
    kind : str
        "bucket", "fasttext" or "explicit".
    n_words : int
    min_n, max_n : int
        Shortest and longest n-grams, in characters.
    size : int
        Rows of subwords: buckets, or distinct indices.
    ngrams : callable, optional
        Returns the n-grams of an explicit vocabulary, and their indices.
    """

    __slots__ = ("kind", "max_n", "min_n", "n_words", "ngrams", "size")

    def __init__(
        self,
        kind: str,
        n_words: int,
        min_n: int,
        max_n: int,
        size: int,
        ngrams: Callable[[], tuple[StringTable, NDArray[np.uint64]]] | None = None,
    ) -> None:
        self.kind = kind
        self.n_words = n_words
        self.min_n = min_n
        self.max_n = max_n
        self.size = size
        self.ngrams = ngrams

    def indices(self, word: str) -> list[int]:
        """Return the rows of the n-grams of `word`."""
        raise NotImplementedError
