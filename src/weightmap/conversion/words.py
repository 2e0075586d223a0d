"""Conversion of words, from a file of words or a model, to a file of any format."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.conversion.explicit import explicit
from weightmap.conversion.extras import entries
from weightmap.conversion.reports import ConvertReport
from weightmap.conversion.training import Trainer
from weightmap.dtypes import DTYPES, FLOATING, SCHEMES, numpy_dtype
from weightmap.embeddings.vocabulary import Vocabulary
from weightmap.errors import (
    EncodeError,
    MissingDependencyError,
    QuantError,
    Remedy,
    TensorFileError,
    counted,
    quoted,
)
from weightmap.formats import FORMATS, Importer, Payload, Request
from weightmap.importers import IMPORTERS
from weightmap.importers._words import Words, check_finite, normalised, rows_in_block, unnormalised
from weightmap.index.strings import StringTable
from weightmap.io.atomic import write_plan
from weightmap.model.parts import located, name_of
from weightmap.model.saving import choose_layout, plan_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.conversion.task import Task
    from weightmap.formats import Format
    from weightmap.model.file import TensorFile
    from weightmap.quant import TensorRef

__all__ = ["convert_words", "from_file"]

_FLOAT32 = DTYPES["float32"]


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
        When there is no vocabulary, or not exactly one such matrix; `include` can choose one.
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
        msg = f"expected one matrix of {counted(height, 'row')}, one for each word; found {found}"
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


def convert_words(words: Words, task: Task) -> ConvertReport:
    """Write words to a file of any format, as `task` says."""
    if task.dtype not in (None, _FLOAT32):
        raise ValueError("dtype= is not for word embeddings, which are float32")
    if task.quantizer is not None:
        raise ValueError("word embeddings are quantised by the scheme pq, which has no blocks")
    task.limits.check("max_copy_bytes", words.nbytes, "bytes of rows to copy")
    found = task.format
    if isinstance(found, Importer):
        return _to_words(words, found, task)
    normalize, subwords, _ = task.words
    if subwords is not None:
        if subwords != "explicit":
            raise ValueError(f"subwords is {subwords!r}, expected 'explicit'")
        try:
            words = explicit(words, task.limits)
        except TensorFileError as error:
            raise error.located(path=task.target, format=found.name) from None
    # Files of other programs have rows as they are, and formats of embeddings those of length 1.
    if normalize is None:
        normalize = found.embeddings is not None and words.format in IMPORTERS
    norms = words.norms
    if normalize and norms is None:
        words, norms = normalised(words)
    elif task.words.normalize is False and norms is not None:
        words, norms = unnormalised(words), None
    return _to_format(words, norms, found, task)


def _to_format(words: Words, norms: Any, found: Format, task: Task) -> ConvertReport:
    """Write to a format of `weightmap.open`; `norms` are filled in while the rows are written."""
    layout = choose_layout(found, task.layout, None)
    trainer = _trainer(words, found, layout, task)
    payloads = [
        Payload("embeddings", _FLOAT32, (words.rows, words.dims), words.nbytes, _bytes_of, words)
        if trainer is None
        else trainer.payload()
    ]
    if norms is not None:
        make = functools.partial(_norms, norms)
        payloads.append(Payload("norms", _FLOAT32, norms.shape, norms.nbytes, make))
    carried, warnings = found.carries[layout], [*words.warnings]
    if words.subwords is not None and "subwords" not in carried:
        raise EncodeError(f"{found.title} has no place for subwords", path=task.target, format=found.name)
    if "vocab" not in carried:
        known = counted(len(words.table), "word")
        warnings.append(f"{found.title} has no place for the vocabulary of {known}: left behind")
    vocab = words.vocab if "vocab" in carried else None
    metadata = words.metadata if found.embeddings is not None and words.metadata else None
    try:
        plan = plan_request(task.target, found, Request(payloads, layout, metadata, vocab, align=task.arguments.align))
    except MissingDependencyError as error:  # the words are worth having without the metadata
        warnings.append(f"the options of the model were left behind: {error.what}")
        plan = plan_request(task.target, found, Request(payloads, layout, None, vocab, align=task.arguments.align))
    write_plan(task.target, plan, progress=task.progress)
    done = () if trainer is None or trainer.info is None else (trainer.info,)
    return ConvertReport(
        task.source, task.target, found.name, layout, len(payloads), plan.size, (), tuple(warnings), done
    )


def _trainer(words: Words, found: Format, layout: str, task: Task) -> Trainer | None:
    """Return the product quantiser of the rows, trained; None where they stay as they are."""
    options = task.words.training
    if options is None:
        return None
    if "pq" not in found.schemes.get(layout, frozenset()):
        titles = ", ".join(f.title for f in FORMATS.values() if any("pq" in held for held in f.schemes.values()))
        msg = f"{found.title} holds no tensors of scheme pq; formats that do: {titles}"
        raise EncodeError(msg, path=task.target, format=found.name)
    try:
        return Trainer("embeddings", words.rows, words.dims, words.blocks, options)
    except QuantError as error:
        raise EncodeError(str(error), path=task.target, format=found.name) from None


def _bytes_of(words: Words) -> Iterator[Any]:
    for block in words.blocks():
        yield block.astype("<f4", copy=False).tobytes()


def _norms(norms: Any) -> Iterator[Any]:
    yield norms.astype("<f4", copy=False).tobytes()


def _to_words(words: Words, found: Importer, task: Task) -> ConvertReport:
    """Write a file of words."""
    name = found.name
    normalize, subwords, training = task.words
    for option, given in (("layout", task.layout), ("subwords", subwords), ("quantize", training)):
        if given is not None:
            raise ValueError(f"{option}= is not for files of format {name}")
    if normalize is not True:
        words = unnormalised(words)
    elif words.norms is None:
        words, _ = normalised(words)
    warnings = [*words.warnings]
    behind = words.rows - len(words.table)
    if behind and "subwords" not in found.carries:
        warnings.append(f"format {name} has no place for n-grams: {counted(behind, 'row')} left behind")
    if words.metadata and "metadata" not in found.carries:
        warnings.append(f"format {name} has no place for {entries(len(words.metadata))}: left behind")
    assert found.plan is not None  # noqa: S101 - `convert` takes no other
    try:
        plan = found.plan(words)
    except TensorFileError as error:
        raise error.located(path=task.target, format=name) from None
    size = write_plan(task.target, plan, progress=task.progress)
    return ConvertReport(task.source, task.target, name, name, 1, size, (), tuple(warnings))
