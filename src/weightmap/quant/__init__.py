"""Quantised tensors and their schemes; `TensorRef`, a tensor's place in its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightmap.dtypes import numpy_dtype
from weightmap.errors import TensorFileError
from weightmap.lazy import Named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.quant.blocks import QuantizedTensor

__all__ = ["PQShape", "TensorRef"]

# Elements decoded at once: codes and results together fit into the L2 cache.
PIECE = 1 << 18


class PQShape(Named):
    """The parts of a product-quantised tensor, besides its shape (rows, length)."""

    __slots__ = ()

    quantized_len: int  # codes of a row
    n_centroids: int  # of each codebook
    projection: bool  # whether it has one
    norms: bool  # whether it has them


class TensorRef(Named):
    """The place of a tensor in its file, for callers that copy or convert bytes without making an array.

    Attributes
    ----------
    source : Source
    row : Row
    quantized : callable or None
        The format's `Content.quantized`, which makes a tensor of ``(row, octets)``; None if it has no schemes.
    """

    __slots__ = ()

    source: Source
    row: Row
    quantized: Callable[[Row, NDArray[np.uint8]], QuantizedTensor] | None

    @classmethod
    def to(
        cls, source: Source, row: Row, quantized: Callable[[Row, NDArray[np.uint8]], QuantizedTensor] | None
    ) -> TensorRef:
        """Return where a row lies; of one that is not row-major in the file, in a source of its bytes in that order."""
        placement = row.dtype.placement
        if placement is None or source is None:  # the shards of a model are counted without their sources
            return cls(source, row, quantized)
        derived = placement.derived(source, numpy_dtype(row.dtype), row.shape, row.offset, row.nbytes)
        return cls(derived, row._replace(dtype=row.dtype.element), None)

    def chunks(self, buffer: bytearray | None = None) -> Iterator[memoryview]:
        """Yield the bytes of a dense tensor, little-endian, in pieces; each is valid until the next one.

        Pieces are of the size of `buffer`, which many tensors may share, if there is one.
        """
        row = self.row
        if not row.dtype.swapped:
            if buffer is None:
                return self.source.chunks(row.offset, row.nbytes)
            return self.source.chunks(row.offset, row.nbytes, len(buffer), buffer)
        stored = numpy_dtype(row.dtype)
        pieces = self.source.chunks(row.offset, row.nbytes, PIECE * stored.itemsize)
        return (memoryview(np.frombuffer(piece, stored).byteswap().view(np.uint8)) for piece in pieces)

    def decoder(self) -> QuantizedTensor:
        """Read a quantised tensor into private memory."""
        assert self.quantized is not None  # noqa: S101 - a row with a scheme comes from a format with schemes
        row = self.row
        try:
            return self.quantized(row, np.frombuffer(self.source.pread(row.offset, row.nbytes), np.uint8))
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None

    def layout(self) -> tuple[int, int, str] | None:
        """Return the offset of a quantised tensor's payload in its data, its block size and its type of scales.

        None for schemes other than integers with scales.
        """
        find = getattr(self.quantized, "layout", None)
        if find is None:
            return None
        try:
            start, block_size, scale_type = find(self.row, self.source.pread(self.row.offset, min(4, self.row.nbytes)))
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None
        return start, block_size, scale_type

    def row_parts(self) -> list[tuple[int, int]] | None:
        """Return the parts of a tensor each of which has a share of every row, in order; None for other schemes.

        Each is its bytes, and the bytes of one row: 0 for a part that every row needs, such as codebooks.
        """
        find = getattr(self.quantized, "row_parts", None)
        return None if find is None else find()

    def storage(self) -> tuple[str, int, str, int]:
        """Return scheme, block size, type of scales and payload bytes of a quantised tensor.

        Reads and checks its header or mask; raises `QuantError` when that is malformed.
        """
        row, glance = self.row, getattr(self.quantized, "glance", None)
        if glance is None:
            return row.dtype.name, 0, "", row.nbytes
        try:
            start, block_size, scale_type = glance(row, self.source)
        except TensorFileError as error:
            raise error.located(path=self.source.name) from None
        return row.dtype.name, block_size, scale_type, row.nbytes - start
