"""`CompositeTensor`: a parameter that a checkpoint stores as several tensors; `Coding`: the formula for its values.

A parameter is decoded in float32: every operation is rounded to nearest even, in the order that its coding states, and
the result is rounded once more, to its type. `dequantize("float32")` therefore returns the value before that rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from weightmap.core.dtypes import dtype_named
from weightmap.core.native import access, scans
from weightmap.core.native.floats import bf16_to_f32, f16_to_f32
from weightmap.core.quant import PIECE
from weightmap.core.quant.blocks import QuantizedTensor
from weightmap.errors import QuantError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import DTypeLike, NDArray

# The tensors of a parameter, by their roles in its coding
Components: TypeAlias = "Mapping[str, NDArray[Any]]"

# Integers and scales of checkpoints as blocks of GGUF and AMB: nothing is decoded, nothing is rounded.
#
# Blocks lie along the rows. A scale is repeated if a group of the checkpoint is longer than a block.
#
# ==============  =====================================================================================================
# ``q4_0 q8_0``   32 elements: a float16 scale, and codes; q4_0 adds 8 to codes, as checkpoints do
# ``mxfp4``       32 elements: an exponent, and e2m1 codes
# ``nvfp4``       64 elements: four float8_e4m3fn scales, and e2m1 codes, for 16 elements each. The scale of the tensor,
#                 which multiplies, is a float32 tensor beside it
# ``int4_block``  of AMB, as many elements as a group: a float16 or float32 scale, and codes in two's complement
# ``int8``        of AMB: one scale of the tensor, and codes
# ==============  =====================================================================================================
#
# With 4 bits, byte j holds element j of the first half in its low nibble, element j of the second half in its high one;
# int4_block has neighbours in a byte.

_BLOCK, _QUARTER = 32, 16
# The schemes of ggml that hold integers, by their bits.
_BY_BITS = {4: "q4_0", 8: "q8_0"}
# Schemes of ggml that ModelOpt also stores, block by block.
BLOCKS_OF_GGML = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s")
# All schemes that hold the same numbers as checkpoints.
REPACKED = frozenset({*_BY_BITS.values(), *BLOCKS_OF_GGML, "mxfp4", "nvfp4", "int4_block", "int8"})
# Most elements of a block of AMB.
_LONGEST = 0xFFFF
# Bytes of nvfp4 scales from here on are NaN or have a sign.
_NOT_A_SCALE = 0x7F


class TargetTypes(NamedTuple):
    """The quantised types that a target holds.

    Attributes
    ----------
    schemes : frozenset of str
    block_size : int or None
        For int4_block, if only one is acceptable.
    scale_type : str or None
        For the schemes of AMB, if only one is acceptable.
    takes : callable
        ``takes(name)``: whether the tensor is wanted.
    """

    schemes: frozenset[str] = frozenset()
    block_size: int | None = None
    scale_type: str | None = None
    takes: Callable[[str], bool] = bool


class Layout(NamedTuple):
    """A scheme that holds a parameter, elements of a block (0 for one scale of all), and type of scales.

    `whole` is the scale of an nvfp4 tensor.
    """

    scheme: str
    block_size: int
    scale_type: str
    whole: NDArray[np.float32] | None = None


_SCALES = {"fp16": np.float16, "fp32": np.float32}


def integers_fit(bits: int, columns: int, width: int, scales: NDArray[Any], target_types: TargetTypes) -> Layout | None:
    """Return the layout of integers with a scale for each `width` columns; None if the target has no such layout."""
    exact = scales.astype(np.float32)
    if bits not in _BY_BITS or not columns or not bool(np.isfinite(exact).all()):
        return None
    with np.errstate(over="ignore"):
        halves = bool((exact.astype(np.float16).astype(np.float32) == exact).all())
    width = min(width, columns)
    scheme = _BY_BITS[bits]
    if scheme in target_types.schemes and halves and not columns % _BLOCK and (not width % _BLOCK or width == columns):
        return Layout(scheme, _BLOCK, "fp16")
    scale_type = target_types.scale_type or ("fp16" if halves else "fp32")
    if scale_type == "fp16" and not halves:
        return None
    if bits == 8:
        return Layout("int8", 0, scale_type) if "int8" in target_types.schemes and scales.size == 1 else None
    size = target_types.block_size or width
    fits = not (size % 2 or width % size or columns % size) and size <= _LONGEST
    return Layout("int4_block", size, scale_type) if fits and "int4_block" in target_types.schemes else None


def integer_blocks(layout: Layout, codes: NDArray[Any], scales: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Return the blocks of rows: unsigned codes of 4 bits, or signed ones of 8.

    Parameters
    ----------
    codes : ndarray of uint8 or int8, shape (rows, columns)
    scales : ndarray, shape (rows or 1, groups)
    width : int
        Columns of a group.

    Returns
    -------
    ndarray of uint8, shape (rows, bytes)
    """
    rows, columns = codes.shape
    if not layout.block_size:  # the scale is the head
        return codes.view(np.uint8)
    grouped = codes.reshape(rows, -1, layout.block_size)
    each = np.atleast_2d(scales)[:, np.arange(0, columns, layout.block_size) // width]
    stored = np.broadcast_to(each, grouped.shape[:2]).astype(_SCALES[layout.scale_type])
    if layout.scheme == "int4_block":
        packed = (grouped[..., ::2] | grouped[..., 1::2] << 4) ^ 0x88
    else:
        packed = _halves(grouped) if layout.scheme == "q4_0" else grouped.view(np.uint8)
    return np.concatenate([stored[..., None].view(np.uint8), packed.astype(np.uint8, copy=False)], -1).reshape(rows, -1)


def head(layout: Layout, scales: NDArray[Any]) -> bytes:
    """Return the bytes before the codes of all rows."""
    return b"" if layout.block_size else scales.astype(_SCALES[layout.scale_type]).tobytes()


def exponents_fit(exponents: NDArray[Any]) -> Layout | None:
    """Return the layout of e2m1 codes with an exponent for each 32; None if an exponent is NaN."""
    fits = not bool((exponents.view(np.uint8) == 0xFF).any())
    return Layout("mxfp4", _BLOCK, "e8m0") if fits else None


def floats_fit(columns: int, scales: NDArray[Any], whole: NDArray[Any], *, divides: bool) -> Layout | None:
    """Return the layout of e2m1 codes with a float8 scale for each 16, and a scale of the tensor."""
    factor = whole.astype(np.float32).reshape(1)
    if divides:
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / factor
        # Only the reciprocal of a power of two is exact.
        if not np.isfinite(inverse[0]) or abs(np.frexp(factor[0])[0]) != 0.5 or inverse[0] * factor[0] != 1:
            return None
        factor = inverse
    are_scales = bool(np.isfinite(factor).all()) and bool((scales.view(np.uint8) < _NOT_A_SCALE).all())
    return Layout("nvfp4", 4 * _QUARTER, "ue4m3", factor) if are_scales and not columns % (4 * _QUARTER) else None


def float_blocks(layout: Layout, codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the blocks of mxfp4 or nvfp4 of rows of e2m1 codes."""
    rows = len(codes)
    if layout.scheme == "mxfp4":
        parts, packed = scales.reshape(rows, -1, 1), _halves(codes.reshape(rows, -1, _BLOCK))
    else:
        parts, packed = scales.reshape(rows, -1, 4), _halves(codes.reshape(rows, -1, 4, _QUARTER)).reshape(rows, -1, 32)
    return np.concatenate([parts, packed], -1).reshape(rows, -1)


def _halves(codes: NDArray[Any]) -> NDArray[np.uint8]:
    half = codes.shape[-1] // 2
    octets: NDArray[np.uint8] = (codes[..., :half] | codes[..., half:] << 4).astype(np.uint8)
    return octets


# Pieces of elements to decode in one call if no array of them is made.
_PIECES = 64


class Codes(NamedTuple):
    """Codes of rows, the values of codes, and the scales of their blocks: the arguments of `scans.look_up`."""

    codes: NDArray[Any]
    bits: int
    values: NDArray[np.float32]
    scales: NDArray[np.float32]
    height: int
    width: int
    before: int = 0
    zeros: NDArray[Any] | None = None
    biases: NDArray[Any] | None = None
    which: NDArray[np.uint8] | None = None
    factor: float = 1
    high_first: bool = False
    flat: bool = False  # blocks of the flattened parameter

    def decode(self, out: NDArray[Any], threads: int) -> None:
        """Write the values of the rows to a contiguous array."""
        rows = 1 if self.flat else len(out)
        scans.look_up(
            np.ascontiguousarray(self.codes).reshape(rows, -1),
            self.bits,
            self.values,
            to_float32(self.scales),
            out.reshape(rows, -1),
            height=self.height,
            width=self.width,
            before=self.before,
            zeros=None if self.zeros is None else np.ascontiguousarray(self.zeros, np.float32),
            biases=None if self.biases is None else to_float32(self.biases),
            which=None if self.which is None else np.ascontiguousarray(self.which),
            factor=self.factor,
            high_first=self.high_first,
            threads=threads,
        )


class Grouped(NamedTuple):
    """Codes of rows, stored transposed, with scales and zero points of shape (G, rows): see `scans.decode_groups`.

    Attributes
    ----------
    words : ndarray
    bits : int
    numbers : ndarray of int, shape (columns,)
        The group of each column.
    scales, zeros : ndarray
    by_rows : bool
        Whether words have neighbouring rows, in AWQ's order.
    """

    words: NDArray[Any]
    bits: int
    numbers: NDArray[Any]
    scales: NDArray[Any]
    zeros: NDArray[np.float32]
    by_rows: bool = False

    def decode(self, out: NDArray[Any], threads: int) -> None:
        """Write the values of the rows to a contiguous array."""
        scans.decode_groups(
            np.ascontiguousarray(self.words),
            self.bits,
            np.ascontiguousarray(self.numbers, np.uint32),
            to_float32(self.scales),
            np.ascontiguousarray(self.zeros, np.float32),
            out,
            by_rows=self.by_rows,
            threads=threads,
        )


class Coding:
    """Makes the values of a parameter from its pieces. Each scheme has a class, whose docstring is the formula.

    Attributes
    ----------
    scheme : str
    shape : tuple of int
        Of the parameter.
    step : int
        Rows decode in groups of this size, for instance because a word has codes of several rows.
    block_size : int
        Elements of a row with one scale; 0 if it is not a fixed number.
    codes, scales : str
        The pieces with the codes and with the scales.
    scale_type : str or None
        Dtype of the scales, if it is not that of their piece.
    stated : str or None
        The parameter's type, if the pieces state it.
    direct : bool
        Whether rows are decoded without arrays of their elements.
    strided : bool
        Whether `rows` fills arrays of any strides.
    """

    __slots__ = ("block_size", "codes", "scale_type", "scales", "scheme", "shape", "stated", "step")

    scheme: str
    shape: tuple[int, ...]
    step: int
    block_size: int
    codes: str
    scales: str
    scale_type: str | None
    stated: str | None
    direct: ClassVar[bool] = True
    strided: ClassVar[bool] = False

    def __init__(
        self, scheme: str, shape: tuple[int, ...], codes: str, scales: str, *, block_size: int = 0, step: int = 1
    ) -> None:
        self.scheme, self.shape, self.codes, self.scales = scheme, shape, codes, scales
        self.block_size, self.step, self.stated, self.scale_type = block_size, step, None, None

    def scales_in(self, piece: NDArray[Any]) -> NDArray[Any]:
        """Return the scales as they are stored, given the piece that holds them: a view."""
        return piece

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the result of `blocks`, for matrices as stored."""
        return self.shape

    def empty(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialised array for the parameter, whose memory has the order of decoded rows."""
        return access.empty(self.stored_shape, dtype)

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Return the index of the part of each piece that decodes rows `first` to `last`; None for the whole piece.

        `first` is a multiple of `step`; so is `last`, or it is the number of rows.
        """
        raise NotImplementedError

    def select(self, pieces: Components, first: int, last: int) -> dict[str, NDArray[Any]]:
        """Return the parts of the pieces that `cut` names."""
        return {role: pieces[role] if key is None else pieces[role][key] for role, key in self.cut(first, last).items()}

    def decode(self, pieces: Components, first: int, last: int) -> NDArray[np.float32]:
        """Return rows `first` to `last`, given the parts of the pieces that `cut` selects.

        A coding has this method, unless `coded` serves all rows.
        """
        return self.rows(pieces, first, last, np.dtype(np.float32))

    def counterpart(self, read: Callable[[str], NDArray[Any]], target_types: TargetTypes) -> Layout | None:  # noqa: ARG002 - most have none
        """Return the target's layout that holds the same integers and scales, or None.

        ``read(role)`` returns a piece: scales and zero points.
        """
        return None

    def blocks(self, pieces: Components, first: int, last: int, layout: Layout) -> NDArray[np.uint8]:
        """Return rows `first` to `last` as blocks of this layout, uint8, shape (rows, bytes): see `decode`."""
        raise NotImplementedError

    def coded(self, pieces: Components, first: int, last: int) -> Codes | Grouped | None:  # noqa: ARG002 - some have none
        """Return the input from which C makes rows `first` to `last`; None if it cannot."""
        return None

    def rows(
        self,
        pieces: Components,
        first: int,
        last: int,
        dtype: np.dtype[Any],
        out: NDArray[Any] | None = None,
        threads: int = 1,
    ) -> NDArray[Any]:
        """Return the result of `decode` in another type; values out of its range become infinite."""
        if first == last:
            return np.empty((0, *self.shape[1:]), dtype)
        with np.errstate(all="ignore"):
            coded = self.coded(pieces, first, last) if dtype.name in scans.CODED else None
            if coded is None:
                values = self.decode(pieces, first, last)
                if out is None:
                    return values.astype(dtype, copy=False)
                out[...] = values
                return out
        target = np.empty((last - first, *self.shape[1:]), dtype) if out is None else out
        coded.decode(target, threads)
        return target

    def group_of_columns(self, groups: NDArray[np.int32] | None) -> NDArray[Any]:
        """Return the group of each column: the given one, or a new group for each `block_size` columns."""
        return np.arange(self.shape[1]) // self.block_size if groups is None else groups

    def around(self, first: int, last: int) -> tuple[int, int]:
        """Return these rows, widened to whole steps."""
        return first // self.step * self.step, min(-(-last // self.step) * self.step, self.shape[0])


class CompositeTensor(QuantizedTensor):
    """A parameter over the tensors that store it, decoded on demand.

    Parameters
    ----------
    coding : Coding
    dtype : numpy.dtype
        The type of the model's parameters.
    pieces : mapping of str to (str, ndarray)
        For each role of the scheme, the piece's name in the file and its array; in file order.

    Attributes
    ----------
    shape, ndim, size
        Of the parameter in the unquantised model.
    scheme : str
        Such as "awq gemm".
    dtype : numpy.dtype
        The result type of `dequantize` and indexing: the type of the model's parameters.
    pieces : dict of str to ndarray
        The stored tensors by name, in file order: views of the mapping.
    block_size : int
        Elements of a row with one scale; 0 if scales are for blocks of rows, for rows or for the tensor.
    scale_type : str
        Dtype of the stored scales.
    nbytes : int
        Bytes of all pieces.
    """

    __slots__ = ("_coding", "_dtype", "_pieces")

    # Values are made in float32, and rounded once to any other type.
    _direct: ClassVar[tuple[np.dtype[Any], ...]] = (np.dtype(np.float32),)

    def __init__(self, coding: Coding, dtype: np.dtype[Any], pieces: Mapping[str, tuple[str, NDArray[Any]]]) -> None:
        self._coding, self._dtype = coding, dtype
        self._pieces = dict(pieces)
        self.scheme: str = coding.scheme
        self.shape = coding.shape
        self.size: int = math.prod(coding.shape)
        self.block_size: int = coding.block_size
        self.scale_type = coding.scale_type or self._pieces[coding.scales][1].dtype.name

    def _described(self) -> str:
        return f"{list(self.shape)} {self._dtype}"

    # ------------------------------------------------------------------------------------------------- its parts
    @property
    def dtype(self) -> np.dtype[Any]:
        """The result type of `dequantize` and indexing: the model's own type."""
        return self._dtype

    @property
    def pieces(self) -> dict[str, NDArray[Any]]:
        """The stored tensors by name, in file order: views."""
        return dict(self._pieces.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(array.nbytes for _, array in self._pieces.values())

    @property
    def n_blocks(self) -> int:
        """Number of scales."""
        return self.scales.size

    @property
    def payload(self) -> NDArray[np.uint8]:
        """The bytes of all pieces, one after another, shape (nbytes,): a copy, because they may lie apart."""
        parts = [np.frombuffer(array.tobytes(), np.uint8) for _, array in self._pieces.values()]
        return np.concatenate([*parts, np.empty(0, np.uint8)])

    @property
    def scales(self) -> NDArray[Any]:
        """The scales as they are stored: a view."""
        return self._coding.scales_in(self._pieces[self._coding.scales][1])

    @property
    def codes(self) -> NDArray[Any]:
        """The codes as they are stored: a view."""
        return self._pieces[self._coding.codes][1]

    # -------------------------------------------------------------------------------------------------- decoding
    def _check_scales(self) -> None:
        scales = self.scales
        if scales.dtype.kind not in "iu":
            bad = np.flatnonzero(~np.isfinite(scales.astype(np.float32)))
            if len(bad):
                actual = float(scales.reshape(-1)[bad[0]])
                raise QuantError(f"scale {int(bad[0])}", actual=actual, expected="a finite number")

    def dequantize(
        self,
        dtype: DTypeLike | None = None,
        *,
        out: NDArray[Any] | None = None,
        threads: int | None = None,
        strict: bool = False,
    ) -> NDArray[Any]:
        """Return the values: see `QuantizedTensor.dequantize`.

        Without `out`, experts that are stored transposed are a view of the decoded matrices, not C-contiguous.
        """
        target = self._coding.empty(self.dtype if dtype is None else dtype_named(dtype)) if out is None else out
        return super().dequantize(out=target, threads=threads, strict=strict)

    def _decode(self, start: int, stop: int, target: NDArray[Any], threads: int) -> None:
        if target.flags.c_contiguous:
            self._decode_to(start, stop, target.reshape(-1), threads)
        elif self._coding.strided:  # it is all of the parameter
            self._rows_of(0, len(target), target.dtype, target, threads)
        else:
            dense = access.empty(target.shape, target.dtype)
            self._decode_to(start, stop, dense.reshape(-1), threads)
            target[...] = dense

    def _decode_to(self, start: int, stop: int, out: NDArray[Any], threads: int) -> None:
        """Write the values from `start` to `stop` to a contiguous array of any type, a group of rows at a time."""
        if start >= stop:
            return
        coding, width, count = self._coding, math.prod(self.shape[1:]), self.shape[0]
        begin, end = coding.around(start // width, -(-stop // width))
        # Decode whole rows in place, and rows that are only partly wanted to a buffer.
        low, high = coding.around(0, -(-start // width))[1], stop // width
        high = count if high == count else coding.around(high, high)[0]
        if low >= high or not out.flags.aligned:
            low = high = begin
        many = PIECE * _PIECES if coding.direct and out.dtype.name in scans.CODED else PIECE
        for first, last in _runs(begin, low, PIECE // width, coding.step):
            self._decode_apart(first, last, start, stop, out)
        for first, last in _runs(low, high, many // width, coding.step):
            part = out[first * width - start : last * width - start]
            self._rows_of(first, last, out.dtype, part.reshape(last - first, *self.shape[1:]), threads)
        for first, last in _runs(high, end, PIECE // width, coding.step):
            self._decode_apart(first, last, start, stop, out)

    def _decode_apart(self, first: int, last: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Decode these rows to a buffer, and write their values from `start` to `stop`."""
        width = math.prod(self.shape[1:])
        at, until = max(start, first * width), min(stop, last * width)
        values = self._rows_of(first, last, out.dtype).reshape(-1)
        out[at - start : until - start] = values[at - first * width : until - first * width]

    def _rows_of(
        self, first: int, last: int, dtype: np.dtype[Any], out: NDArray[Any] | None = None, threads: int = 1
    ) -> NDArray[Any]:
        parts = self._coding.select({role: piece for role, (_, piece) in self._pieces.items()}, first, last)
        return self._coding.rows(parts, first, last, dtype, out, threads)

    # ------------------------------------------------------------------------------------------------- as an object
    def __reduce__(self) -> tuple[Any, ...]:
        copies = {role: (name, np.array(array)) for role, (name, array) in self._pieces.items()}
        return _rebuild, (self._coding, self._dtype.name, copies)


def _runs(first: int, last: int, max_rows: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of runs of about `max_rows` rows, at multiples of `step`."""
    max_rows = max(max_rows // step, 1) * step
    return ((row, min(row + max_rows, last)) for row in range(first, last, max_rows))


def _rebuild(coding: Coding, dtype: str, pieces: Mapping[str, tuple[str, NDArray[Any]]]) -> CompositeTensor:
    return CompositeTensor(coding, dtype_named(dtype), pieces)


# --------------------------------------------------------------------------------------------- parts of the formulas
def _powers() -> NDArray[np.float32]:
    bits = np.arange(256, dtype=np.uint32) << np.uint32(23)
    bits[0], bits[255] = 1 << 22, 0x7FC00000  # 2**-127 is a subnormal number, and 255 is NaN
    return bits.view(np.float32)


# The values of E8M0 exponents: 2**(e - 127).
E8M0 = _powers()
_MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
# The values of e2m1 codes; code 8 is -0.
E2M1 = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], np.float32)
E2M1[8] = -0.0


def to_float32(scales: NDArray[Any]) -> NDArray[np.float32]:
    """Return stored scales as contiguous float32, which holds them exactly: bytes are E8M0 exponents."""
    if scales.dtype == np.uint8 or scales.dtype.name == "float8_e8m0fnu":
        return E8M0[scales.view(np.uint8)]
    if scales.dtype.name == "float16":
        return f16_to_f32(scales)
    return bf16_to_f32(scales) if scales.dtype.name == "bfloat16" else np.ascontiguousarray(scales, np.float32)


def low_first(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the nibbles of bytes along the last axis, the low one first."""
    wide = packed.astype("<u2")
    halves: NDArray[np.uint8] = ((wide | wide << 4) & 0x0F0F).astype("<u2", copy=False).view(np.uint8)
    return halves


def unpacked(words: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """Return `count` codes of each stream along the last axis: laid end to end in int32 words, lowest bits first."""
    octets = np.ascontiguousarray(words, "<i4").view(np.uint8)
    padding = np.zeros((*words.shape[:-1], -octets.shape[-1] % bits), np.uint8)
    every = np.concatenate([octets, padding], -1)
    groups = every.reshape(*words.shape[:-1], every.shape[-1] // bits, bits)  # eight codes each
    codes = np.empty((*groups.shape[:-1], 8), np.uint8)
    for number in range(8):
        at, shift = divmod(number * bits, 8)
        upper = groups[..., at + 1] << (8 - shift) if shift + bits > 8 else 0
        codes[..., number] = (groups[..., at] >> shift | upper) & ((1 << bits) - 1)
    return codes.reshape(*words.shape[:-1], groups.shape[-2] * 8)[..., :count]
