"""AWQ in the order of its GEMM kernel: AutoAWQ, and the ``*-AWQ`` repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap.checkpoints.methods import HALVES, Group, Method, Settings, blocks_of
from weightmap.checkpoints.methods._codings import Transposed
from weightmap.checkpoints.pieced import Coding, Components, Layout, TargetTypes, integer_blocks, integers_fit, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

_MIDDLE = 8


class AwqCoding(Transposed):
    """``W[o, c] = s[g, o] * (q[c, o] - z[g, o])``, with ``g = c // group_size``.

    ``qweight`` int32 (in, out / 8) and ``qzeros`` int32 (G, out / 8): a word has the codes of eight neighbouring
    outputs; output ``8 * word + k`` has nibble ``[0, 4, 1, 5, 2, 6, 3, 7][k]``. ``scales`` (G, out) float16 or
    bfloat16. Without ``qzeros`` every z is 8.
    """

    __slots__ = ("zeros",)

    def __init__(self, shape: tuple[int, ...], size: int, *, zeros: bool) -> None:
        super().__init__("awq gemm", shape, size, 4, by_rows=True, step=8)
        self.zeros: bool = zeros

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        every, words = slice(None), slice(first // 8, last // 8)
        slices = {"qweight": (every, words), "scales": (every, slice(first, last))}
        return slices | {"qzeros": (every, words)} if self.zeros else slices

    def zero_points(self, pieces: Components, first: int, last: int) -> NDArray[np.float32]:
        """Implement `Transposed.zero_points`."""
        if self.zeros:
            return _outputs(pieces["qzeros"]).astype(np.float32)
        return np.full((len(pieces["scales"]), last - first), _MIDDLE, np.float32)

    def counterpart(self, read: Callable[[str], NDArray[Any]], target_types: TargetTypes) -> Layout | None:
        """Implement `Coding.counterpart`: where every z is 8."""
        if self.zeros and bool((_outputs(read("qzeros")) != _MIDDLE).any()):
            return None
        return integers_fit(4, self.shape[1], self.block_size, read("scales"), target_types)

    def blocks(self, pieces: Components, first: int, last: int, layout: Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`."""
        del first, last
        codes = _outputs(pieces["qweight"]).T
        return integer_blocks(layout, codes, pieces["scales"].T, self.block_size)


def _outputs(words: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the codes of words in the order of outputs, which takes nibbles of the lower and upper half in turn."""
    codes: NDArray[Any] = words.view(np.uint32)
    for shift, middle in ((8, 0x0000FF00), (4, 0x00F000F0)):
        exchanged = (codes ^ codes >> shift) & middle
        codes = codes ^ exchanged ^ exchanged << shift
    return unpacked(codes.view(np.int32), 4, 8 * words.shape[-1])


class Awq(Method):
    """``quant_method: "awq"``: `AwqCoding` is the formula."""

    endings: ClassVar[tuple[str, ...]] = (".qweight", ".qzeros", ".scales")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        bits = "w_bit" if "w_bit" in settings.values and "bits" not in settings.values else "bits"
        if settings.integer(bits, 4) != 4:
            settings.unsupported(bits, "4")
        older = "q_group_size" in settings.values and "group_size" not in settings.values
        self.group_size: int = settings.integer("q_group_size" if older else "group_size", 128)
        for key in ("version", "format", "checkpoint_format"):
            if settings.text(key, "gemm").lower() != "gemm":
                settings.unsupported(key, "'gemm'")
        self.zeros: bool = settings.flag("zero_point", default=True)
        if "pack_method" in settings.values and not (self.zeros and settings.values["pack_method"] == "reorder"):
            settings.unsupported("pack_method", "'reorder', and zero points: others of AMD Quark are not decoded")

    def belongs(self, roles: Collection[str], row: Any) -> bool:
        """Return False for the scales of an activation, a parameter of one dimension, which AutoAWQ adds."""
        return set(roles) != {"scales"} or len(row("scales").shape) > 1

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        columns, words = group.check("qweight", ("int32",), (None, None))
        size, out = self.group_size if self.group_size > 0 else max(columns, 1), 8 * words
        if columns % size:
            group.refuse("rows", "qweight", actual=columns, expected=f"a multiple of group_size, {size}")
        size = min(size, max(columns, 1))
        group.check("scales", HALVES, (blocks_of(columns, size), out))
        if self.zeros or "qzeros" in group:
            group.check("qzeros", ("int32",), (blocks_of(columns, size), words))
        return AwqCoding((out, columns), size, zeros="qzeros" in group)


METHOD = Awq
