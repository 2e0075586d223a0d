"""MXFP4 of gpt-oss: the matrices of all experts of a layer are one parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap.native import late
from weightmap.quant.checkpoints import EXPONENTS, Group, Method
from weightmap.quant.pieced import E2M1, E8M0, Codes, Coding, low_first, to_float32
from weightmap.quant.repacking import exponents_fit, float_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightmap.quant.pieced import Pieces
    from weightmap.quant.repacking import Held, Layout

_WIDTH = 32


class ExpertsCoding(Coding):
    """``X[e, c, o] = e2m1[q[e, o, c]] * 2**(scale[e, o, c // 32] - 127)``, exact.

    ``X_blocks`` uint8 (E, out, in / 32, 16), two codes to a byte, the first one its low nibble; ``X_scales`` uint8 (E,
    out, in / 32), where 255 is NaN. The parameter is the transposed matrix of each expert: (E, in, out).
    """

    __slots__ = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__("mxfp4 gpt-oss", shape, "blocks", "scales", block_size=_WIDTH)

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        return {"blocks": slice(first, last), "scales": slice(first, last)}

    def decode(self, pieces: Pieces, first: int, last: int) -> NDArray[np.float32]:
        """Implement `Coding.decode`."""
        values = E2M1[low_first(pieces["blocks"])] * to_float32(pieces["scales"])[..., None]
        return np.swapaxes(values.reshape(last - first, self.shape[2], self.shape[1]), 1, 2)

    def rows(
        self,
        pieces: Pieces,
        first: int,
        last: int,
        dtype: np.dtype[Any],
        out: NDArray[Any] | None = None,
        threads: int = 1,
    ) -> NDArray[Any]:
        """Implement `Coding.rows`: each expert as it is stored, then transposed."""
        if dtype.name not in late.CODED:
            return super().rows(pieces, first, last, dtype, out, threads)
        target = np.empty((last - first, *self.shape[1:]), dtype) if out is None else out
        _, columns, rows = self.shape
        made = np.empty((rows, columns), dtype)
        for expert, blocks, exponents in zip(target, pieces["blocks"], pieces["scales"], strict=True):
            Codes(blocks, 4, E2M1, E8M0, 1, _WIDTH, which=exponents.view(np.uint8)).decode(made, threads)
            expert[...] = made.T
        return target

    def counterpart(self, read: Callable[[str], NDArray[Any]], held: Held) -> Layout | None:
        """Implement `Coding.counterpart`; ggml's blocks lie along in, so the matrices are those stored."""
        return exponents_fit(read("scales")) if "mxfp4" in held.schemes else None

    def blocks(self, pieces: Pieces, first: int, last: int, layout: Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`: (experts, rows * bytes)."""
        rows = (last - first) * self.shape[2]
        codes = low_first(pieces["blocks"]).reshape(rows, -1)
        return float_blocks(layout, codes, pieces["scales"].view(np.uint8).reshape(rows, -1)).reshape(last - first, -1)


class Mxfp4(Method):
    """``quant_method: "mxfp4"``: `ExpertsCoding` is the formula."""

    endings: ClassVar[tuple[str, ...]] = ("_blocks", "_scales")
    parameter: ClassVar[str] = ""

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        experts, rows, blocks, _ = group.check("blocks", ("uint8",), (None, None, None, _WIDTH // 2))
        group.check("scales", EXPONENTS, (experts, rows, blocks))
        return ExpertsCoding((experts, blocks * _WIDTH, rows))


METHOD = Mxfp4
