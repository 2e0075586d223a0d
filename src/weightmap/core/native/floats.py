"""Conversion to float32 of float16, bfloat16, and pairs of float16 in words of 32 bits, and to other types."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.native.access import Buffer, as_input, as_output, empty, from_buffer, given_array, lib, thread_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONVERSIONS = {"float16": lib.wm_f16_to_f32, "bfloat16": lib.wm_bf16_to_f32}
_LITTLE = sys.byteorder == "little"


def f16_to_f32(
    a: NDArray[np.float16 | np.uint16] | Buffer, *, out: NDArray[np.float32] | None = None, threads: int = 1
) -> NDArray[np.float32]:
    """Convert IEEE 754 binary16 to float32, exactly.

    Every number, zero and infinity keeps its value and its sign. A NaN keeps its sign and the bits of its fraction,
    moved up by 13, and becomes quiet (bit 22 set). The bits are the same on every instruction set.

    Parameters
    ----------
    a : ndarray of float16 or uint16, or buffer
        An array or scalar of any shape, strides and byte order; uint16 holds the bits. Another object with a
        C-contiguous buffer (bytes, memoryview, mmap) holds little-endian numbers in one dimension, at any address.
    out : ndarray of float32, shape of `a`, optional
        Filled and returned: C-contiguous, writeable, no memory shared with `a`.
    threads : int
        At most this many threads share the work; each gets at least 4 MiB of output.

    Returns
    -------
    ndarray of float32, shape of `a`
        `out`, or a new array.

    Raises
    ------
    ValueError
        When `a` is an array of another dtype or a buffer of an odd number of bytes, or `out` does not fit; for
        `threads` below 1.
    TypeError
        When `a` has no contiguous buffer, or `out` is not an array.

    Examples
    --------
    >>> from weightmap import kernels
    >>> kernels.f16_to_f32(bytes.fromhex("003c00fc"))
    array([  1., -inf], dtype=float32)
    """
    return _convert("float16", a, out, threads)


def bf16_to_f32(
    a: NDArray[Any] | Buffer, *, out: NDArray[np.float32] | None = None, threads: int = 1
) -> NDArray[np.float32]:
    """Convert bfloat16 to float32: the bits only move up by 16. A signalling NaN stays signalling.

    Parameters, result and errors as for `f16_to_f32`, with ml_dtypes.bfloat16 instead of float16.

    Examples
    --------
    >>> from weightmap import kernels
    >>> kernels.bf16_to_f32(bytes.fromhex("803f80ff"))
    array([  1., -inf], dtype=float32)
    """
    return _convert("bfloat16", a, out, threads)


def in_type(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return floating-point numbers in another type, as `numpy.ndarray.astype` rounds them, without a warning.

    float32 becomes float16 in C, five times as fast as in numpy.
    """
    if values.dtype != np.float32 or dtype != np.float16:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype, copy=False)
    out = np.empty(values.shape, "<f2")
    lib.wm_f32_to_f16(
        from_buffer("float[]", np.require(values, "=f4", ["C", "A"])), as_output(out, "uint8_t[]"), out.size
    )
    return out


def unpack_f16_pairs(
    u32_array: NDArray[np.uint32] | Buffer, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Convert the two float16 in each word of 32 bits to float32, as `f16_to_f32` does.

    The low 16 bits of a word come before the high ones, for any byte order of the array or the machine.

    Parameters
    ----------
    u32_array : ndarray of uint32, shape (..., n), or buffer
        An array of any shape, strides and byte order. Another object with a C-contiguous buffer (bytes, memoryview,
        mmap) holds little-endian words in one dimension, at any address.
    out : ndarray of float32, shape (..., 2 * n), optional
        Filled and returned: C-contiguous, writeable, no memory shared with the words.

    Returns
    -------
    ndarray of float32, shape (..., 2 * n)
        `out`, or a new array; shape (2,) for an array without dimensions.

    Raises
    ------
    ValueError
        When `u32_array` has another dtype, or is a buffer whose size is not a multiple of 4, or `out` does not fit.
    TypeError
        When `u32_array` has no contiguous buffer, or `out` is not an array.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap import kernels
    >>> kernels.unpack_f16_pairs(np.array([0xC0003C00], np.uint32))
    array([ 1., -2.], dtype=float32)
    """
    source: Any
    if isinstance(u32_array, (np.ndarray, np.generic)):
        u32_array = np.asarray(u32_array)
        if (u32_array.dtype.kind, u32_array.dtype.itemsize) != ("u", 4):
            raise ValueError(f"the words are {u32_array.dtype}, expected uint32")
        *leading, last = u32_array.shape or (1,)
        source, shape = as_input(np.asarray(u32_array, "<u4", order="C")), (*leading, 2 * last)
    else:
        source = as_input(u32_array)
        shape = (len(source) // 2,)
        if len(source) % 4:
            raise ValueError(f"the buffer has {len(source)} bytes, expected a multiple of 4")
    return _run("float16", source, shape, out, 1)


def _convert(dtype: str, a: Any, out: NDArray[np.float32] | None, threads: int) -> NDArray[np.float32]:
    """Convert an array or a buffer of `dtype` or of its bits."""
    if isinstance(a, (np.ndarray, np.generic)):  # a scalar has a buffer, too, which hides its dtype
        a = np.asarray(a)
        return _run(dtype, from_buffer("uint8_t[]", _little_endian(a, dtype)), a.shape, out, threads)
    source = as_input(a)
    if len(source) % 2:
        raise ValueError(f"the buffer has {len(source)} bytes, expected an even number")
    return _run(dtype, source, (len(source) // 2,), out, threads)


def _little_endian(a: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the elements of `a` contiguous and little-endian; copy only if necessary."""
    # Compare the name of the type: ml_dtypes need not be imported, and byte-swapped dtypes have other names.
    name = a.dtype.type.__name__
    if name not in {dtype, "uint16"}:
        raise ValueError(f"the array is {a.dtype}, expected {dtype} or uint16")
    if a.flags.c_contiguous and a.dtype.isnative and _LITTLE:
        return a.view(np.uint16) if name == "bfloat16" else a  # an array of bfloat16 has no buffer
    return np.asarray(a.view(np.dtype(np.uint16).newbyteorder(a.dtype.byteorder)), "<u2", order="C")


def _run(
    dtype: str, source: Any, shape: tuple[int, ...], out: NDArray[np.float32] | None, threads: int
) -> NDArray[np.float32]:
    """Convert bytes to an array of `shape`: `out`, or a new one."""
    if out is None:
        out = empty(shape, np.float32)
    elif given_array(out).dtype != np.float32 or out.shape != shape or not out.flags.carray:
        raise ValueError(f"out is {out.dtype} {out.shape}, expected float32 {shape}, contiguous and writeable")
    if _CONVERSIONS[dtype](source, as_output(out, "float[]"), out.size, thread_count(threads)):
        raise ValueError("out overlaps the data")
    return out
