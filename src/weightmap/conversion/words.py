"""Conversion of words, from a file of words or a model, to a file of any format."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from weightmap.conversion.explicit import explicit
from weightmap.conversion.extras import entries
from weightmap.conversion.reports import ConvertReport
from weightmap.conversion.training import Trainer
from weightmap.dtypes import DTYPES
from weightmap.errors import EncodeError, MissingDependencyError, QuantError, TensorFileError, counted
from weightmap.formats import FORMATS, Importer, Payload, Request
from weightmap.importers import IMPORTERS
from weightmap.importers._words import normalised, unnormalised
from weightmap.io.atomic import write_plan
from weightmap.model.saving import choose_layout, plan_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.conversion.task import Task
    from weightmap.formats import Format
    from weightmap.importers._words import Words

__all__ = ["convert_words"]

_FLOAT32 = DTYPES["float32"]


def convert_words(words: Words, task: Task) -> ConvertReport:
    """Write words to a file of any format, as `task` says."""
    if task.dtype not in (None, _FLOAT32):
        raise ValueError("word embeddings are float32, and become no other type")
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
    carried, warnings = found.carries[layout], []
    if words.subwords is not None and "subwords" not in carried:
        raise EncodeError(f"{found.title} has no place for subwords", path=task.target, format=found.name)
    if "vocab" not in carried:
        known = counted(len(words.table), "word")
        warnings.append(f"{found.title} has no place for the vocabulary of {known}: left behind")
    vocab = words.vocab if "vocab" in carried else None
    metadata = words.metadata if found.embeddings is not None and words.metadata else None
    try:
        plan = plan_request(task.target, found, Request(payloads, layout, metadata, vocab))
    except MissingDependencyError as error:  # the words are worth having without the metadata
        warnings.append(f"the options of the model were left behind: {error.what}")
        plan = plan_request(task.target, found, Request(payloads, layout, None, vocab))
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
        msg = f"{found.title} holds no tensors of scheme pq; this does: {titles}"
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
    warnings = []
    behind = words.rows - len(words.table)
    if behind and "subwords" not in found.carries:
        warnings.append(f"{name} has no place for n-grams: {counted(behind, 'row')} left behind")
    if words.metadata and "metadata" not in found.carries:
        warnings.append(f"{name} has no place for {entries(len(words.metadata))}: left behind")
    assert found.plan is not None  # noqa: S101 - `convert` takes no other
    try:
        plan = found.plan(words)
    except TensorFileError as error:
        raise error.located(path=task.target, format=name) from None
    size = write_plan(task.target, plan, progress=task.progress)
    return ConvertReport(task.source, task.target, name, name, 1, size, (), tuple(warnings))
