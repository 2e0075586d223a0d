"""Quantised tensors of GGUF files: the block types of ggml.

A type cuts every row of a tensor into blocks of 32 to 256 elements that decode independently. Rows, and the experts of
a three-dimensional tensor, are therefore contiguous bytes. Schemes have the names of types in lower case: "q4_k".

==============================  ===========================================================================
schemes                         value of an element with code q
==============================  ===========================================================================
``q4_0 q5_0 q8_0``              d * q, q signed; d is the block's scale, a float16
``q4_1 q5_1``                   d * q + m, q unsigned; m is the block's minimum, a float16
``q2_k q4_k q5_k``              (d * s) * q - (m * t); s and t are small integers for 16 or 32 elements
``q3_k q6_k``                   (d * s) * q, q and s signed
``iq4_nl iq4_xs mxfp4 nvfp4``   d * table[q], or (d * s) * table[q]; a table of 16 integers for all blocks
``iq1 iq2 iq3``                 (d * s) * book[q]: four or eight elements are one entry of a book of points
``tq1_0 tq2_0``                 d * q, q of -1, 0 and 1
``q1_0 q2_0``                   d * q, q of -1 and 1; of -1, 0, 1 and 2
==============================  ===========================================================================

All arithmetic is in float32; values equal gguf-py's to the bit. (gguf-py 0.19 lacks q1_0 and q2_0.)
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.core.dtypes import GGML_SCHEMES
from weightmap.core.native import quantised
from weightmap.core.quant import PIECE
from weightmap.core.quant.blocks import QuantizedTensor, octets_of
from weightmap.core.quant.schemes import BITS, checked_shape
from weightmap.errors import QuantError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from weightmap.core.table.table import Row

# Position in a block of its float16 scale, if not 0; the float16 minimum, if any, follows it.
_SCALE_AT = {"q2_k": 80, "q3_k": 108, "q6_k": 208, "tq1_0": 52, "tq2_0": 64}
_WITH_MINIMUM = frozenset({"q4_1", "q5_1", "q2_k", "q4_k", "q5_k"})
# Schemes with other scales: their name, dtype, number and position in a block.
_OTHER_SCALES: dict[str, tuple[str, str, int, int]] = {
    "mxfp4": ("e8m0", "u1", 1, 0),
    "nvfp4": ("ue4m3", "u1", 4, 0),
    "iq1_m": ("fp16, in quarters", "<u2", 4, 48),
}


class GgmlTensor(QuantizedTensor):
    """A tensor of one of ggml's block types, decoded on demand.

    Parameters
    ----------
    scheme : str
        One of `GGML_SCHEMES`.
    shape : tuple of int
        The number of elements is a multiple of the block size; a block may reach into the next row.
    payload : ndarray of uint8, or bytes-like
        The blocks, one after another, at any alignment.

    Attributes
    ----------
    shape, ndim, size
        Of the tensor.
    scheme : str
    block_size : int
        Elements of a block.
    scale_type : str
        "fp16"; "e8m0" for mxfp4, "ue4m3" for nvfp4, "fp16, in quarters" for iq1_m.
    nbytes : int
        Bytes of the payload.

    Raises
    ------
    QuantError
        When scheme and shape need a payload of another size, or part of a block.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap.core.quant.ggml import GgmlTensor
    >>> block = np.float16(0.5).tobytes() + bytes([0x98] * 16)
    >>> q = GgmlTensor("q4_0", (1, 32), block)
    >>> q.scales, q[0, 15:17]
    (array([0.5], dtype=float16), array([0. , 0.5], dtype=float32))
    """

    __slots__ = ()

    def __init__(
        self, scheme: str, shape: tuple[int, ...], payload: NDArray[np.uint8] | bytes | bytearray | memoryview
    ) -> None:
        kind = quantised.GGML_TYPES.get(scheme)
        if kind is None:
            raise QuantError("scheme", field="type", actual=repr(scheme), expected=f"one of {', '.join(GGML_SCHEMES)}")
        self.scheme = scheme
        self.shape: tuple[int, ...] = checked_shape(shape)
        self.size: int = math.prod(self.shape)
        self.block_size: int = kind.block_size
        self.scale_type: str = _OTHER_SCALES[scheme][0] if scheme in _OTHER_SCALES else "fp16"
        _check_blocks(scheme, self.shape, self.size)
        self._octets = octets = octets_of(payload)
        expected = self.size // kind.block_size * kind.block_bytes
        if len(octets) != expected:
            raise QuantError(
                f"bytes of {scheme} {list(self.shape)}", field="data_size", actual=len(octets), expected=expected
            )

    def _described(self) -> str:
        return f"{list(self.shape)}, blocks of {self.block_size}"

    # ------------------------------------------------------------------------------------------------- its parts
    @property
    def blocks(self) -> NDArray[np.uint8]:
        """The blocks, uint8, shape (n_blocks, bytes of a block): a view."""
        return self._octets.reshape(-1, quantised.GGML_TYPES[self.scheme].block_bytes)

    def _part(self, at: int, dtype: str) -> NDArray[Any]:
        """Return the number at byte `at` of every block: a strided view."""
        blocks, kind = self.blocks, np.dtype(dtype)
        if not len(blocks):
            return np.empty(0, kind)
        return np.ndarray((len(blocks),), kind, self._octets, at, (blocks.shape[1],))

    @property
    def scales(self) -> NDArray[Any]:
        """The scales of the blocks, float16, shape (n_blocks,): a strided view.

        mxfp4 has uint8 exponents; nvfp4 has uint8 of shape (n_blocks, 4); iq1_m has uint16 of shape (n_blocks, 4), and
        each number holds a quarter of the scale in its upper four bits.
        """
        if self.scheme not in _OTHER_SCALES:
            return self._part(_SCALE_AT.get(self.scheme, 0), "<f2")
        _, dtype, count, at = _OTHER_SCALES[self.scheme]
        if count == 1:
            return self._part(at, dtype)
        width = np.dtype(dtype).itemsize
        return self.blocks[:, at : at + count * width].view(dtype)

    @property
    def minimums(self) -> NDArray[np.float16] | None:
        """The minimums of the blocks, float16, shape (n_blocks,): a strided view. None for schemes without them."""
        if self.scheme not in _WITH_MINIMUM:
            return None
        return self._part(_SCALE_AT.get(self.scheme, 0) + 2, "<f2")

    @property
    def codes(self) -> NDArray[Any]:
        """The blocks without `scales` and `minimums`, shape (n_blocks, bytes): a strided view.

        uint8; for q8_0 the codes themselves, as int8; for iq1_m whole blocks, since its scales lie among the codes.
        """
        blocks = self.blocks
        if self.scheme == "iq1_m":
            return blocks
        if self.scheme == "q8_0":
            return blocks[:, 2:].view(np.int8)
        if self.scheme in _SCALE_AT:
            return blocks[:, : _SCALE_AT[self.scheme]]
        if self.scheme in _OTHER_SCALES:
            _, dtype, count, at = _OTHER_SCALES[self.scheme]
            return blocks[:, at + count * np.dtype(dtype).itemsize :]
        return blocks[:, 4 if self.scheme in _WITH_MINIMUM else 2 :]

    # -------------------------------------------------------------------------------------------------- decoding
    def _check_scales(self) -> None:
        numbers = [self.scales, self.minimums]
        if self.scheme == "iq1_m":
            quarters = self.scales >> 12 << np.array([0, 4, 8, 12], np.uint16)
            numbers[0] = np.bitwise_or.reduce(quarters, axis=1).view(np.float16)
        for what, values in zip(("scale", "minimum"), numbers, strict=True):
            if values is not None and values.dtype == np.float16 and len(bad := np.flatnonzero(~np.isfinite(values))):
                block = int(bad[0])
                raise QuantError(f"{what} of block {block}", actual=values[block].item(), expected="a finite number")

    def _decode_to(self, start: int, stop: int, out: NDArray[Any], threads: int) -> None:
        quantised.decode_ggml(self._octets, self.size, self.scheme, start=start, stop=stop, out=out, threads=threads)

    def __getitem__(self, key: Any) -> Any:
        """Return what numpy returns for the decoded tensor, as float32; decode only the blocks needed.

        An integer, a slice, or a list or array of integers or truth values on the first axis selects rows. After an
        integer (an expert), the next axis may do so too. Any other key decodes the whole tensor.
        """
        if isinstance(key, tuple) and len(key) > 1 and self.ndim > 2 and isinstance(key[0], (int, np.integer)):
            inner = self.nbytes // self.shape[0] if self.shape[0] else 0
            first = range(self.shape[0])[key[0]] if -self.shape[0] <= key[0] < self.shape[0] else None
            whole = not math.prod(self.shape[1:]) % self.block_size
            if first is not None and whole and not isinstance(key[0], (bool, np.bool_)):
                octets = self._octets[first * inner : (first + 1) * inner]
                return GgmlTensor(self.scheme, self.shape[1:], octets)[key[1:]]
        return super().__getitem__(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return GgmlTensor, (self.scheme, self.shape, self._octets.tobytes())


# ---------------------------------------------------------------------------------------------------- quantisation
def quantize_ggml(array: ArrayLike, scheme: str, *, threads: int = 1) -> GgmlTensor:
    """Quantise an array to a block type of ggml.

    Parameters
    ----------
    array : array_like
        Real numbers, taken as float32; the last dimension is a multiple of the block size.
    scheme : str
        "q4_0", "q4_1", "q5_0", "q5_1" and "q8_0" produce gguf-py's bytes; "q2_k" to "q6_k", "iq4_nl" and "mxfp4" search
        for the scales of least squared error.
    threads : int
        At most this many threads share the work. The result does not depend on it.

    Returns
    -------
    GgmlTensor

    Raises
    ------
    QuantError
        For any other scheme, rows that do not consist of whole blocks, elements that are NaN or infinite, and input
        that is not an array of real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from weightmap.core.quant.ggml import quantize_ggml
    >>> q = quantize_ggml(np.linspace(-8, 7, 32).reshape(1, 32), "q8_0")
    >>> q.nbytes, q.scales
    (34, array([0.063], dtype=float16))
    """
    values = quantised.real_numbers(array)
    if scheme not in quantised.GGML_ENCODED:
        expected = f"one of {', '.join(quantised.GGML_ENCODED)}"
        raise QuantError("scheme to quantise to", field="type", actual=repr(scheme), expected=expected)
    _check_rows(scheme, values.shape)
    return GgmlTensor(scheme, values.shape, quantised.encode_ggml(values, scheme, threads=threads))


def _check_rows(scheme: str, shape: tuple[int, ...]) -> None:
    """Raise `QuantError` unless rows of this shape consist of whole blocks."""
    _check_blocks(scheme, shape, shape[-1] if shape else 1, "a last dimension that is ")


def _check_blocks(scheme: str, shape: tuple[int, ...], count: int, what: str = "elements: ") -> None:
    block_size = quantised.GGML_TYPES[scheme].block_size
    if count % block_size:
        expected = f"{what}a multiple of {block_size}"
        raise QuantError(f"shape of {scheme}", field="shape", actual=list(shape), expected=expected)


# ------------------------------------------------------------------------------------------------------ conversion
# Integers of 4, 5 and 8 bits with a float16 scale for each 32 can be rearranged into ggml's blocks without loss: ggml
# adds half of the range to codes of 4 and 5 bits, packs elements i and i + 16 into a byte, and keeps fifth bits apart.
COUNTERPARTS = {
    "int4": "q4_0",
    "int4_block": "q4_0",
    "int5": "q5_0",
    "int5_block": "q5_0",
    "int8": "q8_0",
    "q4_0": "int4_block",
    "q5_0": "int5_block",
    "q8_0": "int8",
}
GGML_BLOCK = 32


def check_counterpart(scheme: str, shape: tuple[int, ...], block_size: int) -> None:
    """Raise `QuantError` unless the counterpart (ggml's blocks, or integers and scales) can hold the same numbers."""
    same = COUNTERPARTS.get(scheme)
    if same is None:
        raise QuantError("scheme", actual=scheme, expected=f"one of {', '.join(COUNTERPARTS)}")
    if same in BITS:
        return
    _check_rows(same, shape)
    if block_size % GGML_BLOCK:
        raise QuantError("block size", actual=block_size, expected=f"a multiple of {GGML_BLOCK}, as of {same}")


def regroup(tensor: QuantizedTensor, *, first: int = 0, scale: NDArray[np.float16] | None = None) -> QuantizedTensor:
    """Return integers and scales as ggml's blocks, or blocks as integers and scales; nothing is decoded.

    int4 and int4_block become q4_0, int5 and int5_block become q5_0, int8 becomes q8_0. Back, q4_0 becomes int4_block
    and q5_0 int5_block, both with blocks of 32; q8_0 becomes int8, which has one scale for all. Values keep their bits.

    Parameters
    ----------
    tensor : QuantizedTensor
    first : int
        Number of the first block within the whole tensor, for messages: `tensor` may be a piece.
    scale : ndarray of float16, shape (1,), optional
        For q8_0: the scale that all blocks must have; by default the first block's.

    Raises
    ------
    QuantError
        For another scheme, and for q8_0 with different scales. Towards ggml's blocks, also if the last dimension or the
        block size is not a multiple of 32, or float16 cannot hold a float32 scale.
    """
    check_counterpart(tensor.scheme, tensor.shape, tensor.block_size)
    if isinstance(tensor, GgmlTensor):
        return _as_int8(tensor, first, scale) if tensor.scheme == "q8_0" else _as_blocks(tensor)
    return _as_ggml(tensor, first)


def _as_ggml(tensor: QuantizedTensor, first: int) -> GgmlTensor:
    scheme, bits, count = COUNTERPARTS[tensor.scheme], BITS[tensor.scheme], tensor.size // GGML_BLOCK
    with np.errstate(over="ignore"):
        scales = tensor.scales.astype(np.float16)
    lost = np.flatnonzero((scales != tensor.scales) & ~np.isnan(scales))
    if len(lost):
        block = int(lost[0])
        actual = tensor.scales[block].item()
        raise QuantError(f"scale of block {first + block}", actual=actual, expected="a value of float16")
    blocks = np.empty((count, quantised.GGML_TYPES[scheme].block_bytes), np.uint8)
    each = tensor.block_size // GGML_BLOCK if tensor.block_size else count
    blocks[:, :2] = np.repeat(scales, each)[:count, None].view(np.uint8)
    codes = np.ascontiguousarray(tensor.codes).reshape(-1).view(np.uint8)[: count * GGML_BLOCK * bits // 8]
    if bits == 8:
        blocks[:, 2:] = codes.reshape(count, GGML_BLOCK)
        return GgmlTensor(scheme, tensor.shape, blocks.reshape(-1))
    q = _unpacked(codes, bits, count) ^ np.uint8(1 << (bits - 1))
    if bits == 5:
        blocks[:, 2:6] = np.packbits(q >> 4, axis=1, bitorder="little")
    blocks[:, -16:] = (q[:, :16] & 15) | q[:, 16:] << 4
    return GgmlTensor(scheme, tensor.shape, blocks.reshape(-1))


def _as_int8(tensor: GgmlTensor, first: int, scale: NDArray[np.float16] | None) -> QuantizedTensor:
    scales = tensor.scales
    only = scale if scale is not None else scales[:1].copy() if len(scales) else np.zeros(1, np.float16)
    different = np.flatnonzero(scales.view(np.uint16) != only.view(np.uint16))
    if len(different):
        block = int(different[0])
        expected = f"{only[0].item()}, the scale of block 0: int8 has a single scale"
        raise QuantError(f"scale of block {first + block} of q8_0", actual=scales[block].item(), expected=expected)
    octets = np.concatenate([only.view(np.uint8), tensor.blocks[:, 2:].reshape(-1)])
    return QuantizedTensor("int8", tensor.shape, octets)


def _as_blocks(tensor: GgmlTensor) -> QuantizedTensor:
    scheme, blocks = COUNTERPARTS[tensor.scheme], tensor.blocks
    bits = BITS[scheme]
    q = np.concatenate([blocks[:, -16:] & 15, blocks[:, -16:] >> 4], axis=1)
    if bits == 5:
        q |= np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little") << 4
    packed = np.empty((len(blocks), 2 + GGML_BLOCK * bits // 8), np.uint8)
    packed[:, :2] = blocks[:, :2]
    packed[:, 2:] = _packed(q ^ np.uint8(1 << (bits - 1)), bits)
    return QuantizedTensor(scheme, tensor.shape, packed.reshape(-1), block_size=GGML_BLOCK)


def _unpacked(codes: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """Unpack codes to one a byte, with a row for each block."""
    if bits == 4:
        return np.stack([codes & 15, codes >> 4], axis=-1).reshape(count, GGML_BLOCK)
    bits_of_codes = np.unpackbits(codes, bitorder="little").reshape(-1, bits)
    return np.packbits(bits_of_codes, axis=1, bitorder="little").reshape(count, GGML_BLOCK)


def _packed(q: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes of one a byte, with a row for each block."""
    if bits == 4:
        return q[:, ::2] | q[:, 1::2] << np.uint8(4)
    bits_of_codes = np.unpackbits(q[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(bits_of_codes.reshape(len(q), GGML_BLOCK * bits), axis=1, bitorder="little")


def in_pieces(row: Row) -> Iterator[QuantizedTensor]:
    """Yield a quantised tensor as a sequence of one-dimensional tensors, so that memory stays flat.

    Integers with scales, and ggml's blocks, come in pieces of about 2**18 elements; other schemes in one piece.
    """
    source, scheme, layout = row.source, row.dtype.name, row.layout()
    if layout is not None and scheme in GGML_SCHEMES:
        yield from _in_blocks(row)
        return
    if layout is None or scheme not in BITS:
        yield row.decoder()
        return
    start, block_size, scale_type = layout
    bytes_of = partial(quantised.blocks_size, bits=BITS[scheme], block_size=block_size, scale_type=scale_type)
    size, at = math.prod(row.shape), row.offset + start
    # Repeat a single scale before the codes of each piece; blocks carry their own scales.
    scale = b"" if block_size else source.pread(at, bytes_of(0))
    at += len(scale)
    step = max(PIECE // block_size, 1) * block_size if block_size else PIECE
    for first in range(0, size, step):
        count = min(step, size - first)
        octets = source.pread(at, bytes_of(count) - len(scale))
        at += len(octets)
        yield QuantizedTensor(scheme, (count,), scale + octets, block_size=block_size, scale_type=scale_type)


def _in_blocks(row: Row) -> Iterator[QuantizedTensor]:
    """Yield a tensor of ggml's blocks; any run of blocks is a tensor by itself."""
    size, at = math.prod(row.shape), row.offset
    for first in range(0, size, PIECE):
        count = min(PIECE, size - first)
        octets = row.source.pread(at, quantised.ggml_size(count, row.dtype.name))
        at += len(octets)
        yield GgmlTensor(row.dtype.name, (count,), octets)
