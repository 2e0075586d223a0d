"""ModelOpt: NVFP4, FP8 and MXFP8 of NVIDIA, one for all matrices or one for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from weightmap.checkpoints.methods import EXPONENTS, FLOAT8, Group, Method, Settings
from weightmap.checkpoints.methods._codings import Experts, Fp4, Scaled, fp4, scaled
from weightmap.errors import UnsupportedError

if TYPE_CHECKING:
    from weightmap.checkpoints.pieced import Coding

_NVFP4 = ("NVFP4", "W4A16_NVFP4")
# Rows and columns with one scale; 0 for all.
_BLOCKS = {"FP8": (0, 0), "FP8_PB_WO": (128, 128), "FP8_PER_CHANNEL_PER_TOKEN": (1, 0), "MXFP8": (1, 32)}
_ALGORITHMS = (*_NVFP4, *_BLOCKS)
_MIXED = "MIXED_PRECISION"
# Keys that say how the cache of keys and values is quantised, perhaps alone.
_CACHE = {"kv_cache_scheme", "kv_cache_quant_algo"}


class ModelOpt(Method):
    """``quant_method: "modelopt"``, by ``quant_algo``.

    =============================  ====================================================================================
    ``NVFP4``, ``W4A16_NVFP4``     ``weight`` uint8 (out, in / 2), ``weight_scale`` float8_e4m3fn (out, in / 16),
                                   ``weight_scale_2`` float32, which multiplies: `Fp4`
    ``FP8``                        ``weight`` float8_e4m3fn (out, in), ``weight_scale`` one float32: `Scaled`, as below
    ``FP8_PER_CHANNEL_PER_TOKEN``  ``weight_scale`` float32 (out,) or (out, 1)
    ``FP8_PB_WO``                  ``weight_scale`` float32 (out / 128, in / 128), or (out / 128, 1, in / 128, 1); ()
                                   if it is one number
    ``MXFP8``                      ``weight_scale`` uint8 (out, in / 32), exponents
    ``MIXED_PRECISION``            ``quantized_layers``: a module's own ``quant_algo``, or that of a module around it,
                                   such as all experts; other modules are not quantised
    =============================  ====================================================================================

    The experts of a layer of Llama 4 are one parameter X (E, in, out), of the transposes of such matrices, as its
    pieces are: ``X`` uint8 (E, in / 2, out), ``X_weight_scale`` float8_e4m3fn (E, in / 16, out), ``X_weight_scale_2``
    one float32. FP8: ``X`` float8_e4m3fn (E, in, out), ``X_weight_scale`` one float32.
    """

    endings: ClassVar[tuple[str, ...]] = (
        *(".weight", ".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale"),
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
        if algorithm not in _ALGORITHMS:
            settings.unsupported("quant_algo", f"one of {', '.join(_ALGORITHMS)}, {_MIXED}")
        if algorithm in _NVFP4 and settings.integer("group_size", 16) != 16:
            settings.refuse("group_size", "16")
        return algorithm

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`."""
        settings = self.settings
        if self.layers is not None:
            around = (group.module.rsplit(".", parts)[0] for parts in range(group.module.count(".") + 1))
            module = next((name for name in around if name in self.layers.values), None)
            if module is None:
                group.refuse(f"entry in {self.layers.where}", actual="missing", expected="the algorithm of the module")
            settings = self.layers.section(module)
        algorithm = self._algorithm(settings)
        group.only("weight", "weight_scale", "input_scale", *(["weight_scale_2"] if algorithm in _NVFP4 else []))
        if group.fused:
            return self._experts(group, algorithm)
        if algorithm in _NVFP4:
            return fp4(group, "modelopt nvfp4", "weight", "weight_scale", 16, FLOAT8[:1], whole="weight_scale_2")
        name = f"modelopt {algorithm.lower()}"
        high, wide = _BLOCKS[algorithm]
        kinds = EXPONENTS if algorithm == "MXFP8" else ("float32",)
        return scaled(group, name, "weight", "weight_scale", FLOAT8[:1], high, wide, kinds=kinds)

    def _experts(self, group: Group, algorithm: str) -> Coding:
        if algorithm == "FP8":
            count, rows, columns = group.check("weight", FLOAT8[:1], (None, None, None))
            group.check("weight_scale", ("float32",), (), (1,))
            name = "modelopt fp8 experts"
            of_all = Scaled(name, (rows, columns), "weight", "weight_scale", height=rows or 1, width=columns or 1)
            return Experts(of_all, count, shared="weight_scale")
        if algorithm not in _NVFP4:
            group.refuse("quant_algo", actual=algorithm, expected="NVFP4 or FP8 for experts", kind=UnsupportedError)
        count, half, rows = group.check("weight", ("uint8",), (None, None, None))
        columns = 2 * half
        if columns % 16:
            group.refuse("rows of experts", "weight", actual=half, expected="a multiple of 8")
        group.check("weight_scale", FLOAT8[:1], (count, columns // 16, rows))
        group.check("weight_scale_2", ("float32",), (), (1,))
        name, whole = "modelopt nvfp4 experts", "weight_scale_2"
        matrix = Fp4(name, (rows, columns), "weight", "weight_scale", width=16, whole=whole)
        return Experts(matrix, count, shared=whole, turned=True, lying=True)


METHOD = ModelOpt
