"""Conversion from any format to any other, tensor by tensor, with flat memory."""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.conversion import words
from weightmap.conversion.matrix import from_file
from weightmap.conversion.quantizer import QuantizedInfo, Quantizer, matches
from weightmap.dtypes import DTYPES, FLOATING, DType, numpy_dtype
from weightmap.errors import TensorFileError, counted, quoted
from weightmap.formats import Format, Payload, Request, fitted
from weightmap.importers import NAMES
from weightmap.importers import huggingface as hub
from weightmap.importers.sources import recognise
from weightmap.io.atomic import write_plan
from weightmap.io.source import path_of
from weightmap.model.opening import open_privately
from weightmap.model.payload import from_quantized
from weightmap.model.saving import choose, choose_layout, plan_request
from weightmap.model.sharded import ShardedTensorFile, find_model
from weightmap.options import Limits
from weightmap.quant.ref import in_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import DTypeLike

    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.model.file import TensorFile
    from weightmap.quant.ref import TensorRef

__all__ = ["ConvertReport", "convert"]

# What types are called where there is less room, as by `scale_type`.
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
# Elements of a quantised tensor that are decoded at once.
_PIECE = 1 << 18


class ConvertReport(NamedTuple):
    """What `convert` did.

    Attributes
    ----------
    src, dst : str
        As messages call them: the paths, or a word such as ``<bytes>`` for what was read from no path.
    format, layout : str
        What was written.
    tensors : int
        Number of tensors written.
    nbytes : int
        Size of the new file.
    dropped : tuple of (str, str)
        Name of each tensor that was left out, and the reason.
    warnings : tuple of str
        What else did not go along. Of metadata, numbers and truth values become texts where the target has only texts;
        what else it cannot hold, such as lists there, stays behind and is listed here.
    quantized : tuple of QuantizedInfo
        What became of each tensor that was quantised.
    """

    src: str
    dst: str
    format: str
    layout: str
    tensors: int
    nbytes: int
    dropped: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    quantized: tuple[QuantizedInfo, ...] = ()


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
    directory = None
    model = src if path is None else path
    if path is not None and os.path.isdir(path):
        model = find_model(path)
        directory = hub.read_directory(path, model)
    training = None
    if quantize == "pq":
        training = {
            "n_subquantizers": n_subquantizers,
            "n_bits": n_bits,
            "projection": projection,
            "norms": pq_norms,
            "seed": seed,
        }
    kind, name = recognise(model)
    source = name if path is None else path
    if kind is not None or format in NAMES or (training, subwords, normalize) != (None, None, None):
        if block_size is not None or (quantize is not None and training is None):
            raise ValueError("word embeddings are quantised by the scheme pq alone, which has no blocks")
        if dtype is not None and _floating(dtype).name != "float32":
            raise ValueError("word embeddings are float32, and become no other type")
        wanted = words.Target(target, format, layout, normalize, subwords, training)
        if kind is not None:
            written = words.convert_file(model, kind, wanted, limits, progress, lossy=lossy)
        else:
            with open_privately(model, limits=limits) as file:
                vocab = file.vocab if directory is None or directory.vocab is None else directory.vocab
                matrix = from_file(file, vocab, include, exclude)
                written = words.convert_words(matrix, wanted, limits, progress)
        return ConvertReport(source, target, *written)
    options = {"block_size": block_size, "scale_type": scale_type, "bits": bits, "threads": threads}
    among = {"include": quantize_include, "exclude": quantize_exclude}
    quantizer = functools.partial(_quantizer, quantize, options, among)
    return _convert_tensors(
        (source, model, target), directory, format, layout, include, exclude, dtype, quantizer, progress, limits
    )


def _quantizer(scheme: str | None, options: dict[str, Any], among: dict[str, Any]) -> Quantizer | None:
    if scheme is None:
        if options["block_size"] is not None:
            msg = "block_size= is for quantize=, which was not given"
            raise ValueError(msg)
        return None
    block_size = 32 if options["block_size"] is None else options["block_size"]
    return Quantizer(scheme, **options | {"block_size": block_size} | among)


def _convert_tensors(
    paths: tuple[str, Any, str],
    directory: hub.ModelDirectory | None,
    format: str | None,
    layout: str | None,
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
    dtype: DTypeLike | str | None,
    quantizing: Callable[[], Quantizer | None],
    progress: Callable[[int, int], None] | None,
    limits: Limits,
) -> ConvertReport:
    """Do what `convert` says, of files that `open` reads; `paths` are the source, the model in it, and the target."""
    source, model, target = paths
    try:
        found = choose(target, format, layout)
        quantizer = quantizing()
        wanted = None if dtype is None else _floating(dtype)
    except TensorFileError as error:
        raise error.located(path=target) from None
    # Mode "mmap" touches no page: tensors are read by pread.
    with open_privately(model, limits=limits) as file:
        metadata = _metadata(file, directory, found)
        try:
            chosen = choose_layout(found, layout, metadata)
        except TensorFileError as error:
            raise error.located(path=target, format=found.name) from None
        dropped: list[tuple[str, str]] = []
        payloads = []
        for name, place in zip(file, file.located(), strict=True):
            row = place.row
            if not _taken(name, include, exclude):
                continue
            why = spared(name, place, found, chosen)
            if why is not None:
                dropped.append((name, why))
                continue
            try:
                if quantizer is None:
                    payloads.append(_payload(name, place, wanted))
                elif quantizer.wants(name, place):
                    payloads.append(quantizer.payload(name, place, found.schemes.get(chosen, frozenset())))
                else:  # what is quantised already stays so
                    payloads.append(_payload(name, place, None if row.dtype.quantized else wanted))
            except TensorFileError as error:
                raise error.located(path=source) from None
        try:
            limits.check("max_copy_bytes", sum(payload.nbytes for payload in payloads), "bytes of tensors to copy")
        except TensorFileError as error:
            raise error.located(path=source) from None
        extras, warnings = _extras(file, directory, metadata, found, chosen)
        if isinstance(file, ShardedTensorFile):
            warnings += [f"{what}: left behind" for what in file.disagreements]
        if found.embeddings is not None and file.format != found.name:
            warnings += _as_embeddings(payloads, *found.embeddings)
        if not payloads:
            warnings.append("no tensor was taken: the file holds none, or include and exclude leave none")
        request = Request(payloads, chosen, **extras)
        plan = plan_request(target, found, request)
        try:
            write_plan(target, plan, progress=progress)
        except TensorFileError as error:  # of a tensor that is read, or quantised, as it is written
            raise error.located(path=source) from None
    return ConvertReport(
        source,
        target,
        found.name,
        chosen,
        len(payloads),
        plan.size,
        tuple(dropped),
        tuple(warnings),
        () if quantizer is None else tuple(quantizer.done),
    )


def _entries(number: int) -> str:
    return "1 metadata entry" if number == 1 else f"{number:,} metadata entries"


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


def _taken(name: str, include: str | Sequence[str] | None, exclude: str | Sequence[str] | None) -> bool:
    return (not include or matches(name, include)) and not (exclude and matches(name, exclude))


def spared(name: str, place: TensorRef, format_: Format, layout: str) -> str | None:
    """Say why files of a layout that cannot hold a tensor go without it, and miss nothing; None for other tensors."""
    row = place.row
    buffer = name.rpartition(".")[2] == "position_ids" and row.dtype.name == "int64" and len(row.shape) > 0
    if not buffer or "int64" in format_.dtypes[layout] or not _counts(place.source, row):
        return None
    return f"{format_.title} has no int64, and these are just the numbers 0 to {row.shape[-1] - 1}"


def _counts(source: Source, row: Row) -> bool:
    """Whether each last axis of an int64 tensor counts 0, 1, 2 ..."""
    period, position = row.shape[-1], 0
    for chunk in source.chunks(row.offset, row.nbytes):
        values = np.frombuffer(chunk, "<i8")
        if not np.array_equal(values, np.arange(position, position + len(values)) % period):
            return False
        position += len(values)
    return True


def _payload(name: str, place: TensorRef, wanted: DType | None) -> Payload:
    source, row, _ = place
    if row.dtype.quantized:
        if wanted is None:
            return _as_quantized(name, place)
        size = math.prod(row.shape)
        return Payload(name, wanted, row.shape, size * wanted.bits // 8, _decoded, place, wanted)
    if wanted is None or row.dtype.name not in FLOATING or row.dtype is wanted:
        return Payload(name, row.dtype, row.shape, row.nbytes, source.chunks, row.offset, row.nbytes)
    nbytes = row.nbytes // (row.dtype.bits // 8) * (wanted.bits // 8)
    return Payload(name, wanted, row.shape, nbytes, _cast, source, row, wanted)


def _as_quantized(name: str, place: TensorRef) -> Payload:
    """Return a quantised tensor as it is. Its bytes are read when they are written."""
    source, row, _ = place
    layout = place.layout()
    if layout is None:
        return _in_parts(name, place)
    start, block_size, scale_type = layout
    nbytes = row.nbytes - start

    def chunks() -> Iterator[Any]:
        if row.dtype.name == "adaptive":  # whose mask nobody has checked so far
            yield place.decoder().payload
        else:
            yield from source.chunks(row.offset + start, nbytes)

    return Payload(name, row.dtype, row.shape, nbytes, chunks, block_size=block_size, scale_type=scale_type)


def _in_parts(name: str, place: TensorRef) -> Payload:
    """Return a tensor of product quantisation as it is."""
    model = from_quantized(name, place.decoder())

    def chunks() -> Iterator[Any]:
        yield from from_quantized(name, place.decoder()).chunks()

    return Payload(name, model.dtype, model.shape, model.nbytes, chunks, parts=model.parts)


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


def file_metadata(file: TensorFile) -> dict[str, Any]:
    """Return the metadata of a file as it goes along with its tensors."""
    metadata: dict[str, Any] = file.metadata.copy()  # type: ignore[attr-defined]  # a TOML document with its text
    if file.layout == "sharded":
        metadata.pop("total_size", None)  # of the shards, not of what is written
    return metadata


def _metadata(file: TensorFile, directory: hub.ModelDirectory | None, found: Format) -> dict[str, Any]:
    """Return the metadata of a model: of its file, and of the directory that it lies in.

    A format that has a place for the configuration does not get its numbers here.
    """
    metadata = file_metadata(file)
    if directory is None:
        return metadata
    return metadata | (directory.about if "config" in found.carries[found.layouts[0]] else directory.metadata)


def _extras(
    file: TensorFile, directory: hub.ModelDirectory | None, metadata: dict[str, Any], found: Format, layout: str
) -> tuple[dict[str, Any], list[str]]:
    """Return what goes along with the tensors, and what has to stay behind."""
    carried = found.carries[layout]
    metadata, homeless = (
        fitted(metadata, found.metadata_keys, found.metadata_kinds) if "metadata" in carried else (metadata, [])
    )
    vocab: Sequence[str] | None = file.vocab
    special_ids = None if file.vocab is None else file.vocab.special_ids
    if directory is not None and directory.vocab is not None:
        vocab, special_ids = directory.vocab, directory.special_ids
    config, tokenizer, notes = file.config, file.tokenizer, []
    if directory is not None and "config" in carried:
        config = {**(config or {}), **directory.config}
    if directory is not None and "tokenizer" in carried and (parts := directory.tokenizer()) is not None:
        tokenizer = {"type": parts.type, "special_ids": parts.special_ids, "payload": parts.payload}
        vocab = special_ids = None  # its tokens are in there
        for name, i in parts.large_ids.items():
            config = {**(config or {}), f"{name}_token_id": i}
            notes.append(f"the special id {name} is {i}, which needs more than 16 bits: it went to the configuration")
    have = {
        "metadata": metadata if metadata or file.has_metadata else None,
        "vocab": vocab,
        "special_ids": special_ids,
        "config": config,
        "tokenizer": tokenizer,
    }
    extras = {name: value for name, value in have.items() if name in carried and value is not None}
    words = {
        "metadata": _entries(len(metadata)),
        "config": "the configuration",
        "tokenizer": "the tokenizer",
    }
    words["vocab"] = f"the vocabulary of {counted(0 if vocab is None else len(vocab), 'token')}"
    lost = [words[name] for name in words if name not in carried and have[name] not in (None, {})]
    if homeless:
        some = ", ".join(quoted(key) for key in homeless[:5]) + (", ..." if len(homeless) > 5 else "")
        lost.insert(0, f"{_entries(len(homeless))} ({some})")
    return extras, notes + [f"{found.title} has no place for {what}: left behind" for what in lost]
