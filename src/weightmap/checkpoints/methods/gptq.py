"""GPTQ: AutoGPTQ, GPTQModel, optimum; the ``*-GPTQ-*`` repositories."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap.checkpoints.methods import HALVES, Group, Method, Settings, blocks_of
from weightmap.checkpoints.methods._codings import Transposed
from weightmap.checkpoints.pieced import Coding, Components, Layout, TargetTypes, integer_blocks, integers_fit, unpacked
from weightmap.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class GptqCoding(Transposed):
    """``W[o, c] = s[g, o] * (q[c, o] - z[g, o])``, with ``g = g_idx[c]``, or ``c // group_size`` without ``g_idx``.

    Codes of `bits` bits are laid end to end in int32 words, lowest bits first: along in for ``qweight`` (in * bits /
    32, out), along out for ``qzeros`` (G, out * bits / 32). ``scales`` (G, out) float16 or bfloat16. The first version
    of the format stores z less 1: ``z = (stored + 1) & (2**bits - 1)``.

    Parameters
    ----------
    groups : ndarray of int32, shape (in,), optional
        ``g_idx``, a checked copy.
    added : int
        1 in the first version, else 0.
    """

    __slots__ = ("added",)

    def __init__(
        self, shape: tuple[int, ...], size: int, bits: int, groups: NDArray[np.int32] | None, *, added: int
    ) -> None:
        step = 32 // math.gcd(32, bits)
        super().__init__(f"gptq {bits} bits", shape, size, bits, groups, step=step)
        self.added: int = added

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        every, rows = slice(None), slice(first, last)
        words = slice(first * self.bits // 32, last * self.bits // 32)
        return {"qweight": (every, rows), "scales": (every, rows), "qzeros": (every, words)}

    def zero_points(self, pieces: Components, first: int, last: int) -> NDArray[np.float32]:
        """Implement `Transposed.zero_points`."""
        z = unpacked(pieces["qzeros"], self.bits, last - first)
        return (z + np.uint8(self.added) & np.uint8((1 << self.bits) - 1)).astype(np.float32)

    def counterpart(self, read: Callable[[str], NDArray[Any]], target_types: TargetTypes) -> Layout | None:
        """Implement `Coding.counterpart`: groups in the order of columns, and every z in the middle."""
        columns, middle = self.shape[1], 1 << self.bits - 1
        if self.groups is not None and bool((self.groups != np.arange(columns) // self.block_size).any()):
            return None
        zeros = unpacked(read("qzeros"), self.bits, self.shape[0]) + np.uint8(self.added)
        if bool((zeros != middle).any()):
            return None
        return integers_fit(self.bits, columns, self.block_size, read("scales"), target_types)

    def blocks(self, pieces: Components, first: int, last: int, layout: Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`."""
        del first, last
        codes = unpacked(pieces["qweight"].T, self.bits, self.shape[1])
        codes = codes if self.bits < 8 else (codes ^ 0x80).view(np.int8)
        return integer_blocks(layout, codes, pieces["scales"].T, self.block_size)


class Gptq(Method):
    """``quant_method: "gptq"``: `GptqCoding` is the formula."""

    endings: ClassVar[tuple[str, ...]] = (".qweight", ".qzeros", ".scales", ".g_idx")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        version = "format" if settings.values.get("checkpoint_format") is None else "checkpoint_format"
        stated = settings.text(version, "gptq").lower()
        self.added: int = {"gptq": 1, "gptq_v2": 0}.get(stated, -1)
        if self.added < 0:
            settings.unsupported(version, "'gptq' or 'gptq_v2'")
        if settings.text("format", stated).lower() != stated:
            settings.refuse("format", f"{stated!r}, as checkpoint_format")
        if settings.flag("is_marlin_format"):
            settings.unsupported("is_marlin_format", "false")
        if settings.text("pack_dtype", "int32") != "int32":
            settings.unsupported("pack_dtype", "'int32'")
        self.whole: tuple[int, int] = self._sizes(settings, 4, 128)
        self.dynamic: list[tuple[str, tuple[int, int] | None]] = []
        self.rules: Settings = settings.section("dynamic")
        for key in self.rules.values:
            negative, text = key.startswith("-:"), key[2:] if key[:2] in {"+:", "-:"} else key
            sizes = None if negative else self._sizes(self.rules.section(key), *self.whole)
            self.dynamic.append((text, sizes))

    @staticmethod
    def _sizes(settings: Settings, bits: int, group_size: int) -> tuple[int, int]:
        sizes = settings.integer("bits", bits), settings.integer("group_size", group_size)
        if sizes[0] not in {2, 3, 4, 8}:
            settings.unsupported("bits", "2, 3, 4 or 8")
        return sizes

    def _rule(self, module: str) -> tuple[int, int] | None:
        """Return bits and size of the groups of a module; None if a rule leaves it unquantised."""
        return next((sizes for text, sizes in self.dynamic if self.rules.matches(text, text, module)), self.whole)

    def leaves_out(self, module: str) -> bool:
        """Implement `Method.leaves_out`: rules with a minus also leave modules out."""
        return super().leaves_out(module) or self._rule(module) is None

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        if group.module.endswith(("embed_tokens", "embeddings", "embed_in", "wte")):
            # GPTQModel's; the parameter is the transposed matrix.
            group.refuse("layout", "qweight", actual="of embeddings", expected="a linear layer", kind=UnsupportedError)
        bits, size = self._rule(group.module) or self.whole
        words, out = group.check("qweight", ("int32",), (None, None))
        columns, remainder = divmod(words * 32, bits)
        if remainder or columns % 32 * (bits == 3):
            group.refuse("rows", "qweight", actual=words, expected=f"whole codes of {bits} bits")
        if out * bits % 32:
            group.refuse("columns", "qweight", actual=out, expected=f"whole words of codes of {bits} bits")
        size = min(size if size > 0 else columns, columns) or 1
        count = blocks_of(columns, size)
        group.check("scales", HALVES, (count, out))
        group.check("qzeros", ("int32",), (count, out * bits // 32))
        groups = None
        if "g_idx" in group:
            group.check("g_idx", ("int32",), (columns,))
            groups = checked_groups(group, "g_idx", count)
        return GptqCoding((out, columns), size, bits, groups, added=self.added)


def checked_groups(group: Group, role: str, count: int) -> NDArray[np.int32]:
    """Read the group of each column; refuse a number that is not below `count`."""
    groups: NDArray[np.int32] = group.read(role).astype(np.int32)
    bad = np.flatnonzero((groups < 0) | (groups >= count))
    if len(bad):
        actual = int(groups[bad[0]])
        group.refuse(f"group of column {int(bad[0])}", role, actual=actual, expected=f"0 to {count - 1}")
    return groups


METHOD = Gptq
