"""`Arguments`, the arguments of a conversion as plain values, and `Task`, one file to write by them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.arguments import mistyped
from weightmap.conversion.overflow import Overflow
from weightmap.conversion.quantizer import Quantizer, matches
from weightmap.dtypes import DTYPES, FLOATING, DType
from weightmap.errors import EncodeError, TensorFileError, counted, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import DTypeLike

    from weightmap.conversion.training import Options
    from weightmap.options import Limits

    Globs = str | Sequence[str] | None

__all__ = ["NO_WORDS", "Arguments", "Task", "WordOptions", "floating", "plain_globs"]

# Short names of types, as `scale_type` has them.
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


class WordOptions(NamedTuple):
    """The arguments of `convert` for words alone: `normalize`, `subwords`, and options of product quantisation."""

    normalize: bool | None
    subwords: str | None
    training: Options | None


NO_WORDS = WordOptions(None, None, None)


class Arguments(NamedTuple):
    """The arguments of `weightmap.convert` for tensors, as values that any process understands."""

    layout: str | None
    include: Globs
    exclude: Globs
    dtype: str | None
    quantize: str | None
    block_size: int | None
    scale_type: str
    bits: float
    quantize_include: Globs
    quantize_exclude: Globs
    threads: int | None
    limits: Limits
    align: int
    max_shard_size: int | None = None

    def quantizer(self, target: str) -> Quantizer | None:
        """Return a quantiser for one file, or None. Raises `QuantError` for options that do not go together."""
        if self.quantize is None:
            return None
        try:
            return Quantizer(
                self.quantize,
                block_size=32 if self.block_size is None else self.block_size,
                scale_type=self.scale_type,
                bits=self.bits,
                threads=self.threads,
                include=self.quantize_include,
                exclude=self.quantize_exclude,
            )
        except TensorFileError as error:
            raise error.located(path=target) from None

    def task(
        self,
        source: str,
        target: str,
        found: Any,
        progress: Callable[[int, int], None] | None = None,
        words: WordOptions = NO_WORDS,
    ) -> Task:
        """Return the task to write one file."""
        dtype = None if self.dtype is None else DTYPES[self.dtype]
        quantizer = self.quantizer(target)
        return Task(source, target, found, self, dtype, quantizer, words, progress, Overflow())


class Task(NamedTuple):
    """One file to write: `source` and `target` are its names in messages."""

    source: str
    target: str
    format: Any  # Format or Importer
    arguments: Arguments
    dtype: DType | None
    quantizer: Quantizer | None
    words: WordOptions
    progress: Callable[[int, int], None] | None
    overflow: Overflow

    @property
    def layout(self) -> str | None:
        """The layout that was asked for."""
        return self.arguments.layout

    @property
    def limits(self) -> Limits:
        """Bounds on what is read and copied."""
        return self.arguments.limits

    def takes(self, name: str) -> bool:
        """Say whether a tensor of this name is converted."""
        include, exclude = self.arguments.include, self.arguments.exclude
        return (not include or matches(name, include)) and not (exclude and matches(name, exclude))

    def check_globs(self, names: Collection[str]) -> None:
        """Raise `EncodeError` if globs leave none of a model's tensors."""
        given = self.arguments
        of = f"none of {counted(len(names), 'tensor')}"
        if names and given.include and not any(matches(name, given.include) for name in names):
            raise EncodeError(f"include is {_spelt(given.include)}, which matches {of}", path=self.source)
        if names and given.exclude and not any(map(self.takes, names)):
            raise EncodeError(f"exclude is {_spelt(given.exclude)}, which leaves {of}", path=self.source)


def _spelt(globs: Globs) -> str:
    """Spell globs for a message."""
    return quoted(globs) if isinstance(globs, str) else ", ".join(map(quoted, globs or ()))


def plain_globs(name: str, globs: Globs) -> Globs:
    """Return globs as a string or a tuple of strings. Raises TypeError for anything else."""
    if globs is None or isinstance(globs, str):
        return globs
    if isinstance(globs, bytes) or not isinstance(globs, Iterable):
        raise mistyped(name, globs, "a glob or a sequence of globs")
    listed = tuple(globs)
    for glob in listed:
        if not isinstance(glob, str):
            raise mistyped(f"a glob of {name}", glob, "a str")
    return listed


def floating(dtype: DTypeLike | str) -> str:
    """Return the name of a floating-point type. Raises ValueError for any other."""
    try:
        given = _SHORT.get(dtype, dtype) if isinstance(dtype, str) else dtype
        name = given if isinstance(given, str) and given in DTYPES else np.dtype(given).name
    except TypeError:
        name = repr(dtype)
    if name not in FLOATING:
        raise ValueError(f"dtype is {name}, expected one of {', '.join(FLOATING)}")
    return name
