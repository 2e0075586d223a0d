"""Reports of conversions."""

from __future__ import annotations

import math
from typing import NamedTuple


class QuantizedInfo(NamedTuple):
    """The outcome of quantising one tensor.

    Attributes
    ----------
    name : str
    scheme : str
    shape : tuple of int
    nbytes_before, nbytes : int
        Bytes of its data in the source, and quantised.
    bits_per_weight : float
    rmse : float
        Root of the mean squared error.
    relative_error : float
        The same divided by the root of the mean square of the values.
    """

    name: str
    scheme: str
    shape: tuple[int, ...]
    nbytes_before: int
    nbytes: int
    bits_per_weight: float
    rmse: float
    relative_error: float

    @classmethod
    def of(
        cls, name: str, scheme: str, shape: tuple[int, ...], nbytes: tuple[int, int], error: float, square: float
    ) -> QuantizedInfo:
        """Make one of the bytes before and after, and the sums of squared errors and of squares."""
        size = math.prod(shape)
        bits, rmse = (8 * nbytes[1] / size, math.sqrt(error / size)) if size else (0.0, 0.0)
        return cls(name, scheme, shape, *nbytes, bits, rmse, math.sqrt(error / square) if square else 0.0)


class ConvertReport(NamedTuple):
    """The result of `convert`.

    Attributes
    ----------
    src, dst : str
        Their names in messages: the paths, or a word such as ``<bytes>`` for a source without a path.
    format, layout : str
        Format and layout of the new file.
    tensors : int
        Number of tensors written.
    nbytes : int
        Size of the new file.
    dropped : tuple of (str, str)
        Name of each tensor that was left out, and the reason.
    warnings : tuple of str
        Other losses. Numbers and booleans in the metadata become texts where the target has only texts; other values
        that it cannot hold, such as lists, stay behind and are listed here.
    quantized : tuple of QuantizedInfo
        Every tensor that was quantised; if a manifest resumes an earlier run, only those of this run.
    shards, skipped : int
        For a model in several files: shards that this run had to write, and shards that an earlier run had finished.
    copied : tuple of str
        Files of a Hugging Face directory that went along to another directory: configuration, tokenizer, chat template,
        licence, code, modules of sentence-transformers.
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
    shards: int = 0
    skipped: int = 0
    copied: tuple[str, ...] = ()
