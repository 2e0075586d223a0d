"""Tensors on their way from one file to another: copied, decoded or cast, piece by piece."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.dtypes import FLOATING, DType, numpy_dtype
from weightmap.formats import Payload
from weightmap.model.payload import from_quantized
from weightmap.quant.ref import in_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.quant.ref import TensorRef

__all__ = ["payload_of"]

# Elements of a quantised tensor that are decoded at once.
_PIECE = 1 << 18


def payload_of(name: str, place: TensorRef, wanted: DType | None) -> Payload:
    """Return a tensor to be written, of another floating-point type where it is `wanted` and the tensor has one."""
    source, row, _ = place
    if row.dtype.quantized:
        if wanted is None:
            return _as_quantized(name, place)
        size = math.prod(row.shape)
        return Payload(name, wanted, row.shape, size * wanted.bits // 8, _decoded, place, wanted)
    if wanted is None or row.dtype.name not in FLOATING or row.dtype is wanted:
        return Payload(name, row.dtype, row.shape, row.nbytes, source.chunks, row.offset, row.nbytes)
    nbytes = row.nbytes // (row.dtype.bits // 8) * (wanted.bits // 8)
    return Payload(name, wanted, row.shape, nbytes, _cast, source, row, wanted)


def _as_quantized(name: str, place: TensorRef) -> Payload:
    """Return a quantised tensor as it is. Its bytes are read when they are written."""
    source, row, _ = place
    layout = place.layout()
    if layout is None:  # product quantisation
        model = from_quantized(name, place.decoder())
        return Payload(name, model.dtype, model.shape, model.nbytes, _parts, name, place, parts=model.parts)
    start, block_size, scale_type = layout
    nbytes = row.nbytes - start
    args: tuple[Any, ...] = (_checked, place)
    if row.dtype.name != "adaptive":  # nothing has checked the mask of an adaptive tensor so far
        args = (source.chunks, row.offset + start, nbytes)
    return Payload(name, row.dtype, row.shape, nbytes, *args, block_size=block_size, scale_type=scale_type)


def _checked(place: TensorRef) -> Iterator[Any]:
    yield place.decoder().payload


def _parts(name: str, place: TensorRef) -> Iterator[Any]:
    yield from from_quantized(name, place.decoder()).chunks()


def _decoded(place: TensorRef, wanted: DType) -> Iterator[memoryview]:
    target = numpy_dtype(wanted)
    for tensor in in_pieces(place):
        for values in tensor.in_runs(_PIECE):
            with np.errstate(over="ignore", invalid="ignore"):
                yield memoryview(values.astype(target).view(np.uint8))


def _cast(source: Source, row: Row, wanted: DType) -> Iterator[memoryview]:
    stored, target = numpy_dtype(row.dtype), numpy_dtype(wanted)
    for chunk in source.chunks(row.offset, row.nbytes):
        with np.errstate(over="ignore", invalid="ignore"):
            yield memoryview(np.frombuffer(chunk, stored).astype(target).view(np.uint8))
