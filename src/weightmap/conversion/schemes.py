"""Quantisation of an array by any scheme: integers with scales, or product quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.quant import blocks as quant

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from weightmap.quant.blocks import QuantizedTensor

__all__ = ["quantize"]


def quantize(
    array: ArrayLike,
    scheme: str,
    *,
    block_size: int = 32,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int = 1,
    **training: Any,
) -> QuantizedTensor:
    """Quantise an array.

    Parameters
    ----------
    array : array_like
        Real numbers, of any strides and byte order; taken as float32. Of any shape, of two dimensions for "pq".
    scheme : str
        "int8", "int4", "int5" (one scale for all), "int4_block", "int5_block" (one for each block) or "adaptive" (each
        block as int4, int5 or float16, whichever its error is worth): integers of few bits whose scales a search has
        chosen for the least squared error. Or "pq": product quantisation.
    block_size : int
        Elements of a block, for the schemes that have blocks: even for int4_block, a multiple of 8 for the others.
    scale_type : str
        "fp16" or "fp32".
    bits : float
        For "adaptive": the bits per weight that codes and scales may take, 4.5 to 16. The mask takes 2 bits more for
        each block.
    threads : int
        At most this many threads share the work, but not that of "pq". The result does not depend on it.
    **training
        For "pq": as of `weightmap.words.train_pq`.

    Returns
    -------
    QuantizedTensor

    Raises
    ------
    QuantError
        For an element that is NaN or infinite (the message has its index), for what is no array of real numbers or
        has masked elements, and for schemes, block sizes, scale types or bits that do not exist.
    MissingDependencyError
        For "pq", when scipy is not installed.

    Examples
    --------
    >>> q = quantize([[7.0, 1.0], [2.0, -8.0]], "int4_block", block_size=2)
    >>> q.dequantize()
    array([[ 7.,  1.],
           [ 2., -8.]], dtype=float32)
    """
    if scheme == "pq":
        from weightmap.conversion.training import train_pq  # noqa: PLC0415 - what it needs, other schemes do not

        return train_pq(array, **training)
    if training:
        raise TypeError(f"{', '.join(training)}: for scheme 'pq'")
    return quant.quantize(array, scheme, block_size=block_size, scale_type=scale_type, bits=bits, threads=threads)
