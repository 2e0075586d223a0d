"""`convert`: from any format to any other, tensor by tensor, with flat memory."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

from weightmap._messages import counted, quoted
from weightmap.checkpoints.handle import Weights, stored_model
from weightmap.checkpoints.weights import storage_of
from weightmap.conversion.quantizer import Quantize
from weightmap.conversion.running import ALONE, Run, as_run
from weightmap.conversion.sharded import convert_model
from weightmap.conversion.spec import Spec, checked_view, floating
from weightmap.conversion.tensors import Preparer, overflow_note, unaligned, unaligned_note
from weightmap.core.arguments import as_globs, as_path, as_threads, check_progress, names_moved
from weightmap.core.bytes.atomic import file_exists, write_plan
from weightmap.core.bytes.open_source import path_of, takes_addresses
from weightmap.core.formats import FORMATS, Format, listed
from weightmap.core.model import internals
from weightmap.core.model.codes import codes_among
from weightmap.core.model.file import TensorFile
from weightmap.core.model.opening import Model, open_or_import
from weightmap.core.model.reports import ConvertReport
from weightmap.core.model.saving import Output, choose, choose_layout, format_named, meant_by_suffix
from weightmap.core.model.sharded import naming_all, other_models
from weightmap.core.model.sharding import ShardTarget, bytes_of_size, sharded_target, shards_in_place_of
from weightmap.core.model.single import INDEX_SUFFIX, check_replaceable
from weightmap.core.quant.quantizing import SCHEMES, folded, nearest_scheme, scheme_named
from weightmap.errors import EncodeError, Remedy, TensorFileError
from weightmap.huggingface.companion_files import check_not_read, companions
from weightmap.huggingface.directory import ModelDirectory, directory_around, read_directory
from weightmap.llama import PROGRAM, check_naming
from weightmap.llama.tensors import MIXTURES
from weightmap.llama.translating import check_complete_of
from weightmap.trust.checking import check_all
from weightmap.trust.lists import listed_beside, write_sums
from weightmap.words.importers import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import DTypeLike


_P = ParamSpec("_P")


def _with_lossy(function: Callable[_P, ConvertReport]) -> Callable[_P, ConvertReport]:
    """Pass a call with ``lossy=True`` on to `weightmap.words.convert`, the only function with options for words."""

    @functools.wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> ConvertReport:
        if not options.pop("lossy", False):
            return function(*args, **options)
        from weightmap.words.converting import convert  # noqa: PLC0415 - for words alone

        return convert(*args, **options, lossy=True)  # type: ignore[arg-type]

    return call


@_with_lossy
@names_moved
@takes_addresses("dst", 1)
def convert(
    src: Model,
    dst: str | bytes | os.PathLike[Any],
    *,
    format: str | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    dtype: DTypeLike | str | None = None,
    quantize: Quantize | str | None = None,
    names: str = "auto",
    max_shard_size: int | str | None = None,
    output: Output | None = None,
    run: Run | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Write the tensors of one file to another, of any format, in flat memory.

    The schemes int4, int5, int8 and adaptive keep one tensor at a time in memory. If the target is a directory or an
    ``*.index.json``, it gets a shard for each file of the source, and finally the index.

    Parameters
    ----------
    src : str, os.PathLike, or anything else that `open` takes; or an open handle, or its `weights`
        The path of a file, of an index of shards, or of a Hugging Face model directory; bytes are content. The
        directory's configuration (``config.json``) and vocabulary (``vocab.txt``) go to the target if it has a place
        for them. A handle stays open; options for opening go to `open`:
        ``wm.convert(wm.open("model", trust="recorded"), "copy/")``.
        ``f.weights`` are the parameters of a quantised checkpoint instead of its stored tensors. They are decoded to
        `dtype`, by default to the model's own type. Without `dtype`, GGUF gets the same integers and scales if one of
        its types holds them: MXFP4, NVFP4 (with its float32 scale as a tensor ``*.scale`` next to ``*.weight``), and
        Q4_0 or Q8_0 for symmetric integers with groups of 32 columns or more and scales that float16 holds. AMB gets
        int4_block with the group size, or int8 with one scale. With `quantize`, a parameter that this scheme does not
        hold exactly is an EncodeError. A copied ``config.json`` loses its ``quantization_config``.
        Or word embeddings of another program: word2vec binary, text with or without a line of dimensions (GloVe), a
        dense fastText model, a ``.kv`` of gensim. `weightmap.words.convert` does the same, and takes ``lossy=True``.
    dst : str, bytes or os.PathLike
        A path, or (without `run`) an address in a store, written atomically, as by `save`; never the source itself. A
        directory (an existing one, a path that ends in a slash, or, from a model directory, a name without a suffix) or
        an ``*.index.json`` gets numbered shards, one for each file of the source with tensors to write; scales go to
        the shard of their weights. The directory must not hold such a model yet. A Hugging Face directory (or a file or
        index in a folder with a ``config.json``) becomes a Hugging Face directory again: configuration, tokenizer, chat
        template, licence, code (``*.py`` next to a ``config.json``) and the modules of sentence-transformers are copied
        before the index. They replace no file. A single file gets no copies: a warning names them. transformers, vLLM
        and llama.cpp find shards of safetensors and GGUF by their names; transformers loads directories of all formats
        within `weightmap.compat.patched`.
    format : str, optional
        Format of the target; by default its suffix decides, and a directory gets the format of the source.
        "word2vec", "text", "textdims" and "fasttext" take a vocabulary and the matrix of its rows; the other formats
        are the same as for `weightmap.open`.
    include, exclude : glob or sequence of globs, optional
        Convert tensors whose name matches an `include` (default: all; an empty sequence: none) and no `exclude`. A glob
        that matches no tensor of the source is an EncodeError, and so are globs that leave no tensor.
    rename : mapping of str to str, or callable, optional
        Maps old names to new ones (``{"net.*": "*"}`` renames all that begin with "net."), or a function that returns
        the new name for an old one. `include`, `exclude`, `quantize` and the report use the old names.
    dtype : dtype_like, optional
        Convert floating-point tensors to this type, and decode quantised tensors to it; others stay as they are. Values
        out of its range become infinite, in float8_e4m3fn NaN; the report's warnings count them. With `quantize`, the
        type does not apply to tensors that are quantised before or after. Without `quantize`, the ``dtype``
        (``torch_dtype``) in a copied ``config.json`` becomes this type too, unless it is a float8: transformers and
        vLLM load a model in the type that is stated there. Without `dtype`, a conversion between AMB and GGUF turns
        int4_block into q4_0, int5_block into q5_0, int8 into q8_0, and back: the same integers and scales, without
        decoding. The report says so; if blocks or scales do not allow it, the error says so.
    quantize : Quantize or str, optional
        Quantise by this scheme, for formats that hold such tensors (AMB, GGUF): see `weightmap.quantize`. Tensors that
        are one-dimensional, embeddings (by their names) or quantised already stay as they are. If rows are not whole
        blocks of 256, another scheme takes the place of k-quants: iq4_nl of q2_k and q3_k (llama.cpp: q4_0), q5_0 of
        q4_k, q5_1 of q5_k, q8_0 of q6_k. If they are not whole blocks of 32, the tensor stays as it is. The report's
        warnings list both. Or "pq", for word embeddings in finalfusion: as ``pq=Pq()`` of `weightmap.words.convert`. Or
        a mixture of llama.cpp, such as "q4_k_m": see `Quantize`.
    names : str
        For GGUF. "auto": a Hugging Face model directory, or an index in one, gets llama.cpp's names, keys and tokenizer
        (extra ``[gguf]``) if docs/gguf.md lists its architecture; others keep their names, and a warning says that
        llama.cpp will not load the file. "llama.cpp": another architecture is an EncodeError, and a single file of
        weights in a folder with a ``config.json`` is translated, too. "keep": names are never translated. With
        translation, `include`, `exclude`, `rename` and `quantize` take llama.cpp's names, and a model that llama.cpp
        would refuse or compute wrongly is an EncodeError before a file is created.
    max_shard_size : int or str, optional
        The most bytes of tensors per shard, such as ``"5GB"`` or ``"4GiB"``. Larger shards of the source are split; a
        larger tensor gets its own shard. `dst` may also be a file: a model that does not fit into it becomes shards and
        ``DST.index.json`` in its place, as for `save`.
    output : Output, optional
        Layout, alignment, checksums, and how files take their places. The report counts tensors that could not be
        aligned. Without ``overwrite``, no file of a sharded model is replaced. A whole sharded model is never replaced,
        nor are files in the place of companion files.
    run : Run, optional
        How to distribute the shards of a model: to an executor or to ranks, with a manifest of finished shards.
    threads : int, optional
        The most threads that quantise; by default one for each CPU of this process.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes of the target; for shards in bytes of the source.

    Returns
    -------
    ConvertReport
        Its `warnings` name everything omitted or changed.

    Raises
    ------
    EncodeError
        When the target cannot express a tensor; it names every such tensor, and no file was created. One exception: if
        the target has no int64, a buffer ``*.position_ids`` that counts 0, 1, 2 ... is left out, and reported, because
        every program that reads such a model knows these numbers. Also when globs leave no tensor, or choose none to
        quantise, and for two tensors with the same name.
    TargetError
        When a sharded target exists, its directory has another model under a usual name, another run is writing it, or
        the manifest belongs to another run; when a file to copy exists there with other content; when the target
        exists, with ``Output(overwrite=False)``; or when the target is the source, by whatever path, or one of its
        files.
    ShardsError
        When several shards failed, with `keep_going`; or when the executor failed.
    FormatError, MissingDependencyError, OSError
        As from `open` and `save`.
    ValueError
        For options that do not fit together, such as `run` for a single file, and values out of range.

    Notes
    -----
    The source's checksums are not compared, and the target gets new ones, which would make damage look sound: `verify`
    the source before, and the target after.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.safetensors", {"layer.0.up": np.ones((4, 64), np.float32), "bias": np.zeros(4, np.float32)})
    >>> report = wm.convert("model.safetensors", "model.gguf", quantize="q4_0", rename={"bias": "output.bias"})
    >>> report.tensors, report.quantized[0].bits_per_weight
    (2, 4.5)
    """
    output, run = Output.of(output), ALONE if run is None else as_run(run)
    threads = None if threads is None else as_threads(threads)
    path = as_path("dst", dst)
    check_progress(progress)
    if names != "auto":
        check_naming(names)
    if output.align is not None and format in NAMES:
        raise ValueError(f"align= is for formats that `open` reads, and it does not read {format}")
    spec = Spec(
        output=output,
        include=as_globs("include", include),
        exclude=as_globs("exclude", exclude),
        dtype=None if dtype is None else floating(dtype),
        max_shard_size=None if max_shard_size is None else bytes_of_size(max_shard_size),
        threads=threads,
    )
    if not output.overwrite and os.path.lexists(path) and (format in NAMES or not _is_sharded(path)):
        raise file_exists(path)
    with contextlib.ExitStack() as stack:
        with naming_all(src) if run.keep_going else contextlib.nullcontext():
            source = _open_source(stack, src)
        target = _target_of(source, path, format, spec, run)
        if output.sha256sums:
            listed_beside(target.path)  # which fails before anything is written
        if format is None and quantize is None and getattr(target.record, "suffix_means", None):
            stack.enter_context(meant_by_suffix(target.path, target.record))
        how = None if quantize is None else _as_quantize(quantize, target)
        if source.of_words or not isinstance(target.record, Format) or (how is not None and how.scheme == "pq"):
            report = _convert_words(source, target, spec, names, rename, how, progress)
        else:
            report = _convert_tensors(source, target, spec.of(source, target, how), names, rename, run, progress)
            if how is not None and run == ALONE and not report.quantized:
                report = report._replace(warnings=(*report.warnings, "quantize: no tensor was quantised"))
        if output.sha256sums:
            write_sums(target.path if os.path.isdir(target.path) else report.dst)
        return report


class _Source(NamedTuple):
    """The model to convert, or the words of another program."""

    file: Any
    weights: bool  # whether its parameters are converted
    folder: str | None  # the directory that was opened
    directory: ModelDirectory | None  # the content of that directory
    path: str | None
    name: str  # in the report
    of_words: bool = False


class _Target(NamedTuple):
    """The target of a conversion."""

    path: str
    record: Any  # of a format, or of another program's words
    shards: ShardTarget | None
    layout: str | None
    directory: ModelDirectory | None  # the source's folder, whose companion files are copied to a directory


def _open_source(stack: contextlib.ExitStack, src: Any) -> _Source:
    """Open a source of `convert` until `stack` ends. A handle of the caller stays open."""
    if isinstance(src, Weights):
        file = stored_model(src)
    elif isinstance(src, TensorFile):
        file = src
    else:
        file = open_or_import(src)
        if not isinstance(file, TensorFile):
            path = path_of(src)
            return _Source(file, False, None, None, path, path or file.path, of_words=True)  # noqa: FBT003 - by fields
        stack.enter_context(file)
    folder, path, trust = internals.folder_opened(file), file.path, internals.parts_of(file)[2].trust
    directory = None if folder is None or path is None else read_directory(folder, path, trust)
    return _Source(file, isinstance(src, Weights), folder, directory, path, folder or path or internals.name_of(file))


def _is_sharded(path: str) -> bool:
    """Whether this is the path of a directory or an index."""
    return path.endswith((INDEX_SUFFIX, os.sep)) or os.path.isdir(path)


def _target_of(source: _Source, path: str, format: str | None, spec: Spec, run: Run) -> _Target:
    """Return the target of a conversion and its format. A directory gets the source's format by default."""
    layout, directory = spec.output.layout, source.directory
    if directory is not None and format not in NAMES and "." not in os.path.basename(path):
        path = path if os.path.lexists(path) else os.path.join(path, "")
    shards = None
    if format not in NAMES and _is_sharded(path):
        if format is None and source.path is not None and not source.of_words and not path.endswith(INDEX_SUFFIX):
            stored = FORMATS.get(source.file.format)
            format = None if stored is None or stored.plan is None else stored.name
        shards = sharded_target(path, None if format is None else format_named(format, NAMES))
    if shards is None:
        if run != ALONE:
            raise ValueError(f"run= is for shards, and {path!r} is one file: give a directory or an *.index.json")
        check_replaceable(path)
    elif shards.whole and directory is None and source.path is not None:
        directory = directory_around(source.path, internals.parts_of(source.file)[2].trust)
    if format in NAMES:
        from weightmap.words.importers import IMPORTERS  # noqa: PLC0415 - for words alone

        return _Target(path, IMPORTERS[format], None, layout, directory)
    try:
        record = choose(path if shards is None or format else shards.names(1)[0], format, layout, NAMES)
    except EncodeError as error:
        if directory is not None and shards is None and error.remedy == Remedy("or give {}", "format"):
            error.remedy = Remedy("give {}, or end the name of a directory in a slash", "format")
        raise
    return _Target(path, record, shards, layout, directory)


def _convert_words(
    source: _Source, target: _Target, spec: Spec, names: str, rename: Any, how: Quantize | None, progress: Any
) -> ConvertReport:
    """Convert words of another program, or the vocabulary of a model with the matrix of its rows."""
    from weightmap.words.converting import hand_over  # noqa: PLC0415 - for words alone
    from weightmap.words.training import Pq  # noqa: PLC0415 - as above

    if not source.of_words:
        spec.check_globs(source.file, source.name)
    pq = Pq() if how is not None and how.scheme == "pq" else None
    tensors = {"rename": rename, "dtype": spec.dtype, "max_shard_size": spec.max_shard_size}
    tensors |= {"quantize": None if pq else how, "names": names if names == PROGRAM else None}
    options = {"source": source.name, "progress": progress, "output": spec.output, "pq": pq}
    globs = spec.include, spec.exclude
    return hand_over(source.file, target.directory, target.path, target.record, globs, tensors, **options)


def _convert_tensors(
    source: _Source, target: _Target, spec: Spec, names: str, rename: Any, run: Run, progress: Any
) -> ConvertReport:
    """Convert the tensors of a model to a file, or to shards."""
    file, shards, directory = source.file, target.shards, target.directory
    if shards is None:
        check_not_read(file, target.path)
    if spec.opening.trust is not None and directory is not None:
        check_all(spec.opening.trust, spec.opening.trust.root)
    if spec.quantize is not None:
        _check_scheme(target, spec.quantize.usual)
    warnings = [f"tolerated in the source: {line}" for line in internals.warnings_of(file)]
    if source.folder is not None:
        warnings += other_models(file)
    file, spec, odd = checked_view(spec, file, names, whole=source.folder is not None or bool(file.shards))
    if spec.translated:
        directory = None  # its content has become key-values
    spec.check_globs(file, source.name)
    renamed = spec.renamed(file, rename, source.name)
    if spec.translated:
        check_complete_of(file, {renamed.get(name, name) for name in file if spec.takes(name)})
    if spec.max_shard_size is not None and shards is None and not _fits(file, target.path, spec):
        shards = shards_in_place_of(target.path, target.record)
    # List the files before writing, so that an unreadable folder fails the conversion while it can still fail.
    copied = source.folder is None or directory is None or (shards is not None and shards.whole)
    others = [] if copied or source.folder is None else list(companions(source.folder, spec.opening.trust))
    if shards is None:
        report = _convert_file(file, directory, target.path, spec, renamed, progress)
    else:
        model = None if directory is None else source.path
        report = convert_model(file, model, shards, spec, renamed, run, progress)
    warnings += _not_copied(others, directory, report)
    warnings += (*(f"dropped {quoted(name)}: {why}" for name, why in report.dropped), *report.warnings)
    if clipped := [info.name for info in report.quantized if info.out_of_range]:
        what = f"{counted(len(clipped), 'tensor')} lost values that scales of float16 do not hold ({listed(clipped)})"
        help_ = "" if report.format == "gguf" else ": Quantize(scale_type='fp32') (--scale-type fp32) holds them"
        warnings.append(f"{what}{help_}")
    if spec.weights:
        warnings += _decoded(file, spec)
    elif shards is None or not shards.whole or directory is None or target.record.program == PROGRAM:
        warnings += _raw(file, spec)  # without the configuration that explains the codes
    return report._replace(src=source.name, warnings=(*warnings, *odd))


def _not_copied(others: list[str], directory: ModelDirectory | None, report: ConvertReport) -> list[str]:
    """Return a line about the files of a model directory that the target has no place for."""
    carried = FORMATS[report.format].carries[report.layout] & {"config", "vocab", "tokenizer"}
    if others and directory is not None and "tokenizer" in carried:
        directory.tokenizer()  # with shards, the writer of the first one has read it
    read = directory.stamps if carried and directory is not None else ()
    names = [quoted(name) for name in others if name not in read]
    return [f"only a directory gets copies of {', '.join(names)}"] if names else []


def _decoded(file: TensorFile, spec: Spec) -> list[str]:
    """Return a line about parameters that were decoded because the target has no scheme for the same numbers."""
    names = [
        name for name, row in zip(file, internals.rows_of(file), strict=True) if spec.takes(name) and storage_of(row)
    ]
    if not (names and spec.repacked.schemes):
        return []
    what = f"{counted(len(names), 'parameter')} decoded, such as {quoted(names[0])}"
    return [f"{what}: no type of {spec.target_format.title} holds the same integers and scales"]


def _raw(file: TensorFile, spec: Spec) -> list[str]:
    """Return a line about codes of a quantised checkpoint that the target gets without their configuration."""
    if spec.dtype is not None or spec.quantize is not None:  # codes have been refused already
        return []
    names, _ = codes_among(file, spec.takes)
    if not names:
        return []
    what = f"{counted(len(names), 'tensor')} of a quantised checkpoint, such as {quoted(names[0])}, copied as stored"
    return [f"{what}: other programs may take their codes for values; f.weights (--weights) decodes them"]


def _as_quantize(quantize: Any, target: _Target) -> Quantize:
    """Normalise the `quantize=` argument. Raises `QuantError` for an unknown scheme, with the target's nearest one."""
    if isinstance(quantize, Quantize):
        return quantize
    record = target.record
    mixtures = MIXTURES if isinstance(record, Format) and record.program == PROGRAM else ()
    if folded(quantize) in mixtures:
        return Quantize(quantize)
    writable = _writable(record, target.layout)
    try:
        return Quantize(scheme_named(quantize, (*mixtures, *writable) or (*SCHEMES, "pq")))
    except TensorFileError as error:
        if isinstance(record, Format) and isinstance(quantize, str) and not writable:
            _check_scheme(target, quantize)
        raise error.located(path=target.path) from None


def _writable(record: Any, layout: str | None) -> list[str]:
    """Return the schemes that can be written to this format; none for words of other programs."""
    schemes = record.schemes.get(choose_layout(record, layout, None), ()) if isinstance(record, Format) else ()
    return [scheme for scheme in (*SCHEMES, "pq") if scheme in schemes]


def _check_scheme(target: _Target, scheme: str) -> None:
    """Refuse a scheme that the target lacks, before any tensor is read."""
    record, writable = target.record, _writable(target.record, target.layout)
    if scheme in writable:
        return
    if writable:
        holds = f"it is written with {', '.join(writable)}{nearest_scheme(scheme, writable)}"
    else:
        every = {other.title: _writable(other, None) for other in FORMATS.values() if other.plan is not None}
        able = [title for title in every if scheme in every[title]] or [title for title in every if every[title]]
        holds = f"it holds no quantised tensors, as {' and '.join(able)} {'does' if len(able) == 1 else 'do'}"
    raise EncodeError(f"{record.title} has no scheme {scheme}: {holds}", path=target.path, format=record.name)


def _fits(file: TensorFile, target: str, spec: Spec) -> bool:
    """Say whether the tensors of a conversion fit into this many bytes."""
    prepared = Preparer(spec, trial=True).prepare(file, internals.named_rows(file), None, target, {})
    return prepared.tensors.nbytes <= (spec.max_shard_size or 0)


def losses(file: TensorFile, record: Format, align: int = 1) -> int | None:
    """Count the losses that converting to this format would report; None if it cannot hold the tensors as stored.

    No tensor is read.
    """
    spec = Spec(format=record.name, output=Output(record.layouts[0], align=align if align > 1 else None))
    storable = {False: record.dtypes[record.layouts[0]], True: record.schemes.get(record.layouts[0], frozenset())}
    places = list(internals.named_rows(file))
    if not all(place.dtype.name in storable[place.dtype.quantized] for _, place in places):
        return None
    preparer = Preparer(spec, trial=True)
    try:
        prepared = preparer.prepare(file, places, None, "", {})
    except TensorFileError:
        return None
    return len(prepared.warnings) + len(preparer.notes) + len(prepared.dropped)


def _convert_file(
    file: TensorFile,
    directory: ModelDirectory | None,
    target: str,
    spec: Spec,
    renamed: Mapping[str, str],
    progress: Callable[[int, int], None] | None,
) -> ConvertReport:
    """Convert a model to one file, with configuration and vocabulary of its directory."""
    preparer = Preparer(spec)
    prepared = preparer.prepare(file, internals.named_rows(file), directory, target, renamed)
    warnings = prepared.warnings + preparer.notes
    if not prepared.tensors:
        warnings.append("there is no tensor to write")
    try:
        durable, overwrite = spec.output.durable, spec.output.overwrite
        size = write_plan(target, prepared.plan, progress=progress, durable=durable, overwrite=overwrite)
    except TensorFileError as error:  # from reading or quantising a tensor during the write
        raise error.located(path=internals.name_of(file)) from None
    if spec.output.align is not None:
        warnings += unaligned_note(*unaligned(target, spec.output.align), spec.output.align)
    if spec.dtype is not None:
        warnings += overflow_note(*preparer.overflow.total, spec.dtype)
    return ConvertReport(
        internals.name_of(file),
        target,
        spec.format,
        prepared.layout,
        len(prepared.tensors),
        size,
        tuple(prepared.dropped),
        tuple(warnings),
        () if preparer.quantizer is None else tuple(preparer.quantizer.done),
    )
