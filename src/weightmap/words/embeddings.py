"""Word vectors: a vocabulary, and a matrix with rows for its words and for the n-grams of other words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.core.arguments import as_integer, mistyped, similar
from weightmap.core.dtypes import SCHEMES
from weightmap.core.native import access, checksums
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.core.quant.product import ProductQuantized
from weightmap.core.table.vocabulary import Vocabulary, strings_of
from weightmap.errors import FormatError, LayoutError, TensorFileError, UnknownWordError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_FLOAT32 = np.dtype(np.float32)
# Types of a matrix of word vectors.
_KINDS = frozenset({"float16", "bfloat16", "float32", "float64", *SCHEMES})
# Elements of a block in a search: 4 MiB of float32. A view takes 64 MiB: each product may wait for BLAS threads.
_BLOCK_ELEMENTS, _VIEW_ELEMENTS = 1 << 20, 1 << 24
# The range of norms whose squares fit float32 well; other norms are computed again in double precision.
_MIN_NORM, _MAX_NORM = 1e-15, 1e15
# Rows to decode at once for sums.
_ROWS_AT_ONCE = 8192
# Words to split into n-grams at once; together these have a few hundred thousand rows.
_WORDS_AT_ONCE = 4096
# Elements of a quantised matrix that `items` decodes at once.
_ELEMENTS_AT_ONCE = 1 << 18
# Longest vectors of a matrix without rows, which takes no bytes: nothing else bounds their length.
_MAX_DIMS_WITHOUT_ROWS = 1 << 16


def unit(vector: NDArray[Any]) -> NDArray[np.float32]:
    """Divide a vector by its L2 norm in double precision, and return it as float32; zeros stay zeros.

    Raises
    ------
    ValueError
        When an element is NaN or infinite.
    """
    wide = np.asarray(vector).astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("a vector with NaN or infinite elements has no direction")
    largest = np.abs(wide).max(initial=0)
    if largest:
        wide /= largest  # so that no square overflows or vanishes
        wide /= np.linalg.norm(wide)
    return wide.astype(np.float32)


class Search:
    """An exact search by cosine among the first `count` rows of a matrix of shape (m, d).

    Memory stays flat, because the search takes blocks: it reads a float32 matrix in place, converts or decodes others
    block by block, and does not decode product quantisation at all. The first search computes and keeps the norms of
    the rows, four bytes a row.
    """

    __slots__ = ("_count", "_matrix", "_norms", "_step")

    def __init__(self, matrix: NDArray[Any] | QuantizedTensor, count: int) -> None:
        self._matrix = matrix
        self._count = count
        self._norms: NDArray[np.float32] | None = None
        flags = matrix.flags if isinstance(matrix, np.ndarray) and matrix.dtype == np.float32 else None
        view = flags is not None and flags.c_contiguous and flags.aligned
        self._step = max(1, (_VIEW_ELEMENTS if view else _BLOCK_ELEMENTS) // max(1, matrix.shape[1]))

    def _block(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows as float32: a view of contiguous, aligned float32, otherwise a copy."""
        return np.require(self._matrix[start:stop], np.float32, ("A", "C"))

    def _row_norms(self, start: int, stop: int) -> NDArray[np.float32]:
        if isinstance(self._matrix, ProductQuantized):
            return self._matrix.row_norms(start, stop)
        rows = self._block(start, stop)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            norms: NDArray[np.float32] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            extreme = np.flatnonzero(~((norms > _MIN_NORM) & (norms < _MAX_NORM)))
            if len(extreme):
                norms[extreme] = np.linalg.norm(rows[extreme].astype(np.float64), axis=1)
        return norms

    @property
    def norms(self) -> NDArray[np.float32]:
        """L2 norms of the rows, shape (count,); computed at the first use."""
        norms = self._norms
        if norms is None:
            norms = np.empty(self._count, np.float32)
            for start in range(0, self._count, self._step):
                stop = min(start + self._step, self._count)
                norms[start:stop] = self._row_norms(start, stop)
            self._norms = norms
        return norms

    def _cosines(self, query: NDArray[np.float32], start: int, stop: int) -> NDArray[np.float32]:
        """Return the cosines between rows and a unit vector; 0 for rows of zeros, NaN for rows with NaN or infinity."""
        norms = self.norms[start:stop]
        is_pq = isinstance(self._matrix, ProductQuantized)
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            dots: NDArray[np.float32] = (
                self._matrix.dots(query, start, stop) if is_pq else self._block(start, stop) @ query  # type: ignore[union-attr]
            )
            dots /= norms
        dots[norms == 0] = 0
        return np.clip(dots, -1, 1, out=dots)

    def nearest(self, query: NDArray[np.float32], k: int, skip: set[int]) -> list[tuple[int, float]]:
        """Return the rows with the largest cosines.

        Parameters
        ----------
        query : ndarray of float32, shape (d,)
            A unit vector.
        k : int
            At most this many.
        skip : set of int
            Rows to leave out. Rows with NaN are left out, too.

        Returns
        -------
        list of (int, float)
            Row and cosine, the largest cosine first; among equal cosines, the earlier row first.
        """
        rows, best = np.empty(0, np.int64), np.empty(0, np.float32)
        left_out = np.array(sorted(skip), np.int64)
        for start in range(0, self._count, self._step):
            stop = min(start + self._step, self._count)
            cosines = self._cosines(query, start, stop)
            cosines[np.isnan(cosines)] = -np.inf
            cosines[left_out[(left_out >= start) & (left_out < stop)] - start] = -np.inf
            # Only cosines above the threshold can be among the best: among equal ones, earlier rows win.
            threshold = best[-1] if len(best) == k else -np.inf
            if len(cosines) > k:  # the k best of this block, and any equal to the worst of these
                threshold = max(threshold, np.nextafter(np.partition(cosines, -k)[-k], np.float32(-np.inf)))
            hits = np.flatnonzero(cosines > threshold)
            rows, best = np.append(rows, hits + start), np.append(best, cosines[hits])
            order = np.lexsort((rows, -best))[:k]
            rows, best = rows[order], best[order]
        return list(zip(rows.tolist(), best.tolist(), strict=True))


def _rows_at(matrix: NDArray[Any] | QuantizedTensor, rows: NDArray[np.int64], threads: int) -> NDArray[Any]:
    """Return rows of a matrix by their numbers; decode only these of a quantised matrix."""
    if isinstance(matrix, ProductQuantized):
        return matrix.gather(rows, threads=threads)
    return matrix[rows]


def gather(
    matrix: NDArray[Any] | QuantizedTensor, rows: NDArray[np.int64], out: NDArray[Any], *, threads: int = 1
) -> None:
    """Fill `out` with rows of a matrix.

    Parameters
    ----------
    matrix : ndarray or QuantizedTensor, shape (m, d)
    rows : ndarray of int64, shape (k,)
        Less than m; a negative number stands for a row of zeros.
    out : ndarray, shape (k, d)
        C-contiguous.
    threads : int
        At most this many threads share the work.
    """
    if isinstance(matrix, np.ndarray) and matrix.dtype == out.dtype and matrix.flags.c_contiguous:
        checksums.gather_rows(matrix, rows, out, threads=threads)
        return
    present = rows >= 0
    out[present] = _rows_at(matrix, rows[present], threads)
    out[~present] = 0


def unit_sums(
    matrix: NDArray[Any] | QuantizedTensor,
    rows: NDArray[np.uint64],
    bounds: NDArray[np.uint64],
    out: NDArray[np.float32],
    *,
    places: NDArray[np.uint64] | None = None,
    norms: NDArray[np.float32] | None = None,
    threads: int = 1,
) -> None:
    """Fill rows of `out` with sums of rows of a matrix, each divided by its L2 norm.

    The parameters are the same as for `checksums.unit_sums`, but the matrix may have any dtype or be quantised; its
    rows are added as float32.

    Raises
    ------
    LayoutError
        For a row that the matrix does not have.
    """
    height = matrix.shape[0]
    if len(rows) and int(rows.max()) >= height:
        raise LayoutError("row of an n-gram", actual=int(rows.max()), expected=f"less than {height}")
    if isinstance(matrix, np.ndarray) and matrix.dtype == _FLOAT32 and matrix.flags.c_contiguous:
        checksums.unit_sums(matrix, rows, bounds, out, places=places, norms=norms, threads=threads)
        return
    # Take blocks of rows that make whole sums.
    first, last = 0, len(bounds) - 1
    while first < last:
        start = int(bounds[first])
        stop = max(first + 1, int(np.searchsorted(bounds, start + _ROWS_AT_ONCE, "right")) - 1)
        selected = rows[start : int(bounds[stop])].astype(np.int64)
        checksums.unit_sums(
            np.ascontiguousarray(_rows_at(matrix, selected, threads), np.float32),
            np.arange(len(selected), dtype=np.uint64),
            bounds[first : stop + 1] - bounds[first],
            out if places is not None else out[first:stop],
            places=None if places is None else places[first:stop],
            norms=None if norms is None else norms[first:stop],
            threads=threads,
        )
        first = stop


def no_vector(word: object, vocab: Vocabulary, *, suggest: bool = True) -> UnknownWordError:
    """Return the error for a word without a vector; `suggest` similar words, which takes some milliseconds.

    The message is composed when it is read, so that a program that catches many such errors does not wait.
    """
    error = UnknownWordError(_MissText(word, vocab, suggest), path=vocab.path)
    error.word = word
    error.args = (word,)  # as other mappings do
    return error


class _MissText(NamedTuple):
    """The message of the error, composed when it is read."""

    word: object
    vocab: Vocabulary
    suggest: bool

    def __str__(self) -> str:
        word, vocab, suggest = self
        text = f"there is no vector for {quoted(word)} among those of {counted(len(vocab), 'word')}"
        if not isinstance(word, str):
            return f"{text}; words are strings (str)"
        text += "" if vocab.subwords is None else ", and none of its n-grams is known"
        close = _similar(word, vocab) if suggest else []
        return text + (f"; similar words: {', '.join(map(quoted, close))}" if close else "")


def _similar(word: str, vocab: Vocabulary) -> list[str]:
    try:
        return similar(word, vocab)
    except TensorFileError:  # words that cannot be decoded, or a file that was changed
        return []


def _words_in(name: str, words: Iterable[str]) -> list[str]:
    """Return words as a list; raise TypeError for a single word, whose letters would count as words."""
    if isinstance(words, str):
        raise TypeError(f"{name} is a str, expected an iterable of them")
    return list(words)


class _File(Protocol):
    """The part of a `TensorFile` that `Embeddings.of` needs."""

    @property
    def vocab(self) -> Vocabulary | None: ...
    @property
    def format(self) -> str: ...
    def infos(self) -> Sequence[Any]: ...
    def info(self, name: str, /) -> Any: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __getitem__(self, name: str, /) -> Any: ...


class Embeddings:
    """Vectors by word.

    `TensorFile.embeddings` returns an instance. The vector of a word in the vocabulary is its row. With subwords, the
    vector of another word is the sum of the rows of its character n-grams, divided by the L2 norm of the sum. A word
    without known n-grams has no vector.

    Parameters
    ----------
    vocab : Vocabulary
        A vocabulary of n words.
    matrix : ndarray or QuantizedTensor, shape (m, d)
        A view of the file, m >= n: the rows of words, then the rows of n-grams.
    norms : ndarray of float32, shape (n,), optional
        Norms of the words' vectors before they were scaled to unit vectors.

    Notes
    -----
    Sums are made in float32, element by element in the order of `Vocabulary.ngram_indices`. The norm is the root of the
    sum of the squares in double precision, rounded to float32. A sum of zeros stays zero.

    ``word in e`` is true only for words in the vocabulary, as in finalfusion; ``e.get(word)`` tells whether a word has
    a vector. ``len(e)`` counts the words of the vocabulary, iteration yields the words in order, and `items` yields the
    words with their vectors.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("words.weights", {"e": np.eye(2, dtype=np.float32)}, vocab=["yes", "no"])
    >>> e = wm.open("words.weights").embeddings
    >>> e["no"]
    array([0., 1.], dtype=float32)
    >>> e.most_similar([1, 2], k=1)
    [('no', 0.8944271802902222)]
    """

    def __init__(
        self, vocab: Vocabulary, matrix: NDArray[Any] | QuantizedTensor, norms: NDArray[Any] | None = None
    ) -> None:
        self._vocab = vocab
        self._matrix = matrix
        self._norms = norms
        self._search: Search | None = None

    @classmethod
    def of(cls, file: _File, names: tuple[str, str] | None) -> Embeddings | None:
        """Return the embeddings of a file, or None if it has none.

        A format of embeddings, such as finalfusion's, has `names` for its matrix and norms. In another file, the matrix
        must be the only matrix, of floats or quantised, with a row for each token of the vocabulary. A matrix without
        rows counts only if its vectors have at most 65,536 elements: a tiny file can declare longer vectors, and
        `batch` would have to return them.
        """
        vocab = file.vocab
        if vocab is None:
            return None
        count = len(vocab)
        norms = None
        if names is not None:
            candidates = [info for info in file.infos() if info.name == names[0] and info.shape[0] >= count]
            if names[1] in file and file.info(names[1]).shape == (count,):
                norms = file[names[1]]
        else:
            matrices = [info for info in file.infos() if len(info.shape) == 2 and info.dtype in _KINDS]
            candidates = [info for info in matrices if info.shape[0] == count]
        if len(candidates) != 1:
            return None
        info = candidates[0]
        matrix = file[info.name]
        # A repeated name, possible in an unchecked file, finds the first of its tensors.
        if file.info(info.name) != info or matrix.shape != info.shape:
            return None
        rows, dims = info.shape
        return cls(vocab, matrix, norms) if rows or dims <= _MAX_DIMS_WITHOUT_ROWS else None

    @property
    def vocab(self) -> Vocabulary:
        """The words, by row."""
        return self._vocab

    @property
    def matrix(self) -> NDArray[Any] | QuantizedTensor:
        """The rows: of words first, then of n-grams."""
        return self._matrix

    @property
    def norms(self) -> NDArray[Any] | None:
        """Norms of the words from the file; None if it has none."""
        return self._norms

    @property
    def dims(self) -> int:
        """Length of a vector."""
        return int(self._matrix.shape[1])

    def __len__(self) -> int:
        return len(self._vocab)

    def __iter__(self) -> Iterator[str]:
        return iter(self._vocab)

    def items(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield each word of the vocabulary and its vector: a view of the matrix, or a decoded row."""
        step = max(1, _ELEMENTS_AT_ONCE // max(1, self.dims))
        for start in range(0, len(self._vocab), step):
            rows = self._matrix[start : min(start + step, len(self._vocab))]
            yield from zip(self._vocab[start : start + len(rows)], rows, strict=True)

    def __contains__(self, word: object) -> bool:
        return word in self._vocab

    def __getitem__(self, word: str) -> NDArray[Any]:
        vector = self.get(word)
        if vector is None:
            raise no_vector(word, self._vocab)
        return vector

    @overload
    def get(self, word: str) -> NDArray[Any] | None: ...
    @overload
    def get(self, word: str, default: Any) -> Any: ...
    def get(self, word: str, default: Any = None) -> Any:
        """Return the vector of `word`, shape (d,), or `default` if it has none.

        A word in the vocabulary gets a view of the matrix, or a decoded row of a quantised matrix; another word gets a
        new array of float32.
        """
        row = self._vocab.get(word)
        if row is not None:
            return self._matrix[row]
        summed = self._summed(word)
        return default if summed is None else summed[0]

    def embedding(self, word: str, *, out: NDArray[Any] | None = None, default: Any = None) -> Any:
        """Return the vector of `word`, or `default` if it has none.

        Parameters
        ----------
        word : str
        out : ndarray, shape (d,), optional
            Filled with the vector, or with `default`, and returned. Without either, it stays unchanged and the result
            is None.
        default : array_like, optional
            Stands for a missing vector.

        Raises
        ------
        TypeError, ValueError
            When `out` is not an array, has another shape or is read-only, or `default` cannot be assigned to it.
        """
        vector = self.get(word, default)
        if vector is None or out is None:
            return vector
        access.check_out(out, (self.dims,), "a vector")
        out[...] = vector
        return out

    def embedding_with_norm(self, word: str) -> tuple[NDArray[Any], float] | None:
        """Return the vector of `word` and a norm, or None if it has no vector.

        Returns
        -------
        vector : ndarray, shape (d,)
            As `get` returns it.
        norm : float
            For a word in the vocabulary: the norm from the file or, if it has none, the L2 norm of the vector. For
            another word: the norm of the sum of the rows.
        """
        row = self._vocab.get(word)
        if row is None:
            return self._summed(word)
        vector = self._matrix[row]
        if self._norms is not None:
            return vector, float(self._norms[row])
        return vector, float(np.linalg.norm(vector.astype(np.float32)))

    def _summed(self, word: str) -> tuple[NDArray[np.float32], float] | None:
        """Return the vector and the norm for a word outside of the vocabulary; None without n-grams."""
        subwords = self._vocab.subwords
        if subwords is None or not isinstance(word, str):
            return None
        rows, bounds = subwords.rows_of([word])
        if not len(rows):
            return None
        out, norms = np.empty((1, self.dims), np.float32), np.empty(1, np.float32)
        unit_sums(self._matrix, rows, bounds, out, norms=norms)
        return out[0], float(norms[0])

    def batch(self, words: Sequence[str], *, threads: int = 1) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the vectors of many words; C code looks up, hashes, gathers and sums.

        Parameters
        ----------
        words : sequence of str, length k
        threads : int
            At most this many threads share the work. The result does not depend on it.

        Returns
        -------
        matrix : ndarray, shape (k, d)
            Zeros for a word without a vector. The dtype is the matrix's, or float32 for a quantised matrix; with
            subwords, the common type of this dtype and float32.
        found : ndarray of bool, shape (k,)
        """
        if isinstance(words, str) or not isinstance(words, Iterable):
            raise mistyped("words", words, "a sequence of words")
        words = words if isinstance(words, (list, tuple)) else list(words)
        rows = strings_of(self._vocab).find_many(words)
        present = rows >= 0
        subwords = self._vocab.subwords
        dtype = _FLOAT32
        if not isinstance(self._matrix, QuantizedTensor):
            dtype = self._matrix.dtype if subwords is None else np.promote_types(self._matrix.dtype, _FLOAT32)
        out = np.empty((len(rows), self.dims), dtype)
        gather(self._matrix, rows, out, threads=threads)
        if subwords is None:
            return out, present
        missing = np.flatnonzero(~present)
        # Sums are float32, and need no copy if `out` is float32, too.
        direct = dtype == _FLOAT32
        for first in range(0, len(missing), _WORDS_AT_ONCE):
            numbers = missing[first : first + _WORDS_AT_ONCE]
            for start, ngrams, bounds in subwords.parts([words[i] for i in numbers.tolist()]):
                places = numbers[start : start + len(bounds) - 1]
                sums = out if direct else np.empty((len(places), self.dims), np.float32)
                rows_of_out = places.astype(np.uint64) if direct else None
                unit_sums(self._matrix, ngrams, bounds, sums, places=rows_of_out, threads=threads)
                if not direct:
                    out[places] = sums
                present[places] = bounds[1:] > bounds[:-1]
        return out, present

    def most_similar(
        self, query: str | NDArray[Any] | Sequence[float], k: int = 10, *, skip: Iterable[str] = ()
    ) -> list[tuple[str, float]]:
        """Return the words whose vectors have the largest cosine to a vector, or to the vector of a word.

        The search is exact and reads the whole matrix in blocks, so that memory stays flat. The first search computes
        and keeps the norms of the rows. A matrix of scheme "pq" is not decoded: see `ProductQuantized.dots`.

        Parameters
        ----------
        query : str or array_like, shape (d,)
            A vector, or a word; the result leaves out the word itself.
        k : int
            At most this many words.
        skip : iterable of str
            Words that the result leaves out.

        Returns
        -------
        list of (str, float)
            Word and cosine, the largest cosine first; among equal cosines, the earlier word first.

        Raises
        ------
        UnknownWordError
            When the word has no vector.
        ValueError
            When the vector has another shape, or an element that is NaN or infinite. For a word's stored vector,
            `FormatError` is raised instead.
        """
        left_out = self._rows_of(*_words_in("skip", skip))
        if isinstance(query, str):
            left_out |= self._rows_of(query)
            direction = self._direction(query)
        else:
            vector = np.asarray(query)
            if vector.shape != (self.dims,):
                raise ValueError(f"a vector of shape {vector.shape}, expected ({self.dims},)")
            direction = unit(vector)
        return self._nearest(direction, k, left_out)

    def analogy(
        self,
        a: str | None = None,
        b: str | None = None,
        c: str | None = None,
        k: int = 10,
        *,
        positive: Iterable[str] = (),
        negative: Iterable[str] = (),
        skip: Iterable[str] = (),
    ) -> list[tuple[str, float]]:
        """Return the words that are to `c` as `b` is to `a`: nearest to b - a + c, all three as unit vectors.

        Parameters
        ----------
        a, b, c : str, optional
            All three or none.
        k : int
            At most this many words.
        positive, negative : iterable of str
            Further words, whose unit vectors are added and subtracted, as in gensim's `most_similar`:
            ``analogy("man", "king", "woman")`` is ``analogy(positive=["king", "woman"], negative=["man"])``.
        skip : iterable of str
            Words that the result leaves out, in addition to the words of the question.

        Returns
        -------
        list of (str, float)
            As for `most_similar`.

        Raises
        ------
        TypeError
            When only some of `a`, `b` and `c` are given, or no word at all; for a str instead of an iterable of them.
        UnknownWordError, ValueError, FormatError
            As from `most_similar`.
        """
        triple = [word for word in (a, b, c) if word is not None]
        plus, minus = _words_in("positive", positive), _words_in("negative", negative)
        if len(triple) == 3:
            plus, minus = [triple[1], triple[2], *plus], [triple[0], *minus]
        elif triple or not (plus or minus):
            raise TypeError("analogy takes three words, or positive and negative ones")
        query = np.zeros(self.dims, np.float32)
        for words, sign in ((minus, -1), (plus, 1)):
            for word in words:
                query += sign * self._direction(word)
        return self._nearest(unit(query), k, self._rows_of(*plus, *minus, *_words_in("skip", skip)))

    def _direction(self, word: str) -> NDArray[np.float32]:
        """Return the vector of a word as a unit vector."""
        vector = self[word]
        try:
            return unit(vector)
        except ValueError:
            what = f"an element of the vector of {quoted(word)}"
            path, format_ = self._vocab.path, self._vocab.format
            expected = "a finite number: this vector has no direction"
            raise FormatError(what, path=path, format=format_, actual="NaN or infinite", expected=expected) from None

    def _rows_of(self, *words: str) -> set[int]:
        """Return the rows of the words that are in the vocabulary."""
        return {row for row in map(self._vocab.get, words) if row is not None}

    def _nearest(self, query: NDArray[np.float32], k: int, skip: set[int]) -> list[tuple[str, float]]:
        count = as_integer("k", k)
        if count < 1:
            raise ValueError(f"k is {k}, expected 1 or more")
        search = self._search
        if search is None:
            search = self._search = Search(self._matrix, len(self._vocab))
        return [(self._vocab[row], cosine) for row, cosine in search.nearest(query, count, skip)]

    def __repr__(self) -> str:
        return f"<Embeddings of {counted(len(self._vocab), 'word')}, {counted(self.dims, 'dimension')}>"
