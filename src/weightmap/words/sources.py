"""What a conversion reads: a file of words, recognised by its content, or a matrix of a file with a vocabulary."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.dtypes import FLOATING, SCHEMES, numpy_dtype
from weightmap.errors import EncodeError, FormatError, Remedy, quoted
from weightmap.formats import FORMATS, HEAD
from weightmap.quantizing import matches
from weightmap.source import Source, path_of
from weightmap.strings import StringTable, Vocabulary
from weightmap.words.fasttext import MAGIC, read_fasttext
from weightmap.words.model import Words, check_finite, rows_in_block
from weightmap.words.text import read_text
from weightmap.words.word2vec import read_word2vec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.file import TensorFile
    from weightmap.limits import Limits
    from weightmap.reading import Located

__all__ = ["from_file", "read_words", "recognise"]

_DIMS = re.compile(rb"[ \t]*([0-9]{1,18})[ \t]+([0-9]{1,18})[ \t]*\r?\n")
# As much of a file is looked at to recognise it.
_LOOK = 1 << 16
_TEXT = bytes([9, 10, 13, *range(0x20, 0x7F)])
_MOST_DIMS = (1 << 31) - 1


def recognise(source: Any) -> tuple[str | None, str]:
    """Look at the beginning of whatever `weightmap.open` takes.

    Returns
    -------
    kind : str or None
        Which file of words it is, one of `weightmap.words.NAMES`; None for any other.
    name : str
        What messages call it.
    """
    path = path_of(source)
    try:
        opened = Source.of(source, path, "mmap")
    except (IsADirectoryError, FileNotFoundError):  # `open` takes the one, and tells of the other
        return None, str(path)
    try:
        head = opened.pread(0, min(opened.size, _LOOK))
    finally:
        opened.close()
    if any(format_.claims(head[:HEAD], opened.size) for format_ in FORMATS.values()):
        return None, opened.name
    return _recognise(head), opened.name


def _recognise(head: bytes) -> str | None:
    if head[:4] == struct.pack("<I", MAGIC):
        return "fasttext"
    found = _DIMS.match(head)
    if found:
        return "textdims" if _is_text(head[found.end() :], int(found[2])) else "word2vec"
    fields = head.split(b"\n", 1)[0].split()
    numbers = sum(map(_is_number, fields[1:]))
    # One wrong number does not make it something else, but a reason to say which.
    return "text" if numbers and 2 * numbers >= len(fields) - 1 and b"\0" not in head else None


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _is_text(rest: bytes, dims: int) -> bool:
    """Whether the first vector is text and not binary.

    It is when numbers follow the word. So it is, with something wrong in it, when as many bytes as the vector would
    have in binary, up to 256, are all printable; a single float32 of such bytes is not that rare.
    """
    line, end, _ = rest.partition(b"\n")
    fields = line.split()[1:]
    if not end and len(rest) > _LOOK // 2:
        fields = fields[:-1]  # the line goes on where nobody looked, perhaps within a number
    if fields and all(map(_is_number, fields)):
        return True
    vector = rest.lstrip(b"\r\n").partition(b" ")[2][: min(4 * dims, 256)]
    return dims >= 4 and not vector.translate(None, _TEXT)


def read_words(file: Any, kind: str, limits: Limits, *, lossy: bool) -> Words:
    """Read a file of words that was recognised as `kind`. Its rows are read when they are asked for.

    Raises
    ------
    FormatError
        With the file, the line or number of the word, and the byte.
    """
    source = Source.of(file, path_of(file), "mmap")
    path = source.name
    try:
        if kind == "fasttext":
            words = read_fasttext(source, limits, lossy=lossy)
        else:
            found = _DIMS.match(source.pread(0, min(source.size, _LOOK))) if kind != "text" else None
            start, shape = (0, None) if found is None else (found.end(), (int(found[1]), int(found[2])))
            if shape is not None:
                _check_dims(shape[1])
            if kind == "word2vec" and shape is not None:
                words = read_word2vec(source, *shape, start, lossy=lossy)
            else:
                words = read_text(source, shape, start, lossy=lossy)
    except FormatError as error:
        raise error.located(path=path, format=kind) from None
    words.blocks = _located(words.blocks, path, kind)
    return words


def _check_dims(dims: int) -> None:
    if not 1 <= dims <= _MOST_DIMS:
        expected = f"1 to {_MOST_DIMS}"
        raise FormatError("number of dimensions", field="dims", offset=0, actual=dims, expected=expected)


def _located(
    blocks: Callable[[], Iterator[NDArray[np.float32]]], path: str, kind: str
) -> Callable[[], Iterator[NDArray[np.float32]]]:
    """Return blocks whose errors name the file."""

    def located() -> Iterator[NDArray[np.float32]]:
        try:
            yield from blocks()
        except FormatError as error:
            raise error.located(path=path, format=kind) from None

    return located


def _rows(place: Located) -> Iterator[NDArray[np.float32]]:
    """Yield the rows of a tensor in blocks: decoded, or read by pread, so that mapped pages do not pile up."""
    source, row, _ = place
    height, dims = row.shape
    step = rows_in_block(dims)
    if row.dtype.quantized:
        matrix = place.decoder()
        for first in range(0, height, step):
            yield np.array(matrix[first : first + step], np.float32)
        return
    stored = numpy_dtype(row.dtype)
    for chunk in source.chunks(row.offset, row.nbytes, step * max(dims, 1) * stored.itemsize):
        with np.errstate(over="ignore", invalid="ignore"):
            yield np.frombuffer(chunk, stored).astype(np.float32).reshape(-1, dims)


def from_file(
    file: TensorFile,
    vocab: Vocabulary | Sequence[str] | None,
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
) -> Words:
    """Return the words of a file with a vocabulary, and its one matrix with a row for each.

    Raises
    ------
    EncodeError
        When there is no vocabulary, no such matrix, or several: `include` chooses.
    """
    path = file.name
    if vocab is None:
        raise EncodeError("there is no vocabulary, and embeddings are rows of words", path=path, format=file.format)
    subwords = getattr(vocab, "subwords", None)
    height = len(vocab) + (0 if subwords is None else subwords.size)
    names = [
        info.name
        for info in file.infos()
        if len(info.shape) == 2
        and info.shape[0] == height
        and (info.dtype in FLOATING or info.dtype in SCHEMES)
        and (not include or matches(info.name, include))
        and not (exclude and matches(info.name, exclude))
    ]
    if len(names) != 1:
        found = ", ".join(map(quoted, names[:10])) or "none"
        msg = f"matrices of {height} rows, one for each word: {found}; there has to be one"
        raise EncodeError(msg, path=path, format=file.format, remedy=Remedy("{} chooses it", "include"))
    (name,) = names
    matrix = file[name]
    dims = int(matrix.shape[1])
    norms = None
    if name == "embeddings" and "norms" in file and file.info("norms").shape == (len(vocab),):
        norms = file.read("norms", np.float32)

    def gather(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.asarray(matrix[rows], np.float32)

    place = next(place for other, place in zip(file, file.located(), strict=True) if other == name)

    def blocks() -> Iterator[NDArray[np.float32]]:
        first = 0
        for block in _rows(place):
            check_finite(block, first)
            first += len(block)
            yield block

    table = vocab.table if isinstance(vocab, Vocabulary) else StringTable.of(vocab, "word")
    metadata = file.metadata.copy()  # type: ignore[attr-defined]  # a TOML document with its text
    located = _located(blocks, path, file.format)
    return Words(
        file.format, table, height, dims, located, gather=gather, norms=norms, subwords=subwords, metadata=metadata
    )
