"""The transfer of a tensor to a device: bytes of the file, in pieces, and their conversion there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes.geometry import ascending
from weightmap.core.dtypes import DTYPES, FLOATING, GGML_SCHEMES, numpy_dtype
from weightmap.core.native import quantised
from weightmap.core.quant.blocks import decode_chunks, decode_runs
from weightmap.core.quant.ggml import in_pieces
from weightmap.core.quant.schemes import BITS, SCALE, block_bytes
from weightmap.device._slots import Backend, Change
from weightmap.plans.places import adaptive_edges
from weightmap.plans.wants import Axis, axes_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source
    from weightmap.core.table.table import Row

# Alignment of tensors in device memory, and of pieces in a slot
ALIGN = 256
# Largest tensor in a batch, in bytes
MAX_BATCHED_BYTES = 1 << 12
# Bytes decoded or converted on the host at once
_HOST_BYTES = 1 << 20


class Piece(NamedTuple):
    """Bytes of a tensor sent together.

    Attributes
    ----------
    nbytes : int
    starts, sizes : ndarray of uint64
        Runs of the file, which lie back to back in the slot; none if there is `data`.
    data : ndarray of uint8, optional
        Bytes made on the host.
    places : ndarray of uint64, optional
        The offsets of the runs in the slot, from the first byte of the piece on; the piece is sent as a whole.
    names : sequence of str
        The tensor of each run, for a piece with places.
    at : int
        Offset of the result in the memory of the tensor.
    change : Change, optional
        The conversion on the device; a piece without conversion may be divided anywhere.
    """

    nbytes: int
    starts: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    at: int
    change: Change | None = None
    data: NDArray[np.uint8] | None = None
    places: NDArray[np.uint64] | None = None
    names: Sequence[str] = ()


class Transfer:
    """One tensor, or the part of it that an index selects.

    Parameters
    ----------
    backend : Backend
    name : str
    ref : Row
    key : index, optional
        None for the whole tensor.
    dtype : str, optional
        The type of quantised and floating-point tensors on the device; by default float32 and the file's type.

    Attributes
    ----------
    name, ref
        As given.
    source : Source
        The file.
    cut : bool
        Whether an index selects a part.
    begin, end : int
        The range of the bytes in the file.
    dtype : str
        On the device; "uint8" for types packed below the byte.
    shape : tuple of int
        For `Backend.tensor`; `final` is the shape of the result, without the axes of integer indices.
    nbytes : int
        On the device.

    Raises
    ------
    PlanError
        When the index does not fit.
    LimitError
        When the tensor is too large for its file: see `check_expansion`.
    UnsupportedError
        When the device lacks the type.
    """

    def __init__(self, backend: Backend, name: str, ref: Row, key: Any = None, dtype: str | None = None) -> None:
        row = self.ref = ref
        self.name: str = name
        self.source: Source | None = row.source
        stored = row.dtype
        self._stored: str = "float32" if stored.quantized else "uint8" if stored.packed else stored.name
        whole = (row.nbytes,) if stored.packed else row.shape
        self._axes: list[Axis] | None = None if key is None or key is Ellipsis else axes_of(key, whole, name)
        self.cut: bool = self._axes is not None
        sizes = whole if self._axes is None else tuple(axis.size for axis in self._axes)
        self.dtype: str = dtype if dtype is not None and self._stored in FLOATING else self._stored
        backend.check(self.dtype)
        self.shape: tuple[int, ...] = sizes
        self.count: int = math.prod(sizes)
        self.nbytes: int = self.count * DTYPES[self.dtype].bits // 8
        self._width = DTYPES[self.dtype].bits // 8  # of a converted element
        ref.source.check_size(f"tensor {quoted(name)}", self.nbytes)
        self._whole = whole
        self.begin: int = row.offset
        self.end: int = row.offset + row.nbytes
        self._decoded_there = stored.quantized and backend.decodes(stored.name)

    @property
    def divisible(self) -> bool:
        """Whether the stored bytes go to the device unchanged, so that any range of them may be sent."""
        row = self.ref
        changed = row.dtype.quantized or row.dtype.swapped or row.geometry is not None
        return not changed and self.dtype == self._stored

    def delivered(self, backend: Backend, buffer: Any, at: int) -> list[tuple[str, Any]]:
        """Return the name and the tensor, whose elements lie in device memory in the order of the file."""
        return [(self.name, self._indexed(backend, backend.tensor(buffer, at, self.dtype, self.shape)))]

    def _indexed(self, backend: Backend, tensor: Any) -> Any:
        if self._axes is None:
            return tensor
        axes = [axis for axis in self._axes if axis.stays]
        flipped = tuple(number for number, axis in enumerate(axes) if axis.step < 0)
        tensor = tensor.reshape(tuple(axis.size for axis in axes))
        return backend.flip(tensor, flipped) if flipped else tensor

    def pieces(self, limit: int) -> Iterator[Piece]:
        """Yield the pieces to send, in the order of the file; one with a `Change` has at most `limit` bytes."""
        if not self.nbytes:
            return
        row = self.ref
        if row.dtype.quantized:
            packed = self._packed(limit) if self._decoded_there else None
            yield from self._on_host(limit) if packed is None else packed
            return
        if row.dtype.swapped or row.geometry is not None:
            yield from self._on_host(limit)
            return
        itemsize = DTYPES[self._stored].bits // 8
        starts, length = self._runs()
        begins = (row.offset + starts * itemsize).astype(np.uint64)
        if self.dtype == self._stored:
            sizes = np.full(len(begins), length * itemsize, np.uint64)
            yield Piece(self.nbytes, begins, sizes, 0)
            return
        yield from self._converted(begins, length, itemsize, limit)

    def _runs(self) -> tuple[NDArray[np.int64], int]:
        """Return the starts of the runs of elements, and the length of a run."""
        if self._axes is None:
            return np.zeros(1, np.int64), self.count
        return runs_of(self._axes, self._whole, self.name)

    # ------------------------------------------------------------------------------------------- changed on the device
    def _decoded(
        self, count: int, starts: NDArray[np.uint64], sizes: NDArray[np.uint64], at: int, block_size: int, scale: str
    ) -> Piece:
        """Return a piece of `count` elements of a scheme, for elements `at` on of the result; `scale` is its type."""
        scheme = self.ref.dtype.name
        change = Change(
            scheme, quantized=True, dtype=self.dtype, elements=count, block_size=block_size, scale_type=scale
        )
        return Piece(int(sizes.sum()), starts, sizes, at * self._width, change)

    def _cast(self, count: int) -> Change:
        """Return the conversion of dense elements to the type on the device."""
        return Change(self._stored, quantized=False, dtype=self.dtype, elements=count)

    def _converted(self, begins: NDArray[np.uint64], length: int, itemsize: int, limit: int) -> Iterator[Piece]:
        """Yield the runs of a dense tensor, to become elements of another type."""
        done = 0
        for starts, sizes in _cut(begins, length * itemsize, itemsize, limit):
            nbytes = int(sizes.sum())
            yield Piece(nbytes, starts, sizes, done * self._width, self._cast(nbytes // itemsize))
            done += nbytes // itemsize

    def _packed(self, limit: int) -> Iterator[Piece] | None:
        """Return the pieces of a quantised tensor as stored; None if a piece is not a tensor, or too long."""
        scheme, layout = self.ref.dtype.name, self.ref.layout()
        if scheme in GGML_SCHEMES:
            kind = quantised.GGML_TYPES[scheme]
            return self._blocks("", kind.block_size, kind.block_bytes, 0, limit)
        if layout is None:
            return None
        begin, block_size, scale_type = layout
        if scheme == "adaptive":  # at least four blocks, for a byte of the mask; float16 blocks are the longest
            long = 4 * 2 * block_size + 1 > limit
            return None if self._axes is not None or long else self._adaptive(begin, block_size, scale_type, limit)
        if block_size:
            return self._blocks(scale_type, block_size, block_bytes(scheme, block_size, scale_type), begin, limit)
        return self._codes(scale_type, begin, limit)

    def _blocks(self, scale_type: str, block_size: int, nbytes: int, begin: int, limit: int) -> Iterator[Piece] | None:
        """Return pieces of whole blocks, if the runs consist of them: the tensor's last block may be shorter."""
        if nbytes > limit:
            return None
        starts, length = self._runs()
        total = math.prod(self._whole)
        if (starts % block_size).any() or (length % block_size and int(starts[-1]) + length != total):
            return None
        if length % block_size and len(starts) > 1:
            return None
        begins = (self.ref.offset + begin + starts // block_size * nbytes).astype(np.uint64)
        each = -(-length // block_size) * nbytes
        return self._in_blocks(scale_type, block_size, nbytes, _cut(begins, each, nbytes, limit))

    def _in_blocks(
        self,
        scale_type: str,
        block_size: int,
        nbytes: int,
        parts: Iterable[tuple[NDArray[np.uint64], NDArray[np.uint64]]],
    ) -> Iterator[Piece]:
        done, stated_size = 0, 0 if self.ref.dtype.name in GGML_SCHEMES else block_size
        for starts, sizes in parts:
            count = min(int(sizes.sum()) // nbytes * block_size, self.count - done)
            yield self._decoded(count, starts, sizes, done, stated_size, scale_type)
            done += count

    def _codes(self, scale_type: str, begin: int, limit: int) -> Iterator[Piece] | None:
        """Return pieces of codes that share one scale, which is sent with each piece."""
        starts, length = self._runs()
        bits, total = BITS[self.ref.dtype.name], math.prod(self._whole)
        last = int(starts[-1]) + length == total
        if (starts * bits % 8).any() or (length * bits % 8 and (len(starts) > 1 or not last)):
            return None
        return self._with_scale(scale_type, begin, starts * bits // 8, -(-length * bits // 8), limit)

    def _with_scale(
        self, scale_type: str, begin: int, offsets: NDArray[np.int64], each: int, limit: int
    ) -> Iterator[Piece]:
        bits, head, at = BITS[self.ref.dtype.name], SCALE[scale_type].itemsize, self.ref.offset + begin
        begins = (at + head + offsets).astype(np.uint64)
        done = 0
        for parts, lengths in _cut(begins, each, bits, limit - head):  # eight codes of b bits take b bytes
            count = min(int(lengths.sum()) * 8 // bits, self.count - done)
            starts = np.concatenate([np.array([at], np.uint64), parts])
            sizes = np.concatenate([np.array([head], np.uint64), lengths])
            yield self._decoded(count, starts, sizes, done, 0, scale_type)
            done += count

    def _adaptive(self, begin: int, block_size: int, scale_type: str, limit: int) -> Iterator[Piece]:
        """Yield runs of blocks of an adaptive tensor, each with its part of mask, scales and codes."""
        at = self.ref.offset + begin
        scales, codes = adaptive_edges(self.ref, at, block_size, scale_type)
        blocks = len(scales) - 1
        before = scales + codes + (np.arange(blocks + 1) + 3) // 4
        first = 0
        while first < blocks:
            # Whole bytes of the mask: at least four blocks, else as many as fit.
            last = max(int(np.searchsorted(before, before[first] + limit, "right")) - 1, first + 4)
            last = blocks if last >= blocks else last - last % 4
            places = [at + first // 4, int(scales[first]), int(codes[first])]
            ends = [at + -(-last // 4), int(scales[last]), int(codes[last])]
            starts = np.array(places, np.uint64)
            sizes = np.array(ends, np.uint64) - starts
            count = min(last * block_size, self.count) - first * block_size
            yield self._decoded(count, starts, sizes, first * block_size, block_size, scale_type)
            first = last

    # ----------------------------------------------------------------------------------------------- made on the host
    def _on_host(self, limit: int) -> Iterator[Piece]:
        """Yield elements decoded, inflated or reordered on the host; the device converts them if necessary."""
        done = 0
        for array in self._arrays():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            width = data.nbytes // max(array.size, 1)
            for first in range(0, len(data), limit // 16 * 16):  # no element is larger
                part = data[first : first + limit // 16 * 16]
                if self.dtype != self._stored:
                    count = len(part) // width
                    yield Piece(len(part), _NONE, _NONE, done * self._width, self._cast(count), part)
                    done += count
                else:
                    yield Piece(len(part), _NONE, _NONE, done, None, part)
                    done += len(part)

    def _arrays(self) -> Iterator[NDArray[Any]]:
        """Yield the elements in the order of the file."""
        ref, axes = self.ref, self._axes
        if ref.dtype.quantized:
            if axes is None:
                for tensor in in_pieces(ref):
                    yield from decode_chunks(tensor, _HOST_BYTES // 4)
                return
            yield decode_runs(ref.decoder(), *self._runs())
            return
        stored = np.dtype(np.uint8) if ref.dtype.packed else numpy_dtype(ref.dtype).newbyteorder("=")
        if axes is None:
            for chunk in ref.chunks():
                yield np.frombuffer(chunk, np.uint8).view(stored)
            return
        whole = np.frombuffer(b"".join(map(bytes, ref.chunks())), np.uint8).view(stored)
        yield whole.reshape(self._whole)[ascending(axes)]


class BatchTransfer:
    """Many small tensors, one after another in the file, each whole and as stored.

    Parameters
    ----------
    names : list of str
    rows : list of Row

    Attributes
    ----------
    name : str
        The first tensor's.
    begin, end, nbytes
        As for `Transfer`; on the device, each tensor begins at a multiple of `ALIGN`.
    """

    cut = divisible = False

    def __init__(self, names: list[str], rows: list[Row]) -> None:
        self.name: str = names[0]
        self._names, self._rows = names, rows
        self.source: Source | None = rows[0].source
        self._starts = np.array([row.offset for row in rows], np.uint64)
        self._sizes = np.array([row.nbytes for row in rows], np.uint64)
        ends = np.cumsum(-(-self._sizes.astype(np.int64) // ALIGN) * ALIGN)
        self._ends: NDArray[np.int64] = ends
        self._places: NDArray[np.int64] = np.concatenate([[0], ends[:-1]])
        self.nbytes: int = int(ends[-1])
        self.begin: int = int(self._starts.min())
        self.end: int = int((self._starts + self._sizes).max())

    @staticmethod
    def takes(row: Row, dtype: str | None) -> bool:
        """Whether a tensor may be in a batch, if its type becomes `dtype`."""
        kind = row.dtype
        if (
            not 0 < row.nbytes <= MAX_BATCHED_BYTES
            or kind.quantized
            or kind.packed
            or kind.swapped
            or row.geometry is not None
        ):
            return False
        return dtype is None or dtype == kind.name or kind.name not in FLOATING

    def pieces(self, limit: int) -> Iterator[Piece]:
        """Yield the tensors in pieces of as many as fit."""
        first = 0
        while first < len(self._names):
            at = int(self._places[first])
            last = max(int(np.searchsorted(self._ends, at + limit, "right")), first + 1)
            places = (self._places[first:last] - at).astype(np.uint64)
            nbytes = int(places[-1] + self._sizes[last - 1])
            runs = self._starts[first:last], self._sizes[first:last]
            yield Piece(nbytes, *runs, at, None, None, places, self._names[first:last])
            first = last

    def delivered(self, backend: Backend, buffer: Any, at: int) -> list[tuple[str, Any]]:
        """Return names and tensors, in the order of the file."""
        tensors = zip(self._names, self._places.tolist(), self._rows, strict=True)
        return [(name, backend.tensor(buffer, at + place, row.dtype.name, row.shape)) for name, place, row in tensors]


class ArrayTransfer:
    """An array, or a quantised tensor decoded on the host, to send to a device.

    Parameters
    ----------
    name : str
    array : ndarray or QuantizedTensor
    dtype : str, optional
        The type on the device.

    Attributes
    ----------
    name, dtype, shape, nbytes
        As for `Transfer`.
    """

    source = None
    begin = end = 0
    cut = divisible = False

    def __init__(self, name: str, array: Any, dtype: str | None = None) -> None:
        self.name: str = name
        self._array = array
        self._packed = not isinstance(array, np.ndarray)
        self._kind: np.dtype[Any] = array.dtype.newbyteorder("=")
        self.dtype: str = dtype or self._kind.name
        self.shape: tuple[int, ...] = array.shape
        self.nbytes: int = array.size * (self._kind.itemsize if dtype is None else DTYPES[dtype].bits // 8)

    def delivered(self, backend: Backend, buffer: Any, at: int) -> list[tuple[str, Any]]:
        """Return the name and the tensor."""
        return [(self.name, backend.tensor(buffer, at, self.dtype, self.shape))]

    def pieces(self, limit: int) -> Iterator[Piece]:
        """Yield the elements in row-major order, in new memory."""
        done, at, together = 0, 0, limit // self._kind.itemsize
        for part in decode_chunks(self._array, together) if self._packed else _runs(self._array, together):
            data = np.ascontiguousarray(part, self._kind).reshape(-1).view(np.uint8)
            if self.dtype == self._kind.name:
                yield Piece(len(data), _NONE, _NONE, done, None, data)
                done += len(data)
                continue
            change = Change(self._kind.name, quantized=False, dtype=self.dtype, elements=part.size)
            yield Piece(len(data), _NONE, _NONE, at, change, data)
            at += part.size * DTYPES[self.dtype].bits // 8


AnyTransfer = Transfer | BatchTransfer | ArrayTransfer


def _runs(array: Any, limit: int) -> Iterator[NDArray[Any]]:
    """Yield the elements of an array in row-major order, at most `limit` at a time."""
    if array.size <= limit:
        yield array
    elif array.size // len(array) > limit:
        for row in array:
            yield from _runs(row, limit)
    else:
        step = limit // (array.size // len(array))
        for start in range(0, len(array), step):
            yield array[start : start + step]


def _cut(
    begins: NDArray[np.uint64], each: int, unit: int, limit: int
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield runs of `each` bytes in groups of at most `limit` bytes; a longer run is divided at multiples of `unit`."""
    if each <= limit:
        together = limit // each
        for first in range(0, len(begins), together):
            starts = begins[first : first + together]
            yield starts, np.full(len(starts), each, np.uint64)
        return
    step = limit // unit * unit
    for begin in begins.tolist():
        for at in range(0, each, step):
            yield np.array([begin + at], np.uint64), np.array([min(step, each - at)], np.uint64)


_NONE = np.empty(0, np.uint64)
