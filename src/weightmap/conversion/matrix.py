"""The words of a file that has a vocabulary and one matrix with a row for each of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from weightmap.dtypes import FLOATING, SCHEMES, numpy_dtype
from weightmap.embeddings.vocabulary import Vocabulary
from weightmap.errors import EncodeError, Remedy, quoted
from weightmap.importers._words import Words, check_finite, rows_in_block
from weightmap.index.strings import StringTable
from weightmap.model.parts import located, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.conversion.task import Task
    from weightmap.model.file import TensorFile
    from weightmap.quant.ref import TensorRef

__all__ = ["from_file"]


def _rows(place: TensorRef) -> Iterator[NDArray[np.float32]]:
    """Yield the rows of a tensor in blocks: decoded, or read by pread, so that mapped pages do not pile up."""
    source, row, _ = place
    height, dims = row.shape
    step = rows_in_block(dims)
    if row.dtype.quantized:
        matrix = place.decoder()
        for first in range(0, height, step):
            block = np.array(matrix[first : first + step], np.float32)
            check_finite(block, first)
            yield block
        return
    stored, first = numpy_dtype(row.dtype), 0
    for chunk in source.chunks(row.offset, row.nbytes, step * max(dims, 1) * stored.itemsize):
        with np.errstate(over="ignore", invalid="ignore"):
            block = np.frombuffer(chunk, stored).astype(np.float32).reshape(-1, dims)
        check_finite(block, first)
        first += len(block)
        yield block


def from_file(file: TensorFile, vocab: Vocabulary | Sequence[str] | None, task: Task) -> Words:
    """Return the words of a vocabulary, and the one matrix of a file with a row for each.

    Raises
    ------
    EncodeError
        When there is no vocabulary, no such matrix, or several: `include` chooses.
    """
    path = name_of(file)
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
        and task.takes(info.name)
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

    place = next(place for other, place in zip(file, located(file), strict=True) if other == name)

    table = vocab.table if isinstance(vocab, Vocabulary) else StringTable.of(vocab, "word")
    metadata = file.metadata.copy()  # type: ignore[attr-defined]  # a TOML document with its text
    make = functools.partial(_rows, place)
    return Words(path, file.format, table, height, dims, make, gather, norms, subwords, metadata)
