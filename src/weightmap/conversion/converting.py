"""Conversion from any format to any other, tensor by tensor, with flat memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.conversion.extras import extras_of, metadata_of, spared
from weightmap.conversion.matrix import from_file
from weightmap.conversion.quantizer import Quantizer
from weightmap.conversion.reports import ConvertReport
from weightmap.conversion.task import Task, WordOptions
from weightmap.conversion.tensors import payload_of
from weightmap.conversion.training import Options
from weightmap.conversion.words import convert_words
from weightmap.dtypes import DTYPES, FLOATING, DType
from weightmap.errors import TensorFileError, quoted
from weightmap.formats import Request
from weightmap.importers import IMPORTERS, NAMES
from weightmap.importers._huggingface import ModelDirectory, read_directory
from weightmap.importers._words import Words
from weightmap.io.atomic import write_plan
from weightmap.io.opening import path_of
from weightmap.model.opening import open_or_import
from weightmap.model.parts import disagreements, located, name_of
from weightmap.model.saving import choose, choose_layout, plan_request
from weightmap.model.sharded import find_model
from weightmap.options import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import DTypeLike

    from weightmap.formats import Format, Payload
    from weightmap.model.file import TensorFile

__all__ = ["convert"]

# What types are called where there is less room, as by `scale_type`.
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def convert(
    src: Any,
    dst: str | bytes | os.PathLike[Any],
    *,
    format: str | None = None,
    layout: str | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    dtype: DTypeLike | str | None = None,
    quantize: str | None = None,
    block_size: int | None = None,
    scale_type: str = "fp16",
    bits: float = 5.0,
    quantize_include: str | Sequence[str] | None = None,
    quantize_exclude: str | Sequence[str] | None = None,
    lossy: bool = False,
    normalize: bool | None = None,
    subwords: str | None = None,
    n_subquantizers: int | None = None,
    n_bits: int = 8,
    projection: bool = False,
    pq_norms: bool = True,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    limits: Limits | None = None,
) -> ConvertReport:
    """Write the tensors of one file to another, of any format. Memory stays flat however large the file is.

    Parameters
    ----------
    src : str, os.PathLike, or whatever else `open` takes
        A path of a file, of an index of shards, or of a Hugging Face model directory, whose configuration
        (``config.json``) and vocabulary (``vocab.txt``) go along where the target has a place for them; bytes are
        content. Or a file of word embeddings of another program, recognised by its content: word2vec binary, text with
        or without a line of dimensions (GloVe), a dense fastText model. See `weightmap.words`.
    dst : str, bytes or os.PathLike
        Always a path, written as by `save`: there whole or not at all.
    format, layout : str, optional
        Of the target; by default by its suffix. Besides those of `weightmap.open`: "word2vec", "text", "textdims" and
        "fasttext", for files with a vocabulary and a matrix of its rows.
    include, exclude : glob or sequence of globs, optional
        Over tensor names: a tensor is taken when some `include` matches (default: all) and no `exclude` does.
    dtype : dtype_like, optional
        Convert floating-point tensors to this type, and decode quantised ones to it; others stay as they are. Values
        out of range become infinite. With `quantize`, only tensors that are and remain dense are converted.
    quantize : str, optional
        Quantise by this scheme, for formats that hold such tensors (AMB): see `weightmap.quantize`. One-dimensional
        tensors and embeddings (by their names) stay as they are, and so do tensors that are quantised already. Or "pq",
        for word embeddings in finalfusion: see `weightmap.words.train_pq`.
    block_size : int, optional
        Elements of a block; 32 when not given.
    scale_type, bits : str, float
        As of `weightmap.quantize`.
    quantize_include, quantize_exclude : glob or sequence of globs, optional
        Quantise just the floating-point tensors whose names match, of whatever shape; leave those that match alone.
    lossy : bool
        Replace what is not UTF-8 in the words of other programs' files.
    normalize : bool, optional
        Divide rows of words by their norms, and store these. By default True from files of other programs to
        finalfusion, else rows stay as they are; where norms are stored, False multiplies by them. To files of other
        programs rows are multiplied by stored norms unless this is True.
    subwords : str, optional
        "explicit": list the n-grams of the words of a bucket or fastText vocabulary.
    n_subquantizers, n_bits, projection, pq_norms, seed
        For ``quantize="pq"``, as of `weightmap.words.train_pq`, where `pq_norms` is called `norms`.
    threads : int, optional
        At most this many threads share the work of quantising; as many as this process may use CPUs when not given.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes of the target.
    limits : Limits, optional

    Returns
    -------
    ConvertReport

    Raises
    ------
    EncodeError
        When the target cannot express a tensor; it names every such tensor, and no file was created. One exception: an
        int64 buffer ``*.position_ids`` that counts 0, 1, 2 ... is left out, and reported, where the target has no
        int64: every program that reads such a model knows these numbers.
    FormatError, MissingDependencyError, OSError
        As of `open` and `save`.
    """
    path, target = path_of(src), os.fsdecode(os.fspath(dst))
    limits = Limits() if limits is None else limits
    model: Any = src if path is None else path
    directory = None
    if path is not None and os.path.isdir(path):
        model = find_model(path)
        directory = read_directory(path, model)
    found: Any = IMPORTERS[format] if format in NAMES else choose(target, format, layout)
    wanted = None if dtype is None else _floating(dtype)
    words, quantizer = WordOptions(normalize, subwords, None), None
    if quantize == "pq":
        words = words._replace(training=Options(n_subquantizers, n_bits, projection, pq_norms, seed=seed))
    elif quantize is not None:
        try:
            quantizer = Quantizer(
                quantize,
                block_size=32 if block_size is None else block_size,
                scale_type=scale_type,
                bits=bits,
                threads=threads,
                include=quantize_include,
                exclude=quantize_exclude,
            )
        except TensorFileError as error:
            raise error.located(path=target) from None
    # In mode "mmap" this touches no page: tensors are read by pread.
    opened = open_or_import(model, limits, lossy=lossy)
    source = path or (opened.path if isinstance(opened, Words) else name_of(opened))
    task = Task(source, target, found, layout, include, exclude, wanted, quantizer, words, limits, progress)
    of_words = isinstance(opened, Words) or format in NAMES or words != (None, None, None)
    if block_size is not None and (of_words or quantizer is None):
        what = "word embeddings are quantised by the scheme pq, which has no blocks"
        raise ValueError(what if of_words else "block_size= is for quantize=, which was not given")
    if isinstance(opened, Words):
        return convert_words(opened, task)
    with opened as file:
        if of_words:
            vocab = file.vocab if directory is None or directory.vocab is None else directory.vocab
            return convert_words(from_file(file, vocab, task), task)
        return _convert_tensors(file, directory, task)


def _convert_tensors(file: TensorFile, directory: ModelDirectory | None, task: Task) -> ConvertReport:
    """Convert a model, and what its directory has beside it."""
    found: Format = task.format
    target = task.target
    metadata = metadata_of(file, directory, found)
    try:
        layout = choose_layout(found, task.layout, metadata)
    except TensorFileError as error:
        raise error.located(path=target, format=found.name) from None
    try:
        payloads, dropped = _payloads(file, layout, task)
        task.limits.check("max_copy_bytes", sum([payload.nbytes for payload in payloads]), "bytes of tensors to copy")
    except TensorFileError as error:
        raise error.located(path=task.source) from None
    extras, warnings = extras_of(file, directory, metadata, found, layout)
    warnings += [f"{what}: left behind" for what in disagreements(file, file.metadata)]
    if found.embeddings is not None and file.format != found.name:
        warnings += _as_embeddings(payloads, *found.embeddings)
    if not payloads:
        warnings.append("no tensor was taken: the file holds none, or include and exclude leave none")
    plan = plan_request(target, found, Request(payloads, layout, **extras))
    try:
        write_plan(target, plan, progress=task.progress)
    except TensorFileError as error:  # of a tensor that is read, or quantised, as it is written
        raise error.located(path=task.source) from None
    done = () if task.quantizer is None else tuple(task.quantizer.done)
    return ConvertReport(
        task.source, target, found.name, layout, len(payloads), plan.size, tuple(dropped), tuple(warnings), done
    )


def _payloads(file: TensorFile, layout: str, task: Task) -> tuple[list[Payload], list[tuple[str, str]]]:
    """Return the tensors to be written, and the name of each one that is left out, with the reason."""
    found, quantizer, wanted = task.format, task.quantizer, task.dtype
    all_taken = not (task.include or task.exclude)
    payloads, dropped = [], []
    for name, place in zip(file, located(file), strict=True):
        if not (all_taken or task.takes(name)):
            continue
        why = spared(name, place, found, layout)
        if why is not None:
            dropped.append((name, why))
        elif quantizer is None:
            payloads.append(payload_of(name, place, wanted))
        elif quantizer.wants(name, place):
            payloads.append(quantizer.payload(name, place, found.schemes.get(layout, frozenset())))
        else:  # a quantised tensor stays as it is
            payloads.append(payload_of(name, place, None if place.row.dtype.quantized else wanted))
    return payloads, dropped


def _as_embeddings(payloads: list[Payload], matrix: str, norms: str) -> list[str]:
    """Give the one matrix that goes to a format with one matrix the name that this has there."""
    others = [payload for payload in payloads if payload.name != norms]
    if len(others) != 1 or others[0].name == matrix or len(others[0].shape) != 2:
        return []
    name, others[0].name = others[0].name, matrix
    return [f"tensor {quoted(name)} is written as {matrix!r}"]


def _floating(dtype: DTypeLike | str) -> DType:
    try:
        given = _SHORT.get(dtype, dtype) if isinstance(dtype, str) else dtype
        name = given if isinstance(given, str) and given in DTYPES else np.dtype(given).name
    except TypeError:
        name = repr(dtype)
    if name not in FLOATING:
        msg = f"dtype is {name}, expected one of {', '.join(FLOATING)}"
        raise ValueError(msg)
    return DTYPES[name]
