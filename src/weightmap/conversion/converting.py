"""Conversion from any format to any other, tensor by tensor, with flat memory."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.conversion.extras import extras_of, metadata_of, spared
from weightmap.conversion.quantizer import Quantizer
from weightmap.conversion.regrouping import Regrouper
from weightmap.conversion.reports import ConvertReport
from weightmap.conversion.task import Task, WordOptions
from weightmap.conversion.training import Options
from weightmap.conversion.words import convert_words, from_file
from weightmap.dtypes import DTYPES, FLOATING, DType, numpy_dtype
from weightmap.errors import TensorFileError, counted, quoted
from weightmap.formats import Payload, Request
from weightmap.importers import IMPORTERS, NAMES
from weightmap.importers._huggingface import ModelDirectory, read_directory
from weightmap.importers._words import Words
from weightmap.io.atomic import write_plan
from weightmap.io.opening import path_of
from weightmap.model.opening import open_or_import, open_privately
from weightmap.model.parts import disagreements, located, name_of
from weightmap.model.payload import from_quantized
from weightmap.model.saving import aligned_to, choose, choose_layout, plan_request
from weightmap.model.sharded import find_model
from weightmap.options import Limits
from weightmap.quant.ref import in_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import DTypeLike

    from weightmap.conversion.reports import QuantizedInfo
    from weightmap.formats import Format
    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.model.file import TensorFile
    from weightmap.quant.ref import TensorRef

__all__ = ["convert"]

# Short names of types, as `scale_type` has them.
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
# Elements of a quantised tensor that are decoded at once.
_PIECE = 1 << 18


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
    align: int | None = None,
) -> ConvertReport:
    """Write the tensors of one file to another, of any format, in flat memory.

    Parameters
    ----------
    src : str, os.PathLike, or whatever else `open` takes
        The path of a file, an index of shards, or a Hugging Face model directory, whose configuration
        (``config.json``) and vocabulary (``vocab.txt``) go along where the target has a place for them; bytes are
        content. Or word embeddings of another program: word2vec binary, text with or without a line of dimensions
        (GloVe), a dense fastText model. See `weightmap.words`.
    dst : str, bytes or os.PathLike
        Always a path, written atomically, as by `save`.
    format, layout : str, optional
        Format and layout of the target; by default its suffix decides. "word2vec", "text", "textdims" and "fasttext"
        take a vocabulary and the matrix of its rows; the other formats are those of `weightmap.open`.
    include, exclude : glob or sequence of globs, optional
        Convert tensors whose name matches an `include` (default: all) and no `exclude`.
    dtype : dtype_like, optional
        Convert floating-point tensors to this type, and decode quantised ones to it; others stay as they are. Values
        out of range become infinite. With `quantize`, this does not apply to tensors that are quantised before or
        after. Without `dtype`, a conversion between AMB and GGUF turns int4_block into q4_0, int5_block into q5_0, int8
        into q8_0, and back: the same integers and scales, without decoding. The report says so; if blocks or scales do
        not allow it, so does the error.
    quantize : str, optional
        Quantise by this scheme, for formats that hold such tensors (AMB, GGUF): see `weightmap.quantize`. Tensors that
        are one-dimensional, embeddings (by their names) or quantised already stay as they are. If rows are not whole
        blocks of 256, q5_0 replaces q4_k and q8_0 replaces q6_k, as in llama.cpp; if they are not whole blocks of 32,
        the tensor stays as it is. The report's warnings list both. Or "pq", for word embeddings in finalfusion: see
        `weightmap.words.train_pq`.
    block_size : int, optional
        Elements of a block, for int4_block, int5_block and adaptive; 32 by default.
    scale_type, bits : str, float
        As for `weightmap.quantize`.
    quantize_include, quantize_exclude : glob or sequence of globs, optional
        Quantise only floating-point tensors whose name matches, of any shape; never those that match the second.
    lossy : bool
        Replace bytes that are not UTF-8 in words of other programs' files.
    normalize : bool, optional
        True divides rows of words by their norms and stores these; False multiplies rows by stored norms. By default
        rows are divided on the way from other programs to finalfusion, multiplied on the way back, and else unchanged.
    subwords : str, optional
        "explicit": list the n-grams of the words of a bucket or fastText vocabulary.
    n_subquantizers, n_bits, projection, pq_norms, seed
        For ``quantize="pq"``: see `weightmap.words.train_pq`, whose `norms` is `pq_norms` here.
    threads : int, optional
        At most this many threads share the work of quantising; by default one for each CPU of this process.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes of the target.
    limits : Limits, optional
    align : int, optional
        Let tensors begin at multiples of this power of two, from 8 to 4096, in the file: jax shares memory aligned to
        64 bytes and copies any other. EMBD always has 64; in GGUF it becomes ``general.alignment``; safetensors, and
        BinTensors up to 64, have a longer header and tensors whose size is a multiple first, since nothing may lie
        between tensors: the report says how many are not aligned. Other formats refuse.

    Returns
    -------
    ConvertReport

    Raises
    ------
    EncodeError
        When the target cannot express a tensor; it names every such tensor, and no file was created. One exception:
        where the target has no int64, a buffer ``*.position_ids`` that counts 0, 1, 2 ... is left out, and reported,
        since every program that reads such a model knows these numbers.
    FormatError, MissingDependencyError, OSError
        As from `open` and `save`.
    """
    path, target, boundary = path_of(src), os.fsdecode(os.fspath(dst)), aligned_to(align)
    limits = Limits() if limits is None else limits
    model: Any = src if path is None else path
    directory = None
    if path is not None:
        try:
            model = find_model(path)
        except (FileNotFoundError, NotADirectoryError):
            pass  # a file, or an error of `open`
        else:
            directory = read_directory(path, model)
    if align is not None and format in NAMES:
        raise ValueError(f"align= is for formats that `open` reads, and {format} is none")
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
    task = Task(source, target, found, layout, include, exclude, wanted, quantizer, words, limits, progress, boundary)
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
    """Convert a model, with configuration and vocabulary of its directory."""
    found: Format = task.format
    target = task.target
    metadata = metadata_of(file, directory, found)
    try:
        layout = choose_layout(found, task.layout, metadata)
    except TensorFileError as error:
        raise error.located(path=target, format=found.name) from None
    try:
        regrouper = Regrouper(found.schemes.get(layout, frozenset()))
        payloads, dropped = _payloads(file, layout, task, regrouper)
        task.limits.check("max_copy_bytes", sum([payload.nbytes for payload in payloads]), "bytes of tensors to copy")
    except TensorFileError as error:
        raise error.located(path=task.source) from None
    extras, warnings = extras_of(file, directory, metadata, found, layout)
    warnings += regrouper.notes
    warnings += [f"{what}: left behind" for what in disagreements(file, file.metadata)]
    if found.embeddings is not None and file.format != found.name:
        warnings += _as_embeddings(payloads, *found.embeddings)
    if not payloads:
        warnings.append("no tensor was taken: the file holds none, or include and exclude leave none")
    plan = plan_request(target, found, Request(payloads, layout, **extras, align=task.align))
    try:
        write_plan(target, plan, progress=task.progress)
    except TensorFileError as error:  # of a tensor that is read, or quantised, as it is written
        raise error.located(path=task.source) from None
    if task.align > 1:
        warnings += _unaligned(target, task.align)
    done: tuple[QuantizedInfo, ...] = ()
    if task.quantizer is not None:
        done = tuple(task.quantizer.done)
        warnings += task.quantizer.notes
    return ConvertReport(
        task.source, target, found.name, layout, len(payloads), plan.size, tuple(dropped), tuple(warnings), done
    )


def _payloads(
    file: TensorFile, layout: str, task: Task, regrouper: Regrouper
) -> tuple[list[Payload], list[tuple[str, str]]]:
    """Return the payloads of tensors, and name and reason for each tensor that is left out."""
    found, quantizer, wanted = task.format, task.quantizer, task.dtype
    all_taken = not (task.include or task.exclude)
    payloads, dropped = [], []
    for name, place in zip(file, located(file), strict=True):
        if not (all_taken or task.takes(name)):
            continue
        why = spared(name, place, found, layout)
        if why is not None:
            dropped.append((name, why))
            continue
        place.source.check_size(f"tensor {quoted(name)}")
        if quantizer is None:
            payloads.append(_payload(name, place, wanted, regrouper))
        elif quantizer.wants(name, place):
            payloads.append(quantizer.payload(name, place, found.schemes.get(layout, frozenset())))
        else:  # a quantised tensor stays as it is
            payloads.append(_payload(name, place, None if place.row.dtype.quantized else wanted, regrouper))
    return payloads, dropped


def _unaligned(target: str, align: int) -> list[str]:
    """Return a line about the tensors of a new file that do not begin at a multiple of `align`."""
    with open_privately(target) as file:
        odd = sum(1 for info in file.infos() if info.offset % align)
    return [f"{counted(odd, 'tensor')} of {len(file)} could not be aligned to {align} bytes"] if odd else []


def _as_embeddings(payloads: list[Payload], matrix: str, norms: str) -> list[str]:
    """Give the only matrix of a model the name that the format of embeddings requires; return a line that says so."""
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
        raise ValueError(f"dtype is {name}, expected one of {', '.join(FLOATING)}")
    return DTYPES[name]


def _payload(name: str, place: TensorRef, wanted: DType | None, regrouper: Regrouper) -> Payload:
    """Return the payload of a tensor, converted to the floating-point type `wanted` if it has one."""
    source, row, _ = place
    if row.dtype.quantized:
        if wanted is None:
            return _as_quantized(name, place, regrouper)
        size = math.prod(row.shape)
        return Payload(name, wanted, row.shape, size * wanted.bits // 8, _decoded, place, wanted)
    if wanted is None or row.dtype.name not in FLOATING or row.dtype.name == wanted.name:
        dtype = DTYPES[row.dtype.name] if row.dtype.swapped else row.dtype
        return Payload(name, dtype, row.shape, row.nbytes, place.chunks)
    nbytes = row.nbytes // (row.dtype.bits // 8) * (wanted.bits // 8)
    return Payload(name, wanted, row.shape, nbytes, _cast, source, row, wanted)


def _as_quantized(name: str, place: TensorRef, regrouper: Regrouper) -> Payload:
    """Return a quantised tensor as it is, or in the target's blocks. Its bytes are read when they are written."""
    source, row, _ = place
    layout = place.layout()
    if layout is None:  # product quantisation
        model = from_quantized(name, place.decoder())
        return Payload(name, model.dtype, model.shape, model.nbytes, _parts, name, place, parts=model.parts)
    start, block_size, scale_type = layout
    if regrouper.wants(row.dtype.name):
        return regrouper.payload(name, place, block_size, scale_type)
    nbytes = row.nbytes - start
    args: tuple[Any, ...] = (_checked, place)
    if row.dtype.name != "adaptive":  # nothing has checked the mask of an adaptive tensor so far
        args = (source.chunks, row.offset + start, nbytes)
    return Payload(name, row.dtype, row.shape, nbytes, *args, block_size=block_size, scale_type=scale_type)


def _checked(place: TensorRef) -> Iterator[Any]:
    yield place.decoder().payload


def _parts(name: str, place: TensorRef) -> Iterator[Any]:
    yield from from_quantized(name, place.decoder()).chunks()


def _decoded(place: TensorRef, wanted: DType) -> Iterator[memoryview]:
    target = numpy_dtype(wanted)
    for tensor in in_pieces(place):
        for values in tensor.in_runs(_PIECE):
            with np.errstate(over="ignore", invalid="ignore"):
                yield memoryview(values.astype(target).view(np.uint8))


def _cast(source: Source, row: Row, wanted: DType) -> Iterator[memoryview]:
    stored, target = numpy_dtype(row.dtype), numpy_dtype(wanted)
    for chunk in source.chunks(row.offset, row.nbytes):
        with np.errstate(over="ignore", invalid="ignore"):
            yield memoryview(np.frombuffer(chunk, stored).astype(target).view(np.uint8))
