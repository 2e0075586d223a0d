"""`QuantizedTensor`: low-bit integers and their scales, decoded on demand. quant/schemes.py describes its bytes."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from weightmap.core.arguments import as_threads
from weightmap.core.dtypes import dtype_named
from weightmap.core.native import access, quantised
from weightmap.core.quant.schemes import BITS, BLOCKED, SCALE, block_bytes, checked_shape, groups, no_scheme, selected
from weightmap.errors import QuantError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

# Elements decoded to a buffer at once, for a type that kernels do not write: 1 MiB of float32.
_PIECE = 1 << 18
# Elements of a group of rows in a scheme without blocks.
_GROUP = 64


def octets_of(payload: NDArray[np.uint8] | bytes | bytearray | memoryview) -> NDArray[np.uint8]:
    """Return a read-only view of the bytes of a quantised tensor. Raises TypeError for an array of other types."""
    octets = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, np.uint8)
    if octets.dtype != np.uint8 or octets.ndim != 1 or not octets.flags.c_contiguous:
        raise TypeError(f"the payload is an array of {octets.dtype} {octets.shape}, expected contiguous bytes")
    view: NDArray[np.uint8] = octets.view()
    view.flags.writeable = False
    return view


class QuantizedTensor:
    """A quantised tensor: codes and scales that decode on demand, indexed like an array.

    Its parts are views of its bytes: nothing of a mapped file is copied, and the views keep the mapping alive.
    `weightmap.open` returns a `QuantizedTensor` for each quantised tensor of a file, whatever its kind:

    ================  ==============================================  ==============================================
    files             schemes                                         parts
    ================  ==============================================  ==============================================
    AMB               "int8", "int4", "int5", "int4_block",           `scales`, `codes`; "adaptive" also has `mask`
                      "int5_block", "adaptive"                        and `kinds`
    GGUF              the block types of ggml: "q4_0", "q4_k",        `blocks`, `scales`, `codes`; some types also have
                      "iq4_xs", "mxfp4" ...                           `minimums`
    checkpoints       from `TensorFile.weights`: "awq gemm",          `pieces`, `scales`, `codes`
                      "gptq 4 bits", "fp8 blocks" ...
    finalfusion       "pq", product quantisation of a matrix          `codes`, `codebooks`, `projection`, `norms`
    ================  ==============================================  ==============================================

    `dequantize` and indexing return dense arrays. numpy's functions, and arrays in an expression, decode the tensor:
    ``np.add(q, 1)``, ``array @ q``, ``q @ array``. ``q + 1``, ``q.T`` and ``q.astype`` do not exist: decode it first.

    Parameters
    ----------
    scheme : str
        A scheme of AMB. Schemes of GGUF and finalfusion have their own classes with this interface.
    shape : tuple of int
    payload : ndarray of uint8, or bytes-like
        Scales and codes as the scheme lays them out.
    block_size : int
        Elements of a block: even for int4_block, a multiple of 8 for int5_block and adaptive; 0 without blocks.
    scale_type : str
        "fp16" or "fp32".

    Attributes
    ----------
    shape, ndim, size
        Of the tensor.
    scheme, block_size, scale_type
        As given.
    dtype : numpy.dtype
        The default dtype of `dequantize`: float32.
    nbytes : int
        Bytes of the payload.

    Raises
    ------
    QuantError
        When scheme, shape and block size need another payload, or no array can have the shape.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> q = wm.quantize(np.arange(64, dtype=np.float32).reshape(2, 32), "int4_block")
    >>> q.shape, q.scales.shape, q.codes.shape, q.nbytes
    ((2, 32), (2,), (2, 16), 36)
    >>> q[1].shape, np.asarray(q).dtype
    ((32,), dtype('float32'))
    """

    __slots__ = ("__weakref__", "_octets", "_plan", "block_size", "scale_type", "scheme", "shape", "size")

    # Types that `_decode_to` writes; any other type takes a buffer of float32.
    _direct: ClassVar[tuple[np.dtype[Any], ...]] = (np.dtype(np.float32), np.dtype(np.float16))

    shape: tuple[int, ...]
    size: int
    block_size: int
    _octets: NDArray[np.uint8]
    # For an adaptive tensor: a copy of its mask with an index of its blocks. See `quantised.adaptive_plan`.
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
            raise no_scheme(scheme)
        if scheme in BITS and bool(block_size) != (scheme in BLOCKED):
            expected = "a positive number" if scheme in BLOCKED else "0: there is one scale"
            raise QuantError(f"block size of {scheme}", field="block_size", actual=block_size, expected=expected)
        self.scheme: str = scheme
        self.shape = checked_shape(shape)
        self.size = math.prod(self.shape)
        self.block_size = index(block_size)
        self.scale_type: str = scale_type
        self._octets = octets = octets_of(payload)
        if scheme == "adaptive":
            self._plan = quantised.adaptive_plan(self._octets, self.size, self.block_size, scale_type=scale_type)
            return
        nbytes = quantised.blocks_size(self.size, bits=BITS[scheme], block_size=self.block_size, scale_type=scale_type)
        if len(octets) != nbytes:
            what = f"bytes of scales and codes of {scheme} {self._described()}"
            raise QuantError(what, field="data_size", actual=len(octets), expected=nbytes)

    def _described(self) -> str:
        blocks = f", blocks of {self.block_size}" if self.block_size else ""
        return f"{list(self.shape)}{blocks}, {self.scale_type} scales"

    def __getattr__(self, name: str) -> NoReturn:
        attribute = getattr(type(self), name, None)
        if isinstance(attribute, property):  # the property's own AttributeError says more
            attribute.__get__(self)
        cure = f": decode it first, dequantize().{name}" if hasattr(np.ndarray, name) else ""
        raise AttributeError(f"a QuantizedTensor has no {name!r}{cure}", name=name, obj=self)

    # ------------------------------------------------------------------------------------------------- its parts
    @property
    def dtype(self) -> np.dtype[Any]:
        """The default dtype of `dequantize`."""
        return np.dtype(np.float32)

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
    def pieces(self) -> dict[str, NDArray[Any]]:
        """The stored tensors that make up the parameter, by name; empty unless it comes from `TensorFile.weights`."""
        return {}

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
        """The scales, float16 or float32: a view, strided if they lie between the codes.

        Shape (n_blocks,); (1,) in schemes with one scale; an adaptive tensor has scales for its INT4 and INT5 blocks.
        """
        kind, octets = SCALE[self.scale_type], self._octets
        if self.scheme == "adaptive":
            scales, codes = self._adaptive_parts()
            return octets[scales:codes].view(kind)
        step = block_bytes(self.scheme, self.block_size, self.scale_type) if self.block_size else kind.itemsize
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
        start, octets = SCALE[self.scale_type].itemsize, self._octets
        if self.scheme == "adaptive":
            return octets[self._adaptive_parts()[1] :]
        if self.scheme == "int8":
            return octets[start:].view(np.int8).reshape(self.shape)
        if not self.block_size:
            return octets[start:]
        step = block_bytes(self.scheme, self.block_size, self.scale_type)
        if not self.n_blocks:
            return np.empty((0, step - start), np.uint8)
        return np.ndarray((self.n_blocks, step - start), np.uint8, octets, start, (step, 1))

    @property
    def mask(self) -> NDArray[np.uint8] | None:
        """The mask of an adaptive tensor, packed, shape (ceil(n_blocks / 4),): a view. None in other schemes.

        Decoding uses a copy made with this object: overwriting the mask in the file changes values, but never makes a
        read leave the data.
        """
        return self._octets[: -(-self.n_blocks // 4)] if self.scheme == "adaptive" else None

    @property
    def kinds(self) -> NDArray[np.uint8] | None:
        """The kind of each block of an adaptive tensor: 0 INT4, 1 INT5, 2 FP16; shape (n_blocks,). None elsewhere."""
        if self.scheme != "adaptive":
            return None
        mask = quantised.adaptive_mask(self._plan, self.n_blocks)
        pairs: NDArray[np.uint8] = (mask[:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)).astype(np.uint8)
        return pairs.reshape(-1)[: self.n_blocks]

    def _adaptive_parts(self) -> tuple[int, int]:
        """Return the offsets of the scales and of the codes of an adaptive tensor."""
        begin = -(-self.n_blocks // 4)
        return begin, begin + (self.n_blocks - int(self._plan[1])) * SCALE[self.scale_type].itemsize

    # -------------------------------------------------------------------------------------------------- decoding
    def _check_scales(self) -> None:
        """Raise `QuantError` for a scale that is not finite."""
        bad = np.flatnonzero(~np.isfinite(self.scales))
        if len(bad):
            block = int(bad[0])
            kinds = self.kinds
            if kinds is not None:  # blocks of FP16 have no scale
                block = int(np.flatnonzero(kinds < 2)[block])
            raise QuantError(f"scale of block {block}", actual=self.scales[bad[0]].item(), expected="a finite number")

    def _decode_to(self, start: int, stop: int, out: NDArray[Any], threads: int) -> None:
        """Write the values from `start` to `stop` to a contiguous, aligned array of one of the direct types."""
        if self.scheme == "adaptive":
            quantised.decode_adaptive(
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
        quantised.decode_blocks(
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

    def dequantize(
        self,
        dtype: DTypeLike | None = None,
        *,
        out: NDArray[Any] | None = None,
        threads: int | None = None,
        strict: bool = False,
    ) -> NDArray[Any]:
        """Return the values as a dense array.

        Parameters
        ----------
        dtype : dtype_like, optional
            Dtype of the result, by default `dtype`; ignored when `out` is given. float32 holds the values exactly, or
            as the scheme computes them in float32; for other types they are converted as by `numpy.ndarray.astype`.
        out : ndarray, optional
            Filled in place and returned: an array of the tensor's shape, with any dtype and strides.
        threads : int, optional
            At most this many threads share the work; one when not given.
        strict : bool
            Refuse scales that are NaN or infinite. Otherwise their blocks decode to NaN and infinity.

        Returns
        -------
        ndarray, the tensor's shape

        Raises
        ------
        QuantError
            With ``strict``, for a scale that is not finite: it names the block.
        ValueError, TypeError
            When `out` is not an array, is read-only, or has another shape.
        """
        threads = 1 if threads is None else as_threads(threads)
        if strict:
            self._check_scales()
        if out is None:
            target = access.empty(self.shape, self.dtype if dtype is None else dtype_named(dtype))
        else:
            access.check_out(out, self.shape, "the tensor")
            target = out
        # np.matrix stays two-dimensional however it is reshaped.
        self._decode(0, self.size, np.asarray(target), threads)
        return target

    def _decode(self, start: int, stop: int, target: NDArray[Any], threads: int) -> None:
        """Write the values from `start` to `stop` to an array of as many elements."""
        if target.dtype in self._direct and target.flags.c_contiguous and target.flags.aligned:
            self._decode_to(start, stop, target, threads)
            return
        if target.flags.c_contiguous:
            flat = target.reshape(-1)
            room = np.empty(min(stop - start, _PIECE), np.float32)
            for first in range(start, stop, _PIECE):
                piece = room[: min(_PIECE, stop - first)]
                self._decode_to(first, first + len(piece), piece, threads)
                flat[first - start : first - start + len(piece)] = piece
            return
        dense = access.empty(target.shape, target.dtype if target.dtype in self._direct else np.float32)
        self._decode_to(start, stop, dense, threads)
        target[...] = dense

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 - numpy's protocol
        if copy is False:
            raise ValueError("a quantised tensor is decoded into a new array: copy=False is impossible")
        return self.dequantize(dtype)

    # -------------------------------------------------------------------------------------------------- indexing
    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a quantised tensor without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """Return what numpy returns for the decoded tensor; decode only the blocks needed.

        An integer, a slice, or a list or array of integers or truth values on the first axis selects rows. Any other
        key decodes the whole tensor.
        """
        rows, others = selected(key, self.shape)
        if rows is None:
            return self.dequantize()[key]
        if not isinstance(rows, range):
            part = self._gather(rows.reshape(-1)).reshape(*rows.shape, *self.shape[1:])
        elif rows.step == 1:
            part = self._rows(rows.start, rows.stop)
        elif self.size:
            part = self._gather(np.asarray(rows, np.intp))
        else:  # the numbers of all rows might not fit into memory
            part = np.empty((len(rows), *self.shape[1:]), self.dtype)
        return part[others]

    def _rows(self, start: int, stop: int) -> NDArray[Any]:
        stop = max(start, stop)
        width = math.prod(self.shape[1:])
        part = access.empty((stop - start, *self.shape[1:]), self.dtype)
        self._decode(start * width, stop * width, part, 1)
        return part

    def _gather(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return these rows, in this order; decode each row once, and rows without a block between them together."""
        part = access.empty((len(rows), *self.shape[1:]), self.dtype)
        if part.size:
            for at, first, last in groups(rows, math.prod(self.shape[1:]), self.block_size or _GROUP):
                part[at] = self._rows(first, last + 1)[rows[at] - first]
        return part

    # ------------------------------------------------------------------------------------------------- as an object
    def __repr__(self) -> str:
        return f"<QuantizedTensor {self.scheme} {self._described()}, {self.nbytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.scheme, self.shape, self._octets.tobytes(), self.block_size, self.scale_type)


def _undecoded(_: QuantizedTensor, other: Any = None, *__: Any) -> Any:
    """Refuse arithmetic, except with arrays, which decode the tensor."""
    if hasattr(other, "__array__") and not isinstance(other, QuantizedTensor):
        return NotImplemented
    raise TypeError("a QuantizedTensor has no arithmetic: decode it first, with dequantize()")


# Not within the class, so that type checkers refuse arithmetic too.
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(QuantizedTensor, f"__{_name}__", _undecoded)
    setattr(QuantizedTensor, f"__r{_name}__", _undecoded)
for _name in ("lt", "le", "gt", "ge", "neg", "abs"):
    setattr(QuantizedTensor, f"__{_name}__", _undecoded)


def _rebuild(scheme: str, shape: tuple[int, ...], payload: bytes, block_size: int, scale_type: str) -> QuantizedTensor:
    return QuantizedTensor(scheme, shape, payload, block_size=block_size, scale_type=scale_type)


# ----------------------------------------------------------------------------------------------------
# Parts of the flattened tensor: only their own blocks are decoded.


def decode_range(tensor: QuantizedTensor, start: int, stop: int) -> NDArray[np.float32]:
    """Return elements `start` to `stop`. Raises ValueError when they do not lie within the tensor."""
    if not 0 <= start <= stop <= tensor.size:
        raise ValueError(f"elements {start} to {stop} do not lie within {tensor.size}")
    part = access.empty(stop - start, np.float32)
    tensor._decode(start, stop, part, 1)  # noqa: SLF001 - of this module
    return part


def decode_runs(tensor: QuantizedTensor, starts: NDArray[np.int64], length: int) -> NDArray[np.float32]:
    """Return runs of `length` elements, a row for each start."""
    part = access.empty((len(starts), length), np.float32)
    for row, start in zip(part, starts.tolist(), strict=True):
        tensor._decode(start, start + length, row, 1)  # noqa: SLF001 - of this module
    return part


def decode_chunks(tensor: QuantizedTensor, max_elements: int) -> Iterator[NDArray[np.float32]]:
    """Yield all elements, at most `max_elements` at a time."""
    for start in range(0, tensor.size, max_elements):
        yield decode_range(tensor, start, min(start + max_elements, tensor.size))
