"""Reading and writing word2vec's binary files."""

from __future__ import annotations

import functools
from array import array
from typing import TYPE_CHECKING

import numpy as np

from weightmap.errors import FormatError, cut_off, too_many, trailing_bytes
from weightmap.io.sink import WritePlan
from weightmap.words.importers._words import (
    BLOCK,
    LONGEST,
    Words,
    check_finite,
    firsts,
    only,
    refuse_words,
    rows_in_block,
    shape_of,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.io.sink import Sink
    from weightmap.io.source import Source
    from weightmap.options import ImportOptions


def read(source: Source, head: bytes, options: ImportOptions) -> Words:
    """Find the words of a file. The vectors are read when `Words.blocks` is iterated."""
    rows, dims, start = shape_of(head)
    left = source.size - start
    if rows > left // (1 + 4 * dims):
        what = f"number of words with {dims} numbers each"
        raise too_many(what, rows, left // (1 + 4 * dims), field="rows", offset=0)
    raws, starts = _scan(source, start, rows, 4 * dims)
    offsets = [at - 1 - len(raw) for raw, at in zip(raws, starts, strict=True)]
    kept = firsts(raws, lossy=options.lossy)
    table = table_of(raws if kept is None else [raws[i] for i in kept], offsets, lossy=options.lossy)
    words = Words((source,), "word2vec", table, rows, dims, functools.partial(_vectors, source, starts, dims))
    return only(words, kept)


def _scan(source: Source, start: int, rows: int, width: int) -> tuple[list[bytes], array[int]]:
    """Return the words, and where the vector of each begins."""
    raws: list[bytes] = []
    starts = array("q")
    base, window, position = start, b"", 0
    while len(raws) < rows:
        at = window.find(b" ", position)
        if at < 0:
            base += position
            position = 0
            window = source.pread(base, min(BLOCK, source.size - base)) if base < source.size else b""
            at = window.find(b" ")
            if at < 0 and len(window) > LONGEST:
                at = LONGEST + 1
            elif at < 0:
                raise cut_off(f"word {len(raws)} of {rows}", source.size, field="word")
        raw = window[position:at].lstrip(b"\r\n")
        if len(raw) > LONGEST:
            expected = f"a space within {LONGEST} bytes"
            raise FormatError(f"word {len(raws)} has no end", field="word", offset=base + position, expected=expected)
        vector = base + at + 1
        if width > source.size - vector:
            what = f"the vector of word {len(raws)} of {rows}, {raw[:40]!r}"
            raise cut_off(what, source.size, vector + width, field="vector")
        raws.append(raw)
        starts.append(vector)
        position = at + 1 + width
        if position > len(window):  # skip the rest of the vector without reading it
            base, window, position = base + position, b"", 0
    end = base + position
    tail = source.pread(end, min(source.size - end, 3))
    if tail.strip(b"\r\n"):
        raise trailing_bytes(source.size, end, field="rows")
    return raws, starts


def _vectors(source: Source, starts: array[int], dims: int) -> Iterator[NDArray[np.float32]]:
    """Yield the vectors in blocks."""
    step = rows_in_block(dims)
    for first in range(0, len(starts), step):
        some = starts[first : first + step]
        begin = some[0]
        data = source.pread(begin, some[-1] + 4 * dims - begin)
        block = np.empty((len(some), dims), np.float32)
        for row, at in zip(block, some, strict=True):
            row[:] = np.frombuffer(data, "<f4", dims, at - begin)
        check_finite(block, first, starts.__getitem__)
        yield block
    source.check_unchanged()


def plan(words: Words) -> WritePlan:
    """Lay out a file. Raises `EncodeError` for words that it cannot hold."""
    raws = [words.table.raw(i) for i in range(len(words.table))]
    refuse_words("word2vec", raws, b" \n\r")
    head = f"{len(raws)} {words.dims}\n".encode()
    size = len(head) + sum(map(len, raws)) + (2 + 4 * words.dims) * len(raws)

    def write(sink: Sink) -> None:
        sink.write(head)
        at = 0
        for block in words.word_blocks():
            little = block.astype("<f4", copy=False)
            names = raws[at : at + len(block)]
            sink.write(b"".join(b"%b %b\n" % (raw, row.tobytes()) for raw, row in zip(names, little, strict=True)))
            at += len(block)

    return WritePlan(size, write)
