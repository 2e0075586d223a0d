"""`Task`: the arguments of one conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.conversion.quantizer import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightmap.conversion.quantizer import Quantizer
    from weightmap.conversion.training import Options
    from weightmap.dtypes import DType
    from weightmap.options import Limits

    Globs = str | Sequence[str] | None

__all__ = ["Task", "WordOptions"]


class WordOptions(NamedTuple):
    """The arguments of `convert` for words alone: `normalize`, `subwords`, and options of product quantisation."""

    normalize: bool | None
    subwords: str | None
    training: Options | None


class Task(NamedTuple):
    """A conversion: `source` and `target` are names for messages, the rest are arguments of `weightmap.convert`."""

    source: str
    target: str
    format: Any  # Format or Importer
    layout: str | None
    include: Globs
    exclude: Globs
    dtype: DType | None
    quantizer: Quantizer | None
    words: WordOptions
    limits: Limits
    progress: Callable[[int, int], None] | None
    align: int = 1

    def takes(self, name: str) -> bool:
        """Say whether a tensor of this name is converted."""
        include, exclude = self.include, self.exclude
        return (not include or matches(name, include)) and not (exclude and matches(name, exclude))
