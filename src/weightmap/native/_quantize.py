"""Quantisation in C: a search for the scale with the least squared error in each block.

The codes of a block are the integers in range nearest to ``x / scale`` (a division of float32, ties to even), with the
scale as stored. The bytes are the same on every instruction set and with any number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.errors import QuantError
from weightmap.lazy import np
from weightmap.native._blocks import blocks_size, check_block_size, scale_code
from weightmap.native._native import NULL, as_items, as_output, lib, thread_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def quantize_int4(a: ArrayLike, block_size: int, *, scale_type: str = "fp16", threads: int = 1) -> NDArray[np.uint8]:
    """Quantise to blocks of 4-bit integers, ``[scale][codes]`` each, as `dequantize_int4` reads them.

    Each block gets the scale, as stored, with the least squared error that a search finds. A block of zeros has a scale
    of 0 and is exact. A scale too large for its type becomes the largest finite one.

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
        The blocks back to back.

    Raises
    ------
    QuantError
        When an element is NaN or infinite, the array is not of real numbers, or the block size or scale type does not
        exist.

    Examples
    --------
    >>> from weightmap import kernels
    >>> blocks = kernels.quantize_int4([0.5, 1, -4, -0.5], 4)
    >>> kernels.dequantize_int4(blocks, 4, 4)
    array([ 0.5,  1. , -4. , -0.5], dtype=float32)
    """
    return encode_blocks(a, bits=4, block_size=check_block_size(4, block_size), scale_type=scale_type, threads=threads)


def quantize_int5(a: ArrayLike, block_size: int, *, scale_type: str = "fp16", threads: int = 1) -> NDArray[np.uint8]:
    """Quantise to blocks of 5-bit integers, ``[scale][codes]`` each, as `dequantize_int5` reads them.

    The block size is a multiple of 8; otherwise parameters, result and errors are those of `quantize_int4`.

    Examples
    --------
    >>> from weightmap import kernels
    >>> kernels.quantize_int5(range(8), 8).size
    7
    """
    return encode_blocks(a, bits=5, block_size=check_block_size(5, block_size), scale_type=scale_type, threads=threads)


def encode_blocks(
    a: ArrayLike, *, bits: int, block_size: int, scale_type: str = "fp16", threads: int = 1
) -> NDArray[np.uint8]:
    r"""Quantise to the bytes that `decode_blocks` reads; a block size of 0 means one scale for all elements.

    Parameters, result and errors are those of `quantize_int4`; `bits` is 4, 5 or 8.

    Examples
    --------
    >>> from weightmap.native.late import encode_blocks
    >>> encode_blocks([1, -2, 127], bits=8, block_size=0, scale_type="fp32").tobytes()
    b'\x00\x00\x80?\x01\xfe\x7f'
    """
    return encode(a, bits, block_size, scale_type, threads)[0]


def encode_with_errors(
    a: ArrayLike, *, bits: int, block_size: int, scale_type: str = "fp16", threads: int = 1
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return the bytes of `encode_blocks`, and the sum of the squared errors of each block."""
    return encode(a, bits, block_size, scale_type, threads)


def real_numbers(a: ArrayLike) -> NDArray[Any]:
    """Return an array of real numbers from an array or nested lists. Raises QuantError for anything else."""
    if isinstance(a, np.ma.MaskedArray):
        raise QuantError("array", actual="masked", expected="one without a mask, which would be lost")
    try:
        array = np.asarray(a)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        # Ragged lists; tensors of other libraries that need a gradient or lie on another device.
        raise QuantError("array", actual=f"a {type(a).__name__}: {error}", expected="real numbers") from None
    if array.dtype.kind not in "fiub" and not np.can_cast(array.dtype, np.float32):
        raise QuantError("dtype", actual=array.dtype, expected="real numbers")
    return array


def sum_of_squares(values: NDArray[np.float32]) -> float:
    """Return the sum of the squares of a flat array, in float64; it is the same on every CPU.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap.native.late import sum_of_squares
    >>> sum_of_squares(np.float32([3, 4]))
    25.0
    """
    total: float = lib.wm_sum_of_squares(as_items("float[]", values) if values.size else NULL, values.size)
    return total


def floats(a: ArrayLike) -> NDArray[np.float32]:
    """Return the elements as a flat array of float32. Raises QuantError unless they are finite real numbers."""
    array = real_numbers(a)
    flat = flat_floats(array)
    if (index := lib.wm_first_not_finite(as_items("float[]", flat), flat.size)) >= 0:
        raise not_finite(array, index)
    return flat


def flat_floats(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return the elements as a flat array of float32, infinite where they are too large."""
    with np.errstate(over="ignore"):  # elements that overflow are reported as not finite
        return np.require(array, np.float32, ("C", "A")).reshape(-1)


def not_finite(array: NDArray[Any], index: int) -> QuantError:
    """Return the error for an element that is not finite as float32."""
    return QuantError(f"element {index}", actual=array.reshape(-1)[index], expected="a number finite in float32")


def encode(
    a: ArrayLike, bits: int, block_size: int, scale_type: str, threads: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return the bytes of all blocks and the sum of the squared errors of each."""
    array = real_numbers(a)
    flat = flat_floats(array)
    size = blocks_size(flat.size, bits=bits, block_size=block_size, scale_type=scale_type)
    count = -(-flat.size // block_size) if block_size else 1
    data, errors = np.empty(size, np.uint8), np.empty(count, np.float64)
    source = as_items("float[]", flat) if flat.size else NULL
    target, sums = as_output(data, "uint8_t[]"), as_output(errors, "double[]")
    code, most = scale_code(scale_type), thread_count(threads)
    index = lib.wm_blocks_encode(source, flat.size, bits, code, block_size, target, size, sums, count, most)
    if index >= 0:
        raise not_finite(array, index)
    if index != -1:
        raise AssertionError("sizes were checked")
    return data, errors
