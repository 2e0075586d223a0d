"""The bytes of quantised tensors: their header of four bytes, and the size of a payload."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, NamedTuple

from weightmap.errors import QuantError
from weightmap.formats.amb.layout import BY_BLOCKS, QUANT_HEADER, QUANT_TYPES, SCALE_SIZES, SCALE_TYPES
from weightmap.native import late
from weightmap.quant.blocks import QuantizedTensor
from weightmap.quant.schemes import BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.index.row import Row
    from weightmap.io.source import Source


class Quantization(NamedTuple):
    """The parameters of a quantised tensor."""

    start: int  # of the payload within the data: 4 behind a header, else 0
    block_size: int  # 0 for the schemes of a whole tensor
    scale_type: str  # "fp32" or "fp16"


def quantization(row: Row, head: bytes, bare: tuple[int, int] | None) -> Quantization:
    """Return how the tensor of `row` is quantised; `head` is the first bytes of its data, at most four.

    Raises `QuantError` when neither a header nor blocks without a header fit the data.
    """
    scheme, size = row.dtype.name, math.prod(row.shape)
    problem = "its data ends within its header"
    if len(head) >= QUANT_HEADER.size:
        quant_type, block_size, scale = QUANT_HEADER.unpack_from(head)
        if quant_type != QUANT_TYPES[scheme]:
            problem = f"quant_type is {quant_type}, expected {QUANT_TYPES[scheme]}"
        elif not _fits(scheme, block_size):
            problem = f"block_size is {block_size}"
        elif scale >= len(SCALE_TYPES):
            problem = f"scale_type is {scale}, expected 0 or 1"
        else:
            scale_type = SCALE_TYPES[scale]
            wanted = payload_size(scheme, size, block_size, scale_type)
            if wanted is None or QUANT_HEADER.size + wanted == row.nbytes:
                return Quantization(QUANT_HEADER.size, block_size, scale_type)
            problem = f"data_size is {row.nbytes}, expected {QUANT_HEADER.size + wanted}"
    if bare is not None and scheme in BY_BLOCKS and _fits(scheme, bare[0]):
        block_size, scale_type = bare[0], next(name for name, of in SCALE_SIZES.items() if of == bare[1])
        if payload_size(scheme, size, block_size, scale_type) == row.nbytes:
            return Quantization(0, block_size, scale_type)
    msg = f"quantised data of scheme {scheme}: {problem}"
    raise QuantError(msg, offset=row.offset)


def _fits(scheme: str, block_size: int) -> bool:
    if scheme == "adaptive" or scheme in BY_BLOCKS:
        return block_size > 0 and block_size % (2 if scheme == "int4_block" else 8) == 0
    return block_size == 0


def payload_size(scheme: str, size: int, block_size: int, scale_type: str) -> int | None:
    """Return the bytes that `size` elements take without a header; None for "adaptive", where the mask decides."""
    bits = BITS.get(scheme)
    if bits is None:
        return None
    return late.blocks_size(size, bits=bits, block_size=block_size, scale_type=scale_type)


def tensor_of(row: Row, octets: NDArray[np.uint8], bare: tuple[int, int] | None) -> QuantizedTensor:
    """Return the tensor over its bytes, `octets`, without a copy.

    The header is checked again on a copy: the file may have changed since it was opened.
    """
    how = quantization(row, octets[: QUANT_HEADER.size].tobytes(), bare)
    start, block_size, scale_type = how
    with _named(row, how):
        return QuantizedTensor(row.dtype.name, row.shape, octets[start:], block_size=block_size, scale_type=scale_type)


def glance(row: Row, source: Source, bare: tuple[int, int] | None) -> Quantization:
    """Return how the tensor of `row` is quantised, by reading only its header and mask.

    Raises the same `QuantError` as `tensor_of`.
    """
    how = quantization(row, source.pread(row.offset, min(QUANT_HEADER.size, row.nbytes)), bare)
    if row.dtype.name == "adaptive":
        start, block_size, scale_type = how
        count, size = math.prod(row.shape), row.nbytes - start
        mask = source.pread(row.offset + start, min(-(-count // (4 * block_size)), size))
        with _named(row, how):
            late.adaptive_plan(mask, count, block_size, scale_type=scale_type, size=size)
    return how


@contextlib.contextmanager
def _named(row: Row, how: Quantization) -> Iterator[None]:
    """Add the scheme and the offset of the tensor to an error."""
    try:
        yield
    except QuantError as error:
        error.what = f"quantised data of scheme {row.dtype.name}: {error.what}"
        error.offset = row.offset + how.start
        raise
