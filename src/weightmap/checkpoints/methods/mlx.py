"""MLX: checkpoints that mlx-lm and mlx-vlm write, with ``quantization`` in config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap.checkpoints.methods import FLOATS, Group, Method, Settings
from weightmap.checkpoints.methods._codings import Experts, Fp4
from weightmap.checkpoints.pieced import Coding, to_float32, unpacked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.checkpoints.pieced import Pieces

_BITS = (2, 3, 4, 5, 6, 8)
_MODES = ("affine", "mxfp4")


class Affine(Coding):
    """``W[o, c] = s[o, g] * q[o, c] + b[o, g]``, with ``g = c // group_size``.

    Codes of `bits` bits are laid end to end in the uint32 words of a row of ``weight`` (out, in * bits / 32), lowest
    bits first; those of 3, 5 and 6 bits span words. ``scales`` and ``biases`` (out, in / group_size) have the type of
    the model. MLX computes in that type; here product and sum are rounded to float32 (ours).
    """

    __slots__ = ("bits",)

    def __init__(self, shape: tuple[int, int], size: int, bits: int) -> None:
        super().__init__(f"mlx affine {bits} bits", shape, "weight", "scales", block_size=size)
        self.bits: int = bits

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        return dict.fromkeys(("weight", "scales", "biases"), slice(first, last))

    def decode(self, pieces: Pieces, first: int, last: int) -> NDArray[np.float32]:
        """Implement `Coding.decode`."""
        codes = unpacked(pieces["weight"].view("<i4"), self.bits, self.shape[1])
        groups = codes.reshape(last - first, -1, self.block_size).astype(np.float32)
        scales, biases = (to_float32(pieces[role])[:, :, None] for role in ("scales", "biases"))
        return (groups * scales + biases).reshape(last - first, self.shape[1])


class Mlx(Method):
    """``quantization: {"group_size": 64, "bits": 4, "mode": "affine"}``: `Affine` is the formula.

    ``mode: "mxfp4"``: ``weight`` uint32 (out, in / 8), ``scales`` uint8 (out, in / 32), exponents: `Fp4`. The name of a
    module, as a key, has these three for it alone, or false: it is not quantised. Experts of a layer have pieces with
    one more dimension, the first.
    """

    endings: ClassVar[tuple[str, ...]] = (".weight", ".scales", ".biases")
    coded: ClassVar[tuple[str, ...]] = ("uint32",)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        for module in ["", *(key for key, value in settings.values.items() if isinstance(value, dict))]:
            self._mode(module)

    def _stated(self, module: str, key: str) -> Settings:
        """Return the object that states a key for a module: its own before that of all."""
        values = self.settings.values.get(module)
        return self.settings.section(module) if isinstance(values, dict) and key in values else self.settings

    def _mode(self, module: str) -> str:
        """Return the mode of a module. Raises `UnsupportedError` for one that is not decoded."""
        settings = self._stated(module, "mode")
        mode = settings.text("mode", _MODES[0])
        if mode not in _MODES:
            settings.unsupported("mode", " or ".join(map(repr, _MODES)))
        return mode

    def belongs(self, roles: Any, row: Any) -> bool:
        """Say whether a weight is words of codes: ``scales`` and ``biases`` may be parameters of their own."""
        return "weight" in roles and ("scales" not in roles or row("weight").dtype.name == "uint32")

    def leaves_out(self, module: str) -> bool:
        """Implement `Method.leaves_out`: modules with false."""
        return self.settings.values.get(module) is False or super().leaves_out(module)

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        mode, in_bits = self._mode(group.module), self._stated(group.module, "bits")
        group.only("weight", "scales", *(["biases"] if mode == "affine" else []))
        bits = in_bits.integer("bits", 4)
        size = self._stated(group.module, "group_size").integer("group_size", 64 if mode == "affine" else 32)
        if bits not in (_BITS if mode == "affine" else (4,)):
            in_bits.unsupported("bits", f"one of {', '.join(map(str, _BITS))}" if mode == "affine" else "4")
        *experts, rows, words = group.check("weight", ("uint32",), (None, None), (None, None, None))
        columns, remainder = divmod(words * 32, bits)
        if remainder or size < 1 or columns % size:
            expected = f"whole groups of {size} codes of {bits} bits"
            group.refuse("columns", "weight", actual=words, expected=expected)
        shape = (*experts, rows, columns // size)
        if mode == "mxfp4":
            group.check("scales", ("uint8",), shape)
            matrix: Coding = Fp4("mlx mxfp4", (rows, columns), "weight", "scales", width=size)
        else:
            for role in ("scales", "biases"):
                group.check(role, FLOATS, shape)
            matrix = Affine((rows, columns), size, bits)
        return Experts(matrix, experts[0]) if experts else matrix


METHOD = Mlx
