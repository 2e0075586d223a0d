"""NVFP4 of GGUF files, whose scale of a whole tensor is a tensor of its own: llama.cpp's layout, and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from weightmap.checkpoints import pieced
from weightmap.checkpoints.methods import Group, Method
from weightmap.core.dtypes import DTYPES
from weightmap.core.native.quantised import decode_ggml

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from weightmap.core.table.table import Row

# A block: four scales, and 64 codes. The bytes of a scale of 1, and of two codes of 1.
_ELEMENTS, _BYTES, _SCALES = 64, 36, 4
_ONE, _CODES_OF_ONE = 0x38, 0x22


class Blocks(pieced.Coding):
    """``W = e2m1[q] * (s * whole)``, where a row of bytes has blocks of nvfp4, with a scale s for 16 elements.

    The inner product is rounded to float32, as in ModelOpt; llama.cpp multiplies the result of a layer by `whole`. Code
    8 is 0, as in ggml, and not -0.
    """

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`: matrices of experts may have a scale each."""
        return {self.codes: slice(first, last), self.scales: None}

    def decode(self, pieces: pieced.Components, first: int, last: int) -> NDArray[np.float32]:
        """Implement `Coding.decode`."""
        blocks = pieces[self.codes].reshape(-1, _BYTES)
        codes, scales = blocks.copy(), blocks.copy()
        codes[:, :_SCALES], scales[:, _SCALES:] = _ONE, _CODES_OF_ONE
        values, factors = (decode_ggml(part, part.size // _BYTES * _ELEMENTS, "nvfp4") for part in (codes, scales))
        whole = pieces[self.scales].reshape(-1, 1)
        factors = factors.reshape(last - first, -1) * (whole if len(whole) == 1 else whole[first:last])
        result: NDArray[np.float32] = values.reshape(factors.shape) * factors
        return result.reshape(last - first, *self.shape[1:])

    def counterpart(
        self, read: Callable[[str], NDArray[Any]], target_types: pieced.TargetTypes
    ) -> pieced.Layout | None:
        """Implement `Coding.counterpart`: the stored blocks."""
        fits = "nvfp4" in target_types.schemes
        return pieced.Layout("nvfp4", _ELEMENTS, "ue4m3", read(self.scales).reshape(-1)) if fits else None

    def blocks(self, pieces: pieced.Components, first: int, last: int, layout: pieced.Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`."""
        del layout
        return pieces[self.codes].reshape(last - first, -1)


class GgufNvfp4(Method):
    """A GGUF file with ``NAME.weight`` nvfp4, and ``NAME.scale`` float32, one number, or one for each expert."""

    endings: ClassVar[tuple[str, ...]] = (".weight", ".scale")

    def belongs(self, roles: Collection[str], row: Any) -> bool:
        """Whether these are a tensor of nvfp4 and its scale."""
        return {"weight", "scale"} == set(roles) and row("weight").dtype.name == "nvfp4"

    def of_one(self, rows: Mapping[str, tuple[str, Row]]) -> Mapping[str, tuple[str, Row]]:
        """Implement `Method.of_one`: the blocks of a row as bytes."""
        name, row = rows["weight"]
        shape = *row.shape[:-1], row.shape[-1] // _ELEMENTS * _BYTES
        return {**rows, "weight": (name, row._replace(dtype=DTYPES["uint8"], shape=shape, quantized=None))}

    def coding(self, group: Group) -> pieced.Coding:
        """Implement `Method.coding`."""
        *outer, nbytes = group.check("weight", ("uint8",), (None, None), (None, None, None))
        group.check("scale", ("float32",), (), (1,), *([tuple(outer[:1])] if len(outer) > 1 else []))
        coding = Blocks("nvfp4 gguf", (*outer, nbytes // _BYTES * _ELEMENTS), "weight", "scale", block_size=16)
        coding.stated = "float32"
        return coding


METHOD = GgufNvfp4
