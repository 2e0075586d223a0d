"""NVIDIA's ModelOpt: NVFP4, FP8, MXFP8 and blocks of ggml, the same for all matrices or chosen for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weightmap.checkpoints.methods import EXPONENTS, FLOAT8, Group, Method, Settings
from weightmap.checkpoints.methods._codings import Experts, fp4, scaled
from weightmap.checkpoints.pieced import BLOCKS_OF_GGML, Coding, Components, Layout, TargetTypes
from weightmap.core.native.quantised import GGML_TYPES, decode_ggml
from weightmap.core.quant.ggml import GgmlTensor
from weightmap.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# For e2m1 codes: the name of the scheme, the types of scales, and the piece with the scale of the tensor.
_NVFP4, _MXFP4 = ("nvfp4", FLOAT8[:1], "weight_scale_2"), ("mxfp4", EXPONENTS, None)
_FP4: dict[str, tuple[str, tuple[str, ...], str | None]] = {
    **dict.fromkeys(("NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8"), _NVFP4),
    **dict.fromkeys(("MXFP4", "W4A16_MXFP4", "W4A8_MXFP4_FP8"), _MXFP4),
}
# For other codes: the types of codes and of scales, and the rows and columns with one scale; 0 for all.
_BYTES: dict[str, tuple[tuple[str, ...], tuple[str, ...], int, int]] = {
    "FP8": (FLOAT8[:1], ("float32",), 0, 0),
    "FP8_PB_WO": (FLOAT8[:1], ("float32",), 128, 128),
    "FP8_PER_CHANNEL_PER_TOKEN": (FLOAT8[:1], ("float32",), 1, 0),
    "MXFP8": (FLOAT8[:1], EXPONENTS, 1, 32),
    **dict.fromkeys(("W8A16", "W8A8_SQ_PER_CHANNEL"), (("int8",), ("float32",), 1, 0)),
}
# ggml's types of blocks.
_BLOCKS = {name.upper(): name for name in ("q8_0", *BLOCKS_OF_GGML)}
# Algorithms that store experts transposed.
_LYING = {"NVFP4", "W4A16_NVFP4"}
_MIXED = "MIXED_PRECISION"
# Keys about the quantisation of the cache of keys and values, which may be the only quantisation.
_CACHE = {"kv_cache_scheme", "kv_cache_quant_algo"}


class Blocks(Coding):
    """Rows of ggml's blocks, uint8, shape (out, in / elements, bytes): see `weightmap.core.quant.ggml`."""

    __slots__ = ("kind",)

    kind: str
    direct: ClassVar[bool] = False

    def __init__(self, kind: str, rows: int, blocks: int) -> None:
        size = GGML_TYPES[kind].block_size
        super().__init__(f"modelopt {kind}", (rows, blocks * size), "weight", "weight", block_size=size)
        self.kind, self.scale_type = kind, "uint16" if kind == "iq1_m" else "float16"

    def scales_in(self, piece: NDArray[Any]) -> NDArray[Any]:
        """Implement `Coding.scales_in`: as of a tensor of GGUF."""
        return GgmlTensor(self.kind, self.shape, piece.reshape(-1)).scales

    def cut(self, first: int, last: int) -> dict[str, Any]:
        """Implement `Coding.cut`."""
        return {"weight": slice(first, last)}

    def decode(self, pieces: Components, first: int, last: int) -> NDArray[np.float32]:
        """Implement `Coding.decode`."""
        shape = last - first, self.shape[1]
        return decode_ggml(np.ascontiguousarray(pieces["weight"]), shape[0] * shape[1], self.kind).reshape(shape)

    def counterpart(self, read: Callable[[str], NDArray[Any]], target_types: TargetTypes) -> Layout | None:
        """Implement `Coding.counterpart`."""
        del read
        return Layout(self.kind, self.block_size, "fp16") if self.kind in target_types.schemes else None

    def blocks(self, pieces: Components, first: int, last: int, layout: Layout) -> NDArray[np.uint8]:
        """Implement `Coding.blocks`."""
        del layout
        return pieces["weight"].reshape(last - first, -1)


class ModelOpt(Method):
    """``quant_method: "modelopt"``, by ``quant_algo``.

    =============================  ====================================================================================
    ``NVFP4``, ``W4A16_NVFP4``,    ``weight`` uint8 (out, in / 2), ``weight_scale`` float8_e4m3fn (out, in / 16), or for
    ``W4A8_NVFP4_FP8``             32 columns, ``weight_scale_2`` float32, which multiplies: `Fp4`
    ``MXFP4``, ``W4A16_MXFP4``,    ``weight`` so, ``weight_scale`` uint8 (out, in / 32), exponents
    ``W4A8_MXFP4_FP8``
    ``FP8``                        ``weight`` float8_e4m3fn (out, in), ``weight_scale`` one float32: `Scaled`, as below
    ``FP8_PER_CHANNEL_PER_TOKEN``  ``weight_scale`` float32 (out,) or (out, 1)
    ``FP8_PB_WO``                  ``weight_scale`` float32 (out / 128, in / 128), or (out / 128, 1, in / 128, 1); ()
                                   if it is one number
    ``MXFP8``                      ``weight_scale`` uint8 (out, in / 32), exponents
    ``W8A16``,                     ``weight`` int8, ``weight_scale`` float32 (out,)
    ``W8A8_SQ_PER_CHANNEL``
    ``Q8_0``, ``IQ1_S``,           ``weight`` uint8 (out, in / elements, bytes), blocks of ggml: `Blocks`
    ``IQ1_M``, ``IQ2_XXS``,
    ``IQ2_XS``, ``IQ2_S``
    ``MIXED_PRECISION``            ``quantized_layers``: the ``quant_algo`` of a module, or of a module around it, such
                                   as all experts; other modules are not quantised
    =============================  ====================================================================================

    The experts of a layer of Llama 4 and of gpt-oss are one parameter X (E, in, out) that holds the transposes of such
    matrices. NVFP4 also transposes the pieces: ``X`` uint8 (E, in / 2, out), ``X_weight_scale`` float8_e4m3fn
    (E, in / 16, out), ``X_weight_scale_2`` one float32. Other algorithms quantise X as it is: ``X`` (E, in, out),
    ``X_weight_scale`` one float32, or (E,) by channel, or (E, in, out / 32). Blocks are refused, because ModelOpt 0.47
    stores the transposes' scales for them.
    """

    endings: ClassVar[tuple[str, ...]] = (
        *(".weight", ".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale"),
        *(".svdquant_lora_a", ".svdquant_lora_b"),
    )
    fused: ClassVar[tuple[str, ...]] = ("_weight_scale", "_weight_scale_2", "_input_scale")
    coded: ClassVar[tuple[str, ...]] = (*FLOAT8, "uint8")
    lists: ClassVar[tuple[str, ...]] = ("ignore", "exclude_modules")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.layers: Settings | None = None
        only_cache = settings.values.get("quant_algo") is None and _CACHE & settings.values.keys()
        if only_cache or settings.text("quant_algo", "").upper() == _MIXED:
            self.layers = settings.section("quantized_layers")
            for module in self.layers.values:
                self._algorithm(self.layers.section(module))
        else:
            self._algorithm(settings)

    @staticmethod
    def _algorithm(settings: Settings) -> str:
        """Return the algorithm that an object names."""
        algorithm = settings.text("quant_algo", "").upper()
        if algorithm not in _FP4 | _BYTES | _BLOCKS:
            settings.unsupported("quant_algo", f"one of {', '.join(_FP4 | _BYTES | _BLOCKS)}, {_MIXED}")
        if algorithm in _FP4 and settings.integer("group_size", 16) not in {16, 32}:
            settings.refuse("group_size", "16 or 32")
        return algorithm

    def _settings(self, module: str) -> Settings | None:
        """Return the object with the algorithm of a module; None if there is none."""
        if self.layers is None:
            return self.settings
        around = (module.rsplit(".", parts)[0] for parts in range(module.count(".") + 1))
        return next((self.layers.section(name) for name in around if name in self.layers.values), None)

    def coding_or_none(self, group: Group) -> Coding | None:
        """Implement `Method.coding_or_none`: a lone weight may be blocks, which hold their scales."""
        if list(group.names) == ["weight"] and group.row("weight").dtype.name == "uint8":
            settings = self._settings(group.module)
            if settings is not None and self._algorithm(settings) in _BLOCKS:
                return self.coding(group)
        return super().coding_or_none(group)

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        settings = self._settings(group.module)
        if settings is None:
            where = f"entry in {self.settings.where}.quantized_layers"
            group.refuse(where, actual="missing", expected="the algorithm of the module")
        algorithm = self._algorithm(settings)
        if algorithm in _BLOCKS:
            kind = _BLOCKS[algorithm]
            rows, blocks, _ = group.check("weight", ("uint8",), (None, None, GGML_TYPES[kind].block_bytes))
            group.only("weight")
            return Blocks(kind, rows, blocks)
        if "pre_quant_scale" in group:
            expected = "none: columns that were multiplied are not divided"
            group.refuse("factors", "pre_quant_scale", actual="stored", expected=expected, kind=UnsupportedError)
        whole = _FP4.get(algorithm, _MXFP4)[2]
        group.only("weight", "weight_scale", *([whole] if whole else []))
        if not group.fused:
            return self._matrix(group, algorithm, settings)
        if algorithm == "FP8_PB_WO":
            group.refuse("quant_algo", actual=algorithm, expected="another for experts", kind=UnsupportedError)
        count = group.check("weight", (*FLOAT8, "uint8"), (None, None, None))[0]
        shared, lying = "weight_scale" if algorithm == "FP8" else whole, algorithm in _LYING
        first = group.expert(count, {"input_scale", *filter(None, [shared])}, lying=lying)
        matrix = self._matrix(first, algorithm, settings)
        return Experts(matrix, count, shared=shared, turned=lying, lying=lying)

    @staticmethod
    def _matrix(group: Group, algorithm: str, settings: Settings) -> Coding:
        """Return the coding of a matrix, or of one expert's matrix, whose scale by channel serves all of it."""
        end = " experts" if group.experts else ""
        if algorithm in _FP4:
            name, kinds, whole = _FP4[algorithm]
            half, count = (group.row(role).shape[-1:] for role in ("weight", "weight_scale"))
            by_pieces = 32 if whole is None or half == tuple(16 * n for n in count) else 16
            width = settings.integer("group_size", by_pieces)
            return fp4(group, f"modelopt {name}{end}", "weight", "weight_scale", width, kinds, whole=whole)
        codes, kinds, high, wide = _BYTES[algorithm]
        high = high if wide or not group.experts else 0
        name = f"modelopt {algorithm.lower()}{end}"
        return scaled(group, name, "weight", "weight_scale", codes, high, wide, kinds=kinds)


METHOD = ModelOpt
