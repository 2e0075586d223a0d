"""Parameters of quantised checkpoints: 16.8 million elements, decoded to the type of the model.

Ours writes into existing outputs, four in turn, so that no cache still has one, as with the parameters of a model;
torch makes a fresh one with the formula of the scheme's library, on one thread; both make the same bits. The limit
writes as many bytes to the same outputs. compressed-tensors decodes its own MXFP4, and FP8.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import limits
import weightmap as wm
from timing import EVERY_ISA, Timed, each_contender, need, ours, rival

SIDE, SMALL = 4096, 256  # rows and columns
BLOCK, GROUP, MX = 128, 128, 32
DTYPES = {
    np.dtype(np.int32): "I32",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(np.uint8): "U8",
}
NAME = "model.layers.0.mlp.up_proj"


def fp8(side, rng):
    """Return the configuration, the stored type of the weight, and the pieces."""
    pieces = {
        "weight": rng.integers(0, 0x7E, (side, side), np.uint8),
        "weight_scale_inv": rng.random((side // BLOCK, side // BLOCK), np.float32),
    }
    return {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}, {"weight": "F8_E4M3"}, pieces


def awq(side, rng):
    """Return the same of AWQ."""
    pieces = {
        "qweight": rng.integers(-(2**31), 2**31, (side, side // 8), np.int32),
        "qzeros": rng.integers(-(2**31), 2**31, (side // GROUP, side // 8), np.int32),
        "scales": rng.random((side // GROUP, side), np.float32).astype(np.float16),
    }
    return {"quant_method": "awq", "bits": 4, "group_size": GROUP}, {}, pieces


def mxfp4(side, rng):
    """Return the same of MXFP4, as compressed-tensors stores it."""
    pieces = {
        "weight_packed": rng.integers(0, 256, (side, side // 2), np.uint8),
        "weight_scale": rng.integers(110, 130, (side, side // MX), np.uint8),
    }
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": MX}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": groups}
    return config, {}, pieces


class Work(NamedTuple):
    """The pieces of a parameter, the parameter, and outputs."""

    pieces: dict
    weight: object
    outputs: list


def work_of(make, dtype, side):
    """Write a checkpoint, open it, and return the work."""
    config, stored, pieces = make(side, np.random.default_rng(1))
    header, at = {}, 0
    for role, array in pieces.items():
        kind = stored.get(role, DTYPES[array.dtype])
        header[f"{NAME}.{role}"] = {"dtype": kind, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 64 + 56)
        model = Path(folder, "model.safetensors")
        model.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *(a.tobytes() for a in pieces.values())]))
        settings = {"dtype": dtype, "quantization_config": config}
        Path(folder, "config.json").write_text(json.dumps(settings), encoding="utf-8")
        weight = wm.open(model).weights[f"{NAME}.weight"]
    outputs = [limits.memory(2 * side * side).view(weight.dtype).reshape(side, side) for _ in range(4)]
    return Work(pieces, weight, outputs)


def weightmap(work, threads=1):
    """Return ours."""
    turns = itertools.cycle(work.outputs)
    return Timed(lambda: work.weight.dequantize(out=next(turns), threads=threads))


def one_thread():
    """Return torch, with one thread."""
    torch = need("torch")
    torch.set_num_threads(1)
    return torch


def same(work, decode):
    """Return the clock of a rival that makes the same bits."""
    bits = decode().contiguous().view(one_thread().uint16).numpy()
    assert np.array_equal(bits, work.weight.dequantize().view(np.uint16))
    return Timed(decode)


def torch_fp8(work):
    """Return the formula of DeepSeek and transformers."""
    torch = one_thread()
    codes = torch.from_numpy(work.pieces["weight"]).view(torch.float8_e4m3fn)
    scales = torch.from_numpy(work.pieces["weight_scale_inv"])
    shape = len(scales), BLOCK, len(scales), BLOCK

    def decode():
        blocks = codes.to(torch.float32).view(shape) * scales[:, None, :, None]
        return blocks.view(codes.shape).to(torch.bfloat16)

    return same(work, decode)


def torch_awq(work):
    """Return AutoAWQ's formula; the parameter is its transposed result."""
    torch = one_thread()
    qweight, qzeros, scales = (torch.from_numpy(work.pieces[role]) for role in ("qweight", "qzeros", "scales"))
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])

    def unpack(words):
        nibbles = (words[:, :, None] >> shifts).to(torch.int8)[:, :, order]
        return (nibbles & 15).view(len(words), -1)

    def decode():
        zeros = unpack(qzeros).repeat_interleave(GROUP, 0)
        return ((unpack(qweight) - zeros) * scales.repeat_interleave(GROUP, 0)).T.contiguous()

    return same(work, decode)


def torch_mxfp4(work):
    """Return the formula of transformers for gpt-oss: a table, and ldexp."""
    torch = one_thread()
    codes, exponents = (torch.from_numpy(work.pieces[role]) for role in ("weight_packed", "weight_scale"))
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = torch.tensor([*magnitudes, -0.0, *(-value for value in magnitudes[1:])], dtype=torch.bfloat16)

    def decode():
        out = torch.empty(len(codes), 2 * codes.shape[1], dtype=torch.bfloat16)
        out[:, 0::2] = values[(codes & 15).to(torch.int)]
        out[:, 1::2] = values[(codes >> 4).to(torch.int)]
        blocks = out.view(len(codes), -1, MX)
        torch.ldexp(blocks, (exponents.to(torch.int32) - 127)[..., None], out=blocks)
        return out

    return same(work, decode)


def fp8_by_compressed_tensors(work):
    """Return compressed-tensors' decoding of FP8 with the same blocks."""
    torch = one_thread()
    kinds = need("compressed_tensors.quantization")
    dequantize = need("compressed_tensors.quantization.lifecycle.forward").dequantize
    weights = kinds.QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[BLOCK, BLOCK])
    codes = torch.from_numpy(work.pieces["weight"]).view(torch.float8_e4m3fn)
    scales = torch.from_numpy(work.pieces["weight_scale_inv"])
    return same(work, lambda: dequantize(codes, scales, args=weights).to(torch.bfloat16))


def mxfp4_by_compressed_tensors(work):
    """Return compressed-tensors' decoding of its MXFP4."""
    torch = one_thread()
    kinds = need("compressed_tensors.quantization")
    compressor = need("compressed_tensors.compressors").MXFP4PackedCompressor
    weights = kinds.QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=MX)
    scheme = kinds.QuantizationScheme(targets=["Linear"], weights=weights)
    state = {role: torch.from_numpy(array) for role, array in work.pieces.items()}
    return same(work, lambda: compressor.decompress(state, scheme)["weight"])


CASES = {
    "FP8 128x128 to bfloat16": (fp8, "bfloat16", {"torch": torch_fp8, "compressed-tensors": fp8_by_compressed_tensors}),
    "AWQ to float16": (awq, "float16", {"torch": torch_awq}),
    "MXFP4 to bfloat16": (mxfp4, "bfloat16", {"torch": torch_mxfp4, "compressed-tensors": mxfp4_by_compressed_tensors}),
}
OURS = ours(weightmap, isas=EVERY_ISA) | ours(partial(weightmap, threads=2), "weightmap, 2 threads", threads=2)
GROUPS = {
    f"decode a parameter/{case}": OURS
    | {who: rival(prepare) for who, prepare in rivals.items()}
    | limits.of(limits.WRITE, lambda work: work.outputs, (1, 2))
    for case, (_, _, rivals) in CASES.items()
}


@pytest.fixture(scope="module")
def works():
    """Return the work of each case, made once."""
    return {}


@each_contender(GROUPS)
def test_decoding(compare, smoke, works, group, who):
    """Decode a parameter."""
    case = group.partition("/")[2]
    if case not in works:
        make, dtype, _ = CASES[case]
        works.clear()
        works[case] = work_of(make, dtype, SMALL if smoke else SIDE)
    compare(GROUPS, works[case], nbytes=works[case].outputs[0].nbytes)
