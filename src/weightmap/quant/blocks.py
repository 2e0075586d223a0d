"""Quantised tensors: integers of few bits, and scales.

===============  ==========================================================================================
scheme           what a tensor of n elements is, flattened in row-major order
===============  ==========================================================================================
``int8``         one scale, then n codes of 8 bits
``int4 int5``    one scale, then n codes of 4 or 5 bits
``int4_block``   ``[scale][codes]`` for each block of `block_size` elements; the last block is stored whole
``int5_block``   the same with codes of 5 bits
``adaptive``     ``[mask][scales][codes]``: each block is INT4, INT5 or FP16, as 2 bits of the mask say (0, 1, 2)
===============  ==========================================================================================

A value is ``scale * q``, one multiplication of float32; a scale is a float32 or a float16. Codes are two's complement,
back to back, the first one in the lowest bits of byte 0: of two int4 it is the low nibble, and eight int5 take five
bytes. All of it is little-endian and may lie at any alignment. In an adaptive tensor the mask is padded to a whole
byte, blocks of FP16 have no scale, and the codes of each block begin at a byte.
"""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.errors import QuantError
from weightmap.quant.base import Decodable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["BITS", "BLOCKED", "QuantizedTensor", "quantize"]

# Bits of a code in the schemes that have one kind of code.
BITS = {"int8": 8, "int4": 4, "int5": 5, "int4_block": 4, "int5_block": 5}
BLOCKED = ("int4_block", "int5_block")
_SCALE: dict[str, np.dtype[Any]] = {"fp16": np.dtype("<f2"), "fp32": np.dtype("<f4")}
# Numpy's, and more elements than any memory holds.
_MOST_DIMENSIONS, _MOST = 64, 1 << 56


class QuantizedTensor(Decodable):
    """A tensor of integers and scales, decoded when it is asked for.

    What it is made of are views of the bytes that it was made from: of a mapped file, nothing is copied, and the views
    keep the mapping alive.

    Parameters
    ----------
    scheme : str
        One of "int8", "int4", "int5", "int4_block", "int5_block", "adaptive".
    shape : tuple of int
    payload : ndarray of uint8, or bytes-like
        Scales and codes as the scheme lays them out.
    block_size : int
        Elements of a block: even for int4_block, a multiple of 8 for int5_block and adaptive; 0 in schemes without.
    scale_type : str
        "fp16" or "fp32".

    Attributes
    ----------
    shape, ndim, size
        Of the tensor.
    scheme, block_size, scale_type
        As given.
    nbytes : int
        Bytes of the payload.

    Raises
    ------
    QuantError
        When the payload is not what scheme, shape and block size need, or the shape is one that no array has.

    Examples
    --------
    >>> import weightmap as wm
    >>> q = wm.quantize(np.arange(64, dtype=np.float32).reshape(2, 32), "int4_block")
    >>> q.shape, q.scales.shape, q.codes.shape, q.nbytes
    ((2, 32), (2,), (2, 16), 36)
    >>> q[1].shape, np.asarray(q).dtype
    ((32,), dtype('float32'))
    """

    __slots__ = ("_octets", "_plan", "scale_type", "scheme")

    # Of an adaptive tensor: a copy of its mask, and what finds a block by it. See `kernels.adaptive_plan`.
    _plan: NDArray[np.uint64]

    def __init__(
        self,
        scheme: str,
        shape: tuple[int, ...],
        payload: NDArray[np.uint8] | bytes | bytearray | memoryview,
        *,
        block_size: int = 0,
        scale_type: str = "fp16",
    ) -> None:
        if scheme not in BITS and scheme != "adaptive":
            raise _no_scheme(scheme)
        if scheme in BITS and bool(block_size) != (scheme in BLOCKED):
            expected = "a positive number" if scheme in BLOCKED else "0: there is one scale"
            raise QuantError(f"block size of {scheme}", field="block_size", actual=block_size, expected=expected)
        self.scheme = scheme
        self.shape = _shape(shape)
        self.size = math.prod(self.shape)
        self.block_size = index(block_size)
        self.scale_type = scale_type
        octets = np.frombuffer(payload, np.uint8) if not isinstance(payload, np.ndarray) else payload
        if octets.dtype != np.uint8 or octets.ndim != 1 or not octets.flags.c_contiguous:
            msg = f"the payload is an array of {octets.dtype} {octets.shape}, expected contiguous bytes"
            raise TypeError(msg)
        self._octets: NDArray[np.uint8] = octets.view()
        self._octets.flags.writeable = False
        if scheme == "adaptive":
            self._plan = kernels.adaptive_plan(self._octets, self.size, self.block_size, scale_type=scale_type)
            return
        wanted = kernels.blocks_size(self.size, bits=BITS[scheme], block_size=self.block_size, scale_type=scale_type)
        if len(octets) != wanted:
            what = f"bytes of scales and codes of {scheme} {self._described()}"
            raise QuantError(what, field="data_size", actual=len(octets), expected=wanted)

    def _described(self) -> str:
        blocks = f", blocks of {self.block_size}" if self.block_size else ""
        return f"{list(self.shape)}{blocks}, {self.scale_type} scales"

    # ------------------------------------------------------------------------------------------------- its parts
    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of scales and codes, and of the mask of an adaptive tensor."""
        return len(self._octets)

    @property
    def payload(self) -> NDArray[np.uint8]:
        """All its bytes, shape (nbytes,): a view."""
        return self._octets

    @property
    def bits_per_weight(self) -> float:
        """Bits of the payload for each element; NaN for a tensor without elements."""
        return 8 * self.nbytes / self.size if self.size else math.nan

    @property
    def n_blocks(self) -> int:
        """Number of blocks; 1 for the schemes with one scale."""
        return -(-self.size // self.block_size) if self.block_size else 1

    @property
    def scales(self) -> NDArray[Any]:
        """The scales, float16 or float32: a view, strided where they lie between the codes.

        Shape (n_blocks,); one in the schemes with one scale; of an adaptive tensor, those of its INT4 and INT5 blocks.
        """
        kind, octets = _SCALE[self.scale_type], self._octets
        if self.scheme == "adaptive":
            scales, codes = self._adaptive_parts()
            return octets[scales:codes].view(kind)
        step = self._block_bytes() if self.block_size else kind.itemsize
        if not self.n_blocks:
            return np.empty(0, kind)
        return np.ndarray((self.n_blocks,), kind, octets, 0, (step,))

    @property
    def codes(self) -> NDArray[Any]:
        """The codes: a view.

        * int8: int8, the shape of the tensor;
        * int4, int5: uint8, packed, shape (bytes,);
        * int4_block, int5_block: uint8, packed, shape (n_blocks, bytes of a block), strided;
        * adaptive: uint8, shape (bytes,), the blocks one after another.
        """
        start, octets = _SCALE[self.scale_type].itemsize, self._octets
        if self.scheme == "adaptive":
            return octets[self._adaptive_parts()[1] :]
        if self.scheme == "int8":
            return octets[start:].view(np.int8).reshape(self.shape)
        if not self.block_size:
            return octets[start:]
        step = self._block_bytes()
        if not self.n_blocks:
            return np.empty((0, step - start), np.uint8)
        return np.ndarray((self.n_blocks, step - start), np.uint8, octets, start, (step, 1))

    @property
    def mask(self) -> NDArray[np.uint8] | None:
        """The mask of an adaptive tensor, packed, shape (ceil(n_blocks / 4),): a view. None in other schemes.

        Decoding goes by a copy, made with this object: a file whose mask is overwritten later decodes to other values,
        but each of them is made of bytes of the file.
        """
        return self._octets[: -(-self.n_blocks // 4)] if self.scheme == "adaptive" else None

    @property
    def kinds(self) -> NDArray[np.uint8] | None:
        """Of an adaptive tensor, what each block is: 0 INT4, 1 INT5, 2 FP16, shape (n_blocks,). None elsewhere."""
        if self.scheme != "adaptive":
            return None
        mask = kernels.adaptive_mask(self._plan, self.n_blocks)
        pairs: NDArray[np.uint8] = (mask[:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)).astype(np.uint8)
        return pairs.reshape(-1)[: self.n_blocks]

    def _block_bytes(self) -> int:
        return _SCALE[self.scale_type].itemsize + (BITS[self.scheme] * self.block_size + 7) // 8

    def _adaptive_parts(self) -> tuple[int, int]:
        """Return where the scales and where the codes of an adaptive tensor begin."""
        begin = -(-self.n_blocks // 4)
        return begin, begin + (self.n_blocks - int(self._plan[1])) * _SCALE[self.scale_type].itemsize

    # -------------------------------------------------------------------------------------------------- decoding
    def _check_scales(self) -> None:
        bad = np.flatnonzero(~np.isfinite(self.scales))
        if len(bad):
            block = int(bad[0])
            kinds = self.kinds
            if kinds is not None:  # scales are fewer than blocks there
                block = int(np.flatnonzero(kinds < 2)[block])
            raise QuantError(f"scale of block {block}", actual=self.scales[bad[0]].item(), expected="a finite number")

    def _decode_to(self, start: int, stop: int, out: NDArray[Any], threads: int) -> None:
        if self.scheme == "adaptive":
            kernels.decode_adaptive(
                self._octets,
                self.size,
                self.block_size,
                scale_type=self.scale_type,
                start=start,
                stop=stop,
                out=out,
                threads=threads,
                plan=self._plan,
            )
            return
        kernels.decode_blocks(
            self._octets,
            self.size,
            bits=BITS[self.scheme],
            block_size=self.block_size,
            scale_type=self.scale_type,
            start=start,
            stop=stop,
            out=out,
            threads=threads,
        )

    # ------------------------------------------------------------------------------------------------- as an object
    def __repr__(self) -> str:
        return f"<QuantizedTensor {self.scheme} {self._described()}, {self.nbytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.scheme, self.shape, self._octets.tobytes(), self.block_size, self.scale_type)


def _rebuild(scheme: str, shape: tuple[int, ...], payload: bytes, block_size: int, scale_type: str) -> QuantizedTensor:
    return QuantizedTensor(scheme, shape, payload, block_size=block_size, scale_type=scale_type)


def quantize(
    array: ArrayLike,
    scheme: str,
    *,
    block_size: int = 32,
    scale_type: str = "fp16",
    bits: float = 5.0,
    threads: int = 1,
) -> QuantizedTensor:
    """Quantise an array by one of the schemes of integers and scales: see `weightmap.quantize`, which knows all."""
    values = kernels.real_numbers(array)
    if scheme == "adaptive":
        payload = kernels.quantize_adaptive(values, block_size, scale_type=scale_type, bits=bits, threads=threads)
        return QuantizedTensor(scheme, values.shape, payload, block_size=block_size, scale_type=scale_type)
    if scheme not in BITS:
        raise _no_scheme(scheme)
    size = block_size if scheme in BLOCKED else 0
    if scheme in BLOCKED and size == 0:
        raise QuantError("block size", field="block_size", actual=0, expected="a positive number")
    payload = kernels.encode_blocks(values, bits=BITS[scheme], block_size=size, scale_type=scale_type, threads=threads)
    return QuantizedTensor(scheme, values.shape, payload, block_size=size, scale_type=scale_type)


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape whose values numpy can hold in a type of any size, also where there are no elements."""
    dims = tuple(map(index, shape))
    if min(dims, default=0) < 0 or len(dims) > _MOST_DIMENSIONS or math.prod(dim or 1 for dim in dims) > _MOST:
        expected = f"up to {_MOST_DIMENSIONS} dimensions, none negative, with a product of those but 0 up to 2**56"
        raise QuantError("shape", field="shape", actual=list(dims), expected=expected)
    return dims


def _no_scheme(scheme: object) -> QuantError:
    expected = f"one of {', '.join([*BITS, 'adaptive'])}"
    return QuantError("scheme", field="quant_type", actual=repr(scheme), expected=expected)
