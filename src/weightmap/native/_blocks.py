"""Decoding of quantised blocks: integers of 4, 5 or 8 bits with a scale.

A value is ``scale * q``, one multiplication of float32; a scale stored as float16 is widened exactly. Codes are two's
complement and lie back to back, the first in the lowest bits of byte 0. A block size of 0 means one scale for all
elements; otherwise each block of the flattened tensor is ``[scale][codes]``, the last one whole. A result of NaN, as
from a NaN scale or infinity times 0, is the float32 0x7FC00000 on every CPU.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from weightmap.dtypes import scale_type_named
from weightmap.errors import QuantError
from weightmap.lazy import np
from weightmap.native._memory import empty, given_array
from weightmap.native._native import as_input, as_output, decode_array, lib, mistyped, thread_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.native._native import Buffer

SCALE_TYPES = {"fp32": 0, "fp16": 1}  # the codes of AMB
_MOST = 1 << 56  # elements: more than any memory holds


def scale_code(scale_type: str) -> int:
    """Return the code of a scale type, "fp32" or "fp16". Raises QuantError for another."""
    code = SCALE_TYPES.get(scale_type) if isinstance(scale_type, str) else None
    return SCALE_TYPES[scale_type_named(scale_type)] if code is None else code


def check_block_size(bits: int, block_size: int) -> int:
    """Return the block size as an int. Raises QuantError when `bits`-bit codes cannot have it."""
    try:
        size = index(block_size)
    except TypeError:
        raise mistyped("block_size", block_size, "an integer") from None
    step = {4: 2, 5: 8}.get(bits, 1)
    if not 0 < size <= 1 << 32 or size % step:
        expected = f"1 to 2**32{f' and a multiple of {step}' if step > 1 else ''}"
        raise QuantError(f"block_size for {bits}-bit codes", actual=size, expected=expected)
    return size


def count_of(n: int) -> int:
    """Return a number of elements as an int. Raises QuantError when it is negative or absurd."""
    try:
        count = index(n)
    except TypeError:
        raise mistyped("n", n, "an integer") from None
    if not 0 <= count <= _MOST:
        raise QuantError("number of elements", actual=count, expected="0 to 2**56")
    return count


def check_range(start: int, stop: int, n: int) -> None:
    """Raise ValueError unless elements `start` to `stop` lie within `n`."""
    if not 0 <= start <= stop <= n:
        raise ValueError(f"range {start} to {stop} does not lie within {n} elements")


def blocks_size(n: int, *, bits: int, block_size: int, scale_type: str) -> int:
    """Return the bytes of `n` elements: blocks, or with a block size of 0 one scale and all codes.

    Raises
    ------
    QuantError
        For a block size or a scale type that does not exist.
    """
    if block_size != 0:
        block_size = check_block_size(bits, block_size)
    size: int = lib.wm_blocks_size(bits, scale_code(scale_type), block_size, count_of(n))
    return size


def take_out(out: NDArray[Any] | None, count: int, dtype: Any) -> NDArray[Any]:
    """Return the array to fill: `out`, or a new one. Raises ValueError or TypeError when `out` does not fit."""
    if out is None:
        dtype = np.float32 if dtype is None else dtype
        if dtype not in (np.float32, np.float16):
            raise ValueError(f"dtype is {dtype}, expected float32 or float16")
        return empty(count, dtype)
    out = given_array(out)
    if out.dtype not in (np.float32, np.float16) or out.size != count or not out.flags.carray:
        expected = f"float32 or float16 with {count} elements, C-contiguous, aligned and writeable"
        raise ValueError(f"out is {out.dtype} {out.shape}, expected {expected}")
    return out


def decode_blocks(
    data: Buffer,
    n: int,
    *,
    bits: int,
    block_size: int,
    scale_type: str = "fp16",
    start: int = 0,
    stop: int | None = None,
    dtype: Any = None,
    out: NDArray[Any] | None = None,
    threads: int = 1,
) -> NDArray[Any]:
    """Decode elements `start` to `stop` of the `n` elements in `data`, touching only their blocks.

    Parameters
    ----------
    data : buffer
        Exactly as many bytes as `blocks_size` returns, at any alignment.
    n : int
        Number of elements.
    bits : int
        4, 5 or 8.
    block_size : int
        Elements of a block: even for 4 bits, a multiple of 8 for 5; 0 for one scale for all elements.
    scale_type : str
        "fp16" or "fp32".
    start, stop : int
        0 <= start <= stop <= n; by default all elements.
    dtype : dtype
        float32, the default, or float16, to which float32 values are rounded. Ignored with `out`.
    out : ndarray of float32 or float16, optional
        Filled and returned: any shape of stop - start elements, C-contiguous, aligned, writeable, apart from `data`.
    threads : int
        At most this many threads share the work; fewer where there is too little to gain.

    Returns
    -------
    ndarray, shape (stop - start,)
        The values, or `out`.

    Raises
    ------
    QuantError
        For a block size or a scale type that does not exist, or data of another size.
    ValueError
        When `out` does not fit, or the range exceeds the elements.
    """
    stop = n if stop is None else stop
    if out is not None and decode_array(data, n, bits, block_size, scale_type, start, stop, out, threads):
        return out
    n = count_of(n)
    check_range(start, stop, n)
    expected = blocks_size(n, bits=bits, block_size=block_size, scale_type=scale_type)
    buffer = as_input(data)
    if len(buffer) != expected:
        kind = f"int{bits} blocks of {block_size}" if block_size else f"int{bits} with one scale"
        what = f"size of the data of {n} elements ({kind}, {scale_type})"
        raise QuantError(what, actual=len(buffer), expected=expected)
    values = take_out(out, stop - start, dtype)
    half = values.dtype == np.float16
    scale, target = scale_code(scale_type), as_output(values, "uint8_t[]")
    count, most = stop - start, thread_count(threads)
    if lib.wm_blocks_decode(buffer, expected, bits, scale, block_size, n, start, target, count, half, most):
        raise ValueError("out overlaps the data")
    return values


def dequantize_int4(
    data: Buffer,
    n: int,
    block_size: int,
    *,
    scale_type: str = "fp16",
    out: NDArray[Any] | None = None,
    threads: int = 1,
) -> NDArray[np.float32]:
    """Decode blocks of 4-bit integers, ``[scale][codes]`` each: value = scale * q, q from -8 to 7.

    Parameters
    ----------
    data : buffer
        The blocks, exactly ``ceil(n / block_size)`` of them, at any alignment. The low nibble of a byte is the earlier
        element.
    n : int
        Number of elements; further codes of the last block are ignored.
    block_size : int
        Elements of a block, an even number.
    scale_type : str
        "fp16" or "fp32".
    out : ndarray of float32 or float16, optional
        Filled and returned: any shape of `n` elements, C-contiguous, aligned, writeable, apart from `data`. float16
        values are the float32 ones rounded to nearest, ties to even.
    threads : int
        At most this many threads share the work; fewer where there is too little to gain.

    Returns
    -------
    ndarray of float32, shape (n,)
        The values, or `out`.

    Raises
    ------
    QuantError
        For a block size or a scale type that does not exist, or data of another size.
    ValueError
        When `out` does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap import kernels
    >>> block = np.float16(0.5).tobytes() + bytes([0x21, 0xF8])
    >>> kernels.dequantize_int4(block, 4, 4)
    array([ 0.5,  1. , -4. , -0.5], dtype=float32)
    """
    if out is not None and block_size and decode_array(data, n, 4, block_size, scale_type, 0, n, out, threads):
        return out
    size = check_block_size(4, block_size)
    return decode_blocks(data, n, bits=4, block_size=size, scale_type=scale_type, out=out, threads=threads)


def dequantize_int5(
    data: Buffer,
    n: int,
    block_size: int,
    *,
    scale_type: str = "fp16",
    out: NDArray[Any] | None = None,
    threads: int = 1,
) -> NDArray[np.float32]:
    """Decode blocks of 5-bit integers, ``[scale][codes]`` each: value = scale * q, q from -16 to 15.

    Element k of a block is bits 5k to 5k + 4 of its codes, where bit 0 is the lowest of the first byte. The block size
    is a multiple of 8; otherwise parameters, result and errors are those of `dequantize_int4`.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap import kernels
    >>> block = np.float32(2).tobytes() + bytes([0b001_00001, 0b1_11111_00, 0, 0, 0])
    >>> kernels.dequantize_int5(block, 8, 8, scale_type="fp32")
    array([ 2.,  2., -2.,  2.,  0.,  0.,  0.,  0.], dtype=float32)
    """
    if out is not None and block_size and decode_array(data, n, 5, block_size, scale_type, 0, n, out, threads):
        return out
    size = check_block_size(5, block_size)
    return decode_blocks(data, n, bits=5, block_size=size, scale_type=scale_type, out=out, threads=threads)
