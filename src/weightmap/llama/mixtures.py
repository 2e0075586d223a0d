"""llama.cpp's mixtures: schemes such as Q4_K_M, which give each kind of tensor a type of its own.

A mixture is llama.cpp's own, tensor for tensor, without an importance matrix: matrices of attention values and those
that lead down get more bits in some layers, and the output has 6 bits. (A plain scheme, such as "q4_k", gives every
matrix the same type, and leaves embeddings dense.) Rows that are not whole blocks get the type that `convert` gives
them anywhere: llama.cpp has Q4_0 where it has IQ4_NL.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

# The type of most tensors.
MIXTURES: Mapping[str, str] = {
    "q3_k_s": "q3_k",
    "q3_k_m": "q3_k",
    "q3_k_l": "q3_k",
    "q4_k_s": "q4_k",
    "q4_k_m": "q4_k",
    "q5_k_s": "q5_k",
    "q5_k_m": "q5_k",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.")
# Mixtral's number of experts, for which llama.cpp has rules of its own.
_MIXTRAL = 8


class Shape(NamedTuple):
    """What a mixture depends on besides the names of tensors.

    Attributes
    ----------
    layers, experts : int
        Numbers of layers, and of experts: 0 for none.
    tied : bool
        Whether the embeddings are the output, too.
    large : bool
        Whether llama.cpp takes it for a model of 70 billion parameters.
    """

    layers: int
    experts: int
    tied: bool
    large: bool


def _more(layer: int, layers: int) -> bool:
    """Whether a layer gets more bits: the first and the last eighth of them, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def type_in(mixture: str, name: str, shape: Shape) -> str:
    """Return the scheme of a tensor, by llama.cpp's name of it."""
    usual = MIXTURES[mixture]
    if name == "output.weight" or (shape.tied and name == "token_embd.weight"):
        return "q6_k"
    match = _LAYER.match(name)
    layer, part = (0, "") if match is None else (int(match[1]), match[2].removesuffix("_exps"))
    if part == "attn_v":
        return _of_values(mixture, layer, shape)
    if part == "ffn_down":
        return _of_down(mixture, layer, shape.layers)
    if part == "attn_output":
        return _of_output(mixture, shape)
    return "q8_0" if part == "attn_k" and shape.experts == _MIXTRAL else usual


def _of_values(mixture: str, layer: int, shape: Shape) -> str:
    """Return the scheme of attention values."""
    if shape.experts == _MIXTRAL:
        return "q8_0"
    found = MIXTURES[mixture]
    if mixture == "q3_k_m":
        found = "q5_k" if layer < 2 else "q4_k"
    elif mixture == "q3_k_l" or (mixture == "q4_k_s" and layer < 4):
        found = "q5_k"
    elif mixture in ("q4_k_m", "q5_k_m") and _more(layer, shape.layers):
        found = "q6_k"
    return "q5_k" if shape.large and found in ("q3_k", "q4_k") else found


def _of_output(mixture: str, shape: Shape) -> str:
    """Return the scheme of the matrices that lead out of attention."""
    usual = MIXTURES[mixture]
    if shape.experts == _MIXTRAL:
        return "q5_k" if mixture in ("q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m") else usual
    return {"q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(mixture, usual)


def _of_down(mixture: str, layer: int, layers: int) -> str:
    """Return the scheme of the matrices that lead out of the inner layer."""
    if mixture == "q3_k_m":
        return "q5_k" if layer < layers // 16 else "q4_k"
    if mixture == "q3_k_l" or (mixture == "q4_k_s" and layer < layers // 8):
        return "q5_k"
    return "q6_k" if mixture in ("q4_k_m", "q5_k_m") and _more(layer, layers) else MIXTURES[mixture]
