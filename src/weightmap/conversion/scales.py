"""Finds tensors of scales that lie in another shard than the weights that they belong to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["moved_scales"]

# Names that belong to the weights of which they hold scales, zero points, shapes or orders: FP8 of Hugging Face
# (weight_scale_inv), compressed-tensors (weight_scale), GPTQ and AWQ (scales, qzeros, g_idx), bitsandbytes (absmax,
# quant_map, quant_state), gpt-oss (blocks and scales).
_SCALES = re.compile(
    r"(?P<of>.+?)(?:"
    r"[._](?:scales?|scale_inv|scale_2|global_scale|zeros|qzeros|zero_points?|g_idx|shape|absmax|nested_absmax|quant_map"
    r"|nested_quant_map)|\.quant_state\..+)",
    re.DOTALL,
)
# What the name of the weights may have behind the rest.
_WEIGHTS = ("", ".weight", ".qweight", ".weight_packed", "_packed", "_blocks", ".blocks")


def moved_scales(where: Mapping[str, str]) -> dict[str, str]:
    """Return the shard of the weights for each tensor of scales that lies in another one.

    A shard that is converted with its scales can be used alone; `where` is the shard of each tensor.
    """
    moved = {}
    for name, shard in where.items():
        match = _SCALES.fullmatch(name)
        if match is None:
            continue
        weights = next((match["of"] + ending for ending in _WEIGHTS if match["of"] + ending in where), None)
        if weights is not None and weights != name and where[weights] != shard:
            moved[name] = where[weights]
    return moved
