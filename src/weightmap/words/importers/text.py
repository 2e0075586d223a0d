"""Text: a line for each word, with its numbers (GloVe), perhaps after a first line of counts (`textdims`).

Lines are read in blocks, and numpy parses all numbers of a block at once. If it fails, lines are parsed one by one to
find the wrong number.
"""

from __future__ import annotations

import functools
import io
from array import array
from typing import TYPE_CHECKING

import numpy as np

from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.formats._writing import Importer
from weightmap.errors import FileChangedError, FormatError, LayoutError
from weightmap.words.importers import _words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.core.arguments import ImportOptions
    from weightmap.core.bytes.source import Source

_SPACE = b" \t\n\r\x0b\x0c"
_OTHER_SPACE = b"\t\r\x0b\x0c"
# The longest line, in bytes.
LONGEST = 1 << 28
# The estimated bytes of a number, for progress: sign, digits, point, exponent and a space.
_NUMBER = 12


def read_plain(source: Source, _head: bytes, options: ImportOptions) -> _words.Words:
    """Find the words of a file without a first line of counts."""
    return _read(source, None, 0, options)


def read_declared(source: Source, head: bytes, options: ImportOptions) -> _words.Words:
    """Find the words of a file whose first line declares rows and dims."""
    rows, dims, start = _words.shape_of(head)
    return _read(source, (rows, dims), start, options)


def _read(source: Source, shape: tuple[int, int] | None, start: int, options: ImportOptions) -> _words.Words:
    """Find the words from `start` on, and check the count of numbers in each line."""
    number = 1 if shape is None else 2
    raws: list[bytes] = []
    offsets = array("q")
    dims = None if shape is None else shape[1]
    for at, lines in _blocks_of_lines(source, start):
        position = at
        for line in lines:
            if dims is None:
                dims = _dims_of(line)
            raws.append(_split(line, dims, number + len(raws), position)[0])
            offsets.append(position)
            position += len(line) + 1
    if dims is None:
        raise FormatError("a file without lines", offset=0)
    if shape is not None and shape[0] != len(raws) and options.strict:
        expected, actual = f"{shape[0]}, which the first line declares", len(raws)
        what = "number of lines with words"
        raise LayoutError(what, field="rows", offset=0, actual=actual, expected=expected, remedy=_words.LENIENT)
    name = "text" if shape is None else "textdims"
    first_rows = _words.firsts(raws, lossy=options.lossy)
    chosen = raws if first_rows is None else [raws[i] for i in first_rows]
    table = _words.table_of(chosen, offsets, lossy=options.lossy, what="the word of line", first=number)
    make = functools.partial(_vectors, source, start, number, len(raws), dims)
    # Some programs do not end the last line; in a truncated file, its last number may be wrong.
    ended = source.pread(source.size - 1, 1) == b"\n"
    warnings: tuple[str, ...] = () if ended else ("the last line has no end: was the download complete?",)
    if shape is not None:
        warnings += _words.counted_otherwise(shape[0], len(raws))
    return _words.only(_words.Words((source,), name, table, len(raws), dims, make, warnings=warnings), first_rows)


def _blocks_of_lines(source: Source, start: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield some MiB of lines at a time: the offset of the first, and the lines without line feeds."""
    position = begin = start
    carried: list[bytes] = []
    while position < source.size:
        data = source.pread(position, min(_words.BLOCK, source.size - position))
        position += len(data)
        cut = data.rfind(b"\n") + 1
        if position == source.size:
            cut = len(data)
        elif not cut:
            carried.append(data)
            if position - begin > LONGEST:
                raise FormatError("a line without end", offset=begin, expected=f"one of at most {LONGEST} bytes")
            continue
        whole = b"".join((*carried, data[:cut]))
        first, begin, carried = begin, begin + len(whole), [data[cut:]]
        yield first, whole.removesuffix(b"\n").split(b"\n")


def _dims_of(line: bytes) -> int:
    """Count the numbers in the first line, behind the word, which may have spaces."""
    fields = line.split()[line[:1] not in _SPACE :]
    return len(fields) - next((i for i, field in enumerate(fields) if _is_number(field)), 0)


def _split(line: bytes, dims: int, number: int, offset: int) -> tuple[bytes, bytes]:
    """Return the word of a line, and its `dims` numbers. Raises `FormatError` for another number of fields."""
    line = line.rstrip(_SPACE)
    if line.count(b" ") == dims and len(line.translate(None, _OTHER_SPACE)) == len(line) and b"  " not in line:
        word, _, tail = line.partition(b" ")
        return word, tail
    if not line:
        raise FormatError(f"line {number} is empty", offset=offset)
    head = b"" if line[:1] in _SPACE else line.split(None, 1)[0]
    fields = line[len(head) :].split()
    extra = len(fields) - dims
    # Some words of GloVe have spaces.
    if extra < 0 or any(map(_is_number, fields[:extra])):
        what = f"number of numbers in line {number}"
        raise LayoutError(what, field="vector", offset=offset, actual=len(fields), expected=dims)
    if extra:
        head = b" ".join([head, *fields[:extra]])
    return head, b" ".join(fields[extra:])


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return b"_" not in field  # float() allows underscores


def _vectors(source: Source, start: int, number: int, count: int, dims: int) -> Iterator[NDArray[np.float32]]:
    """Yield the vectors in blocks; `number` is the number of the first line."""
    done = 0
    for at, lines in _blocks_of_lines(source, start):
        position, rests, offsets = at, [], []
        for i, line in enumerate(lines):
            rests.append(_split(line, dims, number + done + i, position)[1])
            offsets.append(position)
            position += len(line) + 1
        yield _parse(rests, dims, number + done, offsets)
        done += len(lines)
    source.check_unchanged()
    if done != count:
        raise FileChangedError("the file was changed while it was being read", path=source.name)


def _parse(rests: list[bytes], dims: int, number: int, offsets: list[int]) -> NDArray[np.float32]:
    """Return the numbers of some lines, shape (lines, dims)."""
    joined = b"\n".join(rests)
    if joined.isascii():
        try:
            block = np.loadtxt(io.BytesIO(joined), np.float32, comments=None, ndmin=2, encoding="ascii")
        except ValueError:
            pass
        else:
            if block.shape == (len(rests), dims) and np.isfinite(block).all():
                return block
    for i, fields in enumerate(rests):
        for column, field in enumerate(fields.split(), 1):
            if not _is_number(field) or not np.isfinite(_float32(field)):
                what = f"number {column} of line {number + i}"
                shown = repr(field[:40].decode(errors="replace"))
                expected = "a finite number in the range of float32"
                raise FormatError(what, field="vector", offset=offsets[i], actual=shown, expected=expected)
    return np.array([[_float32(field) for field in fields.split()] for fields in rests], np.float32).reshape(-1, dims)


def _float32(field: bytes) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(float(field))


def plan_plain(words: _words.Words) -> WritePlan:
    """Lay out a file without a first line of counts."""
    return _plan(words, "text", b"")


def plan_declared(words: _words.Words) -> WritePlan:
    """Lay out a file whose first line declares rows and dims."""
    return _plan(words, "textdims", f"{len(words.table)} {words.dims}\n".encode())


def _plan(words: _words.Words, name: str, head: bytes) -> WritePlan:
    """Lay out a text file, of unknown size until it is written. Raises `EncodeError` for white space or NUL in words.

    Each number is the shortest text that reads back as the same float32.
    """
    raws = [words.table.raw(i) for i in range(len(words.table))]
    _words.refuse_words(name, raws, _SPACE + b"\0", empty=False)
    size = len(head) + sum(map(len, raws)) + (1 + _NUMBER * words.dims) * len(raws)

    def write(sink: Sink) -> None:
        sink.write(head)
        at = 0
        for block in words.word_blocks():
            for some in np.array_split(block, max(1, len(block) // 256)):
                numbers = some.astype("S").tolist()
                names = raws[at : at + len(some)]
                sink.write(
                    b"".join(b"%b %b\n" % (raw, b" ".join(row)) for raw, row in zip(names, numbers, strict=True))
                )
                at += len(some)

    return WritePlan(size, write, exact=False)


def claims(head: bytes, size: int) -> bool:
    """Whether the file begins with a word and numbers.

    If the first line has a single number, or other fields among its numbers, a second line like it must follow: a file
    with a wrong number is still text.
    """
    if b"\0" in head or _words.declared(head) is not None:
        return False
    first, _, tail = _words.whole_fields(head, size).partition(b"\n")
    if _words.is_row(first, 0) and len(first.split()) > 2:
        return True
    return _words.is_row(first, 0.5) and _words.is_row(tail.lstrip().partition(b"\n")[0], 0.5)


IMPORTER = Importer(
    name="text",
    hint=f"this looks like word embeddings in text, such as GloVe: {_words.ADVICE}",
    claims=claims,
    read=read_plain,
    plan=plan_plain,
)
