"""Blocks of different kinds in one tensor: int4, int5 or float16, by the error that each kind saves.

The data is ``[mask][scales][codes]``: two bits for each block with its kind (0 int4, 1 int5, 2 float16), the scales of
the int4 and int5 blocks, and the codes of every block, all in the order of blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.arguments import as_float
from weightmap.errors import QuantError
from weightmap.native._blocks import check_block_size, check_range, count_of, scale_code, take_out
from weightmap.native._native import NULL, as_input, as_items, as_output, decode_array, ffi, lib, thread_count
from weightmap.native._quantize import flat_floats, not_finite, real_numbers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from weightmap.native._native import Buffer


def quantize_adaptive(
    a: ArrayLike, block_size: int, *, scale_type: str = "fp16", bits: float = 5.0, threads: int = 1
) -> NDArray[np.uint8]:
    """Quantise to blocks of int4, int5 or float16, ``[mask][scales][codes]``.

    Each block begins as int4. Then the blocks whose squared error falls most for each byte are improved first, until
    the bytes are used up. The error is never larger than with all blocks of one kind, if these fit.

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
    >>> from weightmap.native.late import quantize_adaptive
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
    least = 8 * int4 / size
    if not least <= as_float("bits", bits) <= 16:
        expected = f"{least:g}, which int4 blocks of {size} with {scale_type} scales take, to 16"
        raise QuantError("bits", actual=bits, expected=expected)
    budget = max(int(bits * count * size / 8), count * int4)
    room = np.empty(lib.wm_adaptive_room(code, size, x.size), np.uint64)
    source = as_items("float[]", x) if x.size else NULL
    arguments = source, x.size, code, size
    place = as_output(room, "uint64_t[]"), room.size
    length = lib.wm_adaptive_choose(*arguments, budget, *place, thread_count(threads))
    if length < 0:
        raise not_finite(array, -2 - length)
    out = np.empty(length, np.uint8)
    if lib.wm_adaptive_encode(*arguments, *place, as_output(out, "uint8_t[]"), out.size):
        raise AssertionError("blocks of another size than their kind")
    return out


def adaptive_plan(
    data: Buffer, n: int, block_size: int, *, scale_type: str = "fp16", size: int | None = None
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
        When the mask holds an unknown kind or goes on after the last block, the data has another size than the mask
        says, or the block size or scale type does not exist.
    """
    block, n, code = check_block_size(5, block_size), count_of(n), scale_code(scale_type)
    buffer, fault = as_input(data), ffi.new("wm_fault *")
    mask = (-(-n // block) + 3) // 4
    if len(buffer) < mask:  # before a plan as long as the declared mask is allocated
        raise QuantError("size of the data", actual=len(buffer), expected=f"{mask} by its mask")
    plan = np.empty(lib.wm_adaptive_plan_size(block, n), np.uint64)
    target, total = as_output(plan, "uint64_t[]"), len(buffer) if size is None else size
    if lib.wm_adaptive_check(buffer, total, code, block, n, target, plan.size, fault):
        raise _error(fault)
    return plan


def adaptive_mask(plan: NDArray[np.uint64], blocks: int) -> NDArray[np.uint8]:
    """Return a view of the mask in the plan of `blocks` blocks, shape (ceil(blocks / 4),)."""
    size = (blocks + 3) // 4
    begin = plan.size - (size + 7) // 8
    octets: NDArray[np.uint8] = plan[begin:].view(np.uint8)[:size]
    return octets


def decode_adaptive(
    data: Buffer,
    n: int,
    block_size: int,
    *,
    scale_type: str = "fp16",
    start: int = 0,
    stop: int | None = None,
    dtype: Any = np.float32,
    out: NDArray[Any] | None = None,
    threads: int = 1,
    plan: NDArray[np.uint64] | None = None,
) -> NDArray[Any]:
    """Decode elements `start` to `stop` of the `n` elements that `data` holds in blocks of different kinds.

    With a `plan` that `adaptive_plan` made of the same data, only the blocks of these elements are read, and not the
    mask, which may have changed since. The other parameters, the result and the errors are those of `decode_blocks`,
    with the errors of `adaptive_plan`. float16 blocks are decoded as by `f16_to_f32`.
    """
    if plan is None:
        plan = adaptive_plan(data, n, block_size, scale_type=scale_type)
    stop = n if stop is None else stop
    if out is not None and decode_array(data, n, 0, block_size, scale_type, start, stop, out, threads, plan):
        return out
    size, n, code = check_block_size(5, block_size), count_of(n), scale_code(scale_type)
    check_range(start, stop, n)
    buffer, known = as_input(data), as_items("uint64_t[]", plan)
    values = take_out(out, stop - start, dtype)
    half, target, most = values.dtype == np.float16, as_output(values, "uint8_t[]"), thread_count(threads)
    done = lib.wm_adaptive_decode(
        buffer, len(buffer), code, size, n, known, len(known), start, target, stop - start, half, most
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
