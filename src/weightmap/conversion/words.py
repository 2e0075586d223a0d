"""Conversion from files of words, and to them: what `weightmap.convert` does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.conversion.training import Options, Trainer
from weightmap.dtypes import DTYPES
from weightmap.errors import EncodeError, MissingDependencyError, QuantError, TensorFileError, counted
from weightmap.formats import FORMATS, Payload, Request
from weightmap.importers import NAMES
from weightmap.importers.explicit import explicit
from weightmap.importers.fasttext import plan_fasttext
from weightmap.importers.sources import read_words
from weightmap.importers.text import plan_text
from weightmap.importers.word2vec import plan_word2vec
from weightmap.importers.words import normalised, unnormalised
from weightmap.io.atomic import write_plan
from weightmap.model.saving import choose, choose_layout, plan_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.conversion.quantizer import QuantizedInfo
    from weightmap.formats import Format, Plan
    from weightmap.importers.words import Words
    from weightmap.options import Limits

__all__ = ["Target", "Written", "convert_file", "convert_words"]

_FLOAT32 = DTYPES["float32"]


class Target(NamedTuple):
    """What is to be written, as `weightmap.convert` was told.

    Attributes
    ----------
    path : str
    format, layout : str or None
    normalize : bool or None
    subwords : str or None
    quantize : mapping or None
        How to train, where the rows are to be quantised: `Options`.
    """

    path: str
    format: str | None
    layout: str | None
    normalize: bool | None
    subwords: str | None
    quantize: Mapping[str, Any] | None


class Written(NamedTuple):
    """What was written: the fields of a `ConvertReport` behind the two paths."""

    format: str
    layout: str
    tensors: int
    nbytes: int
    dropped: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    quantized: tuple[QuantizedInfo, ...]


def convert_file(
    source: Any, kind: str, target: Target, limits: Limits, progress: Callable[[int, int], None] | None, *, lossy: bool
) -> Written:
    """Write a file of words, recognised as `kind`, to a file of any format."""
    return convert_words(read_words(source, kind, limits, lossy=lossy), target, limits, progress)


def convert_words(words: Words, target: Target, limits: Limits, progress: Callable[[int, int], None] | None) -> Written:
    """Write words to a file of any format."""
    limits.check("max_copy_bytes", words.nbytes, "bytes of rows to copy")
    if target.format in NAMES:
        return _to_words(words, target, progress)
    found = choose(target.path, target.format, target.layout)
    if target.subwords is not None:
        if target.subwords != "explicit":
            raise ValueError(f"subwords is {target.subwords!r}, expected 'explicit'")
        try:
            words = explicit(words, limits)
        except TensorFileError as error:
            raise error.located(path=target.path, format=found.name) from None
    normalize = target.normalize
    if normalize is None:  # as they are from formats of embeddings, which have normalised them, and from other models
        normalize = found.embeddings is not None and words.format in NAMES
    norms = words.norms
    if normalize and norms is None:
        words, norms = _normalised(words)
    elif target.normalize is False and norms is not None:
        words, norms = unnormalised(words), None
    return _to_format(words, norms, found, target, progress)


def _normalised(words: Words) -> tuple[Words, NDArray[np.float32]]:
    blocks, norms = normalised(words)
    return words.replaced(blocks=blocks), norms


def _to_format(
    words: Words,
    norms: NDArray[np.float32] | None,
    found: Format,
    target: Target,
    progress: Callable[[int, int], None] | None,
) -> Written:
    """Write to a format of `weightmap.open`."""
    layout = choose_layout(found, target.layout, None)
    trainer = None
    if target.quantize is not None:
        if "pq" not in found.schemes.get(layout, frozenset()):
            titles = ", ".join(f.title for f in FORMATS.values() if any("pq" in held for held in f.schemes.values()))
            msg = f"{found.title} holds no tensors of scheme pq; this does: {titles}"
            raise EncodeError(msg, path=target.path, format=found.name)
        try:
            trainer = Trainer("embeddings", words.rows, words.dims, words.blocks, Options(**target.quantize))
        except QuantError as error:
            raise EncodeError(str(error), path=target.path, format=found.name) from None
    shape = (words.rows, words.dims)
    payloads = [
        Payload("embeddings", _FLOAT32, shape, words.nbytes, lambda: _bytes_of(words))
        if trainer is None
        else trainer.payload()
    ]
    if norms is not None:
        # Filled in while the rows, which stand before them, are written.
        stored = norms
        payloads.append(
            Payload(
                "norms", _FLOAT32, norms.shape, norms.nbytes, lambda: iter([stored.astype("<f4", copy=False).tobytes()])
            )
        )
    carried, warnings = found.carries[layout], []
    if "vocab" not in carried:
        known = counted(len(words.table), "word")
        warnings.append(f"{found.title} has no place for the vocabulary of {known}: left behind")
    vocab = words.vocab if "vocab" in carried else None
    if words.subwords is not None and "subwords" not in carried:
        msg = f"{found.title} has no place for subwords"
        raise EncodeError(msg, path=target.path, format=found.name)
    metadata = words.metadata if found.embeddings is not None and words.metadata else None
    try:
        plan = plan_request(target.path, found, Request(payloads, layout, metadata, vocab))
    except MissingDependencyError as error:  # the words are worth having without them
        warnings.append(f"the {len(metadata or ())} options of the model were left behind: {error.what}")
        plan = plan_request(target.path, found, Request(payloads, layout, None, vocab))
    write_plan(target.path, plan, progress=progress)
    done = () if trainer is None or trainer.info is None else (trainer.info,)
    return Written(found.name, layout, len(payloads), plan.size, (), tuple(warnings), done)


def _bytes_of(words: Words) -> Iterator[Any]:
    for block in words.blocks():
        yield block.astype("<f4", copy=False).tobytes()


def _to_words(words: Words, target: Target, progress: Callable[[int, int], None] | None) -> Written:
    """Write a file of words."""
    name = target.format or ""
    for option, given in (("layout", target.layout), ("subwords", target.subwords), ("quantize", target.quantize)):
        if given is not None:
            msg = f"{option}= is not for files of format {name}"
            raise ValueError(msg)
    if target.normalize is not True:
        words = unnormalised(words)
    elif words.norms is None:
        words = _normalised(words)[0]
    warnings = []
    behind = words.rows - len(words.table)
    if behind and name != "fasttext":
        warnings.append(f"{name} has no place for the rows of n-grams: {behind} were left behind")
    if words.metadata and name != "fasttext":
        warnings.append(f"{name} has no place for {len(words.metadata)} metadata entries: left behind")
    try:
        plan: Plan = {
            "word2vec": plan_word2vec,
            "text": lambda words: plan_text(words, dims=False),
            "textdims": lambda words: plan_text(words, dims=True),
            "fasttext": plan_fasttext,
        }[name](words)
    except TensorFileError as error:
        raise error.located(path=target.path, format=name) from None
    size = write_plan(target.path, plan, progress=progress)
    return Written(name, name, 1, size, (), tuple(warnings), ())
