"""Reading finalfusion: from the chunks of a file to its content."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.formats._base import Content
from weightmap.formats.finalfusion.layout import DTYPE_LIST, Block, Chunks
from weightmap.formats.finalfusion.metadata import TomlDocument, load_metadata
from weightmap.formats.finalfusion.storage import product_sizes
from weightmap.formats.finalfusion.vocabulary import vocabulary
from weightmap.formats.finalfusion.walk import walk
from weightmap.index.columns import ColumnTable
from weightmap.index.rules import ANY_GAP, Rules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.formats._verifying import Verification
    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.options import Options
    from weightmap.quant.blocks import QuantizedTensor

_NAMES = ("embeddings", "norms")


class _Rules(Rules):
    __slots__ = ()
    dtypes = DTYPE_LIST
    min_ndim, max_ndim = 1, 2
    # Headers of chunks lie between the tensors, and offsets count from the start of the file: the walk checks the gaps.
    max_gap = ANY_GAP


class _Decoder:
    """Decodes the product-quantised matrix of a file; `name` is that of the file."""

    def __init__(self, storage: Block, name: str) -> None:
        self._storage = storage
        self._name = name

    def __call__(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        del row  # a file has at most one such tensor
        return product_of(self._storage, octets, self._name)

    def row_parts(self) -> list[tuple[int, int]]:
        """Return the bytes of projection, codebooks, norms and codes, each with those of one row: see `TensorRef`."""
        product, shape = self._storage.product, self._storage.shape
        assert product is not None  # noqa: S101 - its dtype says so
        per_row = (0, 0, 4, product.quantized_len)
        return list(zip(product_sizes(shape, product), per_row, strict=True))


def parse_finalfusion(source: Source, head: bytes, options: Options) -> Content:
    """Walk the chunks and return the content. Data stays unread, and so do words if their length can be trusted."""
    warnings: list[str] = []
    chunks = walk(source, head, options, warnings)
    table = table_of(chunks, source.size)
    options.limits.check("max_tensors", len(table), "number of tensors")
    if options.checked:
        table.check()
    vocab, storage, metadata = chunks.vocab, chunks.storage, chunks.metadata

    def load() -> dict[str, Any]:
        return TomlDocument({}, "") if metadata is None else load_metadata(source.pread(*metadata), metadata[0])

    def check(run: Verification) -> None:
        from weightmap.formats.finalfusion.verify import verify  # noqa: PLC0415 - not needed to open

        verify(run, chunks)

    layout = "spec" if vocab is not None and vocab.spec else "upstream"
    content = Content(layout, table, load, check, warnings)
    content.has_metadata = metadata is not None
    if storage is not None and storage.product is not None:
        content.quantized = _Decoder(storage, source.name)
    if vocab is not None:
        content.vocab = vocabulary(source, vocab, storage, strict=options.strict)
    return content


def table_of(chunks: Chunks, size: int) -> ColumnTable:
    """Return the table of the one or two tensors in a file of `size` bytes."""
    parts = [(name, block) for name, block in zip(_NAMES, (chunks.storage, chunks.norms), strict=True) if block]
    names = [name.encode() for name, _ in parts]
    blocks = [block for _, block in parts]
    columns = kernels.Columns(
        b"".join(names),
        np.array([0, *accumulate(map(len, names))], np.uint32),
        np.array([block.code for block in blocks], np.uint8),
        np.array([dim for block in blocks for dim in block.shape], np.uint64),
        np.array([0, *accumulate(len(block.shape) for block in blocks)], np.uint32),
        np.array([block.data for block in blocks], np.uint64),
        np.array([block.end for block in blocks], np.uint64),
    )
    return ColumnTable(columns, _Rules(0, size), utf8=False)


def product_of(storage: Block, octets: NDArray[np.uint8], name: str) -> QuantizedTensor:
    """Return the product-quantised matrix over its bytes, from projection to codes; `name` is that of the file."""
    from weightmap.quant.product import ProductQuantized  # noqa: PLC0415 - only quantised matrices need it

    product = storage.product
    assert product is not None  # noqa: S101 - its dtype says so
    rows, width = storage.shape
    parts = []
    start = 0
    for nbytes in product_sizes(storage.shape, product):
        parts.append(octets[start : start + nbytes])
        start += nbytes
    projection, codebooks, norms, codes = parts
    subspace = width // product.quantized_len
    return ProductQuantized(
        codes.reshape(rows, product.quantized_len),
        codebooks.view("<f4").reshape(product.quantized_len, product.n_centroids, subspace),
        projection.view("<f4").reshape(width, width) if product.projection else None,
        norms.view("<f4") if product.norms else None,
        origin=(name, "finalfusion", storage.data + start - len(codes)),
    )
