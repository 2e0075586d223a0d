"""Conversion from any format to any other, tensor by tensor, with flat memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.arguments import as_path
from weightmap.conversion.overflow import overflow_note
from weightmap.conversion.reports import ConvertReport
from weightmap.conversion.running import Execution
from weightmap.conversion.shards import convert_model
from weightmap.conversion.task import NO_WORDS, Arguments, floating, plain_globs
from weightmap.conversion.tensors import prepare, regrouper_for, unaligned, unaligned_note
from weightmap.conversion.training import Options
from weightmap.conversion.words import convert_words, from_file
from weightmap.errors import EncodeError, TensorFileError
from weightmap.importers import IMPORTERS, NAMES
from weightmap.importers._huggingface import ModelDirectory, read_directory
from weightmap.importers._words import Words
from weightmap.io.atomic import write_plan
from weightmap.io.opening import is_directory, path_of
from weightmap.model.inputs import check_not_read
from weightmap.model.opening import open_or_import
from weightmap.model.parts import located, name_of
from weightmap.model.saving import aligned_to, choose, choose_layout, named
from weightmap.model.sharded import find_model
from weightmap.model.sharding import sharded_target
from weightmap.model.single import check_replaceable
from weightmap.model.splitting import beside, bytes_of_size
from weightmap.options import Limits

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from numpy.typing import DTypeLike

    from weightmap.conversion.task import Task
    from weightmap.formats import Format
    from weightmap.model.file import TensorFile
    from weightmap.model.sharding import ShardTarget

__all__ = ["convert"]


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
    executor: Executor | None = None,
    manifest: str | os.PathLike[str] | None = None,
    keep_going: bool = False,
    rank: int = 0,
    world: int = 1,
    max_shard_size: int | str | None = None,
    verify: bool = False,
) -> ConvertReport:
    """Write the tensors of one file to another, of any format, in flat memory.

    A target that is a directory or an ``*.index.json`` gets a shard for each file of the source, and the index last:
    see `executor`.

    Parameters
    ----------
    src : str, os.PathLike, or whatever else `open` takes
        The path of a file, an index of shards, or a Hugging Face model directory, whose configuration
        (``config.json``) and vocabulary (``vocab.txt``) go along where the target has a place for them; bytes are
        content. Or word embeddings of another program: word2vec binary, text with or without a line of dimensions
        (GloVe), a dense fastText model. See `weightmap.words`.
    dst : str, bytes or os.PathLike
        Always a path, written atomically, as by `save`. A directory (one that exists, or a path that ends in a slash;
        `format` says which) or an ``*.index.json`` gets numbered shards, one for each file of the source that has
        tensors to write; scales go to the shard of their weights. It must not hold such a model yet.
    format, layout : str, optional
        Format and layout of the target; by default its suffix decides. "word2vec", "text", "textdims" and "fasttext"
        take a vocabulary and the matrix of its rows; the other formats are those of `weightmap.open`.
    include, exclude : glob or sequence of globs, optional
        Convert tensors whose name matches an `include` (default: all) and no `exclude`. If no tensor of the source is
        left, that is an EncodeError.
    dtype : dtype_like, optional
        Convert floating-point tensors to this type, and decode quantised ones to it; others stay as they are. Values
        out of its range become infinite, in float8_e4m3fn NaN; the report's warnings count them. With `quantize`, this
        does not apply to tensors that are quantised before or after. Without `dtype`, a conversion between AMB and GGUF
        turns int4_block into q4_0, int5_block into q5_0, int8 into q8_0, and back: the same integers and scales,
        without decoding. The report says so; if blocks or scales do not allow it, so does the error.
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
        Called as ``progress(done, total)``, in bytes of the target; for shards in bytes of the source.
    limits : Limits, optional
    align : int, optional
        Let tensors begin at multiples of this power of two, from 8 to 4096, in the file: jax shares memory aligned to
        64 bytes and copies any other. EMBD always has 64; in GGUF it becomes ``general.alignment``; safetensors, and
        BinTensors up to 64, have a longer header and tensors whose size is a multiple first, since nothing may lie
        between tensors: the report says how many are not aligned. Other formats refuse.
    executor : concurrent.futures.Executor, optional
        Shares out the shards, one task for each: threads, processes, ``dask.distributed.Client.get_executor()``. Tasks
        hold paths and ranges, less than 4 KiB pickled; source and target lie on a file system that all workers have.
        Each task uses one thread unless `threads` says more. By default, shards are written here, one by one. The files
        are the same byte for byte.
    manifest : str or os.PathLike, optional
        A file that records finished shards, with size and checksum. A run with the same arguments skips those that are
        whole and whose source has not changed.
    keep_going : bool
        After an error in a shard, write the other ones, and raise all errors together. By default, shards that have not
        begun do not begin, and the first error is raised. There is no index in either case.
    rank, world : int
        Write every `world`-th shard, from number `rank` on, beside other processes that write the rest. `manifest` is
        needed; each rank writes one of its own, and the rank that ends last writes the index.
    max_shard_size : int or str, optional
        Write shards with up to so many bytes of tensors each, such as ``"5GB"`` or ``"4GiB"``, and split those of the
        source that are larger; a larger tensor gets a shard for itself. `dst` may be a file, too: where the model does
        not fit into it, shards and ``DST.index.json`` lie in its place, as for `save`.
    verify : bool
        Verify the source first, as `TensorFile.verify` does; that reads it once more. Without this, checksums of
        tensors are not looked at, and the target gets new ones: damage then looks sound. Words of other programs have
        no checksums.

    Returns
    -------
    ConvertReport

    Raises
    ------
    EncodeError
        When the target cannot express a tensor; it names every such tensor, and no file was created. One exception:
        where the target has no int64, a buffer ``*.position_ids`` that counts 0, 1, 2 ... is left out, and reported,
        since every program that reads such a model knows these numbers. Also when globs leave no tensor.
    TargetError
        When a sharded target exists, or another run is writing it, or `manifest` is that of another run; or when the
        target is a shard or the index of the source.
    ShardsError
        When several shards failed, with `keep_going`; or one by an error of the executor.
    FormatError, MissingDependencyError, OSError
        As from `open` and `save`.
    """
    path, target, boundary = path_of(src), as_path("dst", dst), aligned_to(align)
    limits = Limits() if limits is None else Limits.given(limits)
    model: Any = src if path is None else path
    directory = None
    if path is not None and is_directory(path):
        model = find_model(path)
        directory = read_directory(path, model)
    if align is not None and format in NAMES:
        raise ValueError(f"align= is for formats that `open` reads, and {format} is none")
    recorded = None if manifest is None else as_path("manifest", manifest)
    how = Execution(executor, recorded, keep_going, rank, world, progress)
    how.check()
    most = None if max_shard_size is None else bytes_of_size(max_shard_size)
    shards = _shards_at(target, format, how)
    named_by = target if shards is None or format is not None else shards.names(1)[0]
    found: Any = IMPORTERS[format] if format in NAMES else choose(named_by, format, layout)
    words = NO_WORDS._replace(normalize=normalize, subwords=subwords)
    if quantize == "pq":
        words = words._replace(training=Options(n_subquantizers, n_bits, projection, pq_norms, seed=seed))
    arguments = Arguments(
        layout=layout,
        include=plain_globs("include", include),
        exclude=plain_globs("exclude", exclude),
        dtype=None if dtype is None else floating(dtype),
        quantize=None if quantize == "pq" else quantize,
        block_size=block_size,
        scale_type=scale_type,
        bits=bits,
        quantize_include=plain_globs("quantize_include", quantize_include),
        quantize_exclude=plain_globs("quantize_exclude", quantize_exclude),
        threads=threads,
        limits=limits,
        align=boundary,
        max_shard_size=most,
    )
    task = arguments.task("", target, found, progress, words)  # refuses wrong arguments before it reads the source
    # In mode "mmap" this touches no page: tensors are read by pread.
    opened = open_or_import(model, limits, lossy=lossy)
    task = task._replace(source=path or (opened.path if isinstance(opened, Words) else name_of(opened)))
    of_words = isinstance(opened, Words) or format in NAMES or words != NO_WORDS
    if block_size is not None and (of_words or task.quantizer is None):
        what = "word embeddings are quantised by the scheme pq, which has no blocks"
        raise ValueError(what if of_words else "block_size= is for quantize=, which was not given")
    if of_words and shards is not None:
        raise ValueError(f"dst is {target!r}, expected a file: words and their rows are not written to shards")
    if isinstance(opened, Words):
        return convert_words(opened, task)
    with opened as file:
        if shards is None:
            check_not_read(file, target, itself=True)
        if not of_words:
            task.check_globs(file)
        if arguments.quantize is not None and not of_words:
            _check_scheme(found, layout, arguments.quantize, target)
        if verify:
            file.verify()
        if of_words:
            vocab = file.vocab if directory is None or directory.vocab is None else directory.vocab
            return convert_words(from_file(file, vocab, task), task)
        if most is not None and shards is None and not _fits(file, task, most):
            shards = beside(target, found)
        if shards is not None:
            return convert_model(file, None if directory is None else model, shards, found, arguments, how)
        return _convert_file(file, directory, task)


def _shards_at(target: str, format_: str | None, how: Execution) -> ShardTarget | None:
    """Return the target of a sharded model if `target` names one, else None; refuse what does not go with a file."""
    shards = None if format_ in NAMES else sharded_target(target, None if format_ is None else named(format_, NAMES))
    if shards is None:
        if how._replace(progress=None) != Execution():
            what = "executor=, manifest=, keep_going=, rank= and world= are for shards"
            raise ValueError(f"{what}, and {target!r} is one file: give a directory or an *.index.json")
        check_replaceable(target)
    return shards


def _check_scheme(found: Format, layout: str | None, scheme: str, target: str) -> None:
    """Refuse a scheme that the target has not, before any tensor is read."""
    known = found.schemes.get(choose_layout(found, layout, None), frozenset())
    if scheme not in known:
        holds = f"it holds {', '.join(sorted(known))}" if known else "it holds no quantised tensors"
        raise EncodeError(f"{found.title} has no scheme {scheme}: {holds}", path=target, format=found.name)


def _fits(file: TensorFile, task: Task, most: int) -> bool:
    """Say whether the tensors of a conversion take at most so many bytes."""
    trial = task.arguments.task(task.source, task.target, task.format)
    regrouper = regrouper_for(task.format, choose_layout(task.format, task.layout, None))
    places = zip(file, located(file), strict=True)
    return prepare(file, places, None, trial, regrouper, trial=True).tensors.nbytes <= most


def _convert_file(file: TensorFile, directory: ModelDirectory | None, task: Task) -> ConvertReport:
    """Convert a model to one file, with configuration and vocabulary of its directory."""
    target, align = task.target, task.arguments.align
    made = prepare(file, zip(file, located(file), strict=True), directory, task)
    warnings = made.warnings
    if not made.tensors:
        warnings.append("there is no tensor to write")
    try:
        size = write_plan(target, made.plan, progress=task.progress)
    except TensorFileError as error:  # of a tensor that is read, or quantised, as it is written
        raise error.located(path=task.source) from None
    if align > 1:
        warnings += unaligned_note(*unaligned(target, align), align)
    warnings += overflow_note(*task.overflow.total, task.arguments.dtype)
    quantizer = task.quantizer
    if quantizer is not None:
        warnings += quantizer.notes
    return ConvertReport(
        task.source,
        target,
        task.format.name,
        made.layout,
        len(made.tensors),
        size,
        tuple(made.dropped),
        tuple(warnings),
        () if quantizer is None else tuple(quantizer.done),
    )
