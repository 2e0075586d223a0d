"""Where a tensor lies in its file, and how a quantised one is decoded from there, piece by piece."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightmap import kernels
from weightmap.dtypes import GGML_SCHEMES
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.quant.blocks import QuantizedTensor

__all__ = ["TensorRef", "in_pieces"]

# Elements decoded at once: they, and what they were decoded from, stay in the L2 cache.
_PIECE = 1 << 18


class TensorRef(NamedTuple):
    """Where a tensor lies: for what copies or converts bytes and makes no array of the mapping.

    Attributes
    ----------
    source : Source
    row : Row
    quantized : callable or None
        Of a quantised tensor: ``quantized(row, octets)``, as a format gives it in its `Content`.
    """

    source: Source
    row: Row
    quantized: Callable[[Row, NDArray[np.uint8]], QuantizedTensor] | None

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes of a dense tensor, little-endian, in pieces that are valid until the next one."""
        row = self.row
        pieces = self.source.chunks(row.offset, row.nbytes)
        if not row.dtype.swapped:
            return pieces
        words = f"u{row.dtype.bits // 8}"
        return (memoryview(np.frombuffer(piece, words).byteswap().view(np.uint8)) for piece in pieces)

    def decoder(self) -> QuantizedTensor:
        """Return a quantised tensor whose bytes are private, read from the file."""
        assert self.quantized is not None  # noqa: S101 - the dtype of the row has told
        row = self.row
        try:
            return self.quantized(row, np.frombuffer(self.source.pread(row.offset, row.nbytes), np.uint8))
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None

    def layout(self) -> tuple[int, int, str] | None:
        """Return where the payload of a quantised tensor begins in its data, its block size and type of scales.

        None for a tensor that is not of integers and scales.
        """
        find = getattr(self.quantized, "layout", None)
        if find is None:
            return None
        try:
            start, block_size, scale_type = find(self.row, self.source.pread(self.row.offset, min(4, self.row.nbytes)))
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None
        return start, block_size, scale_type

    def storage(self) -> tuple[str, int, str, int]:
        """Return how a quantised tensor is stored: its scheme, block size, type of scales, and bytes of its payload.

        What tells whether it is sound, a header or a mask, is read from the file. Raises `QuantError` when it is not.
        """
        row, glance = self.row, getattr(self.quantized, "glance", None)
        if glance is None:
            return row.dtype.name, 0, "", row.nbytes
        try:
            start, block_size, scale_type = glance(row, self.source)
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None
        return row.dtype.name, block_size, scale_type, row.nbytes - start


def in_pieces(place: TensorRef) -> Iterator[QuantizedTensor]:
    """Yield a quantised tensor as one-dimensional ones, one after another, so that memory stays flat.

    What has one scale, or one for each block, comes in pieces of about 2**18 elements; anything else at once.
    """
    from weightmap.quant.blocks import QuantizedTensor  # noqa: PLC0415 - opening a file needs none of it
    from weightmap.quant.schemes import BITS  # noqa: PLC0415 - as above

    source, row, _ = place
    scheme, layout = row.dtype.name, place.layout()
    if layout is not None and scheme in GGML_SCHEMES:
        yield from _in_blocks(place)
        return
    if layout is None or scheme not in BITS:
        yield place.decoder()
        return
    start, block_size, scale_type = layout
    bytes_of = functools.partial(kernels.blocks_size, bits=BITS[scheme], block_size=block_size, scale_type=scale_type)
    size, at = math.prod(row.shape), row.offset + start
    # The one scale goes before the codes of each piece; of blocks each has its own.
    scale = b"" if block_size else source.pread(at, bytes_of(0))
    at += len(scale)
    step = max(_PIECE // block_size, 1) * block_size if block_size else _PIECE
    for first in range(0, size, step):
        count = min(step, size - first)
        octets = source.pread(at, bytes_of(count) - len(scale))
        at += len(octets)
        yield QuantizedTensor(scheme, (count,), scale + octets, block_size=block_size, scale_type=scale_type)


def _in_blocks(place: TensorRef) -> Iterator[QuantizedTensor]:
    """Yield a tensor of ggml's blocks, of which any are a tensor by themselves."""
    from weightmap.quant.ggml import GgmlTensor  # noqa: PLC0415 - opening a file needs none of it

    source, row, _ = place
    size, at = math.prod(row.shape), row.offset
    for first in range(0, size, _PIECE):
        count = min(_PIECE, size - first)
        octets = source.pread(at, kernels.ggml_size(count, row.dtype.name))
        at += len(octets)
        yield GgmlTensor(row.dtype.name, (count,), octets)
