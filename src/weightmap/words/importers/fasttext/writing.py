"""Writing fastText's models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.formats import refuse
from weightmap.io.sink import WritePlan
from weightmap.words.importers._words import check_finite, refuse_words
from weightmap.words.importers.fasttext import ENTRY, HEAD, LOSSES, MAGIC, MATRIX, MODELS, OPTIONS, VERSION
from weightmap.words.importers.fasttext.reading import WORDS, ngram_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.embeddings.subwords import Subwords
    from weightmap.io.sink import Sink
    from weightmap.words.importers._words import Words


def plan(words: Words) -> WritePlan:
    """Lay out a model without an output matrix. Raises `EncodeError` except for simple and fastText vocabularies.

    The count of each word is unknown, and written as 1.
    """
    subwords = words.subwords
    if subwords is not None and subwords.kind != "fasttext":
        refuse("format fasttext", [f"a vocabulary of kind {subwords.kind} (expected simple ones and its own)"])
    raws = [words.table.raw(i) for i in range(len(words.table))]
    refuse_words("fasttext", raws, b"\0 \t\n\r\x0b\x0c", empty=False)
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


def _options(words: Words) -> list[Any]:
    """Return the options of a model; training options come from the metadata."""
    subwords, given = words.subwords, words.metadata
    known = {"dims": words.dims, "buckets": 0, "min_n": 0, "max_n": 0}
    if subwords is not None:
        known |= {"buckets": subwords.size, "min_n": subwords.min_n, "max_n": subwords.max_n}
    codes = {
        "loss": _code(LOSSES, given.get("loss"), 3),
        "model": _code(MODELS[:2], given.get("model"), 2),
        "word_ngrams": 1,
    }
    options: list[Any] = []
    for name in OPTIONS[:-1]:
        value = known.get(name, codes.get(name, given.get(name, -1)))
        options.append(value if type(value) is int and -(1 << 31) <= value < 1 << 31 else -1)
    threshold = given.get("sampling_threshold", -1.0)
    return [*options, float(threshold) if isinstance(threshold, (int, float)) else -1.0]


def _code(names: tuple[str, ...], name: object, default: int) -> int:
    return names.index(name) + 1 if isinstance(name, str) and name in names else default


def _undo(words: Words, subwords: Subwords, block: NDArray[np.float32], at: int) -> None:
    """Replace the means of words, in a block of rows from `at` on, by their own rows."""
    count = min(len(block), len(words.table) - at)
    assert words.gather is not None  # noqa: S101 - words with subwords have it
    for first in range(0, max(count, 0), WORDS):
        stop = min(first + WORDS, count)
        names = [words.table[at + i] for i in range(first, stop)]
        sums, counts = ngram_sums(names, subwords, words.gather, words.dims)
        with np.errstate(over="ignore", invalid="ignore"):
            block[first:stop] *= counts[:, None] + np.float32(1)
            block[first:stop] -= sums
        check_finite(block[first:stop], at + first)
