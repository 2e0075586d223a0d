"""Reads a tensor as a dense array of any dtype, by pread; converts small floats in the mapping if there is one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import counted
from weightmap.core.arguments import Limits, as_threads
from weightmap.core.dtypes import DTYPES, dtype_named, dtype_of, numpy_dtype, packed_values
from weightmap.core.native import access, scans
from weightmap.core.native.floats import bf16_to_f32, f16_to_f32
from weightmap.errors import LimitError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row

_FLOAT32 = np.dtype(np.float32)
_WIDENED = {"float16": f16_to_f32, "bfloat16": bf16_to_f32}
# Elements of float16 read at once, which stay in the L2 cache together with the resulting floats.
_PIECE = 1 << 18
# Bytes of a mapping converted after one check of the file: kernels write past the cache from some MiB on.
_MAPPED_PIECE = 8 << 20
# Least bytes of the file for a thread; starting one costs some ten microseconds.
_MIN_THREAD = 4 << 20
# Shares of threads begin at multiples of this many elements, so that no two write to one cache line.
_ALIGN = 64


def read(
    row: Row, dtype: DTypeLike | None, out: NDArray[Any] | None, threads: int | None, limits: Limits, what: str
) -> NDArray[Any]:
    """Read a tensor: see `TensorFile.read`. Errors call it `what`."""
    source = row.source
    threads = 1 if threads is None else as_threads(threads)
    source.check_unchanged()
    quantized = row.dtype.quantized
    unpacked = row.dtype.packed and not row.dtype.declared
    stored = _FLOAT32 if quantized or unpacked else numpy_dtype(row.dtype)
    source.check_size(what, math.prod(row.shape) * stored.itemsize)
    if stored.kind == "V" and row.dtype.name not in DTYPES:
        stored = _as_saved(stored, _target_dtype(dtype, stored) if out is None else out.dtype)
    if row.dtype.name not in DTYPES and not quantized:
        _check_numbers(stored, _target_dtype(dtype, stored) if out is None else out.dtype, what)
    if out is None:
        out = _new(row, _target_dtype(dtype, stored), limits, what)
    else:
        access.check_out(out, row.shape, what)
    plain = np.asarray(out)  # np.matrix stays two-dimensional however it is reshaped
    if quantized:
        row.decoder().dequantize(out=plain, threads=threads)
        return out
    flat = plain.reshape(-1) if plain.flags.carray else None  # kernels write to C-contiguous, aligned arrays only
    target = access.empty(plain.size, plain.dtype) if flat is None else flat
    _fill(row, stored, target, threads)
    if flat is None:
        plain[...] = target.reshape(plain.shape)
    return out


def _target_dtype(dtype: DTypeLike | None, stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the result; by default float32, or the stored type of floats and complex numbers beyond it."""
    if dtype is not None:
        return dtype_named(dtype)
    wider = stored.kind in "fc" and not np.can_cast(stored, _FLOAT32)
    return stored.newbyteorder("=") if wider else _FLOAT32


def _as_saved(stored: np.dtype[Any], target: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of elements that `numpy.save` calls void: `target`, if it is one of ml_dtypes of their size."""
    dtype = dtype_of(target)
    return target if dtype is not None and dtype.code is None and stored == f"V{target.itemsize}" else stored


def _check_numbers(stored: np.dtype[Any], target: np.dtype[Any], what: str) -> None:
    """Refuse elements that are not numbers, such as texts, dates and records, unless `target` has them."""
    if stored.kind not in "fc" and not np.can_cast(stored, target, "same_kind"):
        saved = "; dtype='bfloat16' reads them if they were saved as that" if stored == "V2" else ""
        msg = f"{what} has elements of {stored}, which do not become {target}; f[name] gives them{saved}"
        raise UnsupportedError(msg, field="dtype")


def _new(row: Row, dtype: np.dtype[Any], limits: Limits, what: str) -> NDArray[Any]:
    """Return a new array for the result, after a check of the limits."""
    limits.check("max_copy_bytes", max(row.nbytes, math.prod(row.shape) * dtype.itemsize), f"size of {what}")
    try:
        return access.empty(row.shape, dtype)
    except ValueError:
        # numpy may be able to count the dimensions of an empty tensor in bytes, but not in larger elements.
        expected = f"one that numpy can count with elements of {counted(dtype.itemsize, 'byte')}"
        raise LimitError(f"shape of {what}", field="shape", actual=row.shape, expected=expected) from None


def _fill(row: Row, stored: np.dtype[Any], target: NDArray[Any], threads: int) -> None:
    """Fill a flat array; threads share the work if there is enough."""
    count = min(threads, row.nbytes // _MIN_THREAD, 64)
    if count < 2:
        _fill_part(row, stored, target, 0, len(target))
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 10 ms, when threads are asked for

    step = -(-len(target) // count // _ALIGN) * _ALIGN
    starts = range(0, len(target), step)

    def fill(start: int) -> None:
        _fill_part(row, stored, target, start, min(start + step, len(target)))

    with ThreadPoolExecutor(len(starts)) as pool:
        # Kernels and pread release the GIL; Python makes only a call or two for each piece.
        for _ in access.in_threads(pool, fill, starts):
            pass


def _fill_part(row: Row, stored: np.dtype[Any], target: NDArray[Any], start: int, stop: int) -> None:
    """Read and convert elements `start` to `stop`."""
    if row.dtype.packed:
        _unpack_part(row, target, start, stop)
        return
    source, size = row.source, stored.itemsize
    offset, nbytes = row.offset + start * size, (stop - start) * size
    if stored == target.dtype and source.has_pages:
        source.read_into(offset, target[start:stop].view(np.uint8))
        return
    widened = row.dtype.name in _WIDENED and target.dtype == _FLOAT32 and not row.dtype.swapped
    table = None
    if row.dtype.name.startswith("float8") and target.dtype == _FLOAT32:
        table = np.arange(256, dtype=np.uint8).view(stored).astype(np.float32)
    mapped = source.mapped if (widened or table is not None) and source.mode == "mmap" else None
    chunks = source.chunks(offset, nbytes, _PIECE * size) if mapped is None else _pieces(source, mapped, offset, nbytes)
    for chunk in chunks:
        piece = target[start : start + len(chunk) // size]
        if widened:
            _WIDENED[row.dtype.name](memoryview(chunk), out=piece)
        elif table is not None:
            codes = np.frombuffer(chunk, np.uint8)[None]
            scans.look_up(codes, 8, table, np.ones(1, np.float32), piece[None], height=1, width=len(piece))
        else:
            piece[...] = np.frombuffer(chunk, stored)
        start += len(piece)


def _pieces(source: Source, mapped: NDArray[np.uint8], offset: int, nbytes: int) -> Iterator[NDArray[np.uint8]]:
    """Yield mapped bytes in pieces, each after a check that the file is unchanged."""
    for start in range(0, nbytes, _MAPPED_PIECE):
        source.check_unchanged()
        yield mapped[offset + start : offset + min(start + _MAPPED_PIECE, nbytes)]


def _unpack_part(row: Row, target: NDArray[Any], start: int, stop: int) -> None:
    """Read elements `start` to `stop` of a type that packs them, the first one in the lowest bits of its byte."""
    bits, values = row.dtype.bits, packed_values(row.dtype)
    begin, end = start * bits // 8, -(-stop * bits // 8)
    for chunk in row.source.chunks(row.offset + begin, end - begin, _PIECE * bits // 8):
        count = min(stop - start, len(chunk) * 8 // bits)
        each = np.unpackbits(np.frombuffer(chunk, np.uint8), count=count * bits, bitorder="little")
        codes = np.packbits(each.reshape(count, bits), axis=1, bitorder="little")
        target[start : start + count] = values[codes[:, 0]]
        start += count
