"""bitsandbytes: nf4 and fp4, perhaps with nested scales, and int8; unsloth, QLoRA."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap.checkpoints.methods import FLOATS, Group, Method, Settings, blocks_of
from weightmap.checkpoints.methods._codings import Scaled
from weightmap.checkpoints.pieced import Codes, Coding, Components, TargetTypes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# The library's factor for int8 values: 1 / 127 in float32.
_ONE_127TH = np.float32(0.007874015718698502)
_ABSMAX, _MAP = "weight.absmax", "weight.quant_map"
_NESTED_ABSMAX, _NESTED_MAP = "weight.nested_absmax", "weight.nested_quant_map"
_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
# Most elements of a parameter.
_MAX_ELEMENTS = 1 << 56
_MAX_DIMS = 32


class FourBits(Coding):
    """``W[i] = quant_map[q[i]] * absmax[i // blocksize]``, with i over the flattened parameter.

    ``weight``: bytes, in any type, of two codes, the first one the high nibble. ``weight.absmax`` float32; or, nested,
    uint8 a with ``absmax = nested_quant_map[a] * nested_absmax[i // nested_blocksize] + nested_offset``, product and
    sum each rounded to float32.

    Parameters
    ----------
    blocksize : int
    nested : int
        ``nested_blocksize``, or 0.
    offset : float
        ``nested_offset``.
    packing : int
        Codes in an element of ``weight``.
    """

    __slots__ = ("blocksize", "nested", "offset", "packing")

    blocksize: int
    nested: int
    offset: float
    packing: int

    def __init__(
        self, scheme: str, shape: tuple[int, ...], blocksize: int, nested: int, offset: float, packing: int
    ) -> None:
        # A part of the parameter begins at a block, at a nested block, and at an element of ``weight``.
        width, whole = math.prod(shape[1:]), math.lcm(blocksize * max(nested, 1), packing)
        rows = min(whole // math.gcd(whole, max(width, 1)), max(shape[0], 1))
        super().__init__(scheme, shape, "weight", _ABSMAX, block_size=blocksize, step=rows)
        self.blocksize, self.nested, self.offset, self.packing = blocksize, nested, offset, packing

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        width = math.prod(self.shape[1:])
        start, stop = first * width, last * width
        ranges: dict[str, Any] = {"weight": slice(start // self.packing, blocks_of(stop, self.packing)), _MAP: None}
        ranges[_ABSMAX] = slice(start // self.blocksize, blocks_of(stop, self.blocksize))
        if self.nested:
            each = self.blocksize * self.nested
            ranges |= {_NESTED_ABSMAX: slice(start // each, blocks_of(stop, each)), _NESTED_MAP: None}
        return ranges

    def coded(self, pieces: Components, first: int, last: int) -> Codes:
        """Implement `Coding.coded`."""
        del first, last
        octets = np.ascontiguousarray(pieces["weight"]).reshape(-1).view(np.uint8)
        scales = self.absmax(pieces)
        return Codes(octets, 4, pieces[_MAP], scales, 1, self.blocksize, high_first=True, flat=True)

    def absmax(self, pieces: Components) -> NDArray[np.float32]:
        """Return the scale of each block."""
        absmax, outer = pieces[_ABSMAX], pieces.get(_NESTED_ABSMAX)
        if outer is None:
            return absmax
        offsets, scales = np.full(len(outer), self.offset, np.float32), np.empty(len(absmax), np.float32)
        codes = Codes(absmax, 8, pieces[_NESTED_MAP], outer, 1, self.nested, biases=offsets, flat=True)
        codes.decode(scales, threads=1)
        return scales


class EightBits(Scaled):
    """``W[o, c] = (q[o, c] * SCB[o]) * 0.007874015718698502``, each product rounded to float32.

    ``weight`` int8 (out, in), ``SCB`` float32 (out,).
    """

    __slots__ = ()

    def coded(self, pieces: Components, first: int, last: int) -> Codes:
        """Implement `Coding.coded`."""
        return super().coded(pieces, first, last)._replace(factor=float(_ONE_127TH))

    def counterpart(self, read: Callable[[str], NDArray[Any]], target_types: TargetTypes) -> None:
        """Implement `Coding.counterpart`: ggml has no scale of two factors."""


class BitsAndBytes(Method):
    """``quant_method: "bitsandbytes"``: `FourBits` and `EightBits` are the formulas."""

    endings: ClassVar[tuple[str, ...]] = (
        *(".weight", ".SCB", ".weight_format"),
        *(f".{role}" for role in (_ABSMAX, _MAP, _NESTED_ABSMAX, _NESTED_MAP, *_STATES)),
    )
    coded: ClassVar[tuple[str, ...]] = ("uint8", "int8")
    lists: ClassVar[tuple[str, ...]] = ("llm_int8_skip_modules",)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.four: bool = settings.flag("load_in_4bit") or settings.flag("_load_in_4bit")
        self.eight: bool = settings.flag("load_in_8bit") or settings.flag("_load_in_8bit")
        if self.four is self.eight:
            settings.refuse("load_in_4bit", "one of load_in_4bit and load_in_8bit")

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        return self._four_bits(group) if self.four else self._eight_bits(group)

    @staticmethod
    def _eight_bits(group: Group) -> Coding:
        group.only("weight", "SCB", "weight_format")
        rows, columns = group.check("weight", ("int8",), (None, None))
        group.check("SCB", ("float32",), (rows,))
        if "weight_format" in group:
            group.check("weight_format", ("uint8",), (), (1,))
            form = int(group.read("weight_format").reshape(()))
            if form:
                group.refuse("layout", "weight_format", actual=form, expected="0, rows")
        return EightBits("bitsandbytes int8", (rows, columns), "weight", "SCB", height=1, width=max(columns, 1))

    def _four_bits(self, group: Group) -> Coding:
        group.only("weight", _ABSMAX, _MAP, _NESTED_ABSMAX, _NESTED_MAP, *_STATES)
        states = [role for role in _STATES if role in group]
        if len(states) != 1:
            group.missing(_STATES[0]) if not states else group.refuse("two quant states", expected="one")
        state, kind = group.described(states[0]), states[0][-3:]
        if state.text("quant_type", kind) != kind:
            state.refuse("quant_type", repr(kind))
        size, shape = state.integer("blocksize"), state.values.get("shape")
        if size < 1:
            state.refuse("blocksize", "a positive number")
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < _MAX_ELEMENTS for n in shape):
            state.refuse("shape", "a list of lengths")
        if not 0 < len(shape) <= _MAX_DIMS:
            state.refuse("shape", f"1 to {_MAX_DIMS} lengths")
        count = math.prod(shape)
        if not 0 < count < _MAX_ELEMENTS or group.row("weight").nbytes != blocks_of(count, 2):
            group.refuse("bytes", "weight", actual=group.row("weight").nbytes, expected=f"{blocks_of(count, 2)}")
        group.check("weight", ("uint8", *FLOATS), (None, 1))
        blocks = blocks_of(count, size)
        group.check(_MAP, ("float32",), (16,))
        nested, offset = 0, 0.0
        if _NESTED_ABSMAX in group or _NESTED_MAP in group or group.row(_ABSMAX).dtype.name == "uint8":
            group.check(_ABSMAX, ("uint8",), (blocks,))
            nested = state.integer("nested_blocksize")
            if nested < 1:
                state.refuse("nested_blocksize", "a positive number")
            group.check(_NESTED_ABSMAX, ("float32",), (blocks_of(blocks, nested),))
            group.check(_NESTED_MAP, ("float32",), (256,))
            if state.text("nested_dtype", "float32") != "float32":
                state.unsupported("nested_dtype", "'float32'")
            number: Any = state.values.get("nested_offset")
            if type(number) not in {int, float} or not abs(number) < _MAX_ELEMENTS:
                state.refuse("nested_offset", "a number")
            offset = float(number)
        else:
            group.check(_ABSMAX, ("float32",), (blocks,))
        packing = 2 * group.row("weight").dtype.bits // 8
        # A block size beyond the elements, or beyond the blocks, means all of them.
        size, nested = min(size, count), min(nested, blocks)
        coding = FourBits(f"bitsandbytes {kind}", tuple(shape), size, nested, offset, packing)
        coding.stated = state.text("dtype", "float32")
        if coding.stated not in FLOATS:
            state.unsupported("dtype", "'float16', 'bfloat16' or 'float32'")
        return coding


METHOD = BitsAndBytes
