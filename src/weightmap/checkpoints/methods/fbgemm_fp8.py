"""FP8 with a scale for each row, as FBGEMM has it: Llama 3.1 405B FP8."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from weightmap.checkpoints.methods import FLOAT8, Group, Method
from weightmap.checkpoints.methods._codings import scaled

if TYPE_CHECKING:
    from weightmap.checkpoints.pieced import Coding


class FbgemmFp8(Method):
    """``W[o, c] = q[o, c] * s[o]``: ``weight`` float8_e4m3fn (out, in), ``weight_scale`` float32 (out, 1)."""

    endings: ClassVar[tuple[str, ...]] = (".weight", ".weight_scale", ".input_scale_ub")
    coded: ClassVar[tuple[str, ...]] = FLOAT8

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        return scaled(group, "fp8 rows", "weight", "weight_scale", FLOAT8[:1], 1, 0, kinds=("float32",))


METHOD = FbgemmFp8
