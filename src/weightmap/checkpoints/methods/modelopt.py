"""ModelOpt: NVFP4 and FP8 of NVIDIA."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from weightmap.checkpoints.methods import FLOAT8, Group, Method, Settings
from weightmap.checkpoints.methods._codings import Experts, Fp4, Scaled, fp4, scaled

if TYPE_CHECKING:
    from weightmap.checkpoints.pieced import Coding


class ModelOpt(Method):
    """``quant_method: "modelopt"``.

    NVFP4: ``weight`` uint8 (out, in / 2), ``weight_scale`` float8_e4m3fn (out, in / 16), ``weight_scale_2`` float32,
    which multiplies: `Fp4`. FP8: ``weight`` float8_e4m3fn (out, in), ``weight_scale`` one float32: `Scaled`.

    The experts of a layer of Llama 4 are one parameter X (E, in, out), of the transposes of such matrices, as its
    pieces are: ``X`` uint8 (E, in / 2, out), ``X_weight_scale`` float8_e4m3fn (E, in / 16, out), ``X_weight_scale_2``
    one float32. FP8: ``X`` float8_e4m3fn (E, in, out), ``X_weight_scale`` one float32.
    """

    endings: ClassVar[tuple[str, ...]] = (".weight", ".weight_scale", ".weight_scale_2", ".input_scale")
    fused: ClassVar[tuple[str, ...]] = ("_weight_scale", "_weight_scale_2", "_input_scale")
    coded: ClassVar[tuple[str, ...]] = (*FLOAT8, "uint8")
    lists: ClassVar[tuple[str, ...]] = ("ignore", "exclude_modules")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.algorithm: str = settings.text("quant_algo", "").upper()
        if self.algorithm not in {"NVFP4", "FP8"}:
            settings.unsupported("quant_algo", "'NVFP4' or 'FP8'")
        if self.algorithm == "NVFP4" and settings.integer("group_size", 16) != 16:
            settings.refuse("group_size", "16")

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        if self.algorithm == "FP8":
            group.only("weight", "weight_scale", "input_scale")
        if group.fused:
            return self._experts(group)
        if self.algorithm == "FP8":
            return scaled(group, "modelopt fp8", "weight", "weight_scale", FLOAT8[:1], 0, 0, kinds=("float32",))
        return fp4(group, "modelopt nvfp4", "weight", "weight_scale", 16, FLOAT8[:1], whole="weight_scale_2")

    def _experts(self, group: Group) -> Coding:
        if self.algorithm == "FP8":
            count, rows, columns = group.check("weight", FLOAT8[:1], (None, None, None))
            group.check("weight_scale", ("float32",), (), (1,))
            name = "modelopt fp8 experts"
            of_all = Scaled(name, (rows, columns), "weight", "weight_scale", height=rows or 1, width=columns or 1)
            return Experts(of_all, count, shared="weight_scale")
        count, half, rows = group.check("weight", ("uint8",), (None, None, None))
        columns = 2 * half
        if columns % 16:
            group.refuse("rows of experts", "weight", actual=half, expected="a multiple of 8")
        group.check("weight_scale", FLOAT8[:1], (count, columns // 16, rows))
        group.check("weight_scale_2", ("float32",), (), (1,))
        name, whole = "modelopt nvfp4 experts", "weight_scale_2"
        matrix = Fp4(name, (rows, columns), "weight", "weight_scale", width=16, whole=whole)
        return Experts(matrix, count, shared=whole, turned=True, lying=True)


METHOD = ModelOpt
