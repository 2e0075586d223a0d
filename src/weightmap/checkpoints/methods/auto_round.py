"""Intel's AutoRound: pieces of other libraries, with settings for single layers in ``extra_config``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from weightmap.checkpoints.methods import Group, Method, Settings
from weightmap.checkpoints.methods.awq import Awq
from weightmap.checkpoints.methods.compressed_tensors import CompressedTensors
from weightmap.checkpoints.methods.fp8 import Fp8
from weightmap.checkpoints.methods.gptq import Gptq

if TYPE_CHECKING:
    from weightmap.checkpoints.pieced import Coding

# For each packing format of integers: the method whose pieces it uses, and that method's name for the layout.
_INTEGERS: dict[str, tuple[type[Method], str]] = {
    "auto_round": (Gptq, "gptq_v2"),
    "auto_round:gptqmodel": (Gptq, "gptq_v2"),
    "auto_round:auto_gptq": (Gptq, "gptq"),
    "auto_round:auto_awq": (Awq, "gemm"),
}
# Floats in groups use one of these formats of compressed-tensors; the pieces show which one.
_FLOATS = "auto_round:llm_compressor"
_FORMATS = {
    "mxfp4-pack-quantized": {"num_bits": 4, "type": "float", "group_size": 32},
    "mxfp8-quantized": {"num_bits": 8, "type": "float", "group_size": 32},
    "nvfp4-pack-quantized": {"num_bits": 4, "type": "float", "group_size": 16},
}
_FP8 = ("", "auto_round:fp8", "auto_round:fp8_static")
_WHOLE_BITS = 16


class AutoRound(Method):
    """``quant_method: "auto-round"``: ``packing_format`` says whose pieces a matrix has.

    ====================================  =============================================================================
    ``auto_round``, ``:gptqmodel``        of GPTQ, with zero points as they are: `GptqCoding`, ``gptq_v2``
    ``auto_round:auto_gptq``              of GPTQ, with zero points less one: `GptqCoding`, ``gptq``
    ``auto_round:auto_awq``               of AWQ: `AwqCoding`
    ``auto_round:llm_compressor``         of compressed-tensors: MXFP4, MXFP8 and NVFP4
    ``auto_round:fp8``, ``:fp8_static``   of `Fp8`, as for ``data_type: "fp"`` without ``packing_format``
    ====================================  =============================================================================

    ``extra_config`` has other ``bits`` and ``group_size`` for modules, by name or by an expression that is found in it;
    with 16 bits or more a module is not quantised.
    """

    endings: ClassVar[tuple[str, ...]] = Gptq.endings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.packing: str = settings.text("packing_format", "auto_round:auto_gptq")
        if self.packing not in _INTEGERS:
            settings.unsupported("packing_format", ", ".join([*_INTEGERS, _FLOATS, *_FP8[1:]]) + " of data_type 'fp'")
        if settings.text("data_type", "int") != "int":
            settings.unsupported("data_type", "'int'")
        self.extra = settings.section("extra_config")
        for key in self.extra.values:
            self.extra.section(key)
        self.expressions: list[str] = [key for key in self.extra.values if re.search(r"[\\^$+*?[(|]", key)]

    def _of(self, module: str) -> tuple[int, int]:
        """Return bits and size of the groups of a module."""
        fitting = (key for key in self.expressions if self.extra.matches(key, f"(?:.*(?:{key}))", module))
        key = module if module in self.extra.values else next(fitting, None)
        section = self.settings if key is None else self.extra.section(key)
        of_all = self.settings.integer("bits", 4), self.settings.integer("group_size", 128)
        return section.integer("bits", of_all[0]), section.integer("group_size", of_all[1])

    def leaves_out(self, module: str) -> bool:
        """Implement `Method.leaves_out`."""
        return super().leaves_out(module) or self._of(module)[0] >= _WHOLE_BITS

    def coding(self, group: Group) -> Coding:
        """Implement `Method.coding`: by the method whose pieces these are."""
        method, layout = _INTEGERS[self.packing]
        bits, size = self._of(group.module)
        values = {"bits": bits, "group_size": size, "checkpoint_format": layout}
        return method(Settings(values, self.settings.path, self.settings.where)).coding(group)


def method_of_pieces(settings: Settings) -> Method:
    """Return the method whose pieces the parameters of a model have."""
    packing, size = settings.text("packing_format", ""), settings.values.get("group_size")
    if packing == _FLOATS:
        groups = {name: {"format": name, "targets": ["Linear"], "weights": rules} for name, rules in _FORMATS.items()}
        return CompressedTensors(Settings({**settings.values, "config_groups": groups}, settings.path, settings.where))
    if packing in _FP8 and settings.text("data_type", "int") == "fp":
        if type(size) is int and size > 0:
            settings.unsupported("group_size", "0, -1 or a block: AutoRound itself does not load others")
        return Fp8(settings)
    return AutoRound(settings)


METHOD = method_of_pieces
