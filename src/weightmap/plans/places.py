"""Finds the bytes of a quantised tensor that hold some of its elements: whole blocks, and its head.

The head, such as a mask, lies at the beginning of the tensor and is needed for every part. `Heads` reads it once for
many parts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weightmap.core.dtypes import GGML_SCHEMES
from weightmap.core.native import quantised
from weightmap.core.quant.schemes import BITS, SCALE, block_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row

# Begins and ends of bytes of tensors
Ranges: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64]]"
# Most bytes of heads to keep; a mask is a hundredth of its tensor.
_MAX_HEAD_BYTES = 16 << 20


class _Head:
    """The source of a tensor, whose first bytes are read once.

    Attributes
    ----------
    head : bytes
        The bytes read so far, from the first byte of the tensor on.
    """

    def __init__(self, source: Source, begin: int) -> None:
        self._source, self._begin = source, begin
        self.name = source.name
        self.head = b""

    def pread(self, offset: int, count: int) -> bytes:
        """Read as `Source.pread` does, and keep the bytes if they continue the head."""
        at, end = offset - self._begin, offset - self._begin + count
        if not 0 <= at <= len(self.head):
            return self._source.pread(offset, count)
        if end > len(self.head):
            self.head += self._source.pread(self._begin + len(self.head), end - len(self.head))
        return self.head[at:end]


class Heads:
    """The places of tensors by number; the first bytes of a quantised tensor are read once."""

    def __init__(self) -> None:
        self._refs: dict[int, Row] = {}
        # Kept bytes, without the last tensor, which may still grow.
        self._nbytes = 0
        self._last: tuple[Row, ...] = ()

    def of(self, number: int, ref: Row) -> Row:
        """Return the tensor `ref`, of this number, over its kept head."""
        if not ref.dtype.quantized:
            return ref
        ref_ = self._refs.get(number)
        if ref_ is None:
            self._nbytes += sum(len(_head_of(last)) for last in self._last)
            if self._nbytes > _MAX_HEAD_BYTES:
                self._refs.clear()
                self._nbytes = 0
            head: Any = _Head(ref.source, ref.offset)
            ref_ = self._refs[number] = ref._replace(source=head)
            self._last = (ref_,)
        return ref_

    def head(self, number: int, begin: int) -> bytes:
        """Return the bytes of a tensor read so far, from byte `begin` of its file on."""
        ref = self._refs.get(number)
        return b"" if ref is None or begin < ref.offset else _head_of(ref)[begin - ref.offset :]


def _head_of(ref: Row) -> bytes:
    source: Any = ref.source
    data: bytes = source.head
    return data


def places_of(row: Row, starts: NDArray[np.int64], length: int) -> Ranges:
    """Return starts and stops, in the file, of the bytes for decoding runs of elements, in any order, perhaps repeated.

    Parameters
    ----------
    row : Row
        Of a quantised tensor.
    starts : ndarray of int64
        The first element of each run in the flattened tensor.
    length : int
        Elements of each run.

    Notes
    -----
    This reads up to four bytes of the tensor, which describe its quantisation, and the mask of an adaptive tensor.

    Raises
    ------
    QuantError
        When the data does not fit its scheme.
    """
    scheme, parts = row.dtype.name, row.row_parts()
    if parts is not None:
        return _in_rows(row.offset, parts, *_blocks(starts, length, row.shape[-1]))
    layout = row.layout()
    if layout is None or scheme not in (*BITS, *GGML_SCHEMES, "adaptive"):
        return np.array([row.offset], np.int64), np.array([row.offset + row.nbytes], np.int64)
    begin, block_size, scale_type = layout
    at = row.offset + begin
    head = SCALE[scale_type].itemsize if scheme in BITS and not block_size else 0
    if scheme == "adaptive":
        places = _adaptive(row, at, block_size, scale_type, *_blocks(starts, length, block_size))
    elif head:  # one scale, then all codes
        bits = BITS[scheme]
        places = at + head + starts * bits // 8, at + head + ((starts + length) * bits + 7) // 8
    else:
        if scheme in GGML_SCHEMES:
            kind = quantised.GGML_TYPES[scheme]
            block_size, nbytes = kind.block_size, kind.block_bytes
        else:
            nbytes = block_bytes(scheme, block_size, scale_type)
        first, last = _blocks(starts, length, block_size)
        places = at + first * nbytes, at + last * nbytes
    if begin + head:
        places = np.append(places[0], row.offset), np.append(places[1], at + head)
    return places


def _in_rows(at: int, parts: list[tuple[int, int]], first: NDArray[np.int64], last: NDArray[np.int64]) -> Ranges:
    """Return the places of rows in a tensor whose parts follow one another: see `Row.row_parts`."""
    begins, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for nbytes, per_row in parts:
        if per_row and nbytes:
            begins.append(at + first * per_row)
            ends.append(at + last * per_row)
        elif nbytes and len(first):
            begins.append(np.array([at], np.int64))
            ends.append(np.array([at + nbytes], np.int64))
        at += nbytes
    return np.concatenate(begins), np.concatenate(ends)


def _blocks(starts: NDArray[np.int64], length: int, block_size: int) -> Ranges:
    """Return the first block of each run, and the block after its last one."""
    return starts // block_size, -(-(starts + length) // block_size)


def _adaptive(
    row: Row, at: int, block_size: int, scale_type: str, first: NDArray[np.int64], last: NDArray[np.int64]
) -> Ranges:
    """Return the places of the mask, and of the scales and codes of blocks, each after the earlier blocks'."""
    scales, codes = adaptive_edges(row, at, block_size, scale_type)
    begins = np.concatenate([[at], scales[first], codes[first]])
    ends = np.concatenate([scales[:1], scales[last], codes[last]])
    return begins, ends


def adaptive_edges(row: Row, at: int, block_size: int, scale_type: str) -> Ranges:
    """Return the beginnings of the scales and codes of an adaptive tensor's blocks, and at last their end.

    The mask lies from `at` in the file to the first scale. Raises `QuantError` if the mask is damaged.
    """
    row.storage()  # checks the mask
    count = -(-math.prod(row.shape) // block_size)
    mask = np.frombuffer(row.source.pread(at, -(-count // 4)), np.uint8)
    kinds = (mask[:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)).reshape(-1)[:count]
    scales = at + len(mask) + np.concatenate([[0], np.cumsum((kinds < 2) * SCALE[scale_type].itemsize)])
    codes = scales[-1] + np.concatenate([[0], np.cumsum(np.array([4, 5, 16, 0])[kinds] * block_size // 8)])
    return scales, codes
