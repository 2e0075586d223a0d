"""`weightmap.quantize`: quantises an array, or writes a quantised copy of a model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, overload

from weightmap.conversion import schemes
from weightmap.conversion.converting import convert

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from numpy.typing import ArrayLike

    from weightmap.conversion.reports import ConvertReport
    from weightmap.quant.blocks import QuantizedTensor

__all__ = ["quantize"]


@overload
def quantize(
    array: ArrayLike,
    scheme: str,
    dst: None = None,
    *,
    block_size: int = 32,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int | None = None,
    **training: Any,
) -> QuantizedTensor: ...


@overload
def quantize(
    array: Any,
    scheme: str,
    dst: str | bytes | os.PathLike[Any],
    *,
    block_size: int = 32,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int | None = None,
    executor: Executor | None = None,
    manifest: str | os.PathLike[str] | None = None,
    **options: Any,
) -> ConvertReport: ...


def quantize(
    array: Any,
    scheme: str,
    dst: str | bytes | os.PathLike[Any] | None = None,
    *,
    block_size: int = 32,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int | None = None,
    executor: Executor | None = None,
    manifest: str | os.PathLike[str] | None = None,
    **options: Any,
) -> QuantizedTensor | ConvertReport:
    """Quantise an array; or, with `dst`, a model.

    Parameters
    ----------
    array : array_like; with `dst`, str, os.PathLike or whatever else `convert` takes
        Real numbers, of any strides and byte order; taken as float32. Of any shape, of two dimensions for "pq".
    scheme : str
        "int8", "int4", "int5" (one scale for all), "int4_block", "int5_block" (one for each block) or "adaptive" (int4,
        int5 or float16 for each block, by its error): integers of few bits with scales of the least squared error,
        found by a search. Or a type of GGUF's blocks: "q4_0", "q4_1", "q5_0", "q5_1", "q8_0" (32 elements each, the
        bytes of gguf-py and llama.cpp), "q4_k" or "q6_k" (256 elements, scales found by a search); the last dimension
        is a multiple of the block. Or "pq": product quantisation.
    dst : str, bytes or os.PathLike, optional
        Write a quantised copy of a model there, by ``convert(array, dst, quantize=scheme, ...)``.
    block_size : int
        Elements of a block, for int4_block (an even number), int5_block and adaptive (multiples of 8).
    scale_type : str
        "fp16" or "fp32"; types of GGUF have "fp16".
    bits : float
        For "adaptive": the bits per weight that codes and scales may take, 4.5 to 16. The mask takes 2 bits more for
        each block.
    threads : int, optional
        At most this many threads share the work, except for "pq". The result does not depend on it. By default one for
        an array, for a model as many as `convert` takes.
    executor, manifest
        For a model of several files: see `convert`.
    **options
        For "pq": see `weightmap.words.train_pq`. With `dst`: other arguments of `convert`.

    Returns
    -------
    QuantizedTensor, or ConvertReport with `dst`

    Raises
    ------
    QuantError
        For an element that is NaN or infinite (the message has its index), for anything but an array of real numbers
        without masked elements, for schemes, block sizes, scale types or bits that do not exist, and for rows that are
        no whole blocks of a type of GGUF.
    MissingDependencyError
        For "pq", when scipy is not installed.

    Examples
    --------
    >>> q = quantize([[7.0, 1.0], [2.0, -8.0]], "int4_block", block_size=2)
    >>> q.dequantize()
    array([[ 7.,  1.],
           [ 2., -8.]], dtype=float32)
    """
    own: dict[str, Any] = {"block_size": block_size, "scale_type": scale_type, "bits": bits}
    if dst is not None:
        if scheme == "pq":  # it has no blocks
            own = {}
        how: dict[str, Any] = {"threads": threads, "executor": executor, "manifest": manifest}
        return convert(array, dst, quantize=scheme, **own, **how, **options)
    if executor is not None or manifest is not None:
        raise TypeError("executor= and manifest= are for models of several files, with dst=")
    if isinstance(array, (str, os.PathLike)):
        raise TypeError(
            f"array is the path {os.fspath(array)!r}, expected numbers; a model is quantised to a file, dst="
        )
    return schemes.quantize(array, scheme, **own, threads=1 if threads is None else threads, **options)
