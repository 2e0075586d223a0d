"""Codings that several methods share: matrices with a code for each element, and scales for blocks of elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap.checkpoints import pieced
from weightmap.checkpoints.methods import FLOATS, Group, blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


# Rows that are transposed at once.
_TURNED_ROWS = 128
# All values of a byte.
_EVERY = np.arange(256, dtype=np.uint8)


class Scaled(pieced.Coding):
    """``W[o, c] = (q[o, c] - z[o // height, c // width]) * s[o // height, c // width]``.

    q are integers of 8 bits or float8 numbers, as stored; z, if any, are integers of the same type. The difference is
    exact, and the product is one multiplication of float32. Blocks at the edges may be smaller.

    Parameters
    ----------
    height, width : int
        Rows and columns of a block.
    zeros : str, optional
        The piece with z.
    integers : bool
        Whether q are integers.
    """

    __slots__ = ("height", "integers", "width", "zeros")

    height: int
    width: int
    zeros: str | None
    integers: bool

    def __init__(
        self,
        scheme: str,
        shape: tuple[int, ...],
        codes: str,
        scales: str,
        *,
        height: int,
        width: int,
        zeros: str | None = None,
        integers: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(scheme, shape, codes, scales, block_size=width if height == 1 else 0, **options)
        self.height, self.width, self.zeros, self.integers = height, width, zeros, integers

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        rows = slice(first // self.height, blocks_of(last, self.height))
        whole = self.height >= self.shape[0]  # one row of scales, perhaps stored without dimensions
        blocks = None if whole else rows
        ranges = {self.codes: slice(first, last), self.scales: blocks}
        return ranges if self.zeros is None else ranges | {self.zeros: blocks}

    def counterpart(
        self, read: Callable[[str], NDArray[Any]], target_types: pieced.TargetTypes
    ) -> pieced.Layout | None:
        """Implement `Coding.counterpart`: of symmetric integers with scales of rows or of all."""
        if self.zeros is not None or not self.integers or (self.height > 1 and self.height < self.shape[0]):
            return None
        return pieced.integers_fit(8, self.shape[1], self.width, read(self.scales), target_types)

    def blocks(self, pieces: pieced.Components, first: int, last: int, layout: pieced.Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`."""
        del first, last
        scales = pieces[self.scales].reshape(-1, blocks_of(self.shape[1], self.width))
        return pieced.integer_blocks(layout, pieces[self.codes], scales, self.width)

    def coded(self, pieces: pieced.Components, first: int, last: int) -> pieced.Codes:
        """Implement `Coding.coded`."""
        del last
        codes, stored = pieces[self.codes], pieces[self.scales]
        every = _EVERY.view(codes.dtype).astype(np.float32)
        codes_ = pieced.Codes(codes, 8, every, stored, self.height, self.width)
        if stored.dtype.itemsize == 1 and self.zeros is None:  # one of 256 scales
            scales = self.scale({**pieces, self.scales: _EVERY.view(stored.dtype)})
            return codes_._replace(before=first % self.height, scales=scales, which=stored.view(np.uint8))
        zeros = None if self.zeros is None else pieces[self.zeros]
        return codes_._replace(before=first % self.height, scales=self.scale(pieces), zeros=zeros)

    def scale(self, pieces: pieced.Components) -> NDArray[np.float32]:
        """Return the scales of blocks."""
        return pieced.to_float32(pieces[self.scales])


class Fp4(Scaled):
    """``W[o, c] = e2m1[q[o, c]] * s[o, c // width]``.

    A byte holds two codes, the first in its low nibble. With a scale of the tensor, ``s = scale / whole`` or
    ``scale * whole``, rounded to float32. Scales stored as bytes are exponents e for 2**(e - 127); 255 is NaN.

    Parameters
    ----------
    whole : str, optional
        The piece with the scale of the tensor.
    divides : bool
        Whether the scale of the tensor divides.
    """

    __slots__ = ("divides", "whole")

    def __init__(
        self,
        scheme: str,
        shape: tuple[int, ...],
        codes: str,
        scales: str,
        *,
        width: int,
        whole: str | None = None,
        divides: bool = False,
    ) -> None:
        super().__init__(scheme, shape, codes, scales, height=1, width=width)
        self.whole, self.divides = whole, divides

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        slices = {self.codes: slice(first, last), self.scales: slice(first, last)}
        return slices if self.whole is None else slices | {self.whole: None}

    def counterpart(
        self, read: Callable[[str], NDArray[Any]], target_types: pieced.TargetTypes
    ) -> pieced.Layout | None:
        """Implement `Coding.counterpart`."""
        if ("mxfp4" if self.whole is None else "nvfp4") not in target_types.schemes:
            return None
        if self.whole is None:
            return pieced.exponents_fit(read(self.scales))
        return pieced.floats_fit(self.shape[1], read(self.scales), read(self.whole), divides=self.divides)

    def blocks(self, pieces: pieced.Components, first: int, last: int, layout: pieced.Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`."""
        del first, last
        # Blocks of nvfp4 have a scale for 16 columns.
        scales = pieces[self.scales].view(np.uint8).repeat(self.width // 16 if layout.scheme == "nvfp4" else 1, -1)
        return pieced.float_blocks(layout, pieced.low_first(pieces[self.codes].view(np.uint8)), scales)

    def coded(self, pieces: pieced.Components, first: int, last: int) -> pieced.Codes:
        """Implement `Coding.coded`."""
        codes = pieces[self.codes].view(np.uint8)
        return super().coded({**pieces, self.codes: codes}, first, last)._replace(bits=4, values=pieced.E2M1)

    def scale(self, pieces: pieced.Components) -> NDArray[np.float32]:
        """Implement `Scaled.scale`."""
        scales = pieced.to_float32(pieces[self.scales])
        if self.whole is None:
            return scales
        whole = pieces[self.whole].reshape(()).astype(np.float32)
        return scales / whole if self.divides else scales * whole


class Experts(pieced.Coding):
    """``X[e] = W``, or its transpose, where the pieces of expert e make W: the matrices of a layer's experts.

    Parameters
    ----------
    matrix : Coding
        The coding of W.
    count : int
        Number of experts.
    shared : str, optional
        The piece that all experts share; in other pieces, the first axis counts experts.
    turned : bool
        Whether X holds the transposes.
    lying : bool
        Whether the pieces of an expert are also stored transposed.
    """

    __slots__ = ("lying", "matrix", "shared", "turned")

    matrix: pieced.Coding
    shared: str | None
    turned: bool
    lying: bool
    direct: ClassVar[bool] = False
    strided: ClassVar[bool] = True

    def __init__(
        self, matrix: pieced.Coding, count: int, *, shared: str | None = None, turned: bool = False, lying: bool = False
    ) -> None:
        shape = matrix.shape[::-1] if turned else matrix.shape
        super().__init__(matrix.scheme, (count, *shape), matrix.codes, matrix.scales, block_size=matrix.block_size)
        self.matrix, self.shared, self.turned, self.lying = matrix, shared, turned, lying

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Implement `Coding.stored_shape`."""
        return self.shape[0], *self.matrix.shape

    def empty(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Implement `Coding.empty`."""
        stored = super().empty(dtype)
        return stored.swapaxes(1, 2) if self.turned else stored

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        roles = self.matrix.cut(0, self.matrix.shape[0])
        return {role: None if role == self.shared else slice(first, last) for role in roles}

    def rows(
        self,
        pieces: pieced.Components,
        first: int,
        last: int,
        dtype: np.dtype[Any],
        out: NDArray[Any] | None = None,
        threads: int = 1,
    ) -> NDArray[Any]:
        """Implement `Coding.rows`: decode each expert as stored, then transpose it if memory has the other order."""
        target = np.empty((last - first, *self.shape[1:]), dtype) if out is None else out
        rows = self.matrix.shape[0]
        for number, matrix in enumerate(target.swapaxes(1, 2) if self.turned else target):
            parts = self._parts(pieces, number)
            if matrix.flags.carray:
                self.matrix.rows(parts, 0, rows, dtype, matrix, threads)
                continue
            for row in range(0, rows, _TURNED_ROWS):
                end = min(row + _TURNED_ROWS, rows)
                matrix[row:end] = self.matrix.rows(self.matrix.select(parts, row, end), row, end, dtype)
        return target

    def counterpart(
        self, read: Callable[[str], NDArray[Any]], target_types: pieced.TargetTypes
    ) -> pieced.Layout | None:
        """Implement `Coding.counterpart`: blocks lie along in, so each expert keeps its matrix."""
        return self.matrix.counterpart(read, target_types)

    def blocks(self, pieces: pieced.Components, first: int, last: int, layout: pieced.Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`: (experts, rows * bytes)."""
        rows = self.matrix.shape[0]
        matrices = [
            self.matrix.blocks(self._parts(pieces, number), 0, rows, layout).reshape(-1)
            for number in range(last - first)
        ]
        return np.stack(matrices)

    def _parts(self, pieces: pieced.Components, number: int) -> dict[str, NDArray[Any]]:
        """Return one expert's part of each piece: matrices with the rows of its W."""
        parts = {role: piece if role == self.shared else piece[number] for role, piece in pieces.items()}
        for role, part in parts.items():
            if role != self.shared:
                flat = part.reshape(part.shape[0] if part.ndim else 1, math.prod(part.shape[1:]))
                parts[role] = np.ascontiguousarray(flat.T) if self.lying else flat
        return parts


class Transposed(pieced.Coding):
    """``W[o, c] = s[g, o] * (q[c, o] - z[g, o])``, with ``g = groups[c]``, or ``c // group_size`` without `groups`.

    Parameters
    ----------
    groups : ndarray of int32, shape (in,), optional
    by_rows : bool
        Whether words of codes have neighbouring outputs, in AWQ's order.
    """

    __slots__ = ("bits", "by_rows", "groups")

    bits: int
    groups: NDArray[np.int32] | None
    by_rows: bool

    def __init__(
        self,
        scheme: str,
        shape: tuple[int, ...],
        size: int,
        bits: int,
        groups: NDArray[np.int32] | None = None,
        *,
        by_rows: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(scheme, shape, "qweight", "scales", block_size=size, **options)
        self.bits, self.groups, self.by_rows = bits, groups, by_rows

    def zero_points(self, pieces: pieced.Components, first: int, last: int) -> NDArray[np.float32]:
        """Return z of rows `first` to `last`, shape (G, rows)."""
        raise NotImplementedError

    def coded(self, pieces: pieced.Components, first: int, last: int) -> pieced.Grouped:
        """Implement `Coding.coded`."""
        numbers, zeros = self.group_of_columns(self.groups), self.zero_points(pieces, first, last)
        return pieced.Grouped(pieces["qweight"], self.bits, numbers, pieces["scales"], zeros, by_rows=self.by_rows)


def fp4(
    group: Group,
    scheme: str,
    codes: str,
    scales: str,
    width: int,
    kinds: tuple[str, ...],
    *,
    whole: str | None = None,
    divides: bool = False,
    stored: tuple[str, ...] = ("uint8",),
) -> Fp4:
    """Check the pieces of a matrix of e2m1 codes, and return its coding; `kinds` are the types of its scales."""
    rows, half = group.check(codes, stored, (None, None))
    columns = 2 * half
    if columns % width:
        group.refuse("columns", codes, actual=columns, expected=f"a multiple of {width}")
    group.check(scales, kinds, (rows, columns // width))
    if whole is not None:
        group.check(whole, ("float32",), (), (1,))
    return Fp4(scheme, (rows, columns), codes, scales, width=width, whole=whole, divides=divides)


def scaled(
    group: Group,
    scheme: str,
    codes: str,
    scales: str,
    stored: tuple[str, ...],
    height: int,
    width: int,
    *,
    kinds: tuple[str, ...] = FLOATS,
    zeros: str | None = None,
) -> Scaled:
    """Check the pieces of a matrix of whole codes, and return its coding.

    A `height` or `width` that is 0 or too large means all rows or columns. A single scale may have any shape of one
    element, scales of rows may have one dimension, and scales of blocks may have a 1 after each dimension (ModelOpt).
    """
    shape = rows, columns = group.check(codes, stored, (None, None))
    high, wide = min(height or rows, rows) or 1, min(width or columns, columns) or 1
    down, across = blocks_of(rows, high), blocks_of(columns, wide)
    single = [()] if down == across == 1 else []
    group.check(scales, kinds, (down, across), *([(down,)] if across == 1 else []), (down, 1, across, 1), *single)
    if zeros is not None:
        group.check(zeros, ("int8",), group.row(scales).shape)
    return Scaled(scheme, shape, codes, scales, height=high, width=wide, zeros=zeros, integers=stored == ("int8",))
