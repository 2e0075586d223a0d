"""MXFP4 of gpt-oss: the matrices of all experts of a layer are one parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from weightmap.checkpoints.methods import EXPONENTS, Group, Method
from weightmap.checkpoints.methods._codings import Experts, Fp4

if TYPE_CHECKING:
    from weightmap.checkpoints.pieced import Coding

_WIDTH = 32


class Mxfp4(Method):
    """``quant_method: "mxfp4"``: ``X[e, c, o] = e2m1[q[e, o, c]] * 2**(scale[e, o, c // 32] - 127)``, exact.

    ``X_blocks`` uint8 (E, out, in / 32, 16), two codes to a byte, the first in its low nibble; ``X_scales`` uint8 (E,
    out, in / 32), where 255 is NaN. The parameter is the transposed matrix of each expert: (E, in, out).
    """

    endings: ClassVar[tuple[str, ...]] = ("_blocks", "_scales")
    parameter: ClassVar[str] = ""

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        experts, rows, blocks, _ = group.check("blocks", ("uint8",), (None, None, None, _WIDTH // 2))
        group.check("scales", EXPONENTS, (experts, rows, blocks))
        matrix = Fp4("mxfp4 gpt-oss", (rows, blocks * _WIDTH), "blocks", "scales", width=_WIDTH)
        return Experts(matrix, experts, turned=True)


METHOD = Mxfp4
