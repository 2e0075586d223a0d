"""Decoding of quantised blocks: integers of 4, 5 or 8 bits with a scale.

A value is ``scale * q``, one multiplication of float32; a scale stored as float16 is widened exactly. Codes are two's
complement and lie back to back, the first in the lowest bits of byte 0. A block size of 0 means one scale for all
elements; otherwise each block of the flattened tensor is ``[scale][codes]``, and the last block is whole. A NaN result,
from a NaN scale or from infinity times 0, is the float32 0x7FC00000 on every CPU.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap.core.arguments import as_float, mistyped
from weightmap.core.dtypes import GGML_SCHEMES, scale_type_named
from weightmap.core.native import access
from weightmap.core.native.access import NULL, ffi, lib
from weightmap.core.native.files import COMPARED
from weightmap.core.native.scans import ggml_block
from weightmap.errors import QuantError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray


SCALE_TYPES = {"fp32": 0, "fp16": 1}  # the codes of AMB
_MAX_ELEMENTS = 1 << 56  # elements: more than any memory holds


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
    """Return a number of elements as an int. Raises QuantError when it is negative or absurdly large."""
    try:
        count = index(n)
    except TypeError:
        raise mistyped("n", n, "an integer") from None
    if not 0 <= count <= _MAX_ELEMENTS:
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


def take_out(out: NDArray[Any] | None, count: int) -> NDArray[Any]:
    """Return the array to fill: `out`, or new float32. Raises ValueError or TypeError when `out` does not fit."""
    if out is None:
        return access.empty(count, np.float32)
    out = access.given_array(out)
    if out.dtype not in (np.float32, np.float16) or out.size != count or not out.flags.carray:
        expected = f"float32 or float16 with {count} elements, C-contiguous, aligned and writeable"
        raise ValueError(f"out is {out.dtype} {out.shape}, expected {expected}")
    return out


def decode_blocks(
    data: access.Buffer,
    n: int,
    *,
    bits: int,
    block_size: int,
    scale_type: str = "fp16",
    start: int = 0,
    stop: int | None = None,
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
    out : ndarray of float32 or float16, optional
        Filled and returned: any shape of stop - start elements, C-contiguous, aligned, writeable, outside `data`.
        float16 rounds the values in float32.
    threads : int
        At most this many threads share the work; fewer if there is too little to gain.

    Returns
    -------
    ndarray, shape (stop - start,)
        The values in float32, or `out`.

    Raises
    ------
    QuantError
        For a block size or a scale type that does not exist, or data of another size.
    ValueError
        When `out` does not fit, or the range exceeds the elements.
    """
    stop = n if stop is None else stop
    n = count_of(n)
    check_range(start, stop, n)
    expected = blocks_size(n, bits=bits, block_size=block_size, scale_type=scale_type)
    buffer = access.as_input(data)
    if len(buffer) != expected:
        kind = f"int{bits} blocks of {block_size}" if block_size else f"int{bits} with one scale"
        what = f"size of the data of {n} elements ({kind}, {scale_type})"
        raise QuantError(what, actual=len(buffer), expected=expected)
    values = take_out(out, stop - start)
    half = values.dtype == np.float16
    scale, target = scale_code(scale_type), access.as_output(values, "uint8_t[]")
    count, max_threads = stop - start, access.thread_count(threads)
    if lib.wm_blocks_decode(buffer, expected, bits, scale, block_size, n, start, target, count, half, max_threads):
        raise ValueError("out overlaps the data")
    return values


def dequantize_int4(
    data: access.Buffer,
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
        Filled and returned: any shape of `n` elements, C-contiguous, aligned, writeable, outside `data`. float16
        values are the float32 ones rounded to nearest, ties to even.
    threads : int
        At most this many threads share the work; fewer if there is too little to gain.

    Returns
    -------
    ndarray of float32, shape (n,)
        The values, or `out`.

    Raises
    ------
    QuantError
        For a block size or a scale type that does not exist, or data of another size.
    ValueError
        When `out` does not fit, and for `threads` below 1.
    TypeError
        When `data` has no contiguous buffer, `out` is not an array, or a number is not an integer.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap import kernels
    >>> block = np.float16(0.5).tobytes() + bytes([0x21, 0xF8])
    >>> kernels.dequantize_int4(block, 4, 4)
    array([ 0.5,  1. , -4. , -0.5], dtype=float32)
    """
    size = check_block_size(4, block_size)
    return decode_blocks(data, n, bits=4, block_size=size, scale_type=scale_type, out=out, threads=threads)


def dequantize_int5(
    data: access.Buffer,
    n: int,
    block_size: int,
    *,
    scale_type: str = "fp16",
    out: NDArray[Any] | None = None,
    threads: int = 1,
) -> NDArray[np.float32]:
    """Decode blocks of 5-bit integers, ``[scale][codes]`` each: value = scale * q, q from -16 to 15.

    Element k of a block is bits 5k to 5k + 4 of its codes, where bit 0 is the lowest of the first byte. The block size
    is a multiple of 8; otherwise parameters, result and errors as for `dequantize_int4`.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap import kernels
    >>> block = np.float32(2).tobytes() + bytes([0b001_00001, 0b1_11111_00, 0, 0, 0])
    >>> kernels.dequantize_int5(block, 8, 8, scale_type="fp32")
    array([ 2.,  2., -2.,  2.,  0.,  0.,  0.,  0.], dtype=float32)
    """
    size = check_block_size(5, block_size)
    return decode_blocks(data, n, bits=5, block_size=size, scale_type=scale_type, out=out, threads=threads)


# ----------------------------------------------------------------------------------------------------
# Quantisation in C: a search for the scale with the least squared error in each block.
#
# The codes of a block are the integers in range nearest to ``x / scale`` (a division of float32, ties to even), with
# the scale as stored. The bytes are the same on every instruction set and with any number of threads.


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
    ValueError
        For `threads` below 1.
    TypeError
        When a number is not an integer.

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

    The block size is a multiple of 8; otherwise parameters, result and errors as for `quantize_int4`.

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

    Parameters, result and errors as for `quantize_int4`; `bits` is 4, 5 or 8.

    Examples
    --------
    >>> from weightmap.core.native.quantised import encode_blocks
    >>> encode_blocks([1, -2, 127], bits=8, block_size=0, scale_type="fp32").tobytes()
    b'\x00\x00\x80?\x01\xfe\x7f'
    """
    array = real_numbers(a)
    flat = flat_floats(array).astype("<f4", copy=False)
    size = blocks_size(array.size, bits=bits, block_size=block_size, scale_type=scale_type)
    encoder = BlockEncoder(-1, bits=bits, block_size=block_size, scale_type=scale_type, threads=threads)
    data, numbers = np.empty(size, np.uint8), (flat, 0, "float32", array.size)
    try:
        scale = b"" if block_size else encoder.search_scale(*numbers)
        data[: len(scale)] = np.frombuffer(scale, np.uint8)
        encoder(*numbers, memoryview(data)[len(scale) :])
    except access.Failed as failed:
        raise not_finite(array, failed.at) from None
    return data


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
    >>> from weightmap.core.native.quantised import sum_of_squares
    >>> sum_of_squares(np.float32([3, 4]))
    25.0
    """
    total: float = lib.wm_sum_of_squares(access.as_items("float[]", values) if values.size else NULL, values.size)
    return total


def floats(a: ArrayLike) -> NDArray[np.float32]:
    """Return the elements as a flat array of float32. Raises QuantError unless they are finite real numbers."""
    array = real_numbers(a)
    flat = flat_floats(array)
    if (index := lib.wm_first_not_finite(access.as_items("float[]", flat), flat.size)) >= 0:
        raise not_finite(array, index)
    return flat


def flat_floats(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return the elements as a flat array of float32; elements that are too large become infinite."""
    if array.dtype == np.float32 and array.flags.c_contiguous and array.flags.aligned:
        return array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):  # elements that overflow are reported as not finite
        return np.require(array, np.float32, ("C", "A")).reshape(-1)


def not_finite(array: NDArray[Any], index: int) -> QuantError:
    """Return the error for an element that is not finite as float32."""
    return QuantError(f"element {index}", actual=array.reshape(-1)[index], expected="a number finite in float32")


# ----------------------------------------------------------------------------------------------------
# Quantising in C from a file or from memory to a buffer, while earlier output is written to a file.


class Unwritten(NamedTuple):
    """Bytes to write to a file, at an offset; `flush` starts writing them out to the disk at once."""

    fd: int
    data: memoryview
    offset: int
    flush: bool


class BlockEncoder:
    """Quantises numbers of any tensor to blocks of one kind. Its buffers serve all calls.

    Parameters
    ----------
    ggml : int
        The number of a type of ggml's blocks; -1 for integers:
    bits, block_size, scale_type
        As for `encode_blocks`. With a block size of 0, call `search_scale` first; calls then only make codes.
    threads : int
        At most this many share the work.
    """

    def __init__(
        self,
        ggml: int,
        *,
        bits: int = 4,
        block_size: int = 32,
        scale_type: str = "fp16",
        threads: int = 1,
    ) -> None:
        self._blocks = ffi.new("wm_blocks *", (ggml, bits, scale_code(scale_type), block_size))
        self._numbers, self._outcome = ffi.new("wm_numbers *"), ffi.new("wm_outcome *")
        self._threads = access.thread_count(threads)
        self._room, self._sums = ffi.new("uint8_t[0]"), ffi.new("double[2]")

    def __call__(
        self,
        source: int | NDArray[np.uint8],
        at: int,
        dtype: str,
        count: int,
        out: memoryview,
        earlier: Unwritten | None = None,
    ) -> tuple[float, float]:
        """Fill `out` with the blocks of `count` numbers that begin at byte `at` of a file or of memory.

        Parameters
        ----------
        source : int or ndarray of uint8
            The descriptor of a file, or bytes that stay in memory.
        at : int
        dtype : str
            A key of `COMPARED`.
        count : int
        out : memoryview
            Exactly the bytes of the blocks.
        earlier : Unwritten, optional
            Written meanwhile.

        Returns
        -------
        (float, float)
            The sums of the squared errors and of the squares.

        Raises
        ------
        Failed
        """
        room = self._take(source, at, dtype, count, self._threads)
        target: Any = access.as_output(np.frombuffer(out, np.uint8), "uint8_t[]") if len(out) else NULL
        before = NULL
        if earlier is not None:
            data = access.as_input(earlier.data)
            before = ffi.new("wm_unwritten *", (earlier.fd, data, len(data), earlier.offset, earlier.flush))
        arguments = self._blocks, target, len(out), self._sums, *room, before, self._threads, self._outcome
        lib.wm_quantize_numbers(self._numbers, *arguments)
        access.check_outcome(self._outcome)
        error, square = self._sums
        return error, square

    def search_scale(self, source: int | NDArray[np.uint8], at: int, dtype: str, count: int) -> bytes:
        """Return the stored form of the one scale for all numbers. Reads them six times. Raises `Failed`."""
        room = self._take(source, at, dtype, count, 1)
        lib.wm_search_scale(self._numbers, self._blocks, *room, self._outcome)
        access.check_outcome(self._outcome)
        return np.array(self._blocks.scale, "<f2" if self._blocks.scale_type else "<f4").tobytes()

    def _take(self, source: int | NDArray[np.uint8], at: int, dtype: str, count: int, threads: int) -> tuple[Any, int]:
        """Tell C the place of the numbers; return room for threads in the form that C takes."""
        numbers = self._numbers
        numbers.fd, memory, numbers.size = access.place_of(source)
        numbers.memory, numbers.at = memory, at
        numbers.kind, numbers.n = COMPARED[dtype][0], count
        nbytes = lib.wm_quantize_room(numbers, self._blocks, threads)
        if len(self._room) < nbytes:
            self._room = access.as_output(access.aligned(nbytes), "uint8_t[]")
        return self._room, len(self._room)


# ----------------------------------------------------------------------------------------------------
# Blocks of different kinds in one tensor: int4, int5 or float16, chosen by the error that each kind saves.
#
# The data is ``[mask][scales][codes]``: two bits for each block with its kind (0 int4, 1 int5, 2 float16), the scales
# of the int4 and int5 blocks, and the codes of every block, all in the order of blocks.


def quantize_adaptive(
    a: ArrayLike,
    block_size: int,
    *,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int = 1,
    empty: Callable[[int, Any], NDArray[Any]] = np.empty,
) -> NDArray[np.uint8]:
    """Quantise to blocks of int4, int5 or float16, ``[mask][scales][codes]``.

    Each block starts as int4. Then blocks are improved, first those whose squared error falls most for each byte, until
    the bytes are used up. The error never exceeds the error with all blocks of one kind, if these fit.

    Parameters
    ----------
    a : array_like of real numbers, any shape
        Taken row by row, as float32.
    block_size : int
        Elements per block, a multiple of 8. The last block is stored whole, its missing elements as 0.
    scale_type : str
        "fp16" or "fp32".
    bits : float
        Most bits per element for scales and codes. The mask takes ``2 / block_size`` more.
    threads : int
        At most this many threads share the work.
    empty : callable
        ``empty(count, dtype)`` returns arrays to work in and to return.

    Returns
    -------
    ndarray of uint8, shape (bytes,)
        The data, as `decode_adaptive` reads it.

    Raises
    ------
    QuantError
        When an element is NaN or infinite, the array is not of real numbers, the block size or scale type does not
        exist, or `bits` is less than int4 blocks take.

    Examples
    --------
    >>> from weightmap.core.native.quantised import quantize_adaptive
    >>> data = quantize_adaptive([1, 2, 3, 4, 5, 6, 7, -8, *[0.1] * 7, 100], 8, bits=11)
    >>> bin(data[0])  # the mask: block 0 is int4 (0), block 1 is float16 (2)
    '0b1000'
    """
    size = check_block_size(5, block_size)
    code = scale_code(scale_type)
    array = real_numbers(a)
    x = flat_floats(array)
    count, head = -(-x.size // size), {1: 2, 0: 4}[code]
    int4 = head + size // 2
    min_bits = 8 * int4 / size
    if not min_bits <= as_float("bits", bits) <= 16:
        expected = f"{min_bits:g}, which int4 blocks of {size} with {scale_type} scales take, to 16"
        raise QuantError("bits", actual=bits, expected=expected)
    budget = max(int(bits * count * size / 8), count * int4)
    room = empty(lib.wm_adaptive_room(code, size, x.size), np.uint64)
    source = access.as_items("float[]", x) if x.size else NULL
    arguments = source, x.size, code, size
    place = access.as_output(room, "uint64_t[]"), room.size
    length = lib.wm_adaptive_choose(*arguments, budget, *place, access.thread_count(threads))
    if length < 0:
        raise not_finite(array, -2 - length)
    out = empty(length, np.uint8)
    if lib.wm_adaptive_encode(*arguments, *place, access.as_output(out, "uint8_t[]"), out.size):
        raise AssertionError("blocks of another size than their kind")
    return out


def adaptive_plan(
    data: access.Buffer, n: int, block_size: int, *, scale_type: str = "fp16", size: int | None = None
) -> NDArray[np.uint64]:
    """Check the mask of `n` elements in blocks of different kinds, and return the plan for decoding them.

    The mask is copied before it is checked: later changes in `data` do not affect the plan.

    Parameters
    ----------
    data, n, block_size, scale_type
        As for `decode_adaptive`; only the mask is read.
    size : int, optional
        Bytes of all data, if `data` holds only the first of them, at least the mask.

    Returns
    -------
    ndarray of uint64
        See wm_adaptive_plan_size in kernels.h. Its first two elements are the numbers of int5 and of float16 blocks.

    Raises
    ------
    QuantError
        When the mask holds an unknown kind or continues after the last block, the size of the data contradicts the
        mask, or the block size or scale type does not exist.
    """
    block, n, code = check_block_size(5, block_size), count_of(n), scale_code(scale_type)
    buffer, fault = access.as_input(data), ffi.new("wm_fault *")
    mask = (-(-n // block) + 3) // 4
    if len(buffer) < mask:  # before a plan as long as the declared mask is allocated
        raise QuantError("size of the data", actual=len(buffer), expected=f"{mask} by its mask")
    plan = np.empty(lib.wm_adaptive_plan_size(block, n), np.uint64)
    target, total = access.as_output(plan, "uint64_t[]"), len(buffer) if size is None else size
    if lib.wm_adaptive_check(buffer, total, code, block, n, target, plan.size, fault):
        raise _error(fault)
    return plan


def adaptive_mask(plan: NDArray[np.uint64], blocks: int) -> NDArray[np.uint8]:
    """Return a view of the mask in the plan of `blocks` blocks, shape (ceil(blocks / 4),)."""
    size = (blocks + 3) // 4
    begin = plan.size - (size + 7) // 8
    return plan[begin:].view(np.uint8)[:size]


def decode_adaptive(
    data: access.Buffer,
    n: int,
    block_size: int,
    *,
    scale_type: str = "fp16",
    start: int = 0,
    stop: int | None = None,
    out: NDArray[Any] | None = None,
    threads: int = 1,
    plan: NDArray[np.uint64] | None = None,
) -> NDArray[Any]:
    """Decode elements `start` to `stop` of the `n` elements that `data` holds in blocks of different kinds.

    With a `plan` from `adaptive_plan` of the same data, only the blocks of these elements are read, but not the mask,
    which may have changed since. Other parameters, result and errors as for `decode_blocks`, with the errors of
    `adaptive_plan`. float16 blocks are decoded as by `f16_to_f32`.
    """
    if plan is None:
        plan = adaptive_plan(data, n, block_size, scale_type=scale_type)
    stop = n if stop is None else stop
    size, n, code = check_block_size(5, block_size), count_of(n), scale_code(scale_type)
    check_range(start, stop, n)
    buffer, plan_items = access.as_input(data), access.as_items("uint64_t[]", plan)
    values = take_out(out, stop - start)
    half, target, max_threads = (
        values.dtype == np.float16,
        access.as_output(values, "uint8_t[]"),
        access.thread_count(threads),
    )
    done = lib.wm_adaptive_decode(
        buffer, len(buffer), code, size, n, plan_items, len(plan_items), start, target, stop - start, half, max_threads
    )
    if done == -1:
        raise QuantError("size of the data", actual=len(buffer), expected="the size at the check")
    if done:
        raise ValueError("out overlaps the data")
    return values


def _error(fault: Any) -> QuantError:
    """Return the error for a fault in blocks of different kinds."""
    if fault.code == lib.WM_FAULT_ADAPTIVE_MASK:
        return QuantError(f"kind of block {fault.row}", field="mask", actual=fault.actual, expected="0, 1 or 2")
    if fault.code == lib.WM_FAULT_ADAPTIVE_PADDING:
        what = f"last byte of the mask of {fault.row} blocks"
        return QuantError(what, field="mask", actual=f"{fault.actual:#04x}", expected="0 in the unused bits")
    return QuantError("size of the data", actual=fault.actual, expected=f"{fault.expected} by its mask")


# ----------------------------------------------------------------------------------------------------
# Kernels for ggml's blocks, the quantised types of GGUF files. Used by `weightmap.core.quant.ggml`.
#
# A type cuts each row of a tensor into blocks of 32 to 256 elements with their own scales. Decoded values equal
# gguf-py's to the bit; every NaN is the float32 0x7FC00000, on every CPU.


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
# The types that `encode_ggml` also knows.
GGML_ENCODED: tuple[str, ...] = tuple(name for name, kind in GGML_TYPES.items() if lib.wm_ggml_encodes(kind.number))


def _type_named(name: str) -> GgmlType:
    kind = GGML_TYPES.get(name)
    if kind is None:
        raise QuantError("block type", actual=repr(name), expected=f"one of {', '.join(GGML_TYPES)}")
    return kind


def ggml_size(n: int, name: str) -> int:
    """Return the bytes that `n` elements take as blocks of this type.

    Raises
    ------
    QuantError
        For an unknown type, or a number of elements that does not fill whole blocks.
    """
    kind = _type_named(name)
    blocks, remainder = divmod(count_of(n), kind.block_size)
    if remainder:
        raise QuantError(f"number of elements of {name}", actual=n, expected=f"a multiple of {kind.block_size}")
    return blocks * kind.block_bytes


def decode_ggml(
    data: access.Buffer,
    n: int,
    name: str,
    *,
    start: int = 0,
    stop: int | None = None,
    out: NDArray[Any] | None = None,
    threads: int = 1,
) -> NDArray[Any]:
    """Decode elements `start` to `stop` of the `n` elements in `data`, touching only their blocks.

    Parameters
    ----------
    data : buffer
        Exactly ``ggml_size(n, name)`` bytes, at any alignment.
    n : int
        Number of elements, a multiple of the block size.
    name : str
        One of `GGML_TYPES`.
    start, stop : int
        0 <= start <= stop <= n; all elements when not given.
    out : ndarray of float32 or float16, optional
        Filled and returned: any shape of stop - start elements, C-contiguous, aligned, writeable, outside `data`.
        float16 rounds the values in float32.
    threads : int
        At most this many threads share the work; fewer if there is too little to gain.

    Returns
    -------
    ndarray, shape (stop - start,)
        The values in float32, or `out`.

    Raises
    ------
    QuantError
        For an unknown type, or data of another size.
    ValueError
        For an unsuitable `out`, or a range that does not lie within the elements.
    """
    stop = n if stop is None else stop
    kind = _type_named(name)
    n = count_of(n)
    check_range(start, stop, n)
    expected = ggml_size(n, name)
    buffer = access.as_input(data)
    if len(buffer) != expected:
        raise QuantError(f"size of the data of {n} elements of {name}", actual=len(buffer), expected=expected)
    values = take_out(out, stop - start)
    half = values.dtype == np.float16
    target = access.as_output(values, "uint8_t[]")
    count, max_threads = stop - start, access.thread_count(threads)
    if lib.wm_ggml_decode(buffer, expected, kind.number, n, start, target, count, half, max_threads):
        raise ValueError("out overlaps the data")
    return values


def encode_ggml(a: ArrayLike, name: str, *, threads: int = 1) -> NDArray[np.uint8]:
    """Quantise to blocks of this type; return their bytes.

    The bytes are the same on every instruction set and with any number of threads. For q8_0 they equal
    gguf-py's; for q4_0, q4_1, q5_0 and q5_1 too, unless the scale or the minimum of a block rounds to 0, where
    gguf-py's depend on the CPU. The other types search for the scales of least squared error. A scale too large for
    float16 becomes the largest finite one.

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
    ndarray of uint8

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
    source = access.as_items("float[]", flat) if flat.size else NULL
    arguments = source, flat.size, kind.number, access.as_output(data, "uint8_t[]"), data.size
    if lib.wm_ggml_encode(*arguments, NULL, 0, access.thread_count(threads)) != -1:
        raise AssertionError("sizes were checked")
    return data


# ----------------------------------------------------------------------------------------------------
# Product quantisation in C: decoding of codes, and sums over a table.


class ProductCodes:
    """Codes and codebooks as a wm_pq of kernels.h; keeps their arrays alive.

    Parameters
    ----------
    codes : ndarray of uint8, shape (n, m)
    codebooks : ndarray of float32, shape (m, centroids, width)
    turned : ndarray of float32, shape (m * width, m * width), optional
        The projection, transposed.
    norms : ndarray of float32, shape (n,), optional
        All are C-contiguous, and all but the codes aligned.
    """

    __slots__ = ("_dims", "_keep", "_struct", "_turned", "count")

    def __init__(
        self,
        codes: NDArray[np.uint8],
        codebooks: NDArray[np.float32],
        turned: NDArray[np.float32] | None,
        norms: NDArray[np.float32] | None,
    ) -> None:
        pieces, centroids, width = codebooks.shape
        self.count: int = len(codes)
        self._dims = pieces * width
        self._turned = turned is not None
        pointers = [
            NULL if array is None else access.as_items("float[]", array) for array in (codebooks, turned, norms)
        ]
        self._keep: tuple[Any, ...] = (access.as_input(codes), *pointers)
        sizes = [0 if array is None else array.size for array in (codes, codebooks, turned, norms)]
        self._struct = ffi.new("wm_pq *", (*self._keep, *sizes, self.count, pieces, centroids, width))

    def decode(
        self, out: NDArray[np.float32], *, first: int = 0, rows: NDArray[np.uint64] | None = None, threads: int = 1
    ) -> int:
        """Fill `out`, float32 and C-contiguous, with the values of rows.

        Parameters
        ----------
        out : ndarray of float32
            As many elements as the rows have.
        first : int
            The first row, without `rows`.
        rows : ndarray of uint64, optional
            The rows, in this order.
        threads : int
            At most this many threads share the work. The result does not depend on it.

        Returns
        -------
        int
            -1, or the position, among all codes, of a code without a centroid; `out` is then only partly filled.

        Raises
        ------
        IndexError
            For rows that do not exist.
        """
        threads, count = access.thread_count(threads), out.size // self._dims if self._dims else 0
        room = lib.WM_PQ_TOGETHER * self._dims * min(threads, 64)
        scratch = np.empty(room if self._turned else 0, np.float32)
        numbers, count = (NULL, count) if rows is None else (access.as_items("uint64_t[]", rows), len(rows))
        target, memory = access.as_output(out, "float[]"), access.as_output(scratch, "float[]")
        bad: int = lib.wm_pq_decode(
            self._struct, numbers, first, count, target, out.size, memory, len(scratch), threads
        )
        if bad == -2:
            raise IndexError(f"row numbers out of range: there are {self.count} rows")
        return bad

    def sums(self, table: NDArray[np.float32], out: NDArray[np.float32], *, first: int = 0) -> int:
        """Fill `out`, shape (k,), with the sums over j of ``table[j, code j]`` for the rows from `first` on.

        `table` is float32, C-contiguous, of shape (m, centroids); terms are added in the order of j in float32. Returns
        and raises as `decode` does.
        """
        source, target = access.as_items("float[]", table), access.as_output(out, "float[]")
        bad: int = lib.wm_pq_sums(self._struct, source, table.size, first, len(out), target)
        if bad == -2:
            raise IndexError(f"row numbers out of range: there are {self.count} rows")
        return bad
