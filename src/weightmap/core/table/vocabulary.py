"""The vocabulary of a model: its tokens by id, over the bytes of the file."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weightmap.core.table.strings import StringTable
from weightmap.errors import TensorFileError, counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar, overload

    from weightmap.core.table.subwords import Subwords

    T = TypeVar("T")


class Vocabulary(Sequence[str]):
    """The tokens of a model by id: a sequence of strings over the bytes of the file.

    Opening a file creates no Python string and does not touch the tokens. The first use finds their bounds by one scan;
    the first look-up, by `index` or ``in``, builds a hash index.

    Parameters
    ----------
    load : callable
        Called at the first use; returns the `StringTable`. Raises a `FormatError` for damaged tokens.
    count : int
        Number of tokens.
    special_ids : callable
        Called at the first use; returns the ids of the special tokens by name.
    subwords : Subwords, optional
        The n-grams of words outside of the vocabulary; also an attribute.

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
        """Return a vocabulary of `words` in memory, for `save`, with their subwords if there are any."""
        tokens = tuple(words)
        return cls(lambda: StringTable.of(tokens, "word"), len(tokens), subwords=subwords)

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
        table = self.table
        if isinstance(i, slice):
            return [table[k] for k in range(*i.indices(self._count))]
        try:
            k = operator.index(i)
        except TypeError:
            from weightmap.core.arguments import mistyped  # noqa: PLC0415 - for errors only

            raise mistyped("a token id", i, "an integer") from None
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
            The token, with its prefix if it has one, such as ``##``.
        start, stop : int
            As for `list.index`.

        Raises
        ------
        ValueError
            When the vocabulary does not have it.
        """
        id_ = self.table.find(token)
        begin, end, _ = slice(start, stop).indices(self._count)
        if not begin <= id_ < end:
            msg = f"{token!r} is not in the vocabulary"
            raise ValueError(msg)
        return id_

    if TYPE_CHECKING:

        @overload
        def get(self, token: str) -> int | None: ...
        @overload
        def get(self, token: str, default: T) -> int | T: ...

    def get(self, token: str, default: Any = None) -> Any:
        """Return the id of `token`, or `default` if the vocabulary does not have it."""
        id_ = self.table.find(token)
        return default if id_ < 0 else id_

    def count(self, value: str) -> int:
        """Return how often `value` occurs in the vocabulary."""
        return sum(token == value for token in self) if value in self else 0

    def ngram_indices(self, word: str) -> list[int]:
        """Return the rows of the character n-grams of `word`; none if the vocabulary has no subwords."""
        return [] if self.subwords is None else self.subwords.indices(word)

    def __repr__(self) -> str:
        return f"<Vocabulary of {counted(self._count, 'token')}>"
