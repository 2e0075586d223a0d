"""Reading a tensor as a dense array of another type: by pread, never through the mapping."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.dtypes import dtype_named, numpy_dtype
from weightmap.errors import LimitError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from weightmap.index.table import Row
    from weightmap.io.source import Source
    from weightmap.options import Limits
    from weightmap.quant.ref import TensorRef

__all__ = ["read"]

_FLOAT32 = np.dtype(np.float32)
_WIDENED = ("float16", "bfloat16")
# Elements of float16 read at once: they, and the floats made of them, stay in the L2 cache.
_PIECE = 1 << 18
# What one thread reads and converts at least, in bytes of the file; starting a thread costs some ten microseconds.
_THREAD_LEAST = 4 << 20
# Parts of threads begin at multiples of this many elements, so that no two write to one line of memory.
_ALIGN = 64


def read(
    place: TensorRef, dtype: DTypeLike, out: NDArray[Any] | None, threads: int | None, limits: Limits, what: str
) -> NDArray[Any]:
    """Do what `TensorFile.read` says."""
    source, row, _ = place
    source.check_unchanged()
    quantized = row.dtype.quantized
    stored = _FLOAT32 if quantized else numpy_dtype(row.dtype)
    if out is None:
        out = _new(row, dtype_named(dtype), limits, what)
    else:
        kernels.check_out(out, row.shape, what)
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
    widened = row.dtype.name in _WIDENED and target.dtype == _FLOAT32 and not row.dtype.swapped
    for chunk in source.chunks(row.offset + start * size, (stop - start) * size, _PIECE * size):
        piece = target[start : start + len(chunk) // size]
        if widened:
            kernels.widen(row.dtype.name, chunk, piece)
        else:
            piece[...] = np.frombuffer(chunk, stored)
        start += len(piece)
