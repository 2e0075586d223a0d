"""Decodes quantised blocks on a GPU, by kernels of Triton, with the same bits as on the CPU.

Each program decodes `_BLOCK` elements; an element finds its block, the block's scale and its own code by bytes, because
blocks begin at any address. Neighbours come from the same lines of the cache.

Three rules keep the bits equal to csrc/quant/intblock.c and csrc/quant/ggml_blocks.h:

* A product and the sum after it are rounded separately. Compilers for GPUs would fuse them into one instruction that
  rounds once; launches with ``enable_fp_fusion=False`` forbid that.
* A NaN from a decoded code is 0x7FC00000; GPUs make 0x7FFFFFFF. A stored half keeps its sign and fraction.
* bfloat16 is rounded from the bits of float32, to nearest, ties to even. A NaN keeps its sign and the upper bits of its
  fraction, there and in float16, where GPUs would make it 0x7FFF.

Places are counted in 32 bits: a piece has at most `weightmap.device`'s 64 MiB, and so fewer bits of codes than that.
"""
# Triton compiles these functions: arguments have no Python types, and constants are upper case.
# ruff: noqa: ANN001, ANN202, N803, FBT003
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from weightmap.core.quant.schemes import BITS

if TYPE_CHECKING:
    from weightmap.device import Change

_BLOCK = tl.constexpr(1024)
_GGML = {
    "q4_0": (32, 18),
    "q8_0": (32, 34),
    "q4_k": (256, 144),
    "q6_k": (256, 210),
    "mxfp4": (32, 17),
    "nvfp4": (64, 36),
}
SCHEMES = frozenset({*BITS, *_GGML, "adaptive"})


def interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def _byte(data, at, mask):
    return tl.load(data + at, mask=mask, other=0).to(tl.int32)


@triton.jit
def _half_bits(data, at, mask):
    return _byte(data, at, mask) | (_byte(data, at + 1, mask) << 8)


@triton.jit
def _widened(half):
    """Make float32 from the 16 bits of a half; a NaN keeps its sign and fraction, and becomes quiet."""
    value = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    quiet = ((half & 0x8000) << 16) | 0x7FC00000 | ((half & 0x3FF) << 13)
    is_nan = (half & 0x7FFF) > 0x7C00
    return tl.where(is_nan, quiet, value.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def _scale(data, at, mask, WIDE: tl.constexpr):
    if WIDE:
        low = _half_bits(data, at, mask)
        return (low | (_half_bits(data, at + 2, mask) << 16)).to(tl.float32, bitcast=True)
    return _widened(_half_bits(data, at, mask))


@triton.jit
def _number(value):
    """Give every NaN the same bits."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _put(out, at, value, mask, KIND: tl.constexpr):
    """Store float32 values as such, or as the bits of float16 or bfloat16."""
    bits = value.to(tl.int32, bitcast=True)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if KIND == 0:
        tl.store(out + at, value, mask=mask)
    elif KIND == 1:
        half = value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
        nan = ((bits >> 16) & 0x8000) | 0x7E00 | ((bits >> 13) & 0x3FF)
        tl.store(out + at, tl.where(is_nan, nan, half).to(tl.int16), mask=mask)
    else:
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        tl.store(out + at, (tl.where(is_nan, bits | 0x400000, rounded) >> 16).to(tl.int16), mask=mask)


@triton.jit
def _code(data, codes, k, mask, BITS: tl.constexpr):
    """Return code k of the codes from a byte on, as a float."""
    if BITS == 8:
        q = _byte(data, codes + k, mask)
    else:
        bit = k * BITS
        at, shift = codes + (bit >> 3), bit & 7
        q = _byte(data, at, mask) >> shift
        if BITS == 5:  # a code may span two bytes; read the second only then
            two = mask & (shift > 3)
            q = q | (_byte(data, at + 1, two) << (8 - shift))
        q = q & ((1 << BITS) - 1)
    return ((q ^ (1 << (BITS - 1))) - (1 << (BITS - 1))).to(tl.float32)


@triton.jit
def _blocks(data, out, n, block_size, stride, BITS: tl.constexpr, WIDE: tl.constexpr, KIND: tl.constexpr):
    """Decode blocks of a scale and of codes, `stride` bytes each."""
    i = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    mask = i < n
    begin = i // block_size * stride
    value = _scale(data, begin, mask, WIDE) * _code(data, begin + (4 if WIDE else 2), i % block_size, mask, BITS)
    _put(out, i, _number(value), mask, KIND)


@triton.jit
def _adaptive(data, out, n, block_size, kinds, scales, codes, WIDE: tl.constexpr, KIND: tl.constexpr):
    """Decode blocks of different kinds; two tables have the places of their scales and codes."""
    i = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    mask = i < n
    block, k = i // block_size, i % block_size
    kind = tl.load(kinds + block, mask=mask, other=0)
    at = tl.load(codes + block, mask=mask, other=0)
    scale = _scale(data, tl.load(scales + block, mask=mask, other=0), mask & (kind < 2), WIDE)
    q = tl.where(kind == 0, _code(data, at, k, mask & (kind == 0), 4), _code(data, at, k, mask & (kind == 1), 5))
    half = _widened(_half_bits(data, at + 2 * k, mask & (kind == 2)))
    _put(out, i, tl.where(kind == 2, half, _number(scale * q)), mask, KIND)


@triton.jit
def _q4_0(data, out, n, KIND: tl.constexpr):
    i = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    mask = i < n
    begin, k = i // 32 * 18, i % 32
    q = (_byte(data, begin + 2 + k % 16, mask) >> (k // 16 * 4)) & 15
    _put(out, i, _number(_scale(data, begin, mask, False) * (q - 8).to(tl.float32)), mask, KIND)


@triton.jit
def _q8_0(data, out, n, KIND: tl.constexpr):
    i = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    mask = i < n
    begin = i // 32 * 34
    value = _scale(data, begin, mask, False) * _code(data, begin + 2, i % 32, mask, 8)
    _put(out, i, _number(value), mask, KIND)


@triton.jit
def _q4_k(data, out, n, KIND: tl.constexpr):
    i = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    mask = i < n
    begin, k = i // 256 * 144, i % 256
    # Scale and minimum of 32 elements have six bits each: the first four lie in one byte each, the others in two.
    t = k // 32
    first, late = begin + 4, t > 3
    a = _byte(data, first + t, mask)
    b = _byte(data, first + t + 4, mask)
    c = _byte(data, first + t - 4, mask & late)
    scale = tl.where(late, (b & 15) | ((c >> 6) << 4), a & 63).to(tl.float32)
    minimum = tl.where(late, (b >> 4) | ((a >> 6) << 4), b & 63).to(tl.float32)
    q = (_byte(data, begin + 16 + k // 64 * 32 + k % 32, mask) >> (k // 32 % 2 * 4)) & 15
    s = _scale(data, begin, mask, False) * scale
    x = -_scale(data, begin + 2, mask, False) * minimum
    _put(out, i, _number(s * q.to(tl.float32) + x), mask, KIND)


@triton.jit
def _q6_k(data, out, n, KIND: tl.constexpr):
    i = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    mask = i < n
    begin, e = i // 256 * 210, i % 256
    half, k, j = e // 128, e % 128 // 32, e % 32
    low = (_byte(data, begin + half * 64 + k % 2 * 32 + j, mask) >> (k // 2 * 4)) & 15
    high = (_byte(data, begin + 128 + half * 32 + j, mask) >> (2 * k)) & 3
    q = (low | (high << 4)) - 32
    s = _scale(data, begin + 208, mask, False) * _code(data, begin + 192, e // 16, mask, 8)
    _put(out, i, _number(s * q.to(tl.float32)), mask, KIND)


@triton.jit
def _e2m1(q):
    """Return twice the value of a code; of 8, 0."""
    size, fraction = (q & 7) >> 1, q & 1
    twice = tl.where(size == 0, fraction, (2 + fraction) << tl.maximum(size - 1, 0))
    return tl.where(q > 7, -twice, twice).to(tl.float32)


@triton.jit
def _mxfp4(data, out, n, KIND: tl.constexpr):
    i = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    mask = i < n
    begin, k = i // 32 * 17, i % 32
    e = _byte(data, begin, mask)
    # 2**(e - 128); the two smallest are subnormal.
    scale = tl.where(e < 2, 0x00200000 << tl.minimum(e, 1), (e - 1) << 23).to(tl.float32, bitcast=True)
    q = (_byte(data, begin + 1 + k % 16, mask) >> (k // 16 * 4)) & 15
    _put(out, i, scale * _e2m1(q), mask, KIND)


@triton.jit
def _nvfp4(data, out, n, KIND: tl.constexpr):
    i = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    mask = i < n
    begin, part, k = i // 64 * 36, i % 64 // 16, i % 16
    # Half of an E4M3 without a sign; 0x7F stands for 0.
    s = _byte(data, begin + part, mask)
    exponent, fraction = (s >> 3) & 15, s & 7
    normal = (((exponent + 119) << 23) | (fraction << 20)).to(tl.float32, bitcast=True)
    scale = tl.where(exponent == 0, fraction.to(tl.float32) * 0.0009765625, normal)
    q = (_byte(data, begin + 4 + part * 8 + k % 8, mask) >> (k // 8 * 4)) & 15
    _put(out, i, tl.where(s == 0x7F, 0.0, scale) * _e2m1(q), mask, KIND)


_KERNELS = {"q4_0": _q4_0, "q8_0": _q8_0, "q4_k": _q4_k, "q6_k": _q6_k, "mxfp4": _mxfp4, "nvfp4": _nvfp4}


def _offsets(data: Any, change: Change) -> tuple[Any, Any, Any]:
    """Return kind, place of the scale and place of the codes of each block of an adaptive tensor."""
    size, width = change.block_size, 4 if change.scale_type == "fp32" else 2
    blocks = -(-change.elements // size)
    mask = data[: -(-blocks // 4)].to(torch.int32)
    shifts = torch.arange(0, 8, 2, dtype=torch.int32, device=data.device)
    kinds = ((mask[:, None] >> shifts) & 3).reshape(-1)[:blocks]
    scaled = (kinds < 2).to(torch.int32) * width
    coded = (4 + (kinds == 1).to(torch.int32) + 12 * (kinds == 2).to(torch.int32)) * size // 8
    scales = torch.cumsum(scaled, 0, dtype=torch.int32) - scaled + len(mask)
    codes = torch.cumsum(coded, 0, dtype=torch.int32) - coded + (scales[-1] + scaled[-1])
    return kinds, scales, codes


def decode(data: Any, change: Change, out: Any) -> None:
    """Decode the bytes of a quantised tensor.

    Parameters
    ----------
    data : torch.Tensor
        Its bytes, as uint8.
    change : Change
    out : torch.Tensor
        One-dimensional, of float32, float16 or bfloat16.
    """
    kinds = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
    kind, n = kinds[out.dtype], change.elements
    target = out.view(torch.int16) if kind else out
    grid = (triton.cdiv(n, _BLOCK.value),)
    how = {"KIND": kind, "num_warps": 4, "enable_fp_fusion": False}
    if change.stored in _GGML:
        kernel = _KERNELS[change.stored]
        kernel[grid](data, target, n, **how)
        return
    wide = change.scale_type == "fp32"
    if change.stored == "adaptive":
        _adaptive[grid](data, target, n, change.block_size, *_offsets(data, change), WIDE=wide, **how)
        return
    bits, size = BITS[change.stored], change.block_size or n
    stride = (4 if wide else 2) + (size * bits + 7) // 8
    _blocks[grid](data, target, n, size, stride, BITS=bits, WIDE=wide, **how)
