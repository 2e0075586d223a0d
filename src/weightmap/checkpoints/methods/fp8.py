"""FP8 with scales of blocks, rows or the tensor: DeepSeek, Qwen3-FP8, MiniMax, Kimi; AutoFP8; MXFP8; Llama 3.1 405B."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from weightmap.checkpoints.methods import EXPONENTS, FLOAT8, FLOATS, Group, Method, Settings, blocks_of
from weightmap.checkpoints.methods._codings import Experts, Fp4, Scaled, fp4, scaled
from weightmap.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from weightmap.checkpoints.pieced import Coding
    from weightmap.core.table.table import Row

_SCALES = ("weight_scale_inv", "weight_scale", "scale", "scale_inv")
# The matrices of an expert, and the half of gate_up_proj of each; other names are down_proj.
_EXPERT = re.compile(r"(.+\.experts)\.(\d{1,9})\.((?:gate|up|down)_proj|w[123]|fc[123])\.weight")
_HALVES = {"gate_proj": 0, "w1": 0, "fc1": 0, "up_proj": 1, "w3": 1, "fc3": 1}


class Fp8(Method):
    """``W = q * s[o // bh, c // bw]``: ``weight_scale_inv`` multiplies, despite its name.

    ==================  ===========================================================================================
    ``weight``          float8_e4m3fn (``fmt: "e5m2"``: float8_e5m2), shape (out, in)
    ``weight_scale_inv``  shape (ceil(out / bh), ceil(in / bw)), with ``weight_block_size: [bh, bw]``; DeepSeek's own
                        repositories call it ``scale``. float32, bfloat16, or E8M0 exponents as bytes
    ``weight_scale``    one number of these types, or one for each row, without ``weight_block_size``; or called
                        ``weight_scale_inv``. With ``quant_method: "mxfp8"`` blocks are by default (1, 32)
    ``input_scale``     of static activations, also ``activation_scale`` or ``input_scale_ub``: not decoded
    ==================  ===========================================================================================

    An int8 weight, shape (out, in / 2), is e2m1 codes with exponents for 32 columns: experts of DeepSeek V4, whose
    ``expert_dtype: "fp4"`` stands here or at the top of config.json.

    Experts of a layer that are one parameter X: ``X`` (E, out, in), ``X_scale_inv`` (E, ceil(out / bh), ceil(in / bw)),
    or (E, 1, 1) without ``weight_block_size``; or ``X.weight`` and ``X.weight_scale_inv``. transformers saves codes
    of each expert and scales of all: ``experts.0.gate_proj.weight`` and ``experts.gate_up_proj_scale_inv``, which has
    gate's blocks before up's, or one row of blocks for both.
    """

    endings: ClassVar[tuple[str, ...]] = (
        *(".weight", ".weight_scale_inv", ".weight_scale", ".scale"),
        *(".input_scale", ".activation_scale", ".input_scale_ub"),
    )
    fused: ClassVar[tuple[str, ...]] = ("_scale_inv", "_activation_scale")
    coded: ClassVar[tuple[str, ...]] = (*FLOAT8, "int8")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if "weight_scale_semantics" in settings.values:
            settings.unsupported("weight_scale_semantics", "none: scales of GPTQModel divide, and are not decoded")
        usual = (1, 32) if settings.values["quant_method"] == "mxfp8" else None
        self.block: tuple[int, int] | None = settings.sizes("weight_block_size") or usual
        kinds = {"e4m3": FLOAT8[0], "e5m2": FLOAT8[1]} | dict(zip(FLOAT8, FLOAT8, strict=True))
        if settings.text("fmt", "e4m3") not in kinds:
            settings.unsupported("fmt", " or ".join(kinds))
        self.stored: str = kinds[settings.text("fmt", "e4m3")]

    def belongs(self, roles: Collection[str], row: Any) -> bool:
        """Return False if `scale` is itself a parameter: then its sibling weight is not coded."""
        if set(roles) <= {"weight", "scale"} and "scale" in roles:
            codes = "weight" in roles and row("weight").dtype.name in self.coded
            return codes or row("scale").dtype.name == EXPONENTS[1]
        return super().belongs(roles, row)

    def layers_of(self, parameter: str) -> Sequence[str]:
        """Implement `Method.layers_of`."""
        match = _EXPERT.fullmatch(parameter)
        if match is None:
            return ()
        leaves = ("gate_up_proj", match[3]) if match[3] in _HALVES else ("down_proj",)
        return [f"{match[1]}.{leaf}" for leaf in leaves]

    def of_one(self, rows: Mapping[str, tuple[str, Row]]) -> Mapping[str, tuple[str, Row]]:
        """Implement `Method.of_one`: the scales of an expert, and of its half; all scales if they do not divide."""
        match = _EXPERT.fullmatch(rows["weight"][0]) if {"weight", "scale_inv"} <= rows.keys() else None
        if match is None:
            return rows
        name, row = rows["scale_inv"]
        shape, number = row.shape, int(match[2])
        parts = 2 if len(shape) == 3 and shape[1] > 1 and name.endswith(".gate_up_proj_scale_inv") else 1
        if len(shape) != 3 or number >= shape[0] or shape[1] % parts:
            return rows
        nbytes, half = row.nbytes // shape[0] // parts, _HALVES[match[3]] if parts == 2 else 0
        part = row.dense._replace(shape=(shape[1] // parts, shape[2]), nbytes=nbytes)
        return {**rows, "scale_inv": (name, part._replace(offset=row.offset + (number * parts + half) * nbytes))}

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        if group.fused:
            group.only("weight", "scale_inv", "activation_scale")
            return self._experts(group, "scale_inv")
        scales = next((role for role in _SCALES if role in group), None)
        if scales is None:
            group.missing("weight_scale_inv" if self.block else "weight_scale")
        group.only("weight", scales, "activation_scale")
        if len(group.row("weight").shape) > 2:
            return self._experts(group, scales)
        shape, kind = group.row(scales).shape, group.row("weight").dtype.name
        if len(shape) > 2 and scales == "scale_inv":
            expected = "rows for every expert, an even number in gate_up_proj"
            group.refuse("blocks", scales, actual=list(shape), expected=expected, kind=UnsupportedError)
        if kind in FLOATS:
            group.refuse("weights beside scales", "weight", actual=kind, expected=self.stored, kind=UnsupportedError)
        if kind == "int8":
            return fp4(group, "fp8 fp4 experts", "weight", scales, 32, EXPONENTS, stored=("int8",))
        kinds = (*FLOATS, *EXPONENTS)
        by_rows = int(self.block is None and max(shape, default=1) > 1)  # rows with one scale; 0 for all
        name = "fp8 blocks" if self.block else "fp8 rows" if by_rows else "fp8"
        return scaled(group, name, "weight", scales, (self.stored,), *(self.block or (by_rows, 0)), kinds=kinds)

    def _experts(self, group: Group, scales: str) -> Coding:
        if group.row("weight").dtype.name == "int8":
            count, rows, half = group.check("weight", ("int8",), (None, None, None))
            group.check(scales, EXPONENTS, (count, rows, half // 16))
            if half % 16:
                group.refuse("columns", "weight", actual=2 * half, expected="a multiple of 32")
            return Experts(Fp4("fp8 fp4 experts", (rows, 2 * half), "weight", scales, width=32), count)
        count, rows, columns = group.check("weight", (self.stored,), (None, None, None))
        high, wide = (min(size, n) or 1 for size, n in zip(self.block or (rows, columns), (rows, columns), strict=True))
        shape = count, blocks_of(rows, high), blocks_of(columns, wide)
        group.check(scales, (*FLOATS, *EXPONENTS), shape)
        return Experts(Scaled("fp8 experts", (rows, columns), "weight", scales, height=high, width=wide), count)


METHOD = Fp8
