"""MLX: checkpoints that mlx-lm and mlx-vlm write, with ``quantization`` in config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap.checkpoints.methods import FLOATS, Group, Method, Settings
from weightmap.checkpoints.methods._codings import Experts, Fp4, Scaled
from weightmap.checkpoints.pieced import Codes, Coding, Components, Layout, TargetTypes, floats_fit, to_float32
from weightmap.core.dtypes import DTYPES, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# By mode: the allowed bits of codes, and the default group size and bits.
_MODES = {
    "affine": ((1, 2, 3, 4, 5, 6, 8), 64, 4),
    "mxfp4": ((4,), 32, 4),
    "nvfp4": ((4,), 16, 4),
    "mxfp8": ((8,), 32, 8),
}
_E4M3 = numpy_dtype(DTYPES["float8_e4m3fn"])


class Nvfp4(Fp4):
    """`Fp4` whose scales are float8_e4m3fn, stored as uint8, without a scale of the tensor."""

    def counterpart(self, read: Callable[[str], NDArray[Any]], target_types: TargetTypes) -> Layout | None:
        """Implement `Coding.counterpart`."""
        if "nvfp4" not in target_types.schemes:
            return None
        return floats_fit(self.shape[1], read(self.scales), np.ones(1, np.float32), divides=False)

    def scale(self, pieces: Components) -> NDArray[np.float32]:
        """Implement `Scaled.scale`."""
        return to_float32(pieces[self.scales].view(_E4M3))


class Mxfp8(Scaled):
    """`Scaled` whose codes are float8_e4m3fn, four to a word."""

    def coded(self, pieces: Components, first: int, last: int) -> Codes:
        """Implement `Coding.coded`."""
        return super().coded({**pieces, self.codes: pieces[self.codes].view(_E4M3)}, first, last)


class Affine(Coding):
    """``W[o, c] = s[o, g] * q[o, c] + b[o, g]``, with ``g = c // group_size``.

    Codes of `bits` bits are laid end to end in the uint32 words of a row of ``weight`` (out, in * bits / 32), lowest
    bits first; codes of 3, 5 and 6 bits span words. ``scales`` and ``biases`` (out, in / group_size) have the model's
    type. MLX computes in that type; here product and sum are rounded to float32 (ours).
    """

    __slots__ = ("bits",)

    def __init__(self, shape: tuple[int, int], size: int, bits: int) -> None:
        super().__init__(f"mlx affine {bits} bits", shape, "weight", "scales", block_size=size)
        self.bits: int = bits

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        return dict.fromkeys(("weight", "scales", "biases"), slice(first, last))

    def coded(self, pieces: Components, first: int, last: int) -> Codes:
        """Implement `Coding.coded`."""
        del first, last
        codes, values = pieces["weight"].view(np.uint8), np.arange(1 << self.bits, dtype=np.float32)
        return Codes(codes, self.bits, values, pieces["scales"], 1, self.block_size, biases=pieces["biases"])


class Mlx(Method):
    """``quantization: {"group_size": 64, "bits": 4, "mode": "affine"}``: `Affine` is the formula.

    Other modes have ``weight`` uint32 (out, in * bits / 32) and ``scales`` uint8 (out, in / group_size): ``mxfp4`` is
    `Fp4` and ``mxfp8`` `Mxfp8`, both with exponents for 32 columns, ``nvfp4`` is `Nvfp4` with scales for 16. The name
    of a module, as a key, sets the three values for that module, with MLX's defaults, or is false: the module is not
    quantised. Pieces of a layer's experts have an additional first dimension. A scale of the tensor, for which MLX's
    layers have no name and other programs have several meanings, is refused.
    """

    endings: ClassVar[tuple[str, ...]] = (".weight", ".scales", ".biases", ".global_scale", ".globalScale")
    coded: ClassVar[tuple[str, ...]] = ("uint32",)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        for module in ["", *(key for key, value in settings.values.items() if isinstance(value, dict))]:
            self._mode(module)

    def _stated(self, module: str) -> Settings:
        """Return the quantisation object of a module: its own, or else the one for all modules."""
        return self.settings.section(module) if isinstance(self.settings.values.get(module), dict) else self.settings

    def _mode(self, module: str) -> str:
        """Return the mode of a module. Raises `UnsupportedError` for one that is not decoded."""
        settings = self._stated(module)
        mode = settings.text("mode", "affine")
        if mode not in _MODES:
            settings.unsupported("mode", " or ".join(map(repr, _MODES)))
        return mode

    def belongs(self, roles: Any, row: Any) -> bool:
        """Whether a weight is words of codes: ``scales`` and ``biases`` may themselves be parameters."""
        return "weight" in roles and row("weight").dtype.name == "uint32"

    def leaves_out(self, module: str) -> bool:
        """Implement `Method.leaves_out`: modules with false."""
        return self.settings.values.get(module) is False or super().leaves_out(module)

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        mode, settings = self._mode(group.module), self._stated(group.module)
        group.only("weight", "scales", *(["biases"] if mode == "affine" else []))
        possible, usual_size, usual_bits = _MODES[mode]
        bits, size = settings.integer("bits", usual_bits), settings.integer("group_size", usual_size)
        if bits not in possible:
            settings.unsupported("bits", " or ".join(map(str, possible)))
        *experts, rows, words = group.check("weight", ("uint32",), (None, None), (None, None, None))
        columns, remainder = divmod(words * 32, bits)
        if remainder or size < 1 or columns % size:
            expected = f"whole groups of {size} codes of {bits} bits"
            group.refuse("columns", "weight", actual=words, expected=expected)
        shape = (*experts, rows, columns // size)
        for role in ("scales", "biases") if mode == "affine" else ("scales",):
            group.check(role, FLOATS if mode == "affine" else ("uint8",), shape)
        if mode == "affine":
            matrix: Coding = Affine((rows, columns), size, bits)
        elif mode == "mxfp8":
            matrix = Mxfp8("mlx mxfp8", (rows, columns), "weight", "scales", height=1, width=size)
        else:
            kind = Nvfp4 if mode == "nvfp4" else Fp4
            matrix = kind(f"mlx {mode}", (rows, columns), "weight", "scales", width=size)
        return Experts(matrix, experts[0]) if experts else matrix


METHOD = Mlx
