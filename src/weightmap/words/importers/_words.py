"""Words and their rows in blocks: every importer returns them, and every writer takes them."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import counted
from weightmap.core.formats import refuse
from weightmap.core.formats._base import HEAD
from weightmap.core.table import StringTable
from weightmap.core.table.vocabulary import Subwords, Vocabulary
from weightmap.errors import FileChangedError, FormatError, Remedy, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source

# Recognises word embeddings of other programs by their beginning.

ADVICE = "convert it to finalfusion first (weightmap convert FILE words.fifu)"
_PRINTABLE = bytes([9, 10, 13, *range(0x20, 0x7F)])
_DIGITS = 18


def declared(head: bytes) -> tuple[int, int, int] | None:
    """Return the rows and dims declared by a first line of two numbers, and its end; None for another line."""
    line, end, _ = head[:HEAD].partition(b"\n")
    fields = line.split()
    if not end or len(fields) != 2 or not all(field.isdigit() and len(field) <= _DIGITS for field in fields):
        return None
    return int(fields[0]), int(fields[1]), len(line) + 1


def whole_fields(head: bytes, size: int) -> bytes:
    """Return `head`, the beginning of a file of `size` bytes, without a last field that it cuts off."""
    return head if size == len(head) else (head.rsplit(None, 1) or [head])[0]


def is_row(line: bytes, most_wrong: float) -> bool:
    """Whether numbers follow the first word of a line; the share `most_wrong` of the fields may be wrong."""
    fields = line.split()[1:]
    return bool(fields) and sum(not _is_number(field) for field in fields) <= most_wrong * len(fields)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def in_text(head: bytes, size: int, dims: int, start: int) -> bool:
    """Whether the first vector, behind a line that ends at `start`, is text and not binary.

    Numbers behind the word make it text. As many printable bytes as a binary vector has, up to 256, make it faulty
    text; with fewer than four numbers, binary bytes are printable too often to tell.
    """
    if is_row(whole_fields(head, size)[start:].partition(b"\n")[0], 0):
        return True
    vector = head[start:].lstrip(b"\r\n").partition(b" ")[2][: min(4 * dims, 256)]
    return dims >= 4 and not vector.translate(None, _PRINTABLE)


# Approximate bytes of rows per block
BLOCK = 4 << 20
# Longest word of a binary file, in bytes, so that a file without spaces is not read as a single word.
LONGEST = 1 << 16
_MAX_WORDS = (1 << 32) - 1
_MAX_DIMS = (1 << 31) - 1
# Remedies
REPLACED = Remedy("{} replaces such bytes", "lossy", switch=True, python="weightmap.words.convert(lossy=True)")
FIRSTS = REPLACED._replace(words="{} keeps the first row of each word")
LENIENT = Remedy(
    "{} takes the words that are there", "strict", value=False, python="weightmap.words.convert(strict=False)"
)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class Words(NamedTuple):
    """Words, and a matrix to read block by block.

    Attributes
    ----------
    sources : tuple of Source
        The files read: the given one first, the one with the rows last.
    format : str
        Format or importer of the given file.
    table : StringTable
        The words, checked to be UTF-8 and unique.
    rows, dims : int
        Shape of the matrix; the words have its first rows.
    make : callable
        Returns an iterator over all rows in order, as arrays of float32, shape (some, dims), finite and writable.
    gather : callable or None
        ``gather(rows)`` returns rows by number. None without subwords.
    norms : ndarray of float32, shape (words,), or None
        Divisors already applied to the rows of the words.
    subwords : Subwords or None
    metadata : mapping
    warnings : tuple of str
        Signs of an incomplete file, for the report.
    """

    sources: tuple[Source, ...]
    format: str
    table: StringTable
    rows: int
    dims: int
    make: Callable[[], Iterator[NDArray[np.float32]]]
    gather: Callable[[NDArray[np.int64]], NDArray[np.float32]] | None = None
    norms: NDArray[np.float32] | None = None
    subwords: Subwords | None = None
    metadata: Mapping[str, Any] = MappingProxyType({})
    warnings: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The file's name for messages."""
        return self.sources[0].name

    @property
    def vocab(self) -> Vocabulary:
        """The words with their subwords, as `save` takes them."""
        return Vocabulary(lambda: self.table, len(self.table), subwords=self.subwords)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as float32."""
        return 4 * self.rows * self.dims

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield all rows as `make` does. Errors name the file."""
        try:
            yield from self.make()
        except FormatError as error:
            raise error.located(path=self.path, format=self.format) from None

    def word_blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield only the rows of the words."""
        remaining = len(self.table)
        for block in self.blocks():
            if not remaining:
                return
            yield block[:remaining]
            remaining -= min(remaining, len(block))


def shape_of(head: bytes) -> tuple[int, int, int]:
    """Return the rows and dims declared by the first line, and its end. Dims are bounded."""
    shape = declared(head)
    if shape is None:  # it was recognised by its shape
        raise FileChangedError("the file was changed while it was being read")
    if not 1 <= shape[1] <= _MAX_DIMS:
        expected = f"1 to {_MAX_DIMS}"
        raise FormatError("number of dimensions", field="dims", offset=0, actual=shape[1], expected=expected)
    return shape


def counted_otherwise(declared: int, actual: int) -> tuple[str, ...]:
    """Return a warning if the first line declares a wrong number of words."""
    return (
        () if declared == actual else (f"the first line declares {counted(declared, 'word')}, the file has {actual:,}",)
    )


def rows_in_block(dims: int) -> int:
    """Return the rows per block."""
    return max(1, BLOCK // (4 * max(dims, 1)))


def firsts(raws: Sequence[bytes], *, lossy: bool) -> NDArray[np.intp] | None:
    """With `lossy`, return the numbers of the words that repeat no earlier word; None to keep all.

    Words count as repeated, too, if they are equal after `table_of` has replaced their bytes.
    """
    row_of: dict[str, int] = {}
    for i, raw in enumerate(raws if lossy else ()):
        row_of.setdefault(raw.decode(errors="replace"), i)
    return np.fromiter(row_of.values(), np.intp, len(row_of)) if lossy and len(row_of) < len(raws) else None


def only(words: Words, rows: NDArray[np.intp] | None) -> Words:
    """Return words with only the rows `rows`, which rise and belong to the words of the table; None keeps all."""
    if rows is None:
        return words

    def blocks() -> Iterator[NDArray[np.float32]]:
        at = 0
        for block in words.make():
            first, last = np.searchsorted(rows, (at, at + len(block)))
            yield block[rows[first:last] - at]
            at += len(block)

    note = f"{counted(words.rows - len(rows), 'repeated word')} left out: the first row of each word stays"
    return words._replace(rows=len(rows), make=blocks, warnings=(*words.warnings, note))


def table_of(
    raws: Sequence[bytes],
    offsets: Sequence[int],
    *,
    lossy: bool,
    what: str = "word",
    first: int = 0,
    fixed: bool = False,
) -> StringTable:
    r"""Return words as a table. Raises `FormatError` for a word that is not UTF-8, or repeated.

    Parameters
    ----------
    raws : sequence of bytes
    offsets : sequence of int
        The position of each word in the file.
    lossy : bool
        Replace bytes that are not UTF-8 by U+FFFD, or by their numbers, as in ``\\xe4``, if U+FFFD would make words
        equal.
    what, first : str, int
        "word" or "the word of line", to which messages append a number; and the number of the first word.
    fixed : bool
        Whether no row can be left out.
    """
    table = _packed(raws)
    bad = table.not_utf8()
    if bad >= 0 and lossy:
        texts = [raw.decode(errors="replace") for raw in raws]
        uses = Counter(texts)
        table = _packed(
            [
                (raw.decode(errors="backslashreplace") if uses[text] > 1 else text).encode()
                for raw, text in zip(raws, texts, strict=True)
            ]
        )
    elif bad >= 0:
        raise FormatError(
            f"{what} {bad + first}, {raws[bad][:40]!r}, is not UTF-8",
            field="word",
            offset=offsets[bad],
            expected="UTF-8",
            remedy=REPLACED,
        )
    count, second, original = table.duplicates()
    if count:
        more = f", and {count - 1} more are repeated" if count > 1 else ""
        raise FormatError(
            f"{what} {second + first} is {table[second][:80]!r}, as {original + first} is{more}: words are unique",
            field="word",
            offset=offsets[second],
            remedy=None if fixed or lossy else FIRSTS,
        )
    return table


def _packed(raws: Sequence[bytes]) -> StringTable:
    ends = np.cumsum([0, *map(len, raws)], dtype=np.uint64)
    if int(ends[-1]) > _MAX_WORDS:
        expected = f"at most {_MAX_WORDS}, which this library can address"
        raise UnsupportedError("bytes of words", field="word", actual=int(ends[-1]), expected=expected)
    return StringTable(b"".join(raws), ends.astype(np.uint32), 0, "word")


def check_finite(block: NDArray[np.float32], first: int, offset: Callable[[int], int] | None = None) -> None:
    """Refuse numbers that are not finite. `first` is the number of the first row; `offset` finds a row's byte."""
    finite = np.isfinite(block)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        value = float(block[row, column])
        what = f"number {column} of row {first + row}"
        at = None if offset is None else offset(first + row)
        raise FormatError(what, field="vector", offset=at, actual=value, expected="a finite number")


def normalised(words: Words) -> tuple[Words, NDArray[np.float32]]:
    """Return the words with rows scaled to unit vectors, and the norms, which reading the rows fills in."""
    count = len(words.table)
    norms = np.zeros(count, np.float32)

    def blocks() -> Iterator[NDArray[np.float32]]:
        at = 0
        for block in words.blocks():
            part = block[: max(count - at, 0)]
            if len(part):
                block_norms = l2_norms(part)
                if not float(block_norms.max()) <= _FLOAT32_MAX:
                    what = f"norm of word {at + int(block_norms.argmax())}"
                    expected = "one in the range of float32"
                    raise FormatError(what, field="vector", actual=float(block_norms.max()), expected=expected)
                norms[at : at + len(part)] = block_norms
                part /= np.where(block_norms == 0, 1, block_norms).astype(np.float32)[:, None]
            at += len(block)
            yield block

    return words._replace(make=blocks), norms


def l2_norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the L2 norm of each row, shape (rows,), summed in double precision."""
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return norms


def unnormalised(words: Words) -> Words:
    """Return the words with rows multiplied by their norms."""
    norms = words.norms
    if norms is None:
        return words

    def blocks() -> Iterator[NDArray[np.float32]]:
        at = 0
        for block in words.blocks():
            part = block[: max(len(norms) - at, 0)]
            with np.errstate(over="ignore", invalid="ignore"):
                part *= norms[at : at + len(part), None]
            check_finite(part, at)
            at += len(block)
            yield block

    return words._replace(make=blocks, norms=None)


def refuse_words(name: str, raws: list[bytes], forbidden: bytes, *, empty: bool = True) -> None:
    """Raise one `EncodeError` naming the words with bytes that the format called `name` reserves."""
    bad = [
        f"word {i}, {raw[:40].decode(errors='replace')!r}"
        for i, raw in enumerate(raws)
        if (len(raw.translate(None, forbidden)) != len(raw)) or (not raw and not empty)
    ]
    if bad:
        refuse(f"format {name}", [f"{what}: it is empty, or has white space or a zero byte" for what in bad])
