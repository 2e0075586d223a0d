"""Scaled FP8 of ComfyUI: single files of diffusion models that describe their own quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from weightmap.checkpoints.methods import FLOAT8, Group, Method, Settings
from weightmap.checkpoints.methods._codings import scaled
from weightmap.errors import UnsupportedError

if TYPE_CHECKING:
    from weightmap.checkpoints.pieced import Coding

_SCALES = ("scale_weight", "weight_scale")


class ComfyUI(Method):
    """``W = q * s``: ``weight`` float8 (out, in), and one number ``scale_weight``, or ``weight_scale``, float32.

    ``comfy_quant`` is JSON in bytes, ``{"format": "float8_e4m3fn"}``; ``_quantization_metadata`` of the header has such
    an object for each module, in ``layers``. A tensor ``scaled_fp8``, perhaps after the name of a part of the model,
    marks older files. A weight of another type is not quantised; float8 without a scale is refused (ours), because the
    scale may be missing. ``input_scale`` and ``scale_input`` are not decoded.
    """

    endings: ClassVar[tuple[str, ...]] = (
        *(".weight", ".scale_weight", ".weight_scale", ".comfy_quant", ".scale_input", ".input_scale"),
    )
    coded: ClassVar[tuple[str, ...]] = FLOAT8
    markers: ClassVar[tuple[str, ...]] = ("scaled_fp8",)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.layers = settings.section("layers")
        for module in self.layers.values:
            self._check(self.layers.section(module))

    @staticmethod
    def _check(settings: Settings) -> None:
        """Refuse another format than float8 with one scale."""
        if settings.text("format", FLOAT8[0]) not in FLOAT8:
            settings.unsupported("format", " or ".join(FLOAT8))
        if settings.flag("convrot"):
            settings.unsupported("convrot", "false: rotated weights are not turned back")

    def belongs(self, roles: Any, row: Any) -> bool:
        """Whether a weight is codes: ``weight_scale`` may itself be a parameter."""
        return "weight" in roles and row("weight").dtype.name in (*FLOAT8, "uint8", "int8")

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        if "comfy_quant" in group:
            self._check(group.described("comfy_quant"))
        kind = group.row("weight").dtype.name
        if kind not in FLOAT8:
            group.refuse("dtype", "weight", actual=kind, expected=" or ".join(FLOAT8), kind=UnsupportedError)
        scales = next((role for role in _SCALES if role in group), None)
        if scales is None:
            group.missing(_SCALES[0])
        group.only("weight", scales, "comfy_quant", "scale_input")
        return scaled(group, "comfyui fp8", "weight", scales, (kind,), 0, 0)


METHOD = ComfyUI
