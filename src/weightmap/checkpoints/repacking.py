"""Blocks of GGUF and AMB of the integers and scales of checkpoints: nothing is decoded, nothing is rounded.

Blocks lie along the rows. A scale is repeated where a group of the checkpoint is longer than a block.

==============  =====================================================================================================
``q4_0 q8_0``   32 elements: a float16 scale, and codes; those of q4_0 have 8 added, as in checkpoints
``mxfp4``       32 elements: an exponent, and e2m1 codes
``nvfp4``       64 elements: four float8_e4m3fn scales, and e2m1 codes, for 16 elements each. The scale of the tensor,
                which multiplies, is a float32 tensor beside it
``int4_block``  of AMB, as many elements as a group: a float16 or float32 scale, and codes in two's complement
``int8``        of AMB: one scale of the tensor, and codes
==============  =====================================================================================================

Of 4 bits, element j of a half is the low nibble of byte j, the other half the high ones; int4_block has neighbours in a
byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_BLOCK, _QUARTER = 32, 16
# The schemes of ggml that hold integers of so many bits.
_BY_BITS = {4: "q4_0", 8: "q8_0"}
# All schemes that hold what checkpoints do.
REPACKED = frozenset({*_BY_BITS.values(), "mxfp4", "nvfp4", "int4_block", "int8"})
# Of AMB, the most elements of a block.
_LONGEST = 0xFFFF
# Scales of nvfp4 from here on are NaN, or have their sign.
_NOT_A_SCALE = 0x7F


class TargetTypes(NamedTuple):
    """What a target holds.

    Attributes
    ----------
    schemes : frozenset of str
    block_size : int or None
        Of int4_block, where only one will do.
    scale_type : str or None
        Of the schemes of AMB, where only one will do.
    takes : callable
        Says whether a tensor of a name is wanted.
    """

    schemes: frozenset[str] = frozenset()
    block_size: int | None = None
    scale_type: str | None = None
    takes: Callable[[str], bool] = bool


class Layout(NamedTuple):
    """A scheme that holds a parameter, elements of a block (0 for one scale of all), and type of scales.

    `whole` is the scale of an nvfp4 tensor.
    """

    scheme: str
    block_size: int
    scale_type: str
    whole: NDArray[np.float32] | None = None


_SCALES = {"fp16": np.float16, "fp32": np.float32}


def integers_fit(bits: int, columns: int, width: int, scales: NDArray[Any], target_types: TargetTypes) -> Layout | None:
    """Return the layout of integers with a scale for each `width` columns; None where the target has none."""
    exact = scales.astype(np.float32)
    if bits not in _BY_BITS or not columns or not bool(np.isfinite(exact).all()):
        return None
    with np.errstate(over="ignore"):
        halves = bool((exact.astype(np.float16).astype(np.float32) == exact).all())
    width = min(width, columns)
    scheme = _BY_BITS[bits]
    if scheme in target_types.schemes and halves and not columns % _BLOCK and (not width % _BLOCK or width == columns):
        return Layout(scheme, _BLOCK, "fp16")
    scale_type = target_types.scale_type or ("fp16" if halves else "fp32")
    if scale_type == "fp16" and not halves:
        return None
    if bits == 8:
        return Layout("int8", 0, scale_type) if "int8" in target_types.schemes and scales.size == 1 else None
    size = target_types.block_size or width
    fits = not (size % 2 or width % size or columns % size) and size <= _LONGEST
    return Layout("int4_block", size, scale_type) if fits and "int4_block" in target_types.schemes else None


def integer_blocks(layout: Layout, codes: NDArray[Any], scales: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Return the blocks of rows: unsigned codes of 4 bits, or signed ones of 8.

    Parameters
    ----------
    codes : ndarray of uint8 or int8, shape (rows, columns)
    scales : ndarray, shape (rows or 1, groups)
    width : int
        Columns of a group.

    Returns
    -------
    ndarray of uint8, shape (rows, bytes)
    """
    rows, columns = codes.shape
    if not layout.block_size:  # the scale is the head
        return codes.view(np.uint8)
    grouped = codes.reshape(rows, -1, layout.block_size)
    each = np.atleast_2d(scales)[:, np.arange(0, columns, layout.block_size) // width]
    stored = np.broadcast_to(each, grouped.shape[:2]).astype(_SCALES[layout.scale_type])
    if layout.scheme == "int4_block":
        packed = (grouped[..., ::2] | grouped[..., 1::2] << 4) ^ 0x88
    else:
        packed = _halves(grouped) if layout.scheme == "q4_0" else grouped.view(np.uint8)
    return np.concatenate([stored[..., None].view(np.uint8), packed.astype(np.uint8, copy=False)], -1).reshape(rows, -1)


def head(layout: Layout, scales: NDArray[Any]) -> bytes:
    """Return what lies before the codes of all rows."""
    return b"" if layout.block_size else scales.astype(_SCALES[layout.scale_type]).tobytes()


def exponents_fit(exponents: NDArray[Any]) -> Layout | None:
    """Return the layout of e2m1 codes with an exponent for each 32; None where one is NaN."""
    fits = not bool((exponents.view(np.uint8) == 0xFF).any())
    return Layout("mxfp4", _BLOCK, "e8m0") if fits else None


def floats_fit(columns: int, scales: NDArray[Any], whole: NDArray[Any], *, divides: bool) -> Layout | None:
    """Return the layout of e2m1 codes with float8 scales for each 16, and one of the tensor."""
    factor = whole.astype(np.float32).reshape(1)
    if divides:
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / factor
        # Only the reciprocal of a power of two is exact.
        if not np.isfinite(inverse[0]) or abs(np.frexp(factor[0])[0]) != 0.5 or inverse[0] * factor[0] != 1:
            return None
        factor = inverse
    fits = not columns % (4 * _QUARTER) and bool(np.isfinite(factor).all())
    return Layout("nvfp4", 4 * _QUARTER, "ue4m3", factor) if fits and _are_scales(scales) else None


def _are_scales(scales: NDArray[Any]) -> bool:
    return not bool((scales.view(np.uint8) >= _NOT_A_SCALE).any())


def float_blocks(layout: Layout, codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the blocks of mxfp4 or nvfp4 of rows of e2m1 codes."""
    rows = len(codes)
    if layout.scheme == "mxfp4":
        parts, packed = scales.reshape(rows, -1, 1), _halves(codes.reshape(rows, -1, _BLOCK))
    else:
        parts, packed = scales.reshape(rows, -1, 4), _halves(codes.reshape(rows, -1, 4, _QUARTER)).reshape(rows, -1, 32)
    return np.concatenate([parts, packed], -1).reshape(rows, -1)


def _halves(codes: NDArray[Any]) -> NDArray[np.uint8]:
    half = codes.shape[-1] // 2
    octets: NDArray[np.uint8] = (codes[..., :half] | codes[..., half:] << 4).astype(np.uint8)
    return octets
