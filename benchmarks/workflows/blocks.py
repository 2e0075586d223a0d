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
# Decodings of a parameter in a row: the first one waits for unused memory.
DECODED = 3
KINDS = ("q4_0", "q8_0", "q4_k", "mxfp4")


def write(folder: Path, mib: int) -> None:
    """Write nothing: blocks are made of numbers."""


def in_a_row(decode: Callable[[], Any]) -> Callable[[], None]:
    """Return decoding several times, each result dropped."""

    def work() -> None:
        for _ in range(DECODED):
            decode()

    return work


def quantise(kind: str, folder: Path) -> Callable[[], Any]:
    """Return ours."""
    wm, numbers = need("weightmap"), normal(SHAPE)
    return lambda: wm.quantize(numbers, kind, threads=1)


def ggml_quantise(kind: str, folder: Path) -> Callable[[], Any]:
    """Return gguf-py's, which lacks the K blocks."""
    gguf, numbers = need("gguf"), normal(SHAPE)
    return lambda: gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind.upper()])


def decode(kind: str, folder: Path) -> Callable[[], Any]:
    """Return ours."""
    blocks = need("weightmap").quantize(normal(SHAPE), kind)
    return in_a_row(lambda: blocks.dequantize(threads=1))


def ggml_decode(kind: str, folder: Path) -> Callable[[], Any]:
    """Return gguf-py's."""
    gguf, blocks = need("gguf"), need("weightmap").quantize(normal(SHAPE), kind)
    stored = np.asarray(blocks.payload).reshape(SHAPE[0], -1)
    return in_a_row(lambda: gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind.upper()]))


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
    return in_a_row(lambda: weight.dequantize(threads=1))


def transformers_experts(folder: Path) -> Callable[[], Any]:
    """Return transformers' decoding without its own kernels."""
    torch = need("torch")
    torch.set_num_threads(1)
    convert = need("transformers.integrations.mxfp4").convert_moe_packed_tensors
    blocks, scales = (torch.from_numpy(array) for array in experts(folder))
    return in_a_row(lambda: convert(blocks, scales, dtype=torch.bfloat16))


# Schemes of compressed-tensors: the configuration of weights, and the pieces of SHAPE as it stores them.
COMPRESSED: dict[str, tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]] = {
    "pack-quantized": (
        {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 128, "strategy": "group"},
        {"weight_packed": ("int32", (4096, 512)), "weight_scale": ("bfloat16", (4096, 32))},
    ),
    "float-quantized": (
        {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
        {"weight": ("float8_e4m3fn", SHAPE), "weight_scale": ("bfloat16", (4096, 1))},
    ),
    "nvfp4-pack-quantized": (
        {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16, "strategy": "tensor_group"},
        {
            "weight_packed": ("uint8", (4096, 2048)),
            "weight_scale": ("float8_e4m3fn", (4096, 256)),
            "weight_global_scale": ("float32", (1,)),
        },
    ),
}


def scheme(kind: str) -> dict[str, Any]:
    """Return the configuration of a group of modules."""
    return {"targets": ["Linear"], "weights": COMPRESSED[kind][0]}


def pieces(kind: str) -> dict[str, Any]:
    """Return the pieces of a parameter as tensors of torch: random codes, and scales from 0.5 to 1.5."""
    torch = need("torch")
    made = {}
    for role, (name, shape) in COMPRESSED[kind][1].items():
        dtype = getattr(torch, name)
        if dtype.is_floating_point:
            made[role] = (torch.rand(shape) + 0.5).to(dtype)
        else:
            made[role] = torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max, shape, dtype=dtype)
    if kind == "pack-quantized":
        made["weight_shape"] = torch.tensor(SHAPE)
    return made


def decompress(kind: str, folder: Path) -> Callable[[], Any]:
    """Return ours, of a file, in the type of the model."""
    wm, path = need("weightmap"), folder / "compressed.safetensors"
    wm.save(path, {f"model.layers.0.up_proj.{role}": piece for role, piece in pieces(kind).items()})
    config = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": scheme(kind)}}
    weight = wm.open(path, config={"quantization_config": config}).weights["model.layers.0.up_proj.weight"]
    return in_a_row(lambda: weight.dequantize("bfloat16", threads=1))


def compressed_tensors(kind: str, folder: Path) -> Callable[[], Any]:
    """Return the library's own."""
    need("torch").set_num_threads(1)
    compressor = need("compressed_tensors.compressors").BaseCompressor.load_from_registry(kind)
    described = need("compressed_tensors.quantization").QuantizationScheme(**scheme(kind))
    return in_a_row(partial(compressor.decompress, pieces(kind), described))


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
WORKFLOWS |= {
    f"decode {kind}": {
        "weightmap": partial(decompress, kind),
        "compressed-tensors": partial(compressed_tensors, kind),
    }
    for kind in COMPRESSED
}
