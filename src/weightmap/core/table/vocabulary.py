"""The vocabulary of a model: its tokens by id, over the bytes of the file."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from weightmap._messages import counted
from weightmap.core.native import access, checksums
from weightmap.core.table import StringTable
from weightmap.errors import LayoutError, LimitError, TensorFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The subwords of a vocabulary: the character n-grams of unknown words, and their rows in the matrix.
#
# The n-grams of a word are the substrings of ``<word>`` with `min_n` to `max_n` characters, by their first character,
# then the longest first. A character is a code point, not a byte.
#
# ========== ================================================================================================
# kind       the index of an n-gram
# ========== ================================================================================================
# bucket     FNV-1a 64 over the number of characters (u64) and each character (u32), little-endian, modulo
#            `size`, a power of two
# fasttext   FNV-1a 32 over the UTF-8, with bytes of 0x80 or more sign-extended before the XOR, modulo
#            `size`
# explicit   listed in the file; other n-grams have no index
# ========== ================================================================================================
#
# The row of an n-gram is the number of words plus its index: rows of n-grams follow the rows of words.

KINDS = ("bucket", "fasttext", "explicit")
_LARGEST = {"bucket": 1 << 63, "fasttext": access.U32_MAX, "explicit": 1 << 63}


class Subwords:
    """The n-grams of a subword vocabulary.

    Parameters
    ----------
    kind : str
        "bucket", "fasttext" or "explicit".
    n_words : int
        Number of words, whose rows come first.
    min_n, max_n : int
        Shortest and longest n-grams, in characters.
    size : int
        Rows of n-grams: buckets, or distinct indices.
    ngrams : callable, optional
        For an explicit vocabulary: returns the table of its n-grams and their indices, uint64; called at first use.
        A repeated n-gram counts at its first place.

    Attributes
    ----------
    kind, n_words, min_n, max_n, size, ngrams
        As given.

    Raises
    ------
    LayoutError
        When a number is out of the range of this kind.

    Examples
    --------
    >>> from weightmap.core.table.vocabulary import Subwords
    >>> Subwords("bucket", n_words=0, min_n=6, max_n=6, size=1 << 21).indices("hallo")
    [1321513, 136555]
    """

    __slots__ = ("_native", "kind", "max_n", "min_n", "n_words", "ngrams", "size")

    def __init__(
        self,
        kind: str,
        n_words: int,
        min_n: int,
        max_n: int,
        size: int,
        ngrams: Callable[[], tuple[StringTable, NDArray[np.uint64]]] | None = None,
    ) -> None:
        if kind not in KINDS or (ngrams is None) == (kind == "explicit"):
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(KINDS)}; only 'explicit' has n-grams")
        if not 1 <= min_n <= max_n <= access.U32_MAX:
            expected = f"1 <= min_n <= max_n <= {access.U32_MAX}"
            raise LayoutError("range of n-grams", field="min_n", actual=f"{min_n} to {max_n}", expected=expected)
        whole = kind != "bucket" or size & (size - 1) == 0
        if not (kind != "explicit") <= size <= _LARGEST[kind] or not whole:
            expected = "a power of two" if kind == "bucket" else f"at most {_LARGEST[kind]}"
            raise LayoutError(f"number of {kind} subwords", field="size", actual=size, expected=expected)
        self.kind = kind
        self.n_words: int = n_words
        self.min_n: int = min_n
        self.max_n: int = max_n
        self.size: int = size
        self.ngrams: Callable[[], tuple[StringTable, NDArray[np.uint64]]] | None = ngrams
        self._native: checksums.Ngrams | dict[str, int] | None = None

    def indices(self, word: str) -> list[int]:
        """Return the rows of the n-grams of `word`, in the order of the n-grams; a row may repeat.

        Parameters
        ----------
        word : str
            Any text, in the vocabulary or not. A lone surrogate counts as a character; fastText's hash uses the three
            bytes that UTF-8 would use, and no explicit n-gram contains one.

        Returns
        -------
        list of int
            Empty if the word is too short for an n-gram, or none of its n-grams is listed.

        Raises
        ------
        LimitError
            When the word has more than 1,048,576 n-grams, whether or not they have rows.
        FormatError
            When the n-grams of the file are damaged.
        """
        rows: list[int] = self.rows_of([word])[0].tolist()
        return rows

    def rows_of(self, words: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the rows of the n-grams of a few words.

        Parameters
        ----------
        words : sequence of str
            Only a few: each has dozens of rows, and may have a million. For many words, use `parts`.

        Returns
        -------
        rows : ndarray of uint64
            Word after word, as `indices` returns them.
        bounds : ndarray of uint64, shape (len(words) + 1,)
            The rows of word i are ``rows[bounds[i]:bounds[i + 1]]``.
        """
        parts = list(self.parts(words))
        if len(parts) == 1:
            return parts[0][1:]
        bounds = [np.zeros(1, np.uint64)]
        for _, _, part in parts:
            bounds.append(part[1:] + bounds[-1][-1])
        return np.concatenate([rows for _, rows, _ in parts]), np.concatenate(bounds)

    def parts(self, words: Sequence[str]) -> Iterator[tuple[int, NDArray[np.uint64], NDArray[np.uint64]]]:
        """Yield the rows of the n-grams of many words, in bounded memory.

        Parameters
        ----------
        words : sequence of str
            Some thousands of them.

        Yields
        ------
        first : int
            Number of the part's first word. All words are one part, unless they have more than a million rows.
        rows, bounds : ndarray
            As `rows_of` returns them, for the words of the part.
        """
        waiting = [(0, len(words))]
        while waiting:
            first, last = waiting.pop()
            rows = self._rows(words if last - first == len(words) else words[first:last])
            if rows is None:
                middle = (first + last) // 2
                waiting += [(middle, last), (first, middle)]
            else:
                yield first, *rows

    def _rows(self, words: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | None:
        """Return rows and bounds; None for several words with more than a million rows."""
        native = self._native
        if native is None:
            native = self._native = self._load()
        if isinstance(native, dict):
            return self._look_up(native, words)
        packed = checksums.pack_texts(words, "<", ">")
        if packed is None:
            raise LimitError("UTF-8 of the words", actual="more", expected="at most 4 GiB")
        rows = native.rows(*packed)
        if isinstance(rows, int):
            raise self._too_many(words[rows])
        return rows

    def _load(self) -> checksums.Ngrams | dict[str, int]:
        if self.ngrams is None:
            return checksums.Ngrams(self.kind, self.min_n, self.max_n, self.size, self.n_words)
        table, numbers = self.ngrams()
        if len(numbers) != len(table):
            raise LayoutError("number of indices of n-grams", actual=len(numbers), expected=len(table))
        index = table.index
        if index is None:  # too many hashes collide
            rows: dict[str, int] = {}
            for ngram, number in zip(table, numbers.tolist(), strict=True):
                rows.setdefault(ngram, number + self.n_words)
            return rows
        return checksums.Ngrams(self.kind, self.min_n, self.max_n, self.size, self.n_words, (*index, numbers))

    def _look_up(
        self, listed: dict[str, int], words: Sequence[str]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | None:
        rows: list[int] = []
        bounds = [0]
        for word in words:
            text = f"<{word}>"
            longest = min(self.max_n, len(text))
            if count_of(self, len(text)) > checksums.MAX_NGRAMS:
                raise self._too_many(word)
            for start in range(len(text)):
                for n in range(min(longest, len(text) - start), self.min_n - 1, -1):
                    row = listed.get(text[start : start + n])
                    if row is not None:
                        rows.append(row)
            bounds.append(len(rows))
            if len(rows) > checksums.MAX_NGRAMS and len(words) > 1:
                return None
        return np.array(rows, np.uint64), np.array(bounds, np.uint64)

    def _too_many(self, word: str) -> LimitError:
        what = f"number of n-grams of {self.min_n} to {self.max_n} characters of a word of {len(word)}"
        return LimitError(what, actual=f"more than {checksums.MAX_NGRAMS}", expected=f"at most {checksums.MAX_NGRAMS}")

    def __repr__(self) -> str:
        return f"<Subwords {self.kind}, {self.min_n} to {self.max_n} characters, {self.size} rows>"


def count_of(subwords: Subwords, length: int) -> int:
    """Return the number of n-grams of a text of `length` characters, which include the brackets."""
    longest = min(subwords.max_n, length)
    count = max(0, longest - subwords.min_n + 1)
    return count * (length + 1) - (subwords.min_n + longest) * count // 2


class Vocabulary(Sequence[str]):
    """The tokens of a model by id: a sequence of strings over the bytes of the file.

    Opening a file creates no Python strings and does not touch the tokens. The first use finds their bounds in one
    scan; the first look-up, by `index` or ``in``, builds a hash index.

    Parameters
    ----------
    load : callable
        Called at the first use; returns the `StringTable`. Raises a `FormatError` for damaged tokens.
    count : int
        Number of tokens.
    special_ids : callable
        Called at the first use; returns the ids of the special tokens by name.
    subwords : Subwords, optional
        The n-grams of words outside the vocabulary; also an attribute.

    Notes
    -----
    A repeated token (legal in WordPiece vocabularies) is found at its first id.
    """

    __slots__ = ("_count", "_load", "_load_special_ids", "_special_ids", "_table", "format", "path", "subwords")

    def __init__(
        self,
        load: Callable[[], StringTable],
        count: int,
        special_ids: Callable[[], dict[str, int]] = dict,
        *,
        subwords: Subwords | None = None,
    ) -> None:
        self.subwords: Subwords | None = subwords
        self._load = load
        self._count = count
        self._load_special_ids = special_ids
        self._special_ids: dict[str, int] | None = None
        self._table: StringTable | None = None
        # The file, for messages; set by opening.
        self.path: str | None = None
        self.format: str | None = None

    @classmethod
    def of(cls, words: Sequence[str], *, subwords: Subwords | None = None) -> Vocabulary:
        """Return a vocabulary of `words` in memory, for `save`, with `subwords` if given."""
        tokens = tuple(words)
        return cls(lambda: StringTable.of(tokens, "word"), len(tokens), subwords=subwords)

    @property
    def _strings(self) -> StringTable:
        table = self._table
        if table is None:
            try:
                table = self._load()
            except TensorFileError as error:
                raise error.located(path=self.path, format=self.format) from None
            table.path, table.format = self.path, self.format
            self._table = table
        return table

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the file's special tokens by name: pad, unk, cls, sep, mask. Empty for a format without them."""
        ids = self._special_ids
        if ids is None:
            ids = self._special_ids = self._load_special_ids()
        return dict(ids)

    def __len__(self) -> int:
        return self._count

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, i: int) -> str: ...
        @overload
        def __getitem__(self, i: slice) -> list[str]: ...

    def __getitem__(self, i: int | slice) -> str | list[str]:
        table = self._strings
        if isinstance(i, slice):
            return [table[k] for k in range(*i.indices(self._count))]
        try:
            k = operator.index(i)
        except TypeError:
            from weightmap.core.arguments import mistyped  # noqa: PLC0415 - for errors only

            raise mistyped("a token id", i, "an integer") from None
        k = k + self._count if k < 0 else k
        if not 0 <= k < self._count:
            raise IndexError(f"token id {i} is out of range for a vocabulary of {self._count}")
        return table[k]

    def __iter__(self) -> Iterator[str]:
        return iter(self._strings)

    def __contains__(self, token: object) -> bool:
        return self._strings.find(token) >= 0

    def index(self, token: str, start: int = 0, stop: int | None = None) -> int:
        """Return the id of `token`.

        Parameters
        ----------
        token : str
            The token, including a prefix such as ``##``.
        start, stop : int
            As for `list.index`.

        Raises
        ------
        ValueError
            When the vocabulary does not have `token`.
        """
        id_ = self._strings.find(token)
        begin, end, _ = slice(start, stop).indices(self._count)
        if 0 <= id_ < begin:  # a repeated token may follow
            id_ = next((k for k in range(begin, end) if self[k] == token), -1)
        if not begin <= id_ < end:
            raise ValueError(f"{token!r} is not in the vocabulary")
        return id_

    if TYPE_CHECKING:

        @overload
        def get(self, token: str) -> int | None: ...
        @overload
        def get(self, token: str, default: T) -> int | T: ...

    def get(self, token: str, default: Any = None) -> Any:
        """Return the id of `token`, or `default` if the vocabulary does not have it."""
        id_ = self._strings.find(token)
        return default if id_ < 0 else id_

    def count(self, value: str) -> int:
        """Return the number of times that `value` occurs in the vocabulary."""
        return sum(token == value for token in self) if value in self else 0

    def ngram_indices(self, word: str) -> list[int]:
        """Return the rows of the character n-grams of `word`; an empty list if the vocabulary has no subwords."""
        return [] if self.subwords is None else self.subwords.indices(word)

    def __repr__(self) -> str:
        return f"<Vocabulary of {counted(self._count, 'token')}>"


def strings_of(vocabulary: Vocabulary) -> StringTable:
    """Return the strings of a vocabulary; the first use scans them."""
    return vocabulary._strings  # noqa: SLF001 - of this module


if TYPE_CHECKING:
    T = TypeVar("T")
