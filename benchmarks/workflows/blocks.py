"""Quantising 16.8 million numbers to blocks and decoding them, beside the libraries that define them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from workflows.common import need, normal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE = (4096, 4096)
KINDS = ("q4_0", "q8_0", "q4_k", "mxfp4")


def write(folder: Path, mib: int) -> None:
    """Write nothing: blocks are made of numbers."""


def quantise(kind: str, folder: Path) -> Callable[[], Any]:
    """Return ours."""
    wm, numbers = need("weightmap"), normal(SHAPE)
    return lambda: wm.quantize(numbers, kind, threads=1)


def ggml_quantise(kind: str, folder: Path) -> Callable[[], Any]:
    """Return gguf-py's, which has none for the K blocks."""
    gguf, numbers = need("gguf"), normal(SHAPE)
    return lambda: gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind.upper()])


def decode(kind: str, folder: Path) -> Callable[[], Any]:
    """Return ours."""
    blocks = need("weightmap").quantize(normal(SHAPE), kind)
    return lambda: blocks.dequantize(threads=1)


def ggml_decode(kind: str, folder: Path) -> Callable[[], Any]:
    """Return gguf-py's."""
    gguf, blocks = need("gguf"), need("weightmap").quantize(normal(SHAPE), kind)
    stored = np.asarray(blocks.payload).reshape(SHAPE[0], -1)
    return lambda: gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind.upper()])


def experts(folder: Path) -> Any:
    """Return a layer of gpt-oss as its files have it: blocks (E, out, in / 32, 16) and scales, in memory."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (32, 2880, 90, 16), np.uint8)
    return blocks, rng.integers(118, 130, blocks.shape[:-1], np.uint8)


def ours_experts(folder: Path) -> Callable[[], Any]:
    """Return ours, of a file."""
    wm = need("weightmap")
    blocks, scales = experts(folder)
    name = "model.layers.0.mlp.experts.down_proj"
    path = folder / "experts.safetensors"
    wm.save(path, {f"{name}_blocks": blocks, f"{name}_scales": scales})
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    weight = wm.open(path, config=config).weights[name]
    return lambda: weight.dequantize(threads=1)


def transformers_experts(folder: Path) -> Callable[[], Any]:
    """Return what transformers does where no kernel of its own runs."""
    torch = need("torch")
    torch.set_num_threads(1)
    convert = need("transformers.integrations.mxfp4").convert_moe_packed_tensors
    blocks, scales = (torch.from_numpy(array) for array in experts(folder))
    return lambda: convert(blocks, scales, dtype=torch.bfloat16)


WORKFLOWS = {
    f"quantise to {kind}": {
        "weightmap": partial(quantise, kind),
        "gguf-py": partial(ggml_quantise, kind),
    }
    for kind in KINDS
    if "_k" not in kind
}
WORKFLOWS |= {
    f"decode {kind}": {
        "weightmap": partial(decode, kind),
        "gguf-py": partial(ggml_decode, kind),
    }
    for kind in KINDS
}
WORKFLOWS |= {
    "decode MXFP4 of gpt-oss": {"weightmap": ours_experts, "transformers": transformers_experts},
}
