"""Reading a tensor as a dense array of another type: by pread, never through the mapping."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap import kernels
from weightmap.dtypes import dtype_named, numpy_dtype
from weightmap.errors import LimitError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import DTypeLike, NDArray

    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.options import Limits
    from weightmap.quant.blocks import QuantizedTensor

__all__ = ["Located", "check_out", "in_pieces", "read"]

_FLOAT32 = np.dtype(np.float32)
_WIDENED = ("float16", "bfloat16")
# Elements of float16 read at once: they, and the floats made of them, stay in the L2 cache.
_PIECE = 1 << 18
# What one thread reads and converts at least, in bytes of the file; starting a thread costs some ten microseconds.
_THREAD_LEAST = 4 << 20
# Parts of threads begin at multiples of this many elements, so that no two write to one line of memory.
_ALIGN = 64


class Located(NamedTuple):
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


def in_pieces(place: Located) -> Iterator[QuantizedTensor]:
    """Yield a quantised tensor as one-dimensional ones, one after another, so that memory stays flat.

    What has one scale, or one for each block, comes in pieces of about 2**18 elements; anything else at once.
    """
    from weightmap.quant.blocks import BITS, QuantizedTensor  # noqa: PLC0415 - opening a file needs none of it

    source, row, _ = place
    scheme, layout = row.dtype.name, place.layout()
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


def read(
    place: Located, dtype: DTypeLike, out: NDArray[Any] | None, threads: int | None, limits: Limits, what: str
) -> NDArray[Any]:
    """Do what `TensorFile.read` says."""
    source, row, _ = place
    source.check_unchanged()
    quantized = row.dtype.quantized
    stored = _FLOAT32 if quantized else numpy_dtype(row.dtype)
    if out is None:
        out = _new(row, dtype_named(dtype), limits, what)
    else:
        check_out(out, row.shape, what)
    plain = np.asarray(out)  # a matrix stays two-dimensional whatever it is asked for
    if quantized:
        place.decoder().dequantize(out=plain, threads=threads)
        return out
    flat = plain.reshape(-1) if plain.flags.carray else None  # what the kernels can write
    target = kernels.empty(plain.size, plain.dtype) if flat is None else flat
    _fill(source, row, stored, target, 1 if threads is None else threads)
    if flat is None:
        plain[...] = target.reshape(plain.shape)
    return out


def check_out(out: object, shape: tuple[int, ...], what: str) -> None:
    """Raise TypeError or ValueError when `out` is no array of this shape, that of `what`, or cannot be written."""
    array = kernels.given_array(out)
    if array.shape != shape:
        msg = f"out has shape {array.shape}, {what} has {shape}"
        raise ValueError(msg)
    if not array.flags.writeable:
        msg = "out is read-only"
        raise ValueError(msg)


def _new(row: Row, dtype: np.dtype[Any], limits: Limits, what: str) -> NDArray[Any]:
    """Return the array to be filled, its size within the limits."""
    limits.check("max_copy_bytes", max(row.nbytes, math.prod(row.shape) * dtype.itemsize), f"size of {what}")
    try:
        return kernels.empty(row.shape, dtype)
    except ValueError:
        # Of an empty tensor the file may declare dimensions that numpy can count in bytes, but not in larger elements.
        expected = f"one that numpy can have with elements of {dtype.itemsize} bytes"
        raise LimitError(f"shape of {what}", field="shape", actual=row.shape, expected=expected) from None


def _fill(source: Source, row: Row, stored: np.dtype[Any], target: NDArray[Any], threads: int) -> None:
    """Fill a flat array, the work divided among threads where there is enough of it."""
    count = min(threads, row.nbytes // _THREAD_LEAST, 64)
    if count < 2:
        _fill_part(source, row, stored, target, 0, len(target))
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 10 ms, when threads are asked for

    step = -(-len(target) // count // _ALIGN) * _ALIGN
    starts = range(0, len(target), step)
    with ThreadPoolExecutor(len(starts)) as pool:
        # The kernels and pread let go of the GIL; what is left in Python is a call or two a piece.
        parts = [
            pool.submit(_fill_part, source, row, stored, target, start, min(start + step, len(target)))
            for start in starts
        ]
        for part in parts:
            part.result()


def _fill_part(source: Source, row: Row, stored: np.dtype[Any], target: NDArray[Any], start: int, stop: int) -> None:
    """Read and convert elements `start` to `stop`."""
    size = stored.itemsize
    widened = row.dtype.name in _WIDENED and target.dtype == _FLOAT32
    for chunk in source.chunks(row.offset + start * size, (stop - start) * size, _PIECE * size):
        piece = target[start : start + len(chunk) // size]
        if widened:
            kernels.widen(row.dtype.name, chunk, piece)
        else:
            piece[...] = np.frombuffer(chunk, stored)
        start += len(piece)
