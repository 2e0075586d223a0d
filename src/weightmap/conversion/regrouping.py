"""Regroups quantised tensors for a format with other blocks: the same integers and scales, without decoding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weightmap import kernels
from weightmap.conversion.packing import nothing
from weightmap.dtypes import SCHEMES
from weightmap.errors import QuantError, counted
from weightmap.formats import Payload
from weightmap.quant.ggml import COUNTERPARTS, GGML_BLOCK, check_counterpart, regroup
from weightmap.quant.pieces import in_pieces
from weightmap.quant.schemes import BITS, BLOCKED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.quant import TensorRef

__all__ = ["Regrouper"]


class Regrouper:
    """Regroups quantised tensors into the blocks of a target, and reports them.

    Parameters
    ----------
    held : collection of str
        The schemes of the target.
    """

    def __init__(self, held: Collection[str]) -> None:
        self._held = held
        self._done: dict[str, int] = {}

    def wants(self, scheme: str) -> bool:
        """Whether the target lacks this scheme and has another one for the same integers and scales."""
        return scheme not in self._held and COUNTERPARTS.get(scheme) in self._held

    def payload(self, name: str, place: TensorRef, block_size: int, scale_type: str, *, trial: bool = False) -> Payload:
        """Return the payload of a tensor in the target's scheme.

        If its blocks or scales do not allow this, it keeps its scheme, which the writer refuses with the reason. A
        `trial` does not look at the scales.
        """
        row = place.row
        scheme, size = COUNTERPARTS[row.dtype.name], math.prod(row.shape)
        try:
            check_counterpart(row.dtype.name, row.shape, block_size)
            if not trial and (
                scheme == "int8" or scale_type == "fp32"
            ):  # it depends on the scales: look before a file is made
                for _ in _regrouped(name, place):
                    pass
        except QuantError as error:
            return Payload(name, row.dtype, row.shape, 0, nothing, name, place, refused=str(error))
        self._done[row.dtype.name] = self._done.get(row.dtype.name, 0) + 1
        into = GGML_BLOCK if scheme in BLOCKED else 0
        if scheme in BITS:
            nbytes = kernels.blocks_size(size, bits=BITS[scheme], block_size=into, scale_type="fp16")
        else:
            nbytes = kernels.ggml_size(size, scheme)
        made = _regrouped, name, place
        return Payload(name, SCHEMES[scheme], row.shape, nbytes, *made, block_size=into, scale_type="fp16")

    @property
    def notes(self) -> list[str]:
        """Lines about the tensors that got another scheme."""
        return [
            f"{counted(count, 'tensor')} of {scheme} became {COUNTERPARTS[scheme]}: "
            "the same integers and scales, nothing was decoded"
            for scheme, count in self._done.items()
        ]


def _regrouped(_: str, place: TensorRef) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a tensor in the other scheme, piece by piece."""
    first, scale = 0, None
    for piece in in_pieces(place) if math.prod(place.row.shape) else [place.decoder()]:
        made = regroup(piece, first=first, scale=scale)
        one_scale = made.scheme == "int8"
        yield made.payload[made.scales.nbytes :] if one_scale and first else made.payload
        first += piece.n_blocks
        scale = made.scales if one_scale else None
