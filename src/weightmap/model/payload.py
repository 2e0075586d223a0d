"""Turns the tensors that a user gives into `Payload`s: row-major little-endian bytes, whatever the array's strides."""

from __future__ import annotations

import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.dtypes import SCHEMES, dtype_of
from weightmap.errors import EncodeError
from weightmap.formats import Payload
from weightmap.model.foreign import is_torch, torch_elements, torch_info
from weightmap.quant import PQShape
from weightmap.quant.blocks import QuantizedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

# Bytes copied at once of an array that must be reordered: they fit into the L2 cache.
PIECE = 1 << 20
# Arrays of at most this size are copied: `tobytes` is one call, a view of the bytes takes several.
_SMALL = 1 << 14
_BIG_ENDIAN_HOST = sys.byteorder == "big"


def pieces(array: NDArray[Any]) -> Iterable[bytes | memoryview]:
    """Return the elements of `array` in row-major order as pieces of little-endian bytes.

    A large contiguous array is one view. Any other is copied in pieces of about `PIECE` bytes, one at a time, so
    memory stays flat.
    """
    swapped = _swapped(array.dtype)
    if array.nbytes <= _SMALL and not swapped:
        return (array.tobytes(),)
    if array.flags.c_contiguous and not swapped:
        # The types of ml_dtypes have no buffer format, and a 0-d array has no length: view both as bytes.
        return (memoryview(array.reshape(-1).view(np.uint8)),)
    return _copies(array, PIECE)


def _copies(array: NDArray[Any], size: int) -> Iterator[memoryview]:
    if array.nbytes == 0:
        return
    if array.nbytes <= size or array.ndim == 0:
        little = (
            array.astype(array.dtype.newbyteorder("<"), order="C")
            if _swapped(array.dtype)
            else np.ascontiguousarray(array)
        )
        yield memoryview(little.reshape(-1).view(np.uint8))
        return
    row = array.nbytes // len(array)
    if row > size:
        for part in array:
            yield from _copies(part, size)
        return
    step = max(1, size // max(row, 1))
    for start in range(0, len(array), step):
        yield from _copies(array[start : start + step], max(size, step * row))


def _swapped(dtype: np.dtype[Any]) -> bool:
    return dtype.byteorder == ">" or (_BIG_ENDIAN_HOST and dtype.byteorder == "=")


def from_arrays(tensors: Mapping[str, Any]) -> list[Payload]:
    """Return the payload of each tensor of a mapping. Raises an `EncodeError` that names all that are no arrays."""
    payloads, reasons = [], []
    for name, value in tensors.items():
        if not isinstance(name, str):
            reasons.append(f"tensor {name!r}: its name is not a string")
            continue
        if isinstance(value, QuantizedTensor):
            payloads.append(from_quantized(name, value))
            continue
        if type(value) is not np.ndarray and is_torch(value):
            try:
                payloads.append(_from_torch(name, value))
            except EncodeError as error:
                reasons.append(f"tensor {name!r}: {error}")
            continue
        array = value if type(value) is np.ndarray else _asarray(value)
        dtype = None if array is None else dtype_of(array.dtype)
        if array is None or dtype is None or dtype.packed:
            what = f"type {type(value).__name__}" if array is None else f"dtype {array.dtype}"
            if dtype is not None:  # of ml_dtypes: files pack two of its elements into a byte, or four into three
                what += " with a byte for each element"
            reasons.append(f"tensor {name!r}: no format stores {what}")
        else:
            payloads.append(Payload(name, dtype, array.shape, array.nbytes, pieces, array))
    if reasons:
        msg = f"cannot write {'; '.join(reasons)}"
        raise EncodeError(msg)
    return payloads


def _from_torch(name: str, tensor: Any) -> Payload:
    """Return the payload of a torch tensor; one on another device is copied from there when it is written."""
    dtype, shape, nbytes = torch_info(tensor)
    if tensor.device.type == "cpu":
        return Payload(name, dtype, shape, nbytes, pieces, torch_elements(tensor))
    return Payload(name, dtype, shape, nbytes, lambda: pieces(torch_elements(tensor)))


def from_quantized(name: str, value: QuantizedTensor) -> Payload:
    """Return the payload of a quantised tensor: its bytes as they are."""
    if value.scheme == "pq":
        return _from_product(name, value)
    dtype, block_size, scale_type = SCHEMES[value.scheme], value.block_size, value.scale_type
    octets = np.ascontiguousarray(value.payload)
    chunks = functools.partial(pieces, octets)
    return Payload(name, dtype, value.shape, value.nbytes, chunks, block_size=block_size, scale_type=scale_type)


def _from_product(name: str, value: Any) -> Payload:
    """Return the payload of a product-quantised tensor: projection, codebooks, norms and codes."""
    arrays = [part for part in (value.projection, value.codebooks, value.norms, value.codes) if part is not None]
    quantized_len, n_centroids, _ = value.codebooks.shape
    return Payload(
        name,
        SCHEMES["pq"],
        value.shape,
        sum(part.nbytes for part in arrays),
        lambda: itertools.chain.from_iterable(map(pieces, arrays)),
        parts=PQShape(quantized_len, n_centroids, value.projection is not None, value.norms is not None),
    )


def _asarray(value: Any) -> NDArray[Any] | None:
    """Convert a scalar, a list, or an array of another library; return None where numpy cannot."""
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost silently
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if array.dtype.hasobject else array
