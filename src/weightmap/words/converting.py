"""Conversion of words, from a file of words or a model, to a file of any format: `weightmap.words.convert`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.core import arguments
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.dtypes import DTYPES, FLOATING, SCHEMES, numpy_dtype
from weightmap.core.formats import FORMATS, Format, Importer, Payload, Request, Tensors
from weightmap.core.model.internals import name_of, named_rows, parts_of, warnings_of
from weightmap.core.model.opening import open_or_import
from weightmap.core.model.reports import ConvertReport
from weightmap.core.model.saving import Output, choose, choose_layout, meant_by_suffix, plan_request
from weightmap.core.model.sharded import plain
from weightmap.core.model.sharding import sharded_target
from weightmap.core.model.single import check_replaceable
from weightmap.core.table import StringTable
from weightmap.core.table.vocabulary import Vocabulary, strings_of
from weightmap.errors import EncodeError, MissingDependencyError, QuantError, Remedy, TensorFileError
from weightmap.huggingface.companion_files import check_apart, check_not_read
from weightmap.huggingface.directory import ModelDirectory, find_source
from weightmap.words.explicit import explicit
from weightmap.words.importers import IMPORTERS, NAMES
from weightmap.words.importers._words import Words, check_finite, normalised, rows_in_block, unnormalised
from weightmap.words.training import Pq, Trainer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.core.bytes.sink import WritePlan
    from weightmap.core.model.file import TensorFile
    from weightmap.core.model.typing import ModelSource
    from weightmap.core.table.table import Row

_FLOAT32 = DTYPES["float32"]


def _rows(row: Row) -> Iterator[NDArray[np.float32]]:
    """Yield the rows of a tensor in blocks, decoded or read by pread, because mapped pages would pile up."""
    height, dims = row.shape
    step = rows_in_block(dims)
    if row.dtype.quantized:
        matrix = row.decoder()
        for first in range(0, height, step):
            block = np.array(matrix[first : first + step], np.float32)
            check_finite(block, first)
            yield block
        return
    stored, first = numpy_dtype(row.dtype), 0
    for chunk in row.source.chunks(row.offset, row.nbytes, step * max(dims, 1) * stored.itemsize):
        with np.errstate(over="ignore", invalid="ignore"):
            block = np.frombuffer(chunk, stored).astype(np.float32).reshape(-1, dims)
        check_finite(block, first)
        first += len(block)
        yield block


def convert(
    src: ModelSource,
    dst: str | bytes | os.PathLike[Any],
    *,
    format: str | None = None,
    normalize: bool | None = None,
    subwords: str | None = None,
    lossy: bool = False,
    pq: Pq | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    limits: arguments.Limits | None = None,
    strict: bool = True,
) -> ConvertReport:
    r"""Write words and their vectors to a file of another program, or to a format of `weightmap.open`.

    `weightmap.convert` does the same, with the default values of these arguments.

    Parameters
    ----------
    src : str, os.PathLike, or anything else that `weightmap.open` takes
        A file of words, or a model with a vocabulary and one matrix with a row per token.
    dst : str, bytes or os.PathLike
        As for `weightmap.convert`; always a file.
    format : str, optional
        "word2vec", "text", "textdims" or "fasttext", or a format of `weightmap.convert`; by default the suffix of `dst`
        chooses one of `weightmap.convert`.
    normalize : bool, optional
        True divides rows of words by their norms and stores the norms; False multiplies rows by stored norms. By
        default, rows are divided on the way from other programs to finalfusion, multiplied on the way back, and
        otherwise left unchanged.
    subwords : str, optional
        "explicit": list the n-grams of the words of a bucket or fastText vocabulary.
    lossy : bool
        In other programs' files, replace bytes of words that are not UTF-8, and keep only the first row of a repeated
        word, as gensim does; a warning in the report counts the other rows.
    pq : Pq, optional
        Store the rows by product quantisation, in finalfusion.
    threads : int, optional
        At most this many threads. So far one thread does all the work.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes of the target.
    limits
        As for `weightmap.open`.
    strict : bool
        As for `weightmap.open`. In other programs' files, False takes the words that are there even if the first line
        declares another number; a warning in the report names both numbers.

    Returns
    -------
    ConvertReport

    Raises
    ------
    EncodeError
        When there is no vocabulary, or not exactly one matrix with a row per token; and as from `weightmap.convert`.
    QuantError
        When `pq` does not fit the rows.
    ValueError
        For an option that the target's format does not have, and for another `subwords`.
    FormatError, MissingDependencyError, TargetError, OSError
        As from `weightmap.convert`.

    Examples
    --------
    >>> import pathlib
    >>> from weightmap import words
    >>> _ = pathlib.Path("glove.txt").write_text("the 0.6 0.8\ncat 3 4\n")
    >>> words.convert("glove.txt", "glove.fifu").tensors
    2
    """
    if pq is not None and not isinstance(pq, Pq):
        raise arguments.mistyped("pq", pq, "a weightmap.words.Pq")
    if subwords not in (None, "explicit"):
        raise ValueError(f"subwords is {subwords!r}, expected 'explicit'")
    if threads is not None:
        arguments.as_threads(threads)
    arguments.check_progress(progress)
    target, limits = arguments.as_path("dst", dst), arguments.validated_limits(limits)
    path, model, directory, leftover = find_source(src)
    target_record = IMPORTERS[format] if format in NAMES else choose(target, format, None, NAMES)
    opened = open_or_import(model, limits, lossy=lossy, strict=strict)
    options: dict[str, Any] = {"normalize": normalize, "subwords": subwords, "pq": pq}
    options |= {"source": path, "limits": limits, "progress": progress}
    with meant_by_suffix(target, target_record if format is None else None):
        if isinstance(opened, Words):
            check_apart(opened.sources, [target])
            return convert_words(opened, target, target_record, **options)
        with opened as file:
            check_not_read(file, target)
            flag, python = "weightmap convert --include", "weightmap.convert(include=...)"
            if pq is not None:
                flag, python = "--quantize-include", "Pq(include=...)"
            remedy = Remedy("{} chooses it", "include", flag=flag, python=python)
            words = from_file(file, directory, None if pq is None else pq.include, remedy=remedy)
            report = convert_words(words, target, target_record, **options)
            tolerated = (f"tolerated in the source: {warning}" for warning in (*leftover, *warnings_of(file)))
            return report._replace(warnings=(*tolerated, *report.warnings))


def hand_over(
    opened: Any,
    directory: ModelDirectory | None,
    target: str,
    target_record: Format | Importer,
    globs: tuple[arguments.Globs, arguments.Globs],
    tensors: Mapping[str, Any],
    **options: Any,
) -> ConvertReport:
    """Convert words for `weightmap.convert`. Raises ValueError for arguments that apply to tensors only."""
    of_words = isinstance(opened, Words)
    if of_words:
        check_apart(opened.sources, [target])
    refused = {**tensors, **dict(zip(("include", "exclude"), globs, strict=True))} if of_words else tensors
    for name, value in refused.items():
        if value is not None:
            raise ValueError(f"{name}= is not for word embeddings, which stay float32")
    if of_words:
        return convert_words(opened, target, target_record, **options)
    limits, tolerated = parts_of(opened)[2].limits, [f"tolerated in the source: {line}" for line in warnings_of(opened)]
    report = convert_words(from_file(opened, directory, *globs), target, target_record, limits=limits, **options)
    return report._replace(warnings=(*tolerated, *report.warnings))


def from_file(
    file: TensorFile,
    directory: ModelDirectory | None,
    include: arguments.Globs = None,
    exclude: arguments.Globs = None,
    *,
    remedy: Remedy | None = None,
) -> Words:
    """Return the words of a file's vocabulary, with the only matrix that has a row for each.

    Raises
    ------
    EncodeError
        When there is no vocabulary, or not exactly one such matrix.
    """
    vocab = file.vocab if directory is None or directory.vocab is None else directory.vocab
    path = name_of(file)
    if vocab is None:
        raise EncodeError(
            "there is no vocabulary: word embeddings have a row for each of its words", path=path, format=file.format
        )
    subwords = getattr(vocab, "subwords", None)
    height = len(vocab) + (0 if subwords is None else subwords.size)
    names = [
        info.name
        for info in file.infos()
        if len(info.shape) == 2
        and info.shape[0] == height
        and (info.dtype in FLOATING or info.dtype in SCHEMES)
        and arguments.takes(info.name, include, exclude)
    ]
    if len(names) != 1:
        shown = ", ".join(map(quoted, names[:10])) or "none"
        msg = f"expected one matrix of {counted(height, 'row')}, one for each word; found {shown}"
        raise EncodeError(
            msg, path=path, format=file.format, remedy=remedy or Remedy("convert with {} chooses it", "include")
        )
    (name,) = names
    matrix = file[name]
    dims = int(matrix.shape[1])
    norms = None
    if name == "embeddings" and "norms" in file and file.info("norms").shape == (len(vocab),):
        norms = file.read("norms", np.float32)

    def gather(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.asarray(matrix[rows], np.float32)

    place = next(place for other, place in named_rows(file) if other == name)

    table = strings_of(vocab) if isinstance(vocab, Vocabulary) else StringTable.of(vocab, "word")
    metadata: dict[str, Any] = file.metadata.copy()  # type: ignore[attr-defined]  # a TOML document with its text
    record = FORMATS.get(file.format)
    if record is not None and record.vocab_keys:  # these keys hold the vocabulary and the special ids
        metadata = {key: plain(value) for key, value in metadata.items() if key not in record.vocab_keys}
    make = functools.partial(_rows, place)
    ids = ", ".join(getattr(vocab, "special_ids", ()))
    odd = (f"words have no special ids: {ids} left behind",) if ids else ()
    return Words((parts_of(file)[0],), file.format, table, height, dims, make, gather, norms, subwords, metadata, odd)


def convert_words(
    words: Words,
    target: str,
    target_record: Format | Importer,
    *,
    source: str | None,
    progress: Callable[[int, int], None] | None,
    limits: arguments.Limits = arguments.DEFAULT_LIMITS,
    output: Output | None = None,
    normalize: bool | None = None,
    subwords: str | None = None,
    pq: Pq | None = None,
) -> ConvertReport:
    """Write words to a file of any format: see `convert`."""
    output = Output.of(output)
    layout, align = output.layout, output.alignment
    try:
        limits.check("max_copy_bytes", words.nbytes, "bytes of rows to copy")
        words.sources[-1].check_size("all rows", words.nbytes)  # the last one has them
    except TensorFileError as error:
        raise error.located(path=words.path) from None
    if isinstance(target_record, Importer):
        for option, value in (("layout", layout), ("subwords", subwords), ("pq", pq), ("align", align > 1 or None)):
            if value is not None:
                raise ValueError(f"{option}= is not for files of format {target_record.name}")
        plan, warnings = _to_words(words, target, target_record, normalize=normalize)
        layout, count, trainer = target_record.name, 1, None
    else:
        if sharded_target(target, target_record) is not None:
            raise ValueError(f"dst is {target!r}, expected a file: words and their rows are not written to shards")
        check_replaceable(target)
        if subwords is not None:
            try:
                words = explicit(words, limits)
            except TensorFileError as error:
                raise error.located(path=target, format=target_record.name) from None
        # Files of other programs hold unscaled rows; formats of embeddings hold unit vectors.
        if normalize is None and target_record.embeddings is not None and words.format in IMPORTERS:
            normalize = True
        norms = words.norms
        if normalize and norms is None:
            words, norms = normalised(words)
        elif normalize is False and norms is not None:
            words, norms = unnormalised(words), None
        layout = choose_layout(target_record, layout, None)
        trainer = None if pq is None else _trainer(words, target, target_record, layout, pq)
        count = 1 if norms is None else 2
        plan, warnings = _to_format(words, norms, target, target_record, trainer, layout, output)
    size = write_plan(target, plan, progress=progress, durable=output.durable, overwrite=output.overwrite)
    done = () if trainer is None or trainer.info is None else (trainer.info,)
    return ConvertReport(
        source or words.path, target, target_record.name, layout, count, size, (), tuple(warnings), done
    )


def _to_format(
    words: Words, norms: Any, target: str, target_record: Format, trainer: Trainer | None, layout: str, output: Output
) -> tuple[WritePlan, list[str]]:
    """Return warnings, and the plan of a file for `weightmap.open`; writing the rows fills in `norms`."""
    payloads = [
        Payload("embeddings", _FLOAT32, (words.rows, words.dims), words.nbytes, _bytes_of, words)
        if trainer is None
        else trainer.payload()
    ]
    if norms is not None:
        make = functools.partial(_norms, norms)
        payloads.append(Payload("norms", _FLOAT32, norms.shape, norms.nbytes, make))
    carried, warnings = target_record.carries[layout], [*words.warnings]
    if words.subwords is not None and "subwords" not in carried:
        raise EncodeError(f"{target_record.title} has no place for subwords", path=target, format=target_record.name)
    if "vocab" not in carried:
        count = counted(len(words.table), "word")
        warnings.append(f"{target_record.title} has no place for the vocabulary of {count}: left behind")
    vocab = words.vocab if "vocab" in carried else None
    metadata = words.metadata if target_record.embeddings is not None and words.metadata else None
    if words.metadata and metadata is None:
        entries = f"{arguments.entries(len(words.metadata))} ({', '.join(map(quoted, list(words.metadata)[:10]))})"
        warnings.append(f"words are written to {target_record.title} without {entries}: left behind")
    request = Request(Tensors(payloads), layout, metadata, vocab, align=output.alignment)
    request = request._replace(checksums=output.checksums)
    try:
        plan = plan_request(target, target_record, request)
    except MissingDependencyError as error:  # words without metadata are still useful
        warnings.append(f"the options of the model were left behind: {error.what}")
        plan = plan_request(target, target_record, request._replace(metadata=None))
    return plan, warnings


def _trainer(words: Words, target: str, target_record: Format, layout: str, pq: Pq) -> Trainer:
    """Return a trained product quantiser of the rows."""
    if "pq" not in target_record.schemes.get(layout, frozenset()):
        titles = ", ".join(f.title for f in FORMATS.values() if any("pq" in schemes for schemes in f.schemes.values()))
        msg = f"{target_record.title} holds no tensors of scheme pq; formats that do: {titles}"
        raise EncodeError(msg, path=target, format=target_record.name)
    try:
        return Trainer("embeddings", words.rows, words.dims, words.blocks, pq)
    except QuantError as error:
        raise EncodeError(str(error), path=target, format=target_record.name) from None


def _bytes_of(words: Words) -> Iterator[Any]:
    for block in words.blocks():
        yield block.astype("<f4", copy=False).tobytes()


def _norms(norms: Any) -> Iterator[Any]:
    yield norms.astype("<f4", copy=False).tobytes()


def _to_words(
    words: Words, target: str, target_record: Importer, *, normalize: bool | None
) -> tuple[WritePlan, list[str]]:
    """Return the plan of a file of words, and warnings."""
    name = target_record.name
    if not words.dims:
        raise EncodeError(f"format {name} has no place for rows without elements", path=target, format=name)
    if normalize is not True:
        words = unnormalised(words)
    elif words.norms is None:
        words, _ = normalised(words)
    warnings = [*words.warnings]
    behind = words.rows - len(words.table)
    if behind and "subwords" not in target_record.carries:
        warnings.append(f"format {name} has no place for n-grams: {counted(behind, 'row')} left behind")
    if words.metadata and "metadata" not in target_record.carries:
        warnings.append(f"format {name} has no place for {arguments.entries(len(words.metadata))}: left behind")
    assert target_record.plan is not None  # noqa: S101 - there is no name for others
    try:
        return target_record.plan(words), warnings
    except TensorFileError as error:
        raise error.located(path=target, format=name) from None
