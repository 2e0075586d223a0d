"""ModelOpt: NVFP4 and FP8 of NVIDIA."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from weightmap.quant.checkpoints import FLOAT8, Group, Method, Settings
from weightmap.quant.checkpoints._codings import fp4, scaled

if TYPE_CHECKING:
    from weightmap.quant.pieced import Coding


class ModelOpt(Method):
    """``quant_method: "modelopt"``.

    NVFP4: ``weight`` uint8 (out, in / 2), ``weight_scale`` float8_e4m3fn (out, in / 16), ``weight_scale_2`` float32,
    which multiplies: `Fp4`. FP8: ``weight`` float8_e4m3fn (out, in), ``weight_scale`` one float32: `Scaled`.
    """

    endings: ClassVar[tuple[str, ...]] = (".weight", ".weight_scale", ".weight_scale_2", ".input_scale")
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
            return scaled(group, "modelopt fp8", "weight", "weight_scale", FLOAT8[:1], 0, 0, kinds=("float32",))
        return fp4(group, "modelopt nvfp4", "weight", "weight_scale", 16, FLOAT8[:1], whole="weight_scale_2")


METHOD = ModelOpt
