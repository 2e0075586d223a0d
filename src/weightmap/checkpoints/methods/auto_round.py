"""AutoRound of Intel: pieces of GPTQ or of AWQ, and what differs by layer in ``extra_config``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from weightmap.checkpoints.methods import Group, Method, Settings
from weightmap.checkpoints.methods.awq import Awq
from weightmap.checkpoints.methods.gptq import Gptq

if TYPE_CHECKING:
    from weightmap.checkpoints.pieced import Coding

# How the zero points of GPTQ's pieces are stored, by the format of packing.
_GPTQ = {"auto_round": "gptq_v2", "auto_round:gptqmodel": "gptq_v2", "auto_round:auto_gptq": "gptq"}
_AWQ = "auto_round:auto_awq"
_WHOLE_BITS = 16


class AutoRound(Method):
    """``quant_method: "auto-round"``: ``packing_format`` says whose pieces a matrix has.

    ====================================  =============================================================================
    ``auto_round``, ``:gptqmodel``        of GPTQ, with zero points as they are: `GptqCoding`, ``gptq_v2``
    ``auto_round:auto_gptq``              of GPTQ, with zero points less one: `GptqCoding`, ``gptq``
    ``auto_round:auto_awq``               of AWQ: `AwqCoding`
    ====================================  =============================================================================

    ``extra_config`` has other ``bits`` and ``group_size`` for modules, by name or by an expression that is found in it;
    with 16 bits or more a module is not quantised.
    """

    endings: ClassVar[tuple[str, ...]] = Gptq.endings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.packing: str = settings.text("packing_format", "auto_round:auto_gptq")
        if self.packing not in _GPTQ and self.packing != _AWQ:
            settings.unsupported("packing_format", ", ".join([*_GPTQ, _AWQ]))
        if settings.text("data_type", "int") != "int":
            settings.unsupported("data_type", "'int'")
        self.extra = settings.section("extra_config")
        for key in self.extra.values:
            self.extra.section(key)
        self.expressions: list[str] = [key for key in self.extra.values if re.search(r"[\\^$+*?[(|]", key)]
        self._methods: dict[tuple[int, int], Method] = {}

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
        sizes = self._of(group.module)
        method = self._methods.get(sizes)
        if method is None:
            method = self._methods[sizes] = self._method(*sizes)
        return method.coding(group)

    def _method(self, bits: int, group_size: int) -> Method:
        values: dict[str, Any] = {"bits": bits, "group_size": group_size}
        if self.packing != _AWQ:
            values["checkpoint_format"] = _GPTQ[self.packing]
        settings = Settings(values, self.settings.path, self.settings.where)
        return Awq(settings) if self.packing == _AWQ else Gptq(settings)


METHOD = AutoRound
