"""Word vectors: a vocabulary and the matrix whose rows belong to its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightmap.file import TensorFile
    from weightmap.strings import Vocabulary

__all__ = ["Embeddings"]

_FLOATS = ("float16", "bfloat16", "float32", "float64")


class Embeddings:
    """Vectors by word.

    Obtained from `TensorFile.embeddings`.

    Parameters
    ----------
    vocab : Vocabulary
        Of n words.
    matrix : ndarray, shape (n, d)
        A view of the file.

    Examples
    --------
    >>> import weightmap as wm
    >>> wm.save("words.weights", {"e": np.eye(2, dtype=np.float32)}, vocab=["yes", "no"])
    >>> e = wm.open("words.weights").embeddings
    >>> e["no"]
    array([0., 1.], dtype=float32)
    """

    def __init__(self, vocab: Vocabulary, matrix: NDArray[Any]) -> None:
        self._vocab = vocab
        self._matrix = matrix

    @classmethod
    def of(cls, file: TensorFile) -> Embeddings | None:
        """Return the embeddings of a file; None unless just one matrix of floats has a row for each token."""
        vocab = file.vocab
        if vocab is None:
            return None
        count = len(vocab)
        found = [
            info.name
            for info in file.infos()
            if len(info.shape) == 2 and info.shape[0] == count and info.dtype in _FLOATS
        ]
        return cls(vocab, file[found[0]]) if len(found) == 1 else None

    @property
    def vocab(self) -> Vocabulary:
        """The words, by row."""
        return self._vocab

    @property
    def dims(self) -> int:
        """Length of a vector."""
        return int(self._matrix.shape[1])

    def __contains__(self, word: object) -> bool:
        return word in self._vocab

    def __getitem__(self, word: str) -> NDArray[Any]:
        row = self._vocab.get(word)
        if row is None:
            raise KeyError(word)
        vector: NDArray[Any] = self._matrix[row]
        return vector

    @overload
    def get(self, word: str) -> NDArray[Any] | None: ...
    @overload
    def get(self, word: str, default: Any) -> Any: ...
    def get(self, word: str, default: Any = None) -> Any:
        """Return the vector of `word`, a view of shape (d,), or `default` when there is none."""
        row = self._vocab.get(word)
        return default if row is None else self._matrix[row]

    def embedding(self, word: str, *, out: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """Return the vector of `word`, or None when there is none.

        Parameters
        ----------
        word : str
        out : ndarray, shape (d,), optional
            Filled and returned.
        """
        vector = self.get(word)
        if vector is None or out is None:
            return vector
        out[...] = vector
        return out

    def embedding_with_norm(self, word: str) -> tuple[NDArray[Any], float] | None:
        """Return the vector of `word` and its L2 norm, or None when there is none."""
        vector = self.get(word)
        return None if vector is None else (vector, float(np.linalg.norm(vector.astype(np.float32))))

    def batch(self, words: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the vectors of many words.

        Parameters
        ----------
        words : sequence of str, length k

        Returns
        -------
        matrix : ndarray, shape (k, d)
            Zeros where a word has no vector.
        found : ndarray of bool, shape (k,)
        """
        rows = self._vocab.table.find_many(words)
        found = rows >= 0
        matrix = np.zeros((len(rows), self.dims), self._matrix.dtype)
        matrix[found] = self._matrix[rows[found]]
        return matrix, found

    def __repr__(self) -> str:
        return f"<Embeddings of {len(self._vocab)} words, {self.dims} dimensions>"
