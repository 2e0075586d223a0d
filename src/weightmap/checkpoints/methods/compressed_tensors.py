"""compressed-tensors: llm-compressor, RedHatAI; Kimi K2 in int4."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap._messages import quoted
from weightmap.checkpoints.methods import EXPONENTS, FLOAT8, FLOATS, Group, Method, Settings, blocks_of
from weightmap.checkpoints.methods._codings import Experts, Scaled, fp4, scaled
from weightmap.checkpoints.methods.gptq import checked_groups
from weightmap.checkpoints.pieced import Codes, Coding, Grouped, integer_blocks, integers_fit, unpacked
from weightmap.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.checkpoints.pieced import Components, Layout, TargetTypes

# Scales that may be one for all experts.
_ONE = ("weight_scale", "weight_global_scale")
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})")


class PackedCoding(Coding):
    """``W[o, c] = s[o, g] * (q[o, c] - z[o, g])``, with ``g = c // group_size`` or ``g = weight_g_idx[c]``.

    ``weight_packed`` int32 (out, ceil(in * bits / 32)): codes ``q + 2**(bits - 1)``, laid end to end along in, lowest
    bits first. ``weight_zero_point`` int32 (ceil(out * bits / 32), G): z as such codes, along out. Up to version 0.8.1,
    and for a whole tensor, it is z itself, int8 with the shape of the scales. Without it z is 0.
    ``weight_scale`` (out, G), (out, 1) or (1,). Up to version 0.17 codes of 3, 5, 6 and 7 bits did not span words: a
    word has ``32 // bits`` codes, from bit 0 on.

    Parameters
    ----------
    groups : ndarray of int32, shape (in,), optional
        ``weight_g_idx``, a checked copy.
    spans : bool
        Whether codes span words.
    zeros : str or None
        The storage of zero points, if any: "packed" or "plain".
    single : bool
        Whether a single scale serves all.
    """

    __slots__ = ("bits", "groups", "single", "spans", "zeros")

    bits: int
    groups: NDArray[np.int32] | None
    spans: bool
    zeros: str | None
    single: bool

    def __init__(
        self,
        shape: tuple[int, ...],
        size: int,
        bits: int,
        groups: NDArray[np.int32] | None,
        *,
        spans: bool,
        zeros: str | None,
        single: bool,
    ) -> None:
        # Rows of packed zero points begin at a word.
        step = 1 if zeros != "packed" else 32 // math.gcd(32, bits) if spans else 32 // bits
        name = "compressed-tensors pack-quantized"
        super().__init__(name, shape, "weight_packed", "weight_scale", block_size=size, step=step)
        self.bits, self.groups, self.spans, self.zeros, self.single = bits, groups, spans, zeros, single

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        rows = slice(first, last)
        ranges = {"weight_packed": rows, "weight_scale": None if self.single else rows}
        if self.zeros == "packed":
            bits, per_word = (self.bits, 32) if self.spans else (1, 32 // self.bits)
            ranges["weight_zero_point"] = slice(first * bits // per_word, blocks_of(last * bits, per_word))
        elif self.zeros == "plain":
            ranges["weight_zero_point"] = ranges["weight_scale"]
        return ranges

    def decode(self, pieces: Components, first: int, last: int) -> NDArray[np.float32]:
        """Implement `Coding.decode`."""
        columns = self.shape[1]
        groups = self.group_of_columns(self.groups)
        scales = np.atleast_2d(pieces["weight_scale"].astype(np.float32))
        values = self._codes(pieces["weight_packed"], columns).astype(np.float32)
        if self.zeros:
            return scales[:, groups] * (values - self._zeros(pieces, last - first)[:, groups])
        return scales[:, groups] * (values - np.float32(1 << self.bits - 1))

    @property
    def direct(self) -> bool:  # type: ignore[override]
        """Whether C decodes the codes: with an order of columns, only if the transposed words equal GPTQ's."""
        return self.spans and (self.groups is None or self.shape[1] * self.bits % 32 == 0)

    def _grouped(self, pieces: Components, first: int, last: int) -> Grouped:
        words, count = _transposed(pieces["weight_packed"]), blocks_of(self.shape[1], self.block_size)
        scales = np.broadcast_to(np.atleast_2d(pieces["weight_scale"]), (last - first, count)).T
        zeros = np.full(scales.shape, 1 << self.bits - 1, np.float32)
        if self.zeros:
            zeros[...] = self._zeros(pieces, last - first).T
        return Grouped(words, self.bits, self.group_of_columns(self.groups), scales, zeros)

    def coded(self, pieces: Components, first: int, last: int) -> Codes | Grouped | None:
        """Implement `Coding.coded`."""
        if not self.direct:
            return None
        if self.groups is not None:
            return self._grouped(pieces, first, last)
        every = np.arange(1 << self.bits, dtype=np.float32)
        codes = np.ascontiguousarray(pieces["weight_packed"], "<i4").view(np.uint8)
        height = self.shape[0] if self.single else 1
        result = Codes(codes, self.bits, every, pieces["weight_scale"], height, self.block_size)
        if self.zeros:
            zeros = self._zeros(pieces, last - first)
            return result._replace(before=first % height, zeros=zeros)
        return result._replace(before=first % height, values=every - np.float32(1 << self.bits - 1))

    def counterpart(self, read: Callable[[str], NDArray[Any]], target_types: TargetTypes) -> Layout | None:
        """Implement `Coding.counterpart`: symmetric, and groups in the order of columns."""
        if self.zeros or self.groups is not None:
            return None
        return integers_fit(self.bits, self.shape[1], self.block_size, read("weight_scale"), target_types)

    def blocks(self, pieces: Components, first: int, last: int, layout: Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`."""
        del first, last
        codes = self._codes(pieces["weight_packed"], self.shape[1])
        codes = codes if self.bits < 8 else (codes ^ 0x80).view(np.int8)
        return integer_blocks(layout, codes, pieces["weight_scale"], self.block_size)

    def _zeros(self, pieces: Components, rows: int) -> NDArray[np.float32]:
        """Return z of these rows, as codes: (rows or 1, G)."""
        stored = pieces["weight_zero_point"]
        if self.zeros == "packed":
            return self._codes(stored.T, rows).T.astype(np.float32)
        return np.atleast_2d(stored).astype(np.float32) + np.float32(1 << self.bits - 1)

    def _codes(self, words: NDArray[Any], count: int) -> NDArray[np.uint8]:
        if self.spans or 32 % self.bits == 0:
            return unpacked(words, self.bits, count)
        codes = unpacked(words[..., None], self.bits, 32 // self.bits)  # each word is its own stream
        return codes.reshape(*words.shape[:-1], -1)[..., :count]


def _transposed(words: NDArray[Any]) -> NDArray[Any]:
    """Return a transposed copy, a few rows at a time: one step would leave the caches."""
    result = np.empty(words.shape[::-1], words.dtype)
    for first in range(0, len(words), 64):
        result[:, first : first + 64] = words[first : first + 64].T
    return result


class _Weights:
    """The quantisation of weights in one group of the configuration."""

    def __init__(self, settings: Settings, whole: str, rules: Settings) -> None:
        self.settings = rules
        self.format: str = settings.text("format", whole)
        self.bits: int = rules.integer("num_bits", 8)
        self.kind: str = rules.text("type", "int")
        self.symmetric: bool = rules.flag("symmetric", default=True)
        self.size: int = rules.integer("group_size", -1)
        usual = {None: "tensor", -1: "channel"}.get(rules.values.get("group_size"), "group")
        self.strategy: str = rules.text("strategy", usual)
        order = rules.values.get("actorder")
        self.ordered: bool = order is True or (isinstance(order, str) and order.lower() in {"group", "dynamic"})
        self.block: tuple[int, int] | None = rules.sizes("block_structure") if self.strategy == "block" else None

    def blocks(self) -> tuple[int, int]:
        """Return rows and columns with one scale; 0 for all."""
        if self.strategy == "tensor":
            return 0, 0
        if self.strategy in {"channel", "group", "tensor_group"}:
            return 1, 0 if self.strategy == "channel" else max(self.size, 0)
        if self.strategy == "block" and self.block is not None and self.format != "pack-quantized":
            return self.block
        return self.settings.unsupported(
            "strategy", "'tensor', 'channel', 'group', or, not packed, 'block' with its block_structure"
        )


# The values of float6_e2m3, by their codes.
_E2M3 = np.array([*(m / 8 for m in range(8)), *(2**e * (1 + m / 8) for e in range(3) for m in range(8))], np.float32)
_E2M3 = np.concatenate([_E2M3, -_E2M3])


class Fp6(Scaled):
    """``W[o, c] = e2m3[q[o, c]] * s[o, c // 32]``: q are 6 bits, laid end to end in bytes, lowest bits first."""

    __slots__ = ()

    def coded(self, pieces: Components, first: int, last: int) -> Codes:
        """Implement `Coding.coded`."""
        return super().coded(pieces, first, last)._replace(bits=6, values=_E2M3)


class CompressedTensors(Method):
    """``quant_method: "compressed-tensors"``.

    ======================  ===================================================================================
    pack-quantized          `PackedCoding`
    int-quantized           `weight` int8 of 1 to 8 bits, `weight_scale`, perhaps `weight_zero_point` int8: `Scaled`
    float-quantized         `weight` float8_e4m3fn, `weight_scale` of tensor, rows, groups or blocks: `Scaled`
    naive-quantized         one of these two
    nvfp4-pack-quantized    `weight_packed`, `weight_scale` float8_e4m3fn for 16 columns, `weight_global_scale`,
                            which divides: `Fp4`
    mxfp4-pack-quantized    `weight_packed`, `weight_scale` exponents for 32 columns: `Fp4`
    mxfp6-pack-quantized    the same: `Fp6`
    mxfp8-quantized         `weight` float8_e4m3fn, `weight_scale` exponents for 32 columns: `Scaled`
    ======================  ===================================================================================

    Experts of a layer that are one parameter have pieces with one more dimension, the first.
    """

    endings: ClassVar[tuple[str, ...]] = (
        *(".weight", ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape"),
        *(".weight_global_scale", ".input_scale", ".input_global_scale", ".input_zero_point"),
    )
    coded: ClassVar[tuple[str, ...]] = (*FLOAT8, "int8")
    lists: ClassVar[tuple[str, ...]] = ("ignore",)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        version = _VERSION.match(settings.text("version", ""))
        self.version: tuple[int, int] | None = (int(version[1]), int(version[2])) if version else None
        whole = settings.text("format", "dense")
        if whole not in {*_FORMATS, "dense", "mixed-precision"}:
            settings.unsupported("format", f"one of {', '.join(_FORMATS)}")
        sparsity = settings.section("sparsity_config")
        if sparsity.text("format", "dense") != "dense":
            sparsity.unsupported("format", "'dense'")
        self.groups: list[tuple[list[str], _Weights | None]] = []
        groups = settings.section("config_groups")
        for name in groups.values:
            section = groups.section(name)
            rules = section.section("weights")
            weights = _Weights(section, whole, rules) if rules.values else None
            if weights is not None and weights.format not in {*_FORMATS, "dense"}:
                section.unsupported("format", f"one of {', '.join(_FORMATS)}")
            self.groups.append((section.texts("targets"), weights))

    def _candidates(self, module: str) -> Iterator[_Weights]:
        """Yield the possible quantisations of a module: by its name, then by expressions, then by its class."""

        def by_name(target: str) -> bool:
            return target == module

        def by_expression(target: str) -> bool:
            return target.startswith("re:") and self.settings.matches("targets", target[3:], module)

        def by_class(target: str) -> bool:
            return "." not in target and target[:1].isupper()

        for fits in (by_name, by_expression, by_class):
            for targets, weights in self.groups:
                if weights is not None and any(map(fits, targets)):
                    yield weights

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`: if several groups target a module, the first one that fits its pieces counts."""
        error: FormatError | None = None
        for weights in self._candidates(group.module):
            try:
                return self._coding_by(weights, group)
            except FormatError as refusal:
                error = error or refusal
        if error is None:
            group.refuse("config_groups have no group", expected=f"one that targets {quoted(group.module)}")
        raise error

    def _coding_by(self, weights: _Weights, group: Group) -> Coding:
        make = _FORMATS.get(weights.format)
        if make is None:
            group.refuse("uncompressed weights", expected="save_compressed=True", kind=UnsupportedError)
        shape = group.row("weight_packed" if "weight_packed" in group else "weight").shape
        return make(self, group, weights) if len(shape) < 3 else self._experts(make, group, weights, shape[0])

    def _experts(
        self, make: Callable[[Any, Group, _Weights], Coding], group: Group, weights: _Weights, count: int
    ) -> Coding:
        """Return the coding of matrices stored one after another."""
        if "weight_g_idx" in group:
            what, expected = "order of columns", "none, for experts"
            group.refuse(what, "weight_g_idx", actual="stored", expected=expected, kind=UnsupportedError)
        alone = [role for role in group.names if role == "weight_shape" or role.startswith("input_")]
        one = [role for role in _ONE if role in group and math.prod(group.row(role).shape) == 1][:1]
        matrix = make(self, group.expert(count, [*one, *alone]), weights)
        return Experts(matrix, count, shared=one[0] if one else None)

    def packed(self, group: Group, weights: _Weights) -> Coding:
        """Return the coding of pack-quantized weights."""
        group.only("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
        bits = weights.bits
        if not 1 <= bits <= 8 or weights.kind != "int":
            weights.settings.unsupported("num_bits", "1 to 8 bits of type 'int'")
        rows, words = group.check("weight_packed", ("int32",), (None, None))
        group.check("weight_shape", ("int64", "int32"), (2 + len(group.experts),))
        *before, columns = group.read("weight_shape").tolist()
        if before != [*group.experts, rows] or columns < 0:
            group.refuse("shape", "weight_shape", actual=[*before, columns], expected=[*group.experts, rows, "columns"])
        shape = rows, columns
        spans = self._spans(group, bits, columns, words)
        high, size = weights.blocks()
        width = size or max(columns, 1)
        if columns % width:
            group.refuse("columns", "weight_shape", actual=columns, expected=f"a multiple of group_size, {size}")
        width = min(width, max(columns, 1))
        count = blocks_of(columns, width)
        group.check("weight_scale", FLOATS, *([(rows, count)] if high else [(), (1,), (1, 1)]))
        zeros = None
        if self._has_zeros(group, weights):
            packed = bool(high) and group.row("weight_zero_point").dtype.name != "int8"
            words = blocks_of(rows * bits, 32) if spans else blocks_of(rows, 32 // bits)
            if packed:
                group.check("weight_zero_point", ("int32",), (words, count))
            else:
                group.check("weight_zero_point", ("int8",), group.row("weight_scale").shape)
            zeros = "packed" if packed else "plain"
        columns_of = self._columns(group, weights, columns, count)
        return PackedCoding(shape, width, bits, columns_of, spans=spans, zeros=zeros, single=not high)

    def _has_zeros(self, group: Group, weights: _Weights) -> bool:
        """Whether the group has zero points. Up to version 0.8.1 zero points that are all 0 were left out."""
        if "weight_zero_point" in group:
            if weights.symmetric:
                group.refuse("the configuration says symmetric: zero points", "weight_zero_point")
            return True
        if not weights.symmetric and (self.version is None or self.version > (0, 8)):
            group.missing("weight_zero_point")
        return False

    def _spans(self, group: Group, bits: int, columns: int, words: int) -> bool:
        """Whether codes span words, by the words of a row, or by the version if these do not tell."""
        new, old = blocks_of(columns * bits, 32), blocks_of(columns, 32 // bits)
        if words not in {new, old}:
            what = f"words of a row for {columns} columns of {bits} bits"
            group.refuse(what, "weight_packed", actual=words, expected=f"{new}")
        return words == new and (new != old or 32 % bits == 0 or self.version is None or self.version >= (0, 18))

    def _columns(self, group: Group, weights: _Weights, columns: int, count: int) -> NDArray[np.int32] | None:
        """Return the stored group of each column, if the library applied it: it did up to version 0.18."""
        if "weight_g_idx" not in group:
            return None
        group.check("weight_g_idx", ("int32",), (columns,))
        applied = weights.ordered and (self.version is None or self.version < (0, 19))
        if not applied or bool((group.read("weight_g_idx") == -1).any()):
            return None
        return checked_groups(group, "weight_g_idx", count)

    def whole(self, group: Group, weights: _Weights) -> Coding:
        """Return the coding of int-quantized and float-quantized weights."""
        group.only("weight", "weight_scale", "weight_zero_point")
        kind = {"int-quantized": "int", "float-quantized": "float"}.get(weights.format, weights.kind)
        if kind != weights.kind or weights.bits not in (range(1, 9) if kind == "int" else [8]):
            weights.settings.unsupported("num_bits", f"{'1 to ' * (kind == 'int')}8 bits of type {kind!r}")
        if kind == "float" and not weights.symmetric:
            weights.settings.unsupported("symmetric", "true: zero points of floats are not decoded")
        zeros = "weight_zero_point" if kind == "int" and self._has_zeros(group, weights) else None
        stored = ("int8",) if kind == "int" else FLOAT8[:1]
        high, wide = weights.blocks()
        columns = group.check("weight", stored, (None, None))[1]
        if weights.strategy == "group" and wide and columns % wide:
            group.refuse("columns", "weight", actual=columns, expected=f"a multiple of group_size, {wide}")
        name = f"compressed-tensors {weights.format}"
        return scaled(group, name, "weight", "weight_scale", stored, high, wide, zeros=zeros)

    def nvfp4(self, group: Group, weights: _Weights) -> Coding:
        """Return the coding of NVFP4 weights."""
        group.only("weight_packed", "weight_scale", "weight_global_scale")
        self._floats(weights, 4, 16)
        name, whole = f"compressed-tensors {weights.format}", "weight_global_scale"
        return fp4(group, name, "weight_packed", "weight_scale", 16, FLOAT8[:1], whole=whole, divides=True)

    def mxfp4(self, group: Group, weights: _Weights) -> Coding:
        """Return the coding of MXFP4 weights."""
        group.only("weight_packed", "weight_scale")
        self._floats(weights, 4, 32)
        return fp4(group, f"compressed-tensors {weights.format}", "weight_packed", "weight_scale", 32, EXPONENTS)

    def mxfp6(self, group: Group, weights: _Weights) -> Coding:
        """Return the coding of MXFP6 weights."""
        group.only("weight_packed", "weight_scale")
        self._floats(weights, 6, 32)
        rows, octets = group.check("weight_packed", ("uint8",), (None, None))
        if octets % 24:
            group.refuse("bytes of a row", "weight_packed", actual=octets, expected="a multiple of 24, of 32 columns")
        group.check("weight_scale", EXPONENTS, (rows, octets // 24))
        name, shape = f"compressed-tensors {weights.format}", (rows, octets // 3 * 4)
        return Fp6(name, shape, "weight_packed", "weight_scale", height=1, width=32)

    def mxfp8(self, group: Group, weights: _Weights) -> Coding:
        """Return the coding of MXFP8 weights."""
        group.only("weight", "weight_scale")
        self._floats(weights, 8, 32)
        columns = group.check("weight", FLOAT8[:1], (None, None))[1]
        if columns % 32:
            group.refuse("columns", "weight", actual=columns, expected="a multiple of 32")
        name = f"compressed-tensors {weights.format}"
        return scaled(group, name, "weight", "weight_scale", FLOAT8[:1], 1, 32, kinds=EXPONENTS)

    @staticmethod
    def _floats(weights: _Weights, bits: int, size: int) -> None:
        if weights.bits != bits or weights.kind != "float":
            weights.settings.refuse("num_bits", f"{bits} bits of type 'float'")
        if weights.size not in {-1, size}:
            weights.settings.refuse("group_size", str(size))


_FORMATS: dict[str, Callable[[CompressedTensors, Group, _Weights], Coding]] = {
    "pack-quantized": CompressedTensors.packed,
    "int-quantized": CompressedTensors.whole,
    "float-quantized": CompressedTensors.whole,
    "naive-quantized": CompressedTensors.whole,
    "nvfp4-pack-quantized": CompressedTensors.nvfp4,
    "mxfp4-pack-quantized": CompressedTensors.mxfp4,
    "mxfp6-pack-quantized": CompressedTensors.mxfp6,
    "mxfp8-quantized": CompressedTensors.mxfp8,
}

METHOD = CompressedTensors
