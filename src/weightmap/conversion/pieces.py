"""`in_pieces`, which reads a quantised tensor from its file in pieces."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from weightmap.core.dtypes import GGML_SCHEMES
from weightmap.core.native import quantised
from weightmap.core.quant import PIECE
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.core.quant.ggml import GgmlTensor
from weightmap.core.quant.schemes import BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.core.table.table import Row


def in_pieces(row: Row) -> Iterator[QuantizedTensor]:
    """Yield a quantised tensor as a sequence of one-dimensional tensors, so that memory stays flat.

    Integers with scales, and ggml's blocks, come in pieces of about 2**18 elements; other schemes in one piece.
    """
    source, scheme, layout = row.source, row.dtype.name, row.layout()
    if layout is not None and scheme in GGML_SCHEMES:
        yield from _in_blocks(row)
        return
    if layout is None or scheme not in BITS:
        yield row.decoder()
        return
    start, block_size, scale_type = layout
    bytes_of = functools.partial(quantised.blocks_size, bits=BITS[scheme], block_size=block_size, scale_type=scale_type)
    size, at = math.prod(row.shape), row.offset + start
    # A single scale is repeated before the codes of each piece; blocks carry their own.
    scale = b"" if block_size else source.pread(at, bytes_of(0))
    at += len(scale)
    step = max(PIECE // block_size, 1) * block_size if block_size else PIECE
    for first in range(0, size, step):
        count = min(step, size - first)
        octets = source.pread(at, bytes_of(count) - len(scale))
        at += len(octets)
        yield QuantizedTensor(scheme, (count,), scale + octets, block_size=block_size, scale_type=scale_type)


def _in_blocks(row: Row) -> Iterator[QuantizedTensor]:
    """Yield a tensor of ggml's blocks; any run of blocks is a tensor by itself."""
    size, at = math.prod(row.shape), row.offset
    for first in range(0, size, PIECE):
        count = min(PIECE, size - first)
        octets = row.source.pread(at, quantised.ggml_size(count, row.dtype.name))
        at += len(octets)
        yield GgmlTensor(row.dtype.name, (count,), octets)
