"""Quantisation of an array by any scheme: integers with scales, blocks of ggml, or product quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap import kernels
from weightmap.errors import QuantError
from weightmap.quant.blocks import QuantizedTensor
from weightmap.quant.ggml import quantize_ggml
from weightmap.quant.schemes import BITS, BLOCKED, no_scheme

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["SCHEMES", "quantize"]

# Every scheme that needs no training.
SCHEMES = (*BITS, "adaptive", *kernels.GGML_ENCODED)


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
        "int8", "int4", "int5" (one scale for all), "int4_block", "int5_block" (one for each block) or "adaptive" (int4,
        int5 or float16 for each block, by its error): integers of few bits with scales of the least squared error,
        found by a search. Or a type of GGUF's blocks: "q4_0", "q4_1", "q5_0", "q5_1", "q8_0" (32 elements each, the
        bytes of gguf-py and llama.cpp), "q4_k" or "q6_k" (256 elements, scales found by a search); the last dimension
        is a multiple of the block. Or "pq": product quantisation.
    block_size : int
        Elements of a block, for int4_block (an even number), int5_block and adaptive (multiples of 8).
    scale_type : str
        "fp16" or "fp32"; types of GGUF have "fp16".
    bits : float
        For "adaptive": the bits per weight that codes and scales may take, 4.5 to 16. The mask takes 2 bits more for
        each block.
    threads : int
        At most this many threads share the work, except for "pq". The result does not depend on it.
    **training
        For "pq": see `weightmap.words.train_pq`.

    Returns
    -------
    QuantizedTensor

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
    if scheme == "pq":
        from weightmap.conversion.training import train_pq  # noqa: PLC0415 - other schemes do without its imports

        return train_pq(array, **training)
    if training:
        raise TypeError(f"{', '.join(training)}: for scheme 'pq'")
    if scheme in kernels.GGML_ENCODED:
        if scale_type != "fp16":
            raise QuantError(f"scale_type of {scheme}", actual=repr(scale_type), expected="'fp16'")
        return quantize_ggml(array, scheme, threads=threads)
    values = kernels.real_numbers(array)
    if scheme == "adaptive":
        payload = kernels.quantize_adaptive(values, block_size, scale_type=scale_type, bits=bits, threads=threads)
        return QuantizedTensor(scheme, values.shape, payload, block_size=block_size, scale_type=scale_type)
    if scheme not in BITS:
        raise no_scheme(scheme, (*SCHEMES, "pq"))
    size = block_size if scheme in BLOCKED else 0
    if scheme in BLOCKED and size == 0:
        raise QuantError("block size", field="block_size", actual=0, expected="a positive number")
    payload = kernels.encode_blocks(values, bits=BITS[scheme], block_size=size, scale_type=scale_type, threads=threads)
    return QuantizedTensor(scheme, values.shape, payload, block_size=size, scale_type=scale_type)
