"""The strings of vocabularies, walked at the first use and decoded one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from weightmap import native
from weightmap.embeddings.subwords import Subwords
from weightmap.embeddings.vocabulary import Vocabulary
from weightmap.errors import LayoutError, TensorFileError, UnsupportedError
from weightmap.formats.finalfusion.layout import (
    CHUNK,
    EXPLICIT,
    INDEX,
    KINDS,
    MAX_STRINGS,
    SIMPLE,
    TITLES,
    U64,
    Block,
    VocabChunk,
    check_count,
)
from weightmap.index.strings import StringTable
from weightmap.lazy import np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightmap.io.source import Source


class VocabStrings:
    """The words and n-grams of a vocabulary, over mapped or private bytes.

    Parameters
    ----------
    source : Source
    vocab : VocabChunk
    octets : callable
        Returns the bytes of the file from one offset to another.
    distinct : int or None
        Rows that n-grams have in the matrix; None without a matrix.
    unique : bool
        Whether indexing refuses repeated strings.
    """

    def __init__(
        self,
        source: Source,
        vocab: VocabChunk,
        octets: Callable[[int, int], Any],
        distinct: int | None,
        *,
        unique: bool,
    ) -> None:
        self._source = source
        self._vocab = vocab
        self._octets = octets
        self._distinct = distinct
        self._unique = unique

    def words(self) -> UniqueStrings:
        """Walk the vocabulary and return its words. Raises `LayoutError` if it does not end with its chunk."""
        vocab = self._vocab
        data = self._section(vocab.words)
        bounds = np.empty(vocab.n_words + 1, np.uint32)
        walked = native.walk_strings(data, vocab.n_words, 4, bounds)
        if walked < 0:
            self._fail(f"word {-1 - walked} of {vocab.n_words} runs past it")
        if vocab.id == EXPLICIT:
            count, begin = self._ngrams_at(vocab.words + walked)
            data_of_ngrams = self._section(begin)
            size, done = native.skip_strings(data_of_ngrams, count, 0 if vocab.spec else INDEX)
            if done < count:
                self._fail(f"n-gram {done} of {count} runs past it")
            walked = begin + size - vocab.words
        if walked != len(data):
            self._fail(f"words and n-grams end at byte {vocab.words + walked}")
        return self._table(data, bounds, 4, "word")

    def ngrams(self) -> tuple[UniqueStrings, NDArray[np.uint64]]:
        """Return the n-grams of an explicit vocabulary and their indices, shape (n_ngrams,)."""
        try:
            return self._ngrams()
        except TensorFileError as error:
            raise error.located(path=self._source.name, format="finalfusion") from None

    def _ngrams(self) -> tuple[UniqueStrings, NDArray[np.uint64]]:
        vocab = self._vocab
        data = self._section(vocab.words)
        words = native.walk_strings(data, vocab.n_words, 4)
        if words < 0:
            self._fail(f"word {-1 - words} of {vocab.n_words} runs past it")
        count, begin = self._ngrams_at(vocab.words + words)
        data = self._section(begin)
        check_count(count, 4 if vocab.spec else 12, len(data), "n-grams", vocab.offset)
        if vocab.spec:
            bounds, indices = np.empty(count + 1, np.uint32), np.arange(count, dtype=np.uint64)
            walked = native.walk_strings(data, count, 4, bounds)
        else:
            walked, bounds, indices = native.walk_indexed(data, count)
        if walked < 0:
            self._fail(f"n-gram {-1 - walked} of {count} runs past it")
        if walked != len(data):
            self._fail(f"n-grams end at byte {begin + walked}")
        self._check_indices(indices)
        return self._table(data, bounds, 4 if vocab.spec else 12, "n-gram"), indices

    def _check_indices(self, indices: NDArray[np.uint64]) -> None:
        """Refuse indices beyond the matrix's rows for n-grams, and rows without an index."""
        if self._distinct is None:
            return
        beyond = np.flatnonzero(indices >= self._distinct)
        if len(beyond):
            first = int(beyond[0])
            what, actual = f"index of n-gram {first}", int(indices[first])
            expected = f"less than {self._distinct}, the rows that the matrix has for n-grams"
            raise LayoutError(what, field="index", offset=self._vocab.offset, actual=actual, expected=expected)
        # Not an array of all rows: a matrix without columns may declare any number of them.
        named = np.zeros(min(self._distinct, len(indices)), np.bool_)
        named[indices.astype(np.intp)[indices < len(named)]] = True
        if len(named) != self._distinct or not named.all():
            rows = self._vocab.n_words + self._distinct
            expected = f"{self._vocab.n_words + len(np.unique(indices))}, one for each word and distinct n-gram index"
            raise LayoutError("number of rows", field="rows", offset=self._vocab.end, actual=rows, expected=expected)

    def _section(self, begin: int) -> Any:
        """Return the bytes from `begin` to the end of the vocabulary."""
        size = self._vocab.end - begin
        if size > MAX_STRINGS:
            what = "bytes of words or n-grams"
            expected = f"at most {MAX_STRINGS}, which this library can address"
            raise UnsupportedError(what, field="vocabulary", offset=begin, actual=size, expected=expected)
        return self._octets(begin, self._vocab.end)

    def _ngrams_at(self, position: int) -> tuple[int, int]:
        """Return the number of n-grams and their offset; `position` is the end of the words."""
        vocab = self._vocab
        if vocab.n_ngrams is not None:
            return vocab.n_ngrams, position
        raw = bytes(self._octets(position, min(position + U64.size, vocab.end)))
        if len(raw) < U64.size:
            self._fail("the number of n-grams runs past it")
        return U64.unpack(raw)[0], position + U64.size

    def _table(self, data: Any, bounds: NDArray[np.uint32], gap: int, what: str) -> UniqueStrings:
        table = UniqueStrings(data, bounds, gap, what)
        table.strict, table.end = self._unique, self._vocab.end
        table.path, table.format = self._source.name, "finalfusion"
        return table

    def _fail(self, how: str) -> NoReturn:
        vocab = self._vocab
        msg = f"the {TITLES[vocab.id]} ends at byte {vocab.end}, where the next chunk begins, but {how}"
        raise LayoutError(msg, field="vocabulary", offset=vocab.offset - CHUNK.size)


class UniqueStrings(StringTable):
    """Strings that must be unique; if `strict`, building the index refuses repeated ones."""

    __slots__ = ("strict",)
    strict: bool

    def _build(self) -> tuple[int, int, int]:
        found = super()._build()
        if found[0] and self.strict:
            self._find = self._slots = None
            raise self.repeated(*found)
        return found

    def repeated(self, count: int, second: int, first: int) -> LayoutError:
        """Return the error for `count` repeated strings; `second` is the first of them, `first` its original."""
        what = self._what
        more = f", and {count - 1} more are repeated" if count > 1 else ""
        msg = f"{what}s {first} and {second} are both {self[second]!r}{more}: {what}s must be unique"
        return LayoutError(msg, field=what, offset=self._offset(second), path=self.path, format=self.format)


def read_vocabulary(source: Source, vocab: VocabChunk, storage: Block | None, *, strict: bool) -> Vocabulary:
    """Return the vocabulary, to be read at its first use."""
    distinct = None if storage is None else storage.shape[0] - vocab.n_words
    strings = VocabStrings(source, vocab, source.section, distinct, unique=strict)
    return Vocabulary(strings.words, vocab.n_words, subwords=subwords_of(vocab, distinct, strings))


def subwords_of(vocab: VocabChunk, distinct: int | None, strings: VocabStrings) -> Subwords | None:
    """Return the subwords of a vocabulary; None for a simple one."""
    if vocab.id == SIMPLE:
        return None
    kind = KINDS[vocab.id]
    if vocab.id != EXPLICIT:
        return Subwords(kind, vocab.n_words, vocab.min_n, vocab.max_n, vocab.size)
    size = distinct if distinct is not None else vocab.n_ngrams or 0
    return Subwords(kind, vocab.n_words, vocab.min_n, vocab.max_n, size, strings.ngrams)
