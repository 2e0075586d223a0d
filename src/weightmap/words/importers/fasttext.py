"""Reading fastText's models."""

from __future__ import annotations

import functools
import struct
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.faults import cut_off, too_many
from weightmap.core.formats import refuse
from weightmap.core.formats._writing import Importer
from weightmap.core.table.vocabulary import Subwords
from weightmap.errors import FormatError, LayoutError, UnsupportedError
from weightmap.words.importers import _words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.core.arguments import ImportOptions, Limits
    from weightmap.core.bytes.source import Source
    from weightmap.core.table import StringTable

# Positions of the fields that messages name.
_AT = {
    "version": 4,
    "dims": 8,
    "model": 36,
    "buckets": 40,
    "min_n": 44,
    "max_n": 48,
    "entries": 64,
    "labels": 72,
    "pruned": 84,
}
# Words to sum at once, with some dozens of n-grams each; blocks of their rows to gather at once.
WORDS = 256
_BLOCKS = 4


def read(source: Source, head: bytes, options: ImportOptions) -> _words.Words:
    """Read a model. Iterating `Words.blocks` averages the rows of words.

    Raises
    ------
    UnsupportedError
        For another version, and for supervised models (with labels), pruned models and quantised models.
    FormatError
        For a damaged file, and for more words than the limits allow.
    """
    values, entries, labels = _header(head, source.size)
    dims, buckets, min_n, max_n = (values[name] for name in ("dims", "buckets", "min_n", "max_n"))
    raws, offsets, end = _dictionary(source, entries, labels, options.limits)
    left_out: tuple[str, ...] = ()
    if labels:
        first = quoted(raws[entries].decode(errors="replace"))
        left_out = (f"{counted(labels, 'label')}, such as {first}, left out: fastText has no vectors of labels",)
        del raws[entries:], offsets[entries:]
    rows, data = _matrix(source, end, dims)
    table = _words.table_of(raws, offsets, lossy=options.lossy, fixed=True)
    subwords = None
    if min_n and max_n >= min_n and buckets:
        if rows != entries + buckets:
            expected = f"{entries + buckets}: {entries} words and {buckets} buckets"
            raise LayoutError("number of rows", field="rows", offset=end + 1, actual=rows, expected=expected)
        subwords = Subwords("fasttext", entries, min_n, max_n, buckets)
        if min_n == 1:
            counted_there = "finalfusion counts '<' and '>' among the n-grams of unknown words, fastText does not"
            left_out += (f"min_n is 1: {counted_there} (subwords='explicit' lists neither)",)
    elif rows < entries:
        raise LayoutError("number of rows", field="rows", offset=end + 1, actual=rows, expected=f"at least {entries}")
    model = _Model(source, table, dims, data, subwords)
    rows = entries if subwords is None else rows
    metadata = values | {"loss": _named(LOSSES, values["loss"]), "model": _named(MODELS, values["model"])}
    make = functools.partial(model.blocks, rows)
    warnings = _output(source, data + 4 * dims * rows) + left_out
    return _words.Words(
        (source,), "fasttext", table, rows, dims, make, model.gather, None, subwords, metadata, warnings
    )


def _header(head: bytes, size: int) -> tuple[dict[str, Any], int, int]:
    """Return the options of a model, and its numbers of words and of labels."""
    if size < HEAD.size:
        raise cut_off("the header of the fastText model", size, HEAD.size)
    _, version, *values, entries, words, labels, _, pruned = HEAD.unpack_from(head)
    options = dict(zip(OPTIONS, values, strict=True))
    if version not in VERSIONS:
        expected = " or ".join(map(str, VERSIONS))
        raise UnsupportedError("version", field="version", offset=_AT["version"], actual=version, expected=expected)
    if _named(MODELS, options["model"]) == MODELS[-1]:
        msg = "this is a supervised model, with labels"
        raise UnsupportedError(msg, field="model", offset=_AT["model"], expected="a model of words")
    if pruned > 0:
        msg = "this model's n-grams were pruned"
        raise UnsupportedError(msg, field="pruned", offset=_AT["pruned"], expected="a dense model")
    for name, minimum in (("dims", 1), ("buckets", 0), ("min_n", 0), ("max_n", 0)):
        if options[name] < minimum:
            raise FormatError(name, field=name, offset=_AT[name], actual=options[name], expected=f"{minimum} or more")
    max_words = (size - HEAD.size) // (1 + ENTRY.size)
    if not 0 <= entries <= max_words:
        raise too_many("number of words", entries, max_words, field="entries", offset=_AT["entries"])
    if words < 0 or labels < 0 or words + labels != entries:
        expected = f"{entries} together, the number of entries"
        raise LayoutError(
            "numbers of words and labels",
            field="labels",
            offset=_AT["labels"],
            actual=f"{words} and {labels}",
            expected=expected,
        )
    return options, words, labels


def _named(names: tuple[str, ...], code: int) -> str | int:
    return names[code - 1] if 1 <= code <= len(names) else code


def _dictionary(source: Source, words: int, labels: int, limits: Limits) -> tuple[list[bytes], array[int], int]:
    """Return the words, then the labels, the position of each, and the position of the matrix."""
    entries = words + labels
    raws: list[bytes] = []
    offsets = array("q")
    base, window, position = HEAD.size, b"", 0
    while len(raws) < entries:
        at = window.find(b"\0", position)
        if at < 0 or len(window) - at - 1 < ENTRY.size:
            base += position
            position = 0
            # A sparse file can hold endless entries, at no cost for its author.
            limits.check("max_header_bytes", base - HEAD.size, "size of the dictionary (or more)", offset=HEAD.size)
            window = source.pread(base, min(_words.BLOCK, source.size - base))
            at = window.find(b"\0")
            if at > _words.LONGEST or (at < 0 and len(window) > _words.LONGEST):
                expected = f"a zero byte within {_words.LONGEST} bytes"
                raise FormatError(f"word {len(raws)} has no end", field="word", offset=base, expected=expected)
            if at < 0 or len(window) - at - 1 < ENTRY.size:
                raise cut_off(f"word {len(raws)} of {entries}", source.size, field="word")
        _, kind = ENTRY.unpack_from(window, at + 1)
        min_labels = int(len(raws) >= words)
        if kind != min_labels:
            what, expected = f"type of entry {len(raws)}", "1, a label" if min_labels else "0, a word"
            raise UnsupportedError(what, field="type", offset=base + at + 9, actual=kind, expected=expected)
        raws.append(window[position:at])
        offsets.append(base + position)
        position = at + 1 + ENTRY.size
    return raws, offsets, base + position


def _matrix(source: Source, at: int, dims: int) -> tuple[int, int]:
    """Return the number of rows of the input matrix, and their position."""
    if source.size - at < MATRIX.size:
        raise cut_off("the fields of its matrix", source.size, at + MATRIX.size, field="rows")
    quantised, rows, cols = MATRIX.unpack(source.pread(at, MATRIX.size))
    if quantised:
        msg = "this model is quantised"
        raise UnsupportedError(msg, field="quantised", offset=at, expected="a dense one (.bin, not .ftz)")
    if cols != dims:
        expected = f"{dims}, as in the options"
        raise LayoutError("number of columns", field="cols", offset=at + 9, actual=cols, expected=expected)
    data = at + MATRIX.size
    max_rows = (source.size - data) // (4 * dims)
    if not 0 <= rows <= max_rows:
        raise too_many("number of rows", rows, max_rows, field="rows", offset=at + 1)
    return rows, data


def _output(source: Source, at: int) -> tuple[str, ...]:
    """Check that the output matrix, which begins at byte `at`, is whole; return a warning if it is missing.

    Only its size is read. A quantised matrix has an unknown size.
    """
    if source.size == at:
        return ("the file ends before its output matrix: was the download complete?",)
    if source.size - at < MATRIX.size:
        raise cut_off("the fields of its output matrix", source.size, at + MATRIX.size, field="output")
    quantised, rows, cols = MATRIX.unpack(source.pread(at, MATRIX.size))
    end = at + MATRIX.size + 4 * rows * cols
    if not quantised and source.size < end:
        raise cut_off("its output matrix, which training needs", source.size, end, field="output")
    return ()


class _Model:
    """The rows of a model, stored or averaged over n-grams."""

    def __init__(self, source: Source, table: StringTable, dims: int, data: int, subwords: Subwords | None) -> None:
        self._source = source
        self._table = table
        self._dims = dims
        self._data = data
        self._subwords = subwords
        self._mapped: NDArray[np.float32] | None = None

    def _at(self, row: int) -> int:
        return self._data + 4 * self._dims * row

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return stored rows. The matrix is mapped, because n-grams lie all over it."""
        mapped = self._mapped
        if mapped is None:
            subwords = self._subwords
            count = len(self._table) + (0 if subwords is None else subwords.size)
            shape, dtype = (count, self._dims), np.dtype("<f4")
            mapped = self._mapped = self._source.array(dtype, shape, self._data, 4 * count * self._dims)
        return mapped[rows].astype(np.float32, copy=False)

    def blocks(self, rows: int) -> Iterator[NDArray[np.float32]]:
        """Yield the averaged rows of the words, then the rows of the buckets, unchanged."""
        first = 0
        if self._subwords is not None:
            yield from self._averaged(self._subwords)
            first = len(self._table)
        size = 4 * self._dims
        step = _words.rows_in_block(self._dims)
        for chunk in self._source.chunks(self._at(first), (rows - first) * size, step * size):
            block = np.frombuffer(chunk, "<f4").astype(np.float32).reshape(-1, self._dims)
            _words.check_finite(block, first, self._at)
            first += len(block)
            yield block
        self._source.check_unchanged()

    def _averaged(self, subwords: Subwords) -> Iterator[NDArray[np.float32]]:
        for first in range(0, len(self._table), WORDS):
            stop = min(first + WORDS, len(self._table))
            names = [self._table[i] for i in range(first, stop)]
            sums, counts = ngram_sums(names, subwords, self.gather, self._dims)
            with np.errstate(over="ignore", invalid="ignore"):
                block = self.gather(np.arange(first, stop)) + sums
            block /= counts[:, None] + np.float32(1)
            _words.check_finite(block, first, self._at)
            yield block


def ngram_sums(
    words: list[str], subwords: Subwords, gather: Any, dims: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return for each word the sum of the rows of its n-grams, shape (words, dims), and their number."""
    sums = np.zeros((len(words), dims), np.float32)
    counts = np.zeros(len(words), np.float32)
    for first, rows, bounds in subwords.parts(words):
        last = first + len(bounds) - 1
        inner, ends = _without_brackets(rows.astype(np.int64), bounds.astype(np.int64), words[first:last], subwords)
        counts[first:last] = np.diff(ends)
        with np.errstate(over="ignore", invalid="ignore"):  # a later check finds numbers that are not finite
            _add_up(inner, ends, gather, sums[first:last])
    return sums, counts


def _without_brackets(
    rows: NDArray[np.int64], bounds: NDArray[np.int64], words: list[str], subwords: Subwords
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and bounds of n-grams without the n-grams of a single bracket, at both ends of a word.

    fastText does not make these (Dictionary::computeSubwords). They are the last n-gram that begins at the first
    character of a word, and the last one of the word.
    """
    if subwords.min_n > 1:
        return rows, bounds
    inner = np.ones(len(rows), np.bool_)
    inner[bounds[:-1] + [min(len(word) + 2, subwords.max_n) - 1 for word in words]] = False
    inner[bounds[1:] - 1] = False
    return rows[inner], bounds - 2 * np.arange(len(bounds))


def _add_up(rows: NDArray[np.int64], bounds: NDArray[np.int64], gather: Any, sums: NDArray[np.float32]) -> None:
    """Fill `sums` with the sums of the rows between bounds, a few blocks of rows at a time."""
    max_rows = _BLOCKS * _words.rows_in_block(sums.shape[1])
    for begin in range(0, len(rows), max_rows):
        end = min(begin + max_rows, len(rows))
        starts = np.maximum(bounds[:-1], begin)
        # Words without n-grams begin no sum, so that each sum ends where the next begins.
        some = np.flatnonzero(starts < np.minimum(bounds[1:], end))
        block = gather(rows[begin:end])
        if starts[some[0]] > bounds[some[0]]:  # continues a sum of the block before, in the order of a single block
            block[0] += sums[some[0]]
        sums[some] = np.add.reduceat(block, starts[some] - begin, axis=0)


# ----------------------------------------------------------------------------------------------------
# Writing fastText's models.


def plan(words: _words.Words) -> WritePlan:
    """Lay out a model without an output matrix. Raises `EncodeError` except for simple and fastText vocabularies.

    The counts of words are unknown, and written as 1.
    """
    subwords = words.subwords
    if subwords is not None and subwords.kind != "fasttext":
        refuse("format fasttext", [f"a vocabulary of kind {subwords.kind} (expected simple ones and its own)"])
    raws = [words.table.raw(i) for i in range(len(words.table))]
    _words.refuse_words("fasttext", raws, b"\0 \t\n\r\x0b\x0c", empty=False)
    head = HEAD.pack(MAGIC, VERSION, *_options(words), len(raws), len(raws), 0, len(raws), -1)
    entries = b"".join(raw + b"\0" + ENTRY.pack(1, 0) for raw in raws)
    matrix = MATRIX.pack(False, words.rows, words.dims)  # noqa: FBT003 - a field of the format
    tail = MATRIX.pack(False, 0, words.dims)  # noqa: FBT003 - the same
    size = len(head) + len(entries) + len(matrix) + words.nbytes + len(tail)

    def write(sink: Sink) -> None:
        for part in (head, entries, matrix):
            sink.write(part)
        at = 0
        for block in words.blocks():
            if subwords is not None:
                _undo(words, subwords, block, at)
            at += len(block)
            sink.write(block.astype("<f4", copy=False).tobytes())
        sink.write(tail)

    return WritePlan(size, write)


def _options(words: _words.Words) -> list[Any]:
    """Return the options of a model; training options come from the metadata."""
    subwords, metadata = words.subwords, words.metadata
    declared = {"dims": words.dims, "buckets": 0, "min_n": 0, "max_n": 0}
    if subwords is not None:
        declared |= {"buckets": subwords.size, "min_n": subwords.min_n, "max_n": subwords.max_n}
    codes = {
        "loss": _code(LOSSES, metadata.get("loss"), 3),
        "model": _code(MODELS[:2], metadata.get("model"), 2),
        "word_ngrams": 1,
    }
    options: list[Any] = []
    for name in OPTIONS[:-1]:
        value = declared.get(name, codes.get(name, metadata.get(name, -1)))
        options.append(value if type(value) is int and -(1 << 31) <= value < 1 << 31 else -1)
    threshold = metadata.get("sampling_threshold", -1.0)
    return [*options, float(threshold) if isinstance(threshold, (int, float)) else -1.0]


def _code(names: tuple[str, ...], name: object, default: int) -> int:
    return names.index(name) + 1 if isinstance(name, str) and name in names else default


def _undo(words: _words.Words, subwords: Subwords, block: NDArray[np.float32], at: int) -> None:
    """Replace the means of words, in a block of rows from `at` on, by the words' own rows."""
    count = min(len(block), len(words.table) - at)
    assert words.gather is not None  # noqa: S101 - words with subwords have it
    for first in range(0, max(count, 0), WORDS):
        stop = min(first + WORDS, count)
        names = [words.table[at + i] for i in range(first, stop)]
        sums, counts = ngram_sums(names, subwords, words.gather, words.dims)
        with np.errstate(over="ignore", invalid="ignore"):
            block[first:stop] *= counts[:, None] + np.float32(1)
            block[first:stop] -= sums
        _words.check_finite(block[first:stop], at + first)


# ----------------------------------------------------------------------------------------------------
# fastText's models, ``.bin``.
#
# Little-endian. ``i32 793712314 | i32 11 or 12 | 12 x i32 options | f64 sampling threshold | i32 entries | i32 words |
# i32 labels | i64 tokens | i64 pruned``, then the entries: ``bytes, 0 | i64 count | i8 type``, then ``u8 quantised |
# i64 rows | i64 cols | f32 x rows x cols``: the rows of the words, then the rows of the buckets of n-grams. The output
# matrix behind them has the same fields and serves training: only its size is read, to check that the file is whole.
#
# Entries of type 0 are words. Entries of type 1, behind them, are labels: words that begin with ``__label__`` and have
# no row. Supervised models, whose rows serve labels, are refused.

MAGIC = 793712314
VERSION = 12
# Versions 11 and 12 differ only in supervised models.
VERSIONS = (11, 12)
HEAD = struct.Struct("<2i12id3i2q")
ENTRY = struct.Struct("<qb")
MATRIX = struct.Struct("<?qq")
# The options in their order, by finalfusion's names.
OPTIONS = (
    "dims",
    "window_size",
    "epoch",
    "min_count",
    "ns",
    "word_ngrams",
    "loss",
    "model",
    "buckets",
    "min_n",
    "max_n",
    "lr_update_rate",
    "sampling_threshold",
)
LOSSES = ("HierarchicalSoftmax", "NegativeSampling", "Softmax")
MODELS = ("CBOW", "SkipGram", "Supervised")


def claims(head: bytes, size: int) -> bool:
    """Whether the file begins with the magic number."""
    return size >= 4 and head[:4] == MAGIC.to_bytes(4, "little")


IMPORTER = Importer(
    name="fasttext",
    hint=f"this is a model of fastText: {_words.ADVICE}",
    claims=claims,
    read=read,
    plan=plan,
    carries=frozenset({"metadata", "subwords"}),
)
