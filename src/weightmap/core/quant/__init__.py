"""Quantised tensors and their schemes."""

from __future__ import annotations

from typing import NamedTuple

# Elements decoded at once, whose codes and results together fit into the L2 cache.
PIECE = 1 << 18


class PQShape(NamedTuple):
    """The parts of a product-quantised tensor, besides its shape (rows, length)."""

    quantized_len: int  # codes of a row
    n_centroids: int  # of each codebook
    projection: bool  # whether it has one
    norms: bool  # whether it has them
