"""Kernels for ggml's blocks, the quantised types of GGUF files. Used by `weightmap.quant.ggml`.

A type cuts each row of a tensor into blocks of 32 to 256 elements with their own scales. Decoded values equal those
of gguf-py to the bit; every NaN is the float32 0x7FC00000, on every CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.dtypes import GGML_SCHEMES
from weightmap.errors import QuantError
from weightmap.native._blocks import check_range, count_of, take_out
from weightmap.native._native import NULL, as_input, as_items, as_output, decode_ggml_array, lib, thread_count
from weightmap.native._quantize import floats
from weightmap.native._scans import ggml_block

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from weightmap.native._native import Buffer


class GgmlType(NamedTuple):
    """A block type of ggml.

    Attributes
    ----------
    name : str
        Its name in lower case: "q4_k".
    number : int
        Its number in GGUF files.
    block_size : int
        Elements of a block.
    block_bytes : int
        Bytes of a block.
    """

    name: str
    number: int
    block_size: int
    block_bytes: int


# Every type that `decode_ggml` knows, by its name.
GGML_TYPES = {name: GgmlType(name, number, *ggml_block(number)) for name, number in GGML_SCHEMES.items()}
_NUMBERS = {name: kind.number for name, kind in GGML_TYPES.items()}
# Those that `encode_ggml` knows too.
GGML_ENCODED: tuple[str, ...] = tuple(name for name, kind in GGML_TYPES.items() if lib.wm_ggml_encodes(kind.number))


def _type_named(name: str) -> GgmlType:
    found = GGML_TYPES.get(name)
    if found is None:
        raise QuantError("block type", actual=repr(name), expected=f"one of {', '.join(GGML_TYPES)}")
    return found


def ggml_size(n: int, name: str) -> int:
    """Return the bytes that `n` elements take as blocks of this type.

    Raises
    ------
    QuantError
        For an unknown type, or a number of elements that does not fill whole blocks.
    """
    kind = _type_named(name)
    blocks, rest = divmod(count_of(n), kind.block_size)
    if rest:
        raise QuantError(f"number of elements of {name}", actual=n, expected=f"a multiple of {kind.block_size}")
    return blocks * kind.block_bytes


def decode_ggml(
    data: Buffer,
    n: int,
    name: str,
    *,
    start: int = 0,
    stop: int | None = None,
    dtype: Any = np.float32,
    out: NDArray[Any] | None = None,
    threads: int = 1,
) -> NDArray[Any]:
    """Decode elements `start` to `stop` of the `n` in `data`, touching only the blocks that they lie in.

    Parameters
    ----------
    data : buffer
        Exactly ``ggml_size(n, name)`` bytes, at any alignment.
    n : int
        Number of elements, a multiple of the block size.
    name : str
        One of `GGML_TYPES`.
    start, stop : int
        The elements wanted, 0 <= start <= stop <= n; all of them when not given.
    dtype : dtype
        float32, or float16: the float32 values, rounded. Ignored when `out` is given.
    out : ndarray of float32 or float16, optional
        Filled and returned: any shape of stop - start elements, C-contiguous, aligned, writeable, apart from `data`.
    threads : int
        At most this many threads share the work; fewer where there is too little to gain.

    Returns
    -------
    ndarray, shape (stop - start,)
        The values; or `out`.

    Raises
    ------
    QuantError
        For an unknown type, or data of another size.
    ValueError
        For an unsuitable `out`, or a range that does not lie within the elements.
    """
    stop = n if stop is None else stop
    if out is not None and decode_ggml_array(data, n, _NUMBERS.get(name, -1), start, stop, out, threads):
        return out
    kind = _type_named(name)
    n = count_of(n)
    check_range(start, stop, n)
    expected = ggml_size(n, name)
    buffer = as_input(data)
    if len(buffer) != expected:
        raise QuantError(f"size of the data of {n} elements of {name}", actual=len(buffer), expected=expected)
    values = take_out(out, stop - start, dtype)
    half = values.dtype == np.float16
    target = as_output(values, "uint8_t[]")
    count, most = stop - start, thread_count(threads)
    if lib.wm_ggml_decode(buffer, expected, kind.number, n, start, target, count, half, most):
        raise ValueError("out overlaps the data")
    return values


def encode_ggml(a: ArrayLike, name: str, *, threads: int = 1) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Quantise to blocks of this type; return their bytes, and the sum of the squared errors of each block.

    The bytes are the same on every instruction set and with any number of threads. q4_0, q4_1, q5_0, q5_1 and q8_0 give
    the bytes of gguf-py; the others search for scales of least squared error. A scale too large for float16 becomes
    the largest finite one.

    Parameters
    ----------
    a : array_like of real numbers, any shape
        Taken row by row, as float32.
    name : str
        One of `GGML_ENCODED`.
    threads : int
        At most this many threads share the work.

    Returns
    -------
    ndarray of uint8, ndarray of float64

    Raises
    ------
    QuantError
        For a type without a quantiser, a number of elements that does not fill whole blocks, elements that are NaN or
        infinite, and input that is not an array of real numbers.
    """
    if name not in GGML_ENCODED:
        raise QuantError("block type to quantise to", actual=repr(name), expected=f"one of {', '.join(GGML_ENCODED)}")
    flat = floats(a)
    data = np.empty(ggml_size(flat.size, name), np.uint8)
    kind = GGML_TYPES[name]
    errors = np.empty(flat.size // kind.block_size, np.float64)
    source = as_items("float[]", flat) if flat.size else NULL
    target, sums = as_output(data, "uint8_t[]"), as_output(errors, "double[]")
    if (
        lib.wm_ggml_encode(source, flat.size, kind.number, target, data.size, sums, errors.size, thread_count(threads))
        != -1
    ):
        raise AssertionError("sizes were checked")
    return data, errors
