"""The tokens of a model by id, over the bytes of its file."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from weightmap.errors import TensorFileError, counted
from weightmap.index.strings import StringTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.embeddings.subwords import Subwords

__all__ = ["Vocabulary"]

T = TypeVar("T")


class Vocabulary(Sequence[str]):
    """The tokens of a model by id: a sequence of strings over the bytes of the file.

    Opening a file creates no Python string and does not touch the tokens. Their bounds are found by one scan at the
    first use, the hash index behind `index` and ``in`` at the first look-up.

    Parameters
    ----------
    load : callable
        Returns the `StringTable`; called at the first use. Raises a `FormatError` when the tokens are damaged.
    count : int
        Number of tokens.
    special_ids : callable
        Returns the ids of the special tokens by name; called at the first use.
    subwords : Subwords, optional
        How words that are not in the vocabulary are taken apart; also an attribute.

    Notes
    -----
    A token that stands twice (legal in WordPiece vocabularies) is found at its first id.
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
        self.subwords = subwords
        self._load = load
        self._count = count
        self._load_special_ids = special_ids
        self._special_ids: dict[str, int] | None = None
        self._table: StringTable | None = None
        # Of the file, for messages; filled in when it is opened.
        self.path: str | None = None
        self.format: str | None = None

    @classmethod
    def of(cls, words: Sequence[str], *, subwords: Subwords | None = None) -> Vocabulary:
        """Return a vocabulary of these words, in memory: for `save`.

        Parameters
        ----------
        words : sequence of str
        subwords : Subwords, optional
        """
        kept = tuple(words)
        return cls(lambda: StringTable.of(kept, "word"), len(kept), subwords=subwords)

    @property
    def table(self) -> StringTable:
        """The strings themselves; the first use scans them."""
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
        """Ids of the special tokens the file names: pad, unk, cls, sep, mask. Empty where the format has none."""
        ids = self._special_ids
        if ids is None:
            ids = self._special_ids = self._load_special_ids()
        return dict(ids)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        table = self.table
        if isinstance(i, slice):
            return [table[k] for k in range(*i.indices(self._count))]
        k = operator.index(i)
        k = k + self._count if k < 0 else k
        if not 0 <= k < self._count:
            msg = f"token id {i} is out of range for a vocabulary of {self._count}"
            raise IndexError(msg)
        return table[k]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __contains__(self, token: object) -> bool:
        return self.table.find(token) >= 0

    def index(self, token: str, start: int = 0, stop: int | None = None) -> int:
        """Return the id of `token`.

        Parameters
        ----------
        token : str
            The token, with its prefix such as ``##`` where the vocabulary has one.
        start, stop : int
            As of `list.index`.

        Raises
        ------
        ValueError
            When the vocabulary does not have it.
        """
        found = self.table.find(token)
        begin, end, _ = slice(start, stop).indices(self._count)
        if not begin <= found < end:
            msg = f"{token!r} is not in the vocabulary"
            raise ValueError(msg)
        return found

    @overload
    def get(self, token: str) -> int | None: ...
    @overload
    def get(self, token: str, default: T) -> int | T: ...
    def get(self, token: str, default: Any = None) -> Any:
        """Return the id of `token`, or `default` when the vocabulary does not have it."""
        found = self.table.find(token)
        return default if found < 0 else found

    def count(self, value: str) -> int:
        """Return how often `value` stands in the vocabulary."""
        return sum(token == value for token in self) if value in self else 0

    def ngram_indices(self, word: str) -> list[int]:
        """Return the rows of the character n-grams of `word`; none where the vocabulary has no subwords."""
        return [] if self.subwords is None else self.subwords.indices(word)

    def __repr__(self) -> str:
        return f"<Vocabulary of {counted(self._count, 'token')}>"
