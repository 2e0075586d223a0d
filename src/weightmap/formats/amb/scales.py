"""Checks of masks and scales of quantised tensors, piece by piece."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import QuantError
from weightmap.formats.amb.layout import BY_BLOCKS, SCALE_SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightmap.formats._verification import Verification
    from weightmap.formats.amb.quantized import Quantization
    from weightmap.index.row import Row

_PIECE = 1 << 20
# Codes in the mask; 3 is unused.
_INT4, _INT5, _FP16, _NONE = range(4)
# For each value of a byte of the mask: its number of blocks of each code.
_COUNTS = np.array([[sum(byte >> 2 * k & 3 == code for k in range(4)) for code in range(4)] for byte in range(256)])
_FEW = 5


def check_scales(run: Verification, label: str, row: Row, how: Quantization) -> None:
    """Read a quantised tensor's payload, check its mask if it has one, and warn of scales that are not finite."""
    width = SCALE_SIZES[how.scale_type]
    at, end = row.offset + how.start, row.offset + row.nbytes
    if row.dtype.name == "adaptive":
        bad = _check_adaptive(run, label, row, how, at, end)
    elif row.dtype.name in BY_BLOCKS:
        blocks = -(-math.prod(row.shape) // how.block_size)
        bad = _infinite(run, at, end, (end - at) // blocks, width) if blocks else []
    else:
        bad = _infinite(run, at, at + width, width, width)
        run.until(end)
    if bad:
        some = ", ".join(map(str, bad[:_FEW])) + (", ..." if len(bad) > _FEW else "")
        run.warn(f"{label}: NaN or infinite scale of block{'' if len(bad) == 1 else 's'} {some}")


def _infinite(run: Verification, at: int, end: int, step: int, width: int) -> list[int]:
    """Read [at, end), where every `step` bytes begin with a scale; return the numbers of scales that are not finite.

    The list stops growing once a message has enough of them.
    """
    bad: list[int] = []
    first = 0
    for piece in _pieces(run, at, end, step):
        scales = np.ascontiguousarray(piece.reshape(-1, step)[:, :width]).view(f"<f{width}")
        if len(bad) <= _FEW:
            bad += [first + i for i in np.flatnonzero(~np.isfinite(scales)).tolist()]
        first += len(scales)
    return bad


def _pieces(run: Verification, at: int, end: int, step: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes [at, end) in pieces of about a MiB that are multiples of `step`."""
    size = max(_PIECE // step, 1) * step
    for offset in range(at, end, size):
        yield np.frombuffer(run.read(offset, min(size, end - offset)), np.uint8)


def _check_adaptive(run: Verification, label: str, row: Row, how: Quantization, at: int, end: int) -> list[int]:
    """Check mask and size of adaptive data; return the numbers of blocks whose scales are not finite."""
    blocks, block_size = -(-math.prod(row.shape) // how.block_size), how.block_size
    scales_at = at + (blocks + 3) // 4
    counts: Any = np.zeros(4, np.int64)
    first = 0
    for piece in _pieces(run, at, scales_at, 1):
        here = np.bincount(piece, minlength=256) @ _COUNTS
        if here[_NONE]:
            block = first + int(np.flatnonzero(_codes(piece) == _NONE)[0])
            what = f"{label}: precision of block {block} in the mask"
            raise QuantError(what, field="mask", offset=at + block // 4, actual=_NONE, expected="0, 1 or 2")
        counts += here
        first += 4 * len(piece)
        if first > blocks and _codes(piece)[blocks - first :].any():
            what = f"{label}: the mask after the last block"
            raise QuantError(what, field="mask", offset=scales_at - 1, actual="not zero", expected="0")
    counts[_INT4] -= first - blocks
    width = SCALE_SIZES[how.scale_type]
    codes_at = scales_at + width * int(counts[_INT4] + counts[_INT5])
    sizes = (block_size // 2, 5 * block_size // 8, 2 * block_size)
    wanted = codes_at - row.offset + sum(int(count) * size for count, size in zip(counts, sizes, strict=False))
    if wanted != row.nbytes:
        what = f"{label}: data_size"
        expected = f"{wanted} by its mask"
        raise QuantError(what, field="data_size", offset=row.offset - 8, actual=row.nbytes, expected=expected)
    bad = _infinite(run, scales_at, codes_at, width, width)
    run.until(end)
    if not bad:
        return bad
    # float16 blocks have no scale, so scales and blocks are numbered differently.
    numbers: list[int] = []
    shown = np.array(bad[: _FEW + 1])  # enough for the message
    begin = before = 0
    for offset in range(at, scales_at, _PIECE):
        codes = _codes(np.frombuffer(run.source.pread(offset, min(_PIECE, scales_at - offset)), np.uint8))
        scaled = np.flatnonzero(codes != _FP16)
        here = shown[(shown >= before) & (shown < before + len(scaled))]
        numbers += (begin + scaled[here - before]).tolist()
        begin, before = begin + len(codes), before + len(scaled)
    return numbers


def _codes(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the two bits of each block, shape (4 * len(mask),)."""
    pairs: NDArray[np.uint8] = (mask[:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)).astype(np.uint8)
    return pairs.reshape(-1)
