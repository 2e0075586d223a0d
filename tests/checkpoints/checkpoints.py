"""Quantised checkpoints of every scheme, made here from codes and scales, with their values.

Codes are packed one by one, as QUANTISED.md of the specification says; without the package.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from tests.builders import Tensor
from tests.builders import safetensors as st
from tests.ggml_support import random_blocks
from tests.ggml_support import values as ggml_values

BF16, F8 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
MODULE = "model.layers.0.q_proj"


@dataclass
class Checkpoint:
    """A quantised parameter: configuration, stored tensors, and the values in float32."""

    method: str  # or the name of an example
    config: dict[str, Any]  # of `quantization_config`
    tensors: dict[str, np.ndarray]
    values: np.ndarray
    name: str = f"{MODULE}.weight"
    dtype: str = "bfloat16"  # of the model
    extra: dict[str, Any] = field(default_factory=dict)

    def settings(self):
        """Return the content of config.json."""
        stated = {"quantization_config": self.config} if self.config else {}
        return json.dumps({"dtype": self.dtype, **stated, **self.extra}).encode()

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_bytes(self.settings())
        path = folder / "model.safetensors"
        path.write_bytes(st.build({name: stored(array) for name, array in self.tensors.items()}))
        return path


def stored(array):
    """Return an array as the builders of files take it."""
    return Tensor(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())


def words(codes, bits):
    """Lay rows of codes end to end in int32 words, lowest bits first."""
    count = -(-codes.shape[1] * bits // 32)
    rows = []
    for row in codes.tolist():
        number = sum(code << position * bits for position, code in enumerate(row))
        rows.append([(number >> 32 * k) & 0xFFFFFFFF for k in range(count)])
    return np.array(rows, np.uint32).reshape(len(rows), count).view(np.int32)


def apart(codes, bits):
    """Lay rows of codes in int32 words, as many in each as fit whole."""
    each = 32 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).reshape(len(codes), -1, each).tolist()
    rows = [[sum(code << k * bits for k, code in enumerate(word)) for word in row] for row in padded]
    return np.array(rows, np.uint32).view(np.int32)


def numbers(seed, shape, most):
    """Return random codes below `most`."""
    return np.random.default_rng(seed).integers(0, most, shape)


def scales(seed, shape, dtype=np.float16):
    """Return random scales, some of them negative or of few bits."""
    return (np.random.default_rng(seed).normal(0, 0.02, shape)).astype(dtype)


def product(q, s):
    """Multiply in float32."""
    return (q.astype(np.float32) * s.astype(np.float32)).astype(np.float32)


def awq(*, group=32, zeros=True, columns=64):
    """AWQ: a word has the codes of eight outputs, in AWQ's order."""
    rows, size = 24, columns if group < 0 else group
    q, z = numbers(1, (rows, columns), 16), numbers(2, (rows, columns // size), 16)
    s = scales(3, (rows, columns // size))
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def packed(codes):
        turned = codes.T.reshape(codes.shape[1], -1, 8)[:, :, order]
        return words(turned.reshape(codes.shape[1], -1), 4)

    zero = z if zeros else np.full_like(z, 8)
    values = product(q - np.repeat(zero, size, 1), np.repeat(s, size, 1))
    tensors = {"qweight": packed(q), "scales": s.T} | ({"qzeros": packed(z)} if zeros else {})
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": zeros, "version": "GEMM"}
    return Checkpoint("awq", config, {f"{MODULE}.{k}": v for k, v in tensors.items()}, values, dtype="float16")


def gptq(bits, *, version="gptq", group=32, order=""):
    """GPTQ; `order` is "" without g_idx, "plain", or "act" for groups in another order."""
    rows, columns = 32, 128
    size = columns if group < 0 else group
    count, most = columns // size, 1 << bits
    q, z, s = numbers(4, (rows, columns), most), numbers(5, (rows, count), most), scales(6, (rows, count), BF16)
    g = np.arange(columns) // size
    if order == "act":
        g = np.random.default_rng(7).permutation(g)
    kept = (z - 1) % most if version == "gptq" else z
    tensors = {"qweight": words(q, bits).T, "qzeros": words(kept.T, bits), "scales": s.T}
    if order:
        tensors["g_idx"] = g.astype(np.int32)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version, "sym": False}
    values = product(q - z[:, g], s.astype(np.float32)[:, g])
    return Checkpoint(f"gptq{bits}", config, {f"{MODULE}.{k}": v for k, v in tensors.items()}, values, dtype="float16")


def compressed(format_, weights, tensors, values, **own):
    """A checkpoint of compressed-tensors with one group of modules."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config = {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups, "ignore": ["lm_head"]}
    stored_as = {f"{MODULE}.{name}": array for name, array in tensors.items()}
    return Checkpoint(format_, config | own, stored_as, values)


def packed(bits, *, group=32, symmetric=True, old=False, order=None, plain=False, columns=96):
    """pack-quantized; `old` for codes that do not span words, `order` for groups in the order of this name.

    `plain` for zero points as version 0.8.1 stored them: int8, in the shape of the scales.
    """
    rows, size = 20, columns if group <= 0 else group
    count, half = columns // size, 1 << bits - 1
    q, z = numbers(8, (rows, columns), 2 * half) - half, numbers(9, (rows, count), 2 * half) - half
    s = scales(10, (1,) if group == 0 else (rows, count), np.float32 if group == 0 else BF16)
    pack = apart if old else words
    tensors = {"weight_packed": pack(q + half, bits), "weight_scale": s, "weight_shape": np.array([rows, columns])}
    g = np.arange(columns) // size
    if order:
        g = np.random.default_rng(11).permutation(g)
        tensors["weight_g_idx"] = g.astype(np.int32)
    if not symmetric:
        tensors["weight_zero_point"] = z.astype(np.int8) if plain else pack((z + half).T, bits).T
    each = np.broadcast_to(s.astype(np.float32).reshape(-1, s.size if s.ndim == 1 else count), (rows, count))
    values = product(q - (0 if symmetric else z[:, g]), each[:, g])
    strategy = "tensor" if group == 0 else "channel" if group < 0 else "group"
    rules = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy}
    rules |= {"group_size": group if group > 0 else None, "actorder": order}
    version = "0.8.1" if plain else "0.17.1" if old or order else "0.20.0"
    return compressed("pack-quantized", rules, tensors, values, version=version)


def blocked(q, s, height, width):
    """Multiply each element by the scale of its block."""
    rows, columns = q.shape
    each = np.empty(q.shape, np.float32)
    for o in range(rows):
        for c in range(columns):
            each[o, c] = s[o // height, c // width]
    return product(q, each)


def whole(kind, strategy, *, symmetric=True):
    """int-quantized and float-quantized: a byte an element."""
    rows, columns = 40, 96
    height, width = {"tensor": (rows, columns), "channel": (1, columns), "group": (1, 32), "block": (16, 40)}[strategy]
    count = -(-rows // height), -(-columns // width)
    codes = numbers(12, (rows, columns), 256).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0  # no NaN
    q = codes.view(F8 if kind == "float" else np.int8)
    s = scales(13, count, BF16)
    z = numbers(14, count, 256).astype(np.uint8).view(np.int8)
    minus = np.repeat(np.repeat(z, height, 0)[:rows], width, 1)[:, :columns].astype(np.float32)
    values = blocked(q.astype(np.float32) - (0 if symmetric else minus), s.astype(np.float32), height, width)
    tensors = {"weight": q, "weight_scale": s.reshape(1) if strategy == "tensor" else s}
    if not symmetric:
        tensors["weight_zero_point"] = z.reshape(tensors["weight_scale"].shape)
    rules = {"num_bits": 8, "type": kind, "symmetric": symmetric, "strategy": strategy}
    rules |= {"group_size": 32 if strategy == "group" else None}
    rules |= {"block_structure": [16, 40] if strategy == "block" else None}
    return compressed(f"{kind}-quantized", rules, tensors, values, version="0.20.0")


def e2m1(rows, columns):
    """Return packed codes, the low nibble first, and their values."""
    codes = numbers(15, (rows, columns), 16)
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), np.array(E2M1, np.float32)[codes]


def exponents(seed, shape):
    """Return E8M0 exponents with both ends, and their powers of two."""
    e = numbers(seed, shape, 255).astype(np.uint8)
    e.flat[0], e.flat[-1] = 0, 254
    return e, np.ldexp(np.float64(1), e.astype(int) - 127).astype(np.float32)


def fp4(kind):
    """NVFP4 of compressed-tensors and of ModelOpt, MXFP4, and the experts of DeepSeek V4."""
    codes, q = e2m1(24, 64)
    width = 16 if "nvfp4" in kind else 32
    if width == 16:
        s = np.abs(scales(16, (24, 4), np.float32) * 1000).astype(F8)
        whole_scale = np.float32(777.25) if kind == "nvfp4" else np.float32(0.0123)
        each = s.astype(np.float32) / whole_scale if kind == "nvfp4" else s.astype(np.float32) * whole_scale
    else:
        s, each = exponents(17, (24, 2))
    with np.errstate(over="ignore"):
        values = product(q, np.repeat(each.astype(np.float32), width, 1))
    if kind == "nvfp4":
        tensors = {"weight_packed": codes, "weight_scale": s, "weight_global_scale": np.array([whole_scale])}
        rules = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
        return compressed("nvfp4-pack-quantized", rules, tensors, values)
    if kind == "mxfp4":
        rules = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
        return compressed("mxfp4-pack-quantized", rules, {"weight_packed": codes, "weight_scale": s}, values)
    if kind == "experts":
        tensors = {"weight": codes.view(np.int8), "weight_scale_inv": s}
        config = {"quant_method": "fp8", "expert_dtype": "fp4", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
        return Checkpoint("fp4 experts", config, {f"{MODULE}.{k}": v for k, v in tensors.items()}, values)
    tensors = {
        "weight": codes,
        "weight_scale": s,
        "weight_scale_2": np.array(whole_scale),
        "input_scale": np.ones((), np.float32),
    }
    config = {"quant_method": "modelopt", "quant_algo": kind.split()[1].upper(), "ignore": ["lm_head*"]}
    return Checkpoint("modelopt nvfp4", config, {f"{MODULE}.{k}": v for k, v in tensors.items()}, values)


def mxfp8():
    """MXFP8 of compressed-tensors."""
    codes = numbers(18, (24, 64), 127).astype(np.uint8)
    s, each = exponents(19, (24, 2))
    q = codes.view(F8)
    with np.errstate(over="ignore"):
        values = product(q, np.repeat(each, 32, 1))
    rules = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
    return compressed("mxfp8-quantized", rules, {"weight": q, "weight_scale": s}, values)


def mxfp6():
    """MXFP6 of compressed-tensors: four codes are three bytes."""
    codes, (s, each) = numbers(26, (24, 64), 64), exponents(27, (24, 2))
    word = (codes.reshape(24, 16, 4) << np.arange(0, 24, 6)).sum(-1, dtype="<u4")
    octets = word.view(np.uint8).reshape(24, 16, 4)[..., :3].reshape(24, 48)
    sign, exponent, fraction = codes >> 5, codes >> 3 & 3, codes & 7
    q = np.where(exponent, np.exp2(exponent - 1.0) * (1 + fraction / 8), fraction / 8)
    with np.errstate(over="ignore"):
        values = product(np.copysign(q, 0.5 - sign).astype(np.float32), np.repeat(each, 32, 1))
    rules = {"num_bits": 6, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
    return compressed("mxfp6-pack-quantized", rules, {"weight_packed": octets, "weight_scale": s}, values)


def fp8(scale, method="fp8"):
    """FP8 with scales of 16 x 24 blocks in several types, of the tensor, or of rows."""
    rows, columns, height, width = 40, 60, 16, 24
    codes = numbers(20, (rows, columns), 256).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    kind = np.dtype(ml_dtypes.float8_e5m2) if scale == "e5m2" else F8
    codes[codes & 0x7C == 0x7C] &= 0x03 if scale == "e5m2" else 0xFF
    q, config = codes.view(kind), {"quant_method": method, "weight_block_size": [height, width]}
    role, shape = "weight_scale_inv", (-(-rows // height), -(-columns // width))
    s: np.ndarray
    if scale in {"u8", "e8m0"}:
        s, each = exponents(21, shape)
        s = s if scale == "u8" else s.view(ml_dtypes.float8_e8m0fnu)
        config["scale_fmt"] = "ue8m0"
    elif scale == "tensor e8m0":
        s, each = exponents(24, (1, 1))
        height, width, s = rows, columns, s.view(ml_dtypes.float8_e8m0fnu)
        del config["weight_block_size"]
    elif scale in {"tensor", "rows"}:
        height, width, role = (rows if scale == "tensor" else 1), columns, "weight_scale"
        each = scales(22, (rows // height, 1), np.float32)
        s = each.reshape(()) if scale == "tensor" else each
        del config["weight_block_size"]
    else:
        s = scales(23, shape, BF16 if scale == "bf16" else np.float32)
        each, role = s.astype(np.float32), "scale" if scale == "own" else role
    config |= {"fmt": "e5m2"} if scale == "e5m2" else {}
    with np.errstate(over="ignore"):
        values = blocked(q.astype(np.float32), each, height, width)
    tensors = {f"{MODULE}.weight": q, f"{MODULE}.{role}": s}
    if scale == "tensor":  # of activations
        tensors[f"{MODULE}.activation_scale"] = np.ones((), np.float32)
    return Checkpoint(f"{method} {scale}", config, tensors, values)


def experts():
    """gpt-oss: three experts, transposed."""
    count, rows, columns = 3, 144, 64
    codes, q = e2m1(count * rows, columns)
    s, each = exponents(24, (count, rows, columns // 32))
    with np.errstate(over="ignore"):
        values = product(q, np.repeat(each.reshape(count * rows, -1), 32, 1))
    name = "model.layers.0.mlp.experts.down_proj"
    tensors = {f"{name}_blocks": codes.reshape(count, rows, columns // 32, 16), f"{name}_scales": s}
    turned = np.ascontiguousarray(values.reshape(count, rows, columns).swapaxes(1, 2))
    return Checkpoint("mxfp4", {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, tensors, turned, name)


def llama4(algorithm):
    """ModelOpt's experts of Llama 4, named like their parameter; two inputs are a byte of NVFP4."""
    count, columns, rows = 3, 64, 10
    name = "language_model.model.layers.0.feed_forward.experts.gate_up_proj"
    tensors = {}
    if algorithm == "FP8":
        codes = numbers(33, (count, columns, rows), 127).astype(np.uint8).view(F8)
        whole_scale = np.float32(0.00321)
        values = product(codes, np.full(codes.shape, whole_scale, np.float32))
        tensors = {name: codes, f"{name}_weight_scale": np.array(whole_scale)}
    else:
        whole_scale, q = np.float32(0.0123), numbers(33, (count, columns, rows), 16)
        s = np.abs(scales(34, (count, columns // 16, rows), np.float32) * 1000).astype(F8)
        octets, values = np.zeros((count, columns // 2, rows), np.uint8), np.zeros(q.shape, np.float32)
        for e, c, o in np.ndindex(q.shape):
            octets[e, c // 2, o] |= q[e, c, o] << (4 if c % 2 else 0)
            values[e, c, o] = np.float32(E2M1[q[e, c, o]]) * (np.float32(s[e, c // 16, o]) * whole_scale)
        tensors = {name: octets, f"{name}_weight_scale": s, f"{name}_weight_scale_2": np.array(whole_scale)}
    tensors[f"{name}_input_scale"] = np.ones((), np.float32)
    config = {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16, "ignore": ["*router"]}
    return Checkpoint(f"modelopt {algorithm} experts", config, tensors, values, name)


def fp8_experts(*, blocks):
    """FP8 experts of transformers, named like their parameter: blocks of 16 x 24, or a scale of each expert."""
    count, rows, columns = 3, 40, 60
    height, width = (16, 24) if blocks else (rows, columns)
    q = numbers(35, (count, rows, columns), 127).astype(np.uint8).view(F8)
    s = scales(36, (count, -(-rows // height), -(-columns // width)), np.float32)
    values = np.stack([blocked(q[e].astype(np.float32), s[e], height, width) for e in range(count)])
    name = "model.layers.3.mlp.experts.down_proj"
    config = {"quant_method": "fp8", "weight_block_size": [height, width] if blocks else None}
    tensors = {name: q, f"{name}_scale_inv": s}
    if not blocks:
        tensors[f"{name}_activation_scale"] = np.ones(count, np.float32)
    return Checkpoint("fp8 experts", config, tensors, values, name)


def fp8_layer(leaves, *, height=16, width=24, kind=np.float32):
    """FP8 experts as transformers saves them: a matrix of each, `leaves` of one parameter, and its scales."""
    count, rows, columns = 3, 32, 60
    layer = f"model.layers.3.mlp.experts.{'gate_up' if len(leaves) > 1 else 'down'}_proj"
    shape = len(leaves) * rows, columns
    high, wide = height or shape[0], width or columns
    grid = count, -(-shape[0] // high), -(-columns // wide)
    s, each = exponents(37, grid) if kind != np.float32 else (scales(37, grid, kind),) * 2
    config = {"quant_method": "fp8", "weight_block_size": [height, width] if height else None}
    tensors, values = {f"{layer}_scale_inv": s.view(kind), f"{layer}_activation_scale": np.ones(count, np.float32)}, {}
    for e in range(count):
        q = numbers(38 + e, shape, 127).astype(np.uint8).view(F8)
        with np.errstate(over="ignore"):
            decoded = blocked(q.astype(np.float32), each[e], high, wide)
        for part, leaf in enumerate(leaves):
            name, cut = f"{layer.rpartition('.')[0]}.{e}.{leaf}.weight", slice(part * rows, (part + 1) * rows)
            tensors[name], values[name] = q[cut], decoded[cut]
    return Checkpoint("fp8 experts", config, tensors, np.stack(list(values.values())), layer), values


def stacked(matrix, count=3):
    """Experts of a layer as one parameter: the pieces of a matrix with one more dimension, in each expert in turn.

    Each expert has the rows of the previous one, shifted by one; with zero points, which lie along rows, all are alike.
    """
    rows, alike = len(matrix.values), f"{MODULE}.weight_zero_point" in matrix.tensors
    turns = [0] * count if alike else range(count)
    tensors = {}
    for name, array in matrix.tensors.items():
        if name.endswith("weight_shape"):
            tensors[name] = np.array([count, *array])
        elif array.size == 1:
            tensors[name] = array
        else:
            assert alike or len(array) == rows
            tensors[name] = np.stack([np.roll(array, turn, 0) for turn in turns])
    values = np.stack([np.roll(matrix.values, turn, 0) for turn in turns])
    return replace(matrix, method=f"{matrix.method} experts", tensors=tensors, values=values)


def fp8_experts_of(kind):
    """FP8 checkpoints whose experts are one matrix after another: ``X.weight``, or e2m1 in X."""
    if kind == "fp4":
        matrix, name = stacked(fp4("experts")), "model.layers.3.mlp.experts.down_proj"
        codes, s = matrix.tensors.values()
        return replace(matrix, name=name, tensors={name: codes, f"{name}_scale_inv": s})
    experts = fp8_experts(blocks=True)
    codes, s = experts.tensors.values()
    return replace(
        experts, name=f"{MODULE}.weight", tensors={f"{MODULE}.weight": codes, f"{MODULE}.weight_scale_inv": s}
    )


def four_bits(kind, *, nested, shape=(7, 33), storage=np.uint8):
    """bitsandbytes nf4 and fp4: blocks of the flattened parameter, which span rows; the last one is short."""
    count, size, outer = int(np.prod(shape)), 64, 2
    blocks = -(-count // size)
    codes = numbers(25, (count,), 16)
    table = np.sort(np.random.default_rng(26).uniform(-1, 1, 16)).astype(np.float32)
    even = np.pad(codes, (0, count % 2))
    octets = (even[::2] << 4 | even[1::2]).astype(np.uint8)
    weight = f"{MODULE}.weight"
    state = {"quant_type": kind, "blocksize": size, "dtype": "float16", "shape": list(shape)}
    if nested:
        a, inner = numbers(27, (blocks,), 256), np.random.default_rng(28).normal(0, 1, 256).astype(np.float32)
        above = np.random.default_rng(29).uniform(0.1, 1, -(-blocks // outer)).astype(np.float32)
        offset = 0.123456789
        absmax = (inner[a] * np.repeat(above, outer)[:blocks]).astype(np.float32) + np.float32(offset)
        extra = {"absmax": a.astype(np.uint8), "nested_absmax": above, "nested_quant_map": inner}
        state |= {"nested_blocksize": outer, "nested_dtype": "float32", "nested_offset": offset}
    else:
        absmax = np.random.default_rng(30).uniform(0.1, 1, blocks).astype(np.float32)
        extra = {"absmax": absmax}
    extra["quant_map"] = table
    extra[f"quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    values = product(table[codes], np.repeat(absmax, size)[:count]).reshape(shape)
    tensors = {weight: octets.view(storage).reshape(-1, 1)} | {f"{weight}.{k}": v for k, v in extra.items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return Checkpoint(f"bitsandbytes {kind}", config, tensors, values, dtype="auto")


def eight_bits():
    """bitsandbytes int8: two roundings."""
    q = numbers(31, (12, 40), 256).astype(np.uint8).view(np.int8)
    s = np.random.default_rng(32).uniform(0.1, 3, 12).astype(np.float32)
    values = product(product(q, s[:, None]), np.float32(0.007874015718698502))
    tensors = {f"{MODULE}.weight": q, f"{MODULE}.SCB": s, f"{MODULE}.weight_format": np.zeros((), np.uint8)}
    return Checkpoint("int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, tensors, values, dtype="float16")


def stream(codes, bits):
    """Lay rows of codes end to end in uint32 words, lowest bits first."""
    return words(codes, bits).view(np.uint32)


def mlx(bits, *, experts=0, layer=False):
    """MLX: codes with a scale and a bias for each group; `layer` sets the bits of this module alone."""
    rows, columns, size = 6, 128, 64
    q = numbers(20, (max(experts, 1) * rows, columns), 1 << bits)
    s, b = scales(21, (len(q), columns // size), BF16), scales(22, (len(q), columns // size), BF16)
    wide, low = (np.repeat(x.astype(np.float32), size, 1) for x in (s, b))
    values = (product(q, wide) + low).astype(np.float32)
    lead = (experts, rows) if experts else (rows,)
    tensors = {"weight": stream(q, bits), "scales": s, "biases": b}
    own = {"group_size": size, "bits": bits}
    if layer:
        own = {"group_size": 32, "bits": 4, "mode": "mxfp4", MODULE: {"bits": bits}, "other.module": False}
    return Checkpoint(
        "mlx",
        {},
        {f"{MODULE}.{k}": v.reshape(*lead, -1) for k, v in tensors.items()},
        values.reshape(*lead, columns),
        extra={"quantization": own},
    )


def mlx_floats(mode, *, experts=0):
    """MLX's floats: codes laid end to end, e2m1 or e4m3; scales in bytes, exponents for 32 columns or e4m3 for 16."""
    bits, size = (8 if mode == "mxfp8" else 4), (16 if mode == "nvfp4" else 32)
    lead = (experts, 6) if experts else (6,)
    s = numbers(24, (6 * max(experts, 1), 128 // size), 127).astype(np.uint8)
    wide = s.view(F8).astype(np.float32) if mode == "nvfp4" else np.exp2(s.astype(np.float64) - 127)
    q = numbers(23, (len(s), 128), 127 if bits == 8 else 16).astype(np.uint8)
    values = product(q.view(F8) if bits == 8 else np.array(E2M1, np.float32)[q], np.repeat(wide, size, 1))
    tensors = {f"{MODULE}.weight": stream(q, bits).reshape(*lead, -1), f"{MODULE}.scales": s.reshape(*lead, -1)}
    said = {"group_size": size, "bits": bits, "mode": mode} if experts else {"mode": mode}
    extra = {"quantization": said, "quantization_config": said}
    return Checkpoint("mlx", {}, tensors, values.reshape(*lead, -1), extra=extra)


def auto_round(packing, *, layer=False):
    """AutoRound: the pieces of GPTQ or AWQ; `layer` sets bits and size of this module alone."""
    pieces = awq() if packing.endswith("awq") else gptq(4, version="gptq" if packing.endswith("gptq") else "gptq_v2")
    sizes = {"bits": 4, "group_size": 32}
    config = {"quant_method": "auto-round", "packing_format": packing, "sym": False, "data_type": "int"}
    if layer:
        config |= {
            "bits": 8,
            "group_size": 128,
            "extra_config": {r".*layers\.\d\.q_proj": sizes, "lm_head": {"bits": 16}},
        }
    else:
        config |= sizes
    return Checkpoint("auto-round", config, pieces.tensors, pieces.values, dtype="float16")


def auto_round_floats(kind):
    """AutoRound: pieces of other libraries under its own configuration, which names the format of packing."""
    config, pieces = {"quant_method": "auto-round", "bits": 8, "group_size": 32, "sym": True}, fp8("rows")
    if kind == "mlx":
        pieces = mlx(4)
        extra = {"quantization": pieces.extra["quantization"]}
        return replace(pieces, config=config | {"packing_format": "mlx", "data_type": "int"}, extra=extra)
    if kind in {"mxfp4", "mxfp8", "nvfp4"}:
        pieces = mxfp8() if kind == "mxfp8" else fp4(kind)
        extra = {"packing_format": "auto_round:llm_compressor", "data_type": "nv_fp" if kind == "nvfp4" else "mx_fp"}
        return replace(pieces, config=config | extra)
    if kind == "blocks":
        pieces = fp8("bf16")
        extra = {"packing_format": "auto_round:fp8", "group_size": [16, 24], "weight_block_size": [16, 24]}
    elif kind == "one scale":
        pieces, extra = fp8("tensor"), {"group_size": 0}
        pieces.tensors[f"{MODULE}.weight_scale"] = pieces.tensors[f"{MODULE}.weight_scale"].reshape(1)
    else:
        extra = {"packing_format": "auto_round:fp8_static", "group_size": -1}
        scale = pieces.tensors[f"{MODULE}.weight_scale"].reshape(-1)
        pieces.tensors |= {f"{MODULE}.weight_scale": scale, f"{MODULE}.input_scale": np.ones(1, BF16)}
    return replace(pieces, config=config | {"data_type": "fp", "fmt": "e4m3", "act_bits": 8} | extra)


def modelopt_fp8(algorithm, *, mixed=False):
    """ModelOpt's FP8: a scale for each row, for blocks of 128 by 128, or exponents for 32 columns."""
    q = numbers(25, (130, 160), 127).astype(np.uint8).view(F8)
    if algorithm == "MXFP8":
        s = numbers(26, (130, 5), 200).astype(np.uint8)
        each = np.repeat(np.exp2(s.astype(np.float64) - 127), 32, 1)
    elif algorithm == "FP8_PB_WO":
        s = scales(26, (2, 2), np.float32)
        each = np.repeat(np.repeat(s, 128, 0), 128, 1)[:130, :160]
        s = s.reshape(2, 1, 2, 1)
    else:
        s = scales(26, (130,), np.float32)
        each = s[:, None]
        q = numbers(25, (130, 160), 256).astype(np.uint8).view(np.int8) if algorithm[0] == "W" else q
    stated = {"quant_algo": algorithm}
    config = {"quant_method": "modelopt", **stated}
    if mixed:
        layers = {MODULE: stated, "model.layers.1.q_proj": {"quant_algo": "NVFP4", "group_size": 16}}
        config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    tensors = {f"{MODULE}.weight": q, f"{MODULE}.weight_scale": s}
    return Checkpoint("modelopt", config, tensors, product(q, each))


def modelopt_e2m1(algorithm, *, stated=False):
    """ModelOpt's e2m1 codes with scales for 32 columns: exponents, or floats and a scale of the tensor."""
    (codes, q), (s, each), whole_scale = e2m1(24, 64), exponents(17, (24, 2)), np.float32(0.0123)
    tensors = {"weight": codes, "weight_scale": s}
    if "NV" in algorithm:
        s = np.abs(scales(16, (24, 2), np.float32) * 1000).astype(F8)
        each = s.astype(np.float32) * whole_scale
        tensors |= {"weight_scale": s, "weight_scale_2": np.array(whole_scale)}
    with np.errstate(over="ignore"):
        values = product(q, np.repeat(each, 32, 1))
    config = {"quant_method": "modelopt", "quant_algo": algorithm} | ({"group_size": 32} if stated else {})
    return Checkpoint("modelopt", config, {f"{MODULE}.{k}": v for k, v in tensors.items()}, values)


def modelopt_blocks(algorithm):
    """ModelOpt's blocks of ggml: a row of bytes for each block."""
    kind = algorithm.lower()
    blocks = random_blocks(np.random.default_rng(27), kind, 12, finite=True)
    values = ggml_values(kind, blocks).reshape(6, -1)
    config = {"quant_method": "modelopt", "quant_algo": algorithm, "packing": "ggml", "ignore": ["lm_head"]}
    return Checkpoint("modelopt", config, {f"{MODULE}.weight": blocks.reshape(6, 2, -1)}, values)


def modelopt_experts(algorithm):
    """ModelOpt's experts of Llama 4 and gpt-oss, quantised as they are stored: groups along the outputs."""
    name = "model.layers.0.mlp.experts.down_proj"
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        codes, s = numbers(33, (3, 64, 10), 127).astype(np.uint8).view(F8), scales(34, (3,), np.float32)
        tensors, values = {"": codes, "_weight_scale": s}, product(codes, s[:, None, None])
    else:
        matrix = stacked(mxfp8() if algorithm == "MXFP8" else modelopt_e2m1(algorithm))
        tensors = {key.removeprefix(f"{MODULE}.weight"): array for key, array in matrix.tensors.items()}
        tensors = {key.replace("_scale", "_weight_scale", 1): array for key, array in tensors.items()}
        values = matrix.values
    config = {"quant_method": "modelopt", "quant_algo": algorithm}
    return Checkpoint("modelopt experts", config, {f"{name}{k}": v for k, v in tensors.items()}, values, name)


def comfyui(scale, kind="float8_e4m3fn", *, described=False):
    """ComfyUI's scaled FP8: one scale, and perhaps a description in bytes; nothing in config.json."""
    q = numbers(27, (5, 32), 120).astype(np.uint8).view(np.dtype(kind))
    s = np.array(0.37, np.float32)
    tensors = {f"{MODULE}.weight": q, f"{MODULE}.{scale}": s}
    if described:
        tensors[f"{MODULE}.comfy_quant"] = np.frombuffer(json.dumps({"format": kind}).encode(), np.uint8)
    return Checkpoint("comfyui", {}, tensors, product(q, s))


EXAMPLES = {
    "awq": awq,
    "awq, one group": lambda: awq(group=-1),
    "awq without zeros": lambda: awq(zeros=False),
    **{f"gptq {bits}": (lambda bits=bits: gptq(bits)) for bits in (2, 3, 4, 8)},
    **{f"gptq {bits} v2": (lambda bits=bits: gptq(bits, version="gptq_v2", order="plain")) for bits in (2, 3, 4, 8)},
    "gptq act-order": lambda: gptq(4, order="act"),
    "gptq, one group": lambda: gptq(4, group=-1),
    **{f"packed {bits}": (lambda bits=bits: packed(bits)) for bits in range(1, 9)},
    **{f"packed {bits}, zeros": (lambda bits=bits: packed(bits, symmetric=False)) for bits in (1, 2, 3, 4, 5, 6, 7, 8)},
    **{f"packed {bits}, old": (lambda bits=bits: packed(bits, symmetric=False, old=True)) for bits in (3, 5, 6, 7)},
    **{
        f"packed {bits}, plain zeros": (lambda bits=bits: packed(bits, symmetric=False, plain=True))
        for bits in (3, 4, 8)
    },
    "packed by channel, plain zeros": lambda: packed(4, group=-1, columns=43, symmetric=False, plain=True),
    "packed by channel": lambda: packed(4, group=-1, columns=43),
    "packed by channel, zeros": lambda: packed(4, group=-1, columns=43, symmetric=False),
    "packed by tensor": lambda: packed(4, group=0, columns=43),
    "packed act-order": lambda: packed(4, order="group", symmetric=False),
    "packed act-order by another name": lambda: packed(4, order="dynamic"),
    **{f"int8 {s}": (lambda s=s: whole("int", s)) for s in ("tensor", "channel", "group")},
    **{f"int8 {s}, zeros": (lambda s=s: whole("int", s, symmetric=False)) for s in ("tensor", "channel", "group")},
    **{f"float8 {s}": (lambda s=s: whole("float", s)) for s in ("tensor", "channel", "group", "block")},
    **{kind: (lambda kind=kind: fp4(kind)) for kind in ("nvfp4", "mxfp4", "experts", "modelopt nvfp4")},
    "modelopt w4a16_nvfp4": lambda: fp4("modelopt w4a16_nvfp4"),
    "mxfp6": mxfp6,
    "mxfp8": mxfp8,
    **{f"fp8 {s}": (lambda s=s: fp8(s)) for s in ("f32", "bf16", "u8", "e8m0", "own", "e5m2", "tensor", "tensor e8m0")},
    "fbgemm": lambda: fp8("rows", "fbgemm_fp8"),
    "gpt-oss": experts,
    "Llama 4 NVFP4": lambda: llama4("NVFP4"),
    "Llama 4 FP8": lambda: llama4("FP8"),
    "fp8 experts": lambda: fp8_experts(blocks=True),
    "fp8 experts, a scale each": lambda: fp8_experts(blocks=False),
    "fp8 experts with a weight": lambda: fp8_experts_of("weight"),
    "fp8 experts of fp4": lambda: fp8_experts_of("fp4"),
    "packed 4 experts": lambda: stacked(packed(4)),
    "packed 3 experts by channel, zeros": lambda: stacked(packed(3, group=-1, columns=43, symmetric=False)),
    "packed 8 experts by tensor": lambda: stacked(packed(8, group=0, columns=43)),
    "int8 experts": lambda: stacked(whole("int", "channel")),
    "float8 experts": lambda: stacked(whole("float", "group")),
    "nvfp4 experts": lambda: stacked(fp4("nvfp4")),
    "mxfp4 experts": lambda: stacked(fp4("mxfp4")),
    "mxfp6 experts": lambda: stacked(mxfp6()),
    "mxfp8 experts": lambda: stacked(mxfp8()),
    **{f"{k}, nested {n}": (lambda k=k, n=n: four_bits(k, nested=n)) for k in ("nf4", "fp4") for n in (False, True)},
    "nf4, one row of blocks": lambda: four_bits("nf4", nested=True, shape=(4, 128)),
    "nf4 in bfloat16": lambda: four_bits("nf4", nested=True, shape=(8, 64), storage=BF16),
    "int8 of bitsandbytes": eight_bits,
    **{f"mlx {bits}": (lambda bits=bits: mlx(bits)) for bits in (1, 2, 3, 4, 5, 6, 8)},
    "mlx experts": lambda: mlx(6, experts=3),
    "mlx by layer": lambda: mlx(3, layer=True),
    **{f"mlx {mode}": (lambda mode=mode: mlx_floats(mode)) for mode in ("mxfp4", "nvfp4", "mxfp8")},
    **{f"mlx {mode} experts": (lambda mode=mode: mlx_floats(mode, experts=3)) for mode in ("mxfp4", "nvfp4", "mxfp8")},
    **{
        f"{packing}{', by layer' * layer}": (lambda packing=packing, layer=layer: auto_round(packing, layer=layer))
        for packing in ("auto_round", "auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq")
        for layer in (False, True)
    },
    **{
        f"auto-round {kind}": (lambda kind=kind: auto_round_floats(kind))
        for kind in ("rows", "one scale", "blocks", "mxfp4", "mxfp8", "nvfp4", "mlx")
    },
    **{
        f"modelopt {algorithm}{', mixed' * mixed}": (
            lambda algorithm=algorithm, mixed=mixed: modelopt_fp8(algorithm, mixed=mixed)
        )
        for algorithm in ("FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "W8A16", "W8A8_SQ_PER_CHANNEL")
        for mixed in (False, True)
    },
    **{
        f"modelopt {algorithm}{', stated' * stated}": (
            lambda algorithm=algorithm, stated=stated: modelopt_e2m1(algorithm, stated=stated)
        )
        for algorithm in ("NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "mxfp4", "W4A16_MXFP4", "W4A8_MXFP4_FP8")
        for stated in (False, True)
    },
    **{
        f"modelopt {kind}": (lambda kind=kind: modelopt_blocks(kind))
        for kind in ("Q8_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S")
    },
    **{
        f"modelopt {algorithm} experts": (lambda algorithm=algorithm: modelopt_experts(algorithm))
        for algorithm in ("FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "MXFP4", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8")
    },
    "comfyui": lambda: comfyui("scale_weight"),
    "comfyui e5m2, described": lambda: comfyui("weight_scale", "float8_e5m2", described=True),
}


VALUES = [
    None,
    True,
    0,
    -1,
    3,
    4,
    5,
    8,
    32,
    33,
    128,
    2**62,
    2**70,
    1.5,
    1e308,
    "",
    "gptq",
    "re:(a+)+$",
    [],
    [1],
    [0, 0],
    {},
]


def mutated(rng, value):
    """Return a configuration with one value changed, somewhere."""
    if isinstance(value, (dict, list)) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if rng.random() < 0.2:
            del value[key]
        else:
            value[key] = mutated(rng, value[key]) if rng.random() < 0.7 else rng.choice(VALUES)
        return value
    return rng.choice(VALUES)
