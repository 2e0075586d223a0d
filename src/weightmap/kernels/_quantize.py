"""Quantisation in C: scales found by searching for the least squared error of each block.

The codes of a block are the integers nearest to ``x / scale`` (a division of float32, ties to even) within range, for
the scale as it is stored. The same bytes come out on every instruction set and with any number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import QuantError
from weightmap.kernels._blocks import blocks_size, check_block_size, scale_code
from weightmap.kernels._native import NULL, as_output, from_buffer, lib, thread_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "encode_blocks",
    "encode_with_errors",
    "quantize_int4",
    "quantize_int5",
    "quantize_int8",
    "real_numbers",
]


def quantize_int4(a: ArrayLike, block_size: int, *, scale_type: str = "fp16", threads: int = 1) -> NDArray[np.uint8]:
    """Quantise to blocks of 4-bit integers, ``[scale][codes]`` each, as `dequantize_int4` reads them.

    The scale of each block is searched for: that which, as it is stored, gives the least squared error found. A block
    of zeros gets a scale of 0 and is exact. Where a scale would be too large for its type it is the largest finite one.

    Parameters
    ----------
    a : array_like of real numbers, any shape
        Taken row by row, as float32.
    block_size : int
        Elements of a block, an even number. The last block is stored whole, its missing elements as 0.
    scale_type : str
        "fp16" or "fp32".
    threads : int
        At most this many threads share the work.

    Returns
    -------
    ndarray of uint8, shape (bytes,)
        The blocks, one after another.

    Raises
    ------
    QuantError
        When an element is NaN or infinite, the array is not of real numbers, or for a block size or a scale type that
        does not exist.

    Examples
    --------
    >>> blocks = quantize_int4([0.5, 1, -4, -0.5], 4)
    >>> from weightmap.kernels import dequantize_int4
    >>> dequantize_int4(blocks, 4, 4)
    array([ 0.5,  1. , -4. , -0.5], dtype=float32)
    """
    return encode_blocks(a, bits=4, block_size=check_block_size(4, block_size), scale_type=scale_type, threads=threads)


def quantize_int5(a: ArrayLike, block_size: int, *, scale_type: str = "fp16", threads: int = 1) -> NDArray[np.uint8]:
    """Quantise to blocks of 5-bit integers, ``[scale][codes]`` each, as `dequantize_int5` reads them.

    The scale of each block is searched for: that which, as it is stored, gives the least squared error found. A block
    of zeros gets a scale of 0 and is exact. Where a scale would be too large for its type it is the largest finite one.

    Parameters
    ----------
    a : array_like of real numbers, any shape
        Taken row by row, as float32.
    block_size : int
        Elements of a block, a multiple of 8. The last block is stored whole, its missing elements as 0.
    scale_type : str
        "fp16" or "fp32".
    threads : int
        At most this many threads share the work.

    Returns
    -------
    ndarray of uint8, shape (bytes,)
        The blocks, one after another.

    Raises
    ------
    QuantError
        When an element is NaN or infinite, the array is not of real numbers, or for a block size or a scale type that
        does not exist.

    Examples
    --------
    >>> quantize_int5(range(8), 8).size
    7
    """
    return encode_blocks(a, bits=5, block_size=check_block_size(5, block_size), scale_type=scale_type, threads=threads)


def quantize_int8(a: ArrayLike, *, scale_type: str = "fp16") -> NDArray[np.uint8]:
    r"""Quantise to one scale and a signed byte for each element; see `encode_blocks` with a block size of 0.

    Examples
    --------
    >>> quantize_int8([1, -2, 127], scale_type="fp32").tobytes()
    b'\x00\x00\x80?\x01\xfe\x7f'
    """
    return encode_blocks(a, bits=8, block_size=0, scale_type=scale_type)


def encode_blocks(
    a: ArrayLike, *, bits: int, block_size: int, scale_type: str = "fp16", threads: int = 1
) -> NDArray[np.uint8]:
    """Quantise to the bytes that `decode_blocks` reads; a block size of 0 stands for one scale for all elements.

    Parameters, result and errors are those of `quantize_int4`; `bits` is 4, 5 or 8.
    """
    return encode(floats(a), bits, block_size, scale_type, threads)[0]


def encode_with_errors(
    a: ArrayLike, *, bits: int, block_size: int, scale_type: str = "fp16", threads: int = 1
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return what `encode_blocks` returns, and the sum of the squared errors of each block."""
    return encode(floats(a), bits, block_size, scale_type, threads)


def real_numbers(a: ArrayLike) -> NDArray[Any]:
    """Return what numpy makes of an array or nested lists. Raises QuantError when these are no real numbers."""
    if isinstance(a, np.ma.MaskedArray):
        raise QuantError("array", actual="masked", expected="one without a mask, which would be lost")
    try:
        array = np.asarray(a)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        # Lists of several lengths; tensors of other libraries that need a gradient or are on another device.
        raise QuantError("array", actual=f"a {type(a).__name__}: {error}", expected="real numbers") from None
    if array.dtype.kind not in "fiub" and not np.can_cast(array.dtype, np.float32):
        raise QuantError("dtype", actual=array.dtype, expected="real numbers")
    return array


def floats(a: ArrayLike) -> NDArray[np.float32]:
    """Return the elements as a flat array of float32. Raises QuantError when they are no finite real numbers."""
    array = real_numbers(a)
    with np.errstate(over="ignore"):  # what becomes infinite is reported as such
        flat = np.require(array, np.float32, ("C", "A")).reshape(-1)
    if (index := lib.wm_first_not_finite(from_buffer("float[]", flat), flat.size)) >= 0:
        raise QuantError(f"element {index}", actual=array.reshape(-1)[index], expected="a number finite in float32")
    return flat


def encode(
    flat: NDArray[np.float32], bits: int, block_size: int, scale_type: str, threads: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return the bytes of all blocks and the sum of the squared errors of each; 16 bits stand for blocks of float16."""
    count = -(-flat.size // block_size) if block_size else 1
    size = 2 * count * block_size
    if bits != 16:
        size = blocks_size(flat.size, bits=bits, block_size=block_size, scale_type=scale_type)
    data, errors = np.empty(size, np.uint8), np.empty(count, np.float64)
    source = from_buffer("float[]", flat) if flat.size else NULL
    target, sums = as_output(data, "uint8_t[]"), as_output(errors, "double[]")
    code, most = scale_code(scale_type), thread_count(threads)
    if lib.wm_blocks_encode(source, flat.size, bits, code, block_size, target, size, sums, count, most) != -1:
        raise AssertionError("sizes were checked")
    return data, errors
