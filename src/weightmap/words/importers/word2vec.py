"""word2vec's binary files.

A line ``rows dims`` in ASCII, then for each word its bytes, a space, and `dims` little-endian float32. Some programs
write a line feed behind each vector: a line feed in front of a word is not part of the word.
"""

from __future__ import annotations

import functools
from array import array
from typing import TYPE_CHECKING

import numpy as np

from weightmap._messages import counted
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.faults import cut_off, too_many, trailing_bytes
from weightmap.core.formats._writing import Importer
from weightmap.errors import FormatError
from weightmap.words.importers import _words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.core.arguments import ImportOptions
    from weightmap.core.bytes.source import Source

# Reading and writing word2vec's binary files.


def read(source: Source, head: bytes, options: ImportOptions) -> _words.Words:
    """Find the words of a file. Iterating `Words.blocks` reads the vectors."""
    rows, dims, start = _words.shape_of(head)
    max_words = (source.size - start) // (1 + 4 * dims)
    if rows > max_words and options.strict:
        raise _with_remedy(
            too_many(f"number of words with {dims} numbers each", rows, max_words, field="rows", offset=0)
        )
    raws, starts, end = _scan(source, start, rows if options.strict else None, 4 * dims)
    tail = source.pread(end, min(source.size - end, 3))
    warnings = _words.counted_otherwise(rows, len(raws))
    if tail.strip(b"\r\n"):
        if options.strict:
            raise _with_remedy(trailing_bytes(source.size, end, field="rows"))
        warnings += (f"{counted(source.size - end, 'byte')} at the end hold no whole word: left out",)
    offsets = [at - 1 - len(raw) for raw, at in zip(raws, starts, strict=True)]
    first_rows = _words.firsts(raws, lossy=options.lossy)
    table = _words.table_of(raws if first_rows is None else [raws[i] for i in first_rows], offsets, lossy=options.lossy)
    words = _words.Words(
        (source,), "word2vec", table, len(raws), dims, functools.partial(_vectors, source, starts, dims)
    )
    return _words.only(words._replace(warnings=warnings), first_rows)


def _scan(source: Source, start: int, rows: int | None, width: int) -> tuple[list[bytes], array[int], int]:
    """Return the words, the start of each vector, and the end of the last one.

    Without `rows`, return all whole words.
    """
    raws: list[bytes] = []
    starts = array("q")
    base, window, position = start, b"", 0
    while len(raws) != rows:
        at = window.find(b" ", position)
        if at < 0:
            base += position
            position = 0
            window = source.pread(base, min(_words.BLOCK, source.size - base)) if base < source.size else b""
            at = window.find(b" ")
            if at < 0 and len(window) > _words.LONGEST:
                at = _words.LONGEST + 1
            elif at < 0:
                if rows is None:
                    break
                raise _with_remedy(cut_off(f"word {len(raws)} of {rows}", source.size, field="word"))
        raw = window[position:at].lstrip(b"\r\n")
        if len(raw) > _words.LONGEST:
            expected = f"a space within {_words.LONGEST} bytes"
            raise FormatError(f"word {len(raws)} has no end", field="word", offset=base + position, expected=expected)
        vector = base + at + 1
        if width > source.size - vector:
            if rows is None:
                break
            what = f"the vector of word {len(raws)} of {rows}, {raw[:40]!r}"
            raise _with_remedy(cut_off(what, source.size, vector + width, field="vector"))
        raws.append(raw)
        starts.append(vector)
        position = at + 1 + width
        if position > len(window):  # skip the rest of the vector without reading it
            base, window, position = base + position, b"", 0
    return raws, starts, base + position


def _with_remedy(error: FormatError) -> FormatError:
    """Add to the error about a wrong count how to read the words anyway."""
    error.remedy = _words.LENIENT
    return error


def _vectors(source: Source, starts: array[int], dims: int) -> Iterator[NDArray[np.float32]]:
    """Yield the vectors in blocks."""
    step = _words.rows_in_block(dims)
    for first in range(0, len(starts), step):
        some = starts[first : first + step]
        begin = some[0]
        data = source.pread(begin, some[-1] + 4 * dims - begin)
        block = np.empty((len(some), dims), np.float32)
        for row, at in zip(block, some, strict=True):
            row[:] = np.frombuffer(data, "<f4", dims, at - begin)
        _words.check_finite(block, first, starts.__getitem__)
        yield block
    source.check_unchanged()


def plan(words: _words.Words) -> WritePlan:
    """Lay out a file. Raises `EncodeError` for words that the format cannot hold."""
    raws = [words.table.raw(i) for i in range(len(words.table))]
    _words.refuse_words("word2vec", raws, b" \n\r")
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


def claims(head: bytes, size: int) -> bool:
    """Whether binary data follows a line of two numbers."""
    shape = _words.declared(head)
    return shape is not None and not _words.in_text(head, size, *shape[1:])


IMPORTER = Importer(
    name="word2vec",
    hint=f"this looks like word embeddings of word2vec: {_words.ADVICE}",
    claims=claims,
    read=read,
    plan=plan,
)
