"""Tables of strings over bytes of a file: nothing is decoded, and no Python string made, before somebody asks for it.

A table is the bytes, and the private array `bounds`: string i is ``data[bounds[i] : bounds[i + 1] - gap]``, `gap` being
the width of the length prefix that stands before each string (0 where the strings lie back to back). Look-up by text
goes through a hash index that C builds over the bytes at the first call: four bytes a string for the bounds, and at
most eleven for the index.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from weightmap import kernels
from weightmap.errors import FormatError, TensorFileError, counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.subwords import Subwords

__all__ = ["StringTable", "Vocabulary"]

T = TypeVar("T")


class StringTable:
    """Strings that lie in a buffer.

    Parameters
    ----------
    data : bytes or ndarray of uint8
        The bytes; they may be mapped and may change underneath: bounds are private and every access stays within them.
    bounds : ndarray of uint32, shape (n + 1,)
        See the module.
    gap : int
        Width of the length before each string: 0, 2, 4 or 8.
    what : str
        What a string is called in messages, such as "tensor name".
    """

    __slots__ = ("_bounds", "_data", "_find", "_gap", "_slots", "_what", "end", "format", "path")

    def __init__(self, data: Any, bounds: NDArray[np.uint32], gap: int, what: str) -> None:
        self._data = data
        self._bounds = bounds
        self._gap = gap
        self._what = what
        self._find: Callable[[object], int] | None = None
        self._slots: NDArray[np.uint32] | None = None
        # Of the file, and where in it the bytes end: for messages, where they are known.
        self.path: str | None = None
        self.format: str | None = None
        self.end: int | None = None

    @classmethod
    def of(cls, texts: Sequence[str], what: str) -> StringTable:
        """Return a table of these texts. Raises UnicodeEncodeError for lone surrogates."""
        raws = [text.encode() for text in texts]
        return cls(b"".join(raws), np.cumsum([0, *map(len, raws)]).astype(np.uint32), 0, what)

    @classmethod
    def joined(cls, tables: Sequence[StringTable], what: str) -> StringTable:
        """Return the strings of tables without gaps as one: less than 4 GiB in all."""
        bounds = [np.zeros(1, np.uint32)]
        for table in tables:
            bounds.append(table._bounds[1:] + bounds[-1][-1])  # noqa: SLF001 - the same class
        return cls(b"".join(table._data for table in tables), np.concatenate(bounds), 0, what)  # noqa: SLF001

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def raw(self, i: int) -> bytes:
        """Return the bytes of string i, 0 <= i < n."""
        first, last = self._bounds[i : i + 2].tolist()
        return bytes(self._data[first : last - self._gap])

    def __getitem__(self, i: int) -> str:
        return self._decode(self.raw(i), i)

    def _decode(self, raw: bytes, i: int) -> str:
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            msg = f"{self._what} {i} is not UTF-8: {raw[:40]!r} ({error.reason})"
            at = self._offset(i)
            raise FormatError(msg, path=self.path, format=self.format, field=self._what, offset=at) from None

    def _offset(self, i: int) -> int | None:
        """Return where string i begins in the file, as far as that is known."""
        return None if self.end is None else self.end - len(self._data) + int(self._bounds[i])

    def __iter__(self) -> Iterator[str]:
        # In pieces: a Python list of a million integers is larger than the strings.
        for first in range(0, len(self), 4096):
            bounds = self._bounds[first : first + 4097].tolist()
            start = bounds[0]
            blob = bytes(self._data[start : bounds[-1]])
            if blob.isascii():  # bytes and characters count alike
                text = str(blob, "ascii")
                for i in range(len(bounds) - 1):
                    yield text[bounds[i] - start : bounds[i + 1] - self._gap - start]
            else:
                for i in range(len(bounds) - 1):
                    yield self._decode(blob[bounds[i] - start : bounds[i + 1] - self._gap - start], first + i)

    @property
    def nbytes(self) -> int:
        """Bytes from the beginning of the buffer to the end of the last string."""
        return int(self._bounds[-1])

    @property
    def text_nbytes(self) -> int:
        """Bytes of the strings themselves."""
        return int(self._bounds[-1]) - int(self._bounds[0]) - self._gap * len(self)

    @property
    def finder(self) -> Callable[[object], int]:
        """A function from a text to the number of the first string equal to it, or -1. The first use indexes."""
        if self._find is None:
            self._build()
        assert self._find is not None  # noqa: S101 - for the type checker
        return self._find

    @property
    def index(self) -> tuple[Any, NDArray[np.uint32], int, NDArray[np.uint32]] | None:
        """Data, bounds, gap and slots of the hash index, for C. None when hashes collide too much for one."""
        if self._find is None:
            self._build()
        return None if self._slots is None else (self._data, self._bounds, self._gap, self._slots)

    def find(self, text: object) -> int:
        """Return the number of the first string equal to `text`, or -1. The first call builds the index."""
        return (self._find or self.finder)(text)

    def find_many(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of many strings at once, -1 for those that are not there, shape (len(texts),)."""
        find = self.finder
        packed = None if self._slots is None else kernels.pack_texts(texts)
        if packed is None or self._slots is None:
            return np.array([find(text) for text in texts], np.int64)
        return kernels.index_find_many(self._data, self._bounds, self._gap, self._slots, *packed)

    def _build(self) -> tuple[int, int, int]:
        capacity = 16
        while capacity < len(self) + len(self) // 3 + 1:
            capacity *= 2
        slots = np.empty(capacity, np.uint32)
        found = kernels.index_build(self._data, self._bounds, self._gap, slots)
        if found[0] >= 0:
            self._slots = slots
            self._find = kernels.index_finder(self._data, self._bounds, self._gap, slots)
            return found
        # Somebody made the hashes collide: Python's dict has a secret in its hash, and is bounded whatever the names
        # are.
        rows: dict[str, int] = {}
        repeated = 0
        first = (0, 0)
        for i in range(len(self)):
            original = rows.setdefault(self.raw(i).decode(errors="surrogateescape"), i)
            if original != i:
                first = first if repeated else (i, original)
                repeated += 1
        self._find = lambda text: rows.get(text, -1) if isinstance(text, str) else -1
        return repeated, *first

    def duplicates(self) -> tuple[int, int, int]:
        """Return how many strings equal an earlier one, and the numbers of the first such and of its original."""
        return self._build()

    def not_utf8(self) -> int:
        """Return the number of the first string that is not strict UTF-8, or -1."""
        return kernels.utf8_strings(self._data, self._bounds, self._gap)


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
