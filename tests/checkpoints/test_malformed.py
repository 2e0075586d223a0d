"""Quantised checkpoints with one defect each: always a FormatError that names the defect."""

import contextlib
import copy
import json
import random
import tracemalloc

import numpy as np
import pytest
from tests.checkpoints.checkpoints import BF16, EXAMPLES, MODULE, mutated
from tests.support import in_one_item

import weightmap as wm

CUT, WIDER, LINE = (lambda a: a[:-1]), (lambda a: np.concatenate([a, a], -1)), (lambda a: a.reshape(-1))


def piece(role, change=None):
    """Change a piece, or leave it out."""

    def apply(example):
        name = f"{MODULE}.{role}"
        array = example.tensors.pop(name)
        if change is not None:
            example.tensors[name] = np.asarray(change(array))

    return apply


def fused(ending, change=None):
    """Change a piece of fused experts, or leave it out."""

    def apply(example):
        array = example.tensors.pop(f"{example.name}{ending}")
        if change is not None:
            example.tensors[f"{example.name}{ending}"] = np.asarray(change(array))

    return apply


def extra(role, shape=(4,), dtype=np.float32):
    return lambda example: example.tensors.update({f"{MODULE}.{role}": np.zeros(shape, dtype)})


def renamed(module):
    """Rename the module."""

    def apply(example):
        example.name = f"{module}.weight"
        example.tensors = {name.replace(MODULE, module): array for name, array in example.tensors.items()}

    return apply


def config(**keys):
    return lambda example: example.config.update(keys)


def rules(**keys):
    """Change compressed-tensors' settings of the weights."""
    return lambda example: example.config["config_groups"]["group_0"]["weights"].update(keys)


def state(**keys):
    """Change the quant state of bitsandbytes."""

    def apply(example):
        name = next(name for name in example.tensors if "quant_state" in name)
        values = json.loads(example.tensors[name].tobytes()) | keys
        example.tensors[name] = np.frombuffer(json.dumps(values).encode(), np.uint8)

    return apply


def raw_state(raw):
    return piece("weight.quant_state.bitsandbytes__nf4", lambda _: np.frombuffer(raw, np.uint8))


NF4, LLAMA, COMFYUI = "nf4, nested True", "Llama 4 NVFP4", "comfyui e5m2, described"
# The example, the change, and words of the error: it names the tensor, or the key of the configuration.
ROWS = [
    ("awq", config(quant_method="hqq"), "quant_method is 'hqq', expected one of auto-round, awq, bitsandbytes"),
    ("awq", config(quant_method=None), "quant_method"),
    ("awq", config(bits=8), "bits is 8"),
    ("awq", config(bits="four"), "bits is 'four'"),
    ("awq", config(bits=True), "bits is True"),
    ("awq", config(group_size=0), "group_size is 0"),
    ("awq", config(group_size=-2), "group_size is -2"),
    ("awq", config(group_size=64), "q_proj.scales"),
    ("awq", config(group_size=48), "q_proj.qweight"),
    ("awq", config(version="gemv"), "version is 'gemv'"),
    ("awq", config(zero_point="yes"), "zero_point"),
    ("awq", config(modules_to_not_convert="lm_head"), "modules_to_not_convert"),
    ("awq", piece("qweight"), "lacks its tensor 'qweight'"),
    ("awq", piece("qzeros"), "lacks its tensor 'qzeros'"),
    ("awq", piece("scales"), "lacks its tensor 'scales'"),
    ("awq", piece("scales", CUT), "q_proj.scales"),
    ("awq", piece("qzeros", WIDER), "q_proj.qzeros"),
    ("awq", piece("qweight", LINE), "q_proj.qweight"),
    ("awq", piece("qweight", lambda a: a.astype(np.int64)), "q_proj.qweight"),
    ("gptq 4", config(bits=5), "bits is 5"),
    ("gptq 4", config(bits=8), "q_proj"),
    ("gptq 4", config(checkpoint_format="marlin"), "checkpoint_format is 'marlin'"),
    ("gptq 4", config(format="gptq_v2"), "format is 'gptq_v2', expected 'gptq', as checkpoint_format"),
    ("awq", config(format="gemv"), "format is 'gemv', expected 'gemm'"),
    ("gptq 4", config(is_marlin_format=True), "is_marlin_format"),
    ("gptq 4", config(pack_dtype="int16"), "pack_dtype"),
    ("gptq 4", config(group_size=64), "q_proj.scales"),
    ("gptq 4", config(dynamic={"[": {}}), "the regular expression '[' is not valid"),
    ("gptq 4", config(dynamic={r"(a)\1": {}}), "has a back-reference"),
    ("gptq 4", config(dynamic={"(?:(?:a{1000}){1000}){1000}": {}}), "has counted repetitions of thousands"),
    ("gptq 4", config(dynamic={"(" * 5000 + ")" * 5000: {}}), "nested too deep"),
    ("gptq 4", config(dynamic={".*": 3}), "dynamic"),
    ("gptq 3", piece("qweight", CUT), "q_proj.qweight"),
    ("gptq act-order", piece("g_idx", lambda a: np.where(a == 1, -1, a).astype(np.int32)), "q_proj.g_idx"),
    ("gptq act-order", piece("g_idx", lambda a: a + np.int32(1)), "q_proj.g_idx"),
    ("gptq act-order", piece("g_idx", CUT), "q_proj.g_idx"),
    ("packed 4", rules(num_bits=8), "q_proj.weight_packed"),
    ("packed 4", rules(num_bits=9), "num_bits is 9"),
    ("packed 4", rules(strategy="block", block_structure=[16, 32]), "strategy is 'block', expected 'tensor'"),
    ("packed 4", rules(group_size=48), "q_proj.weight_scale"),
    ("packed 4", rules(group_size=50), "q_proj.weight_shape"),
    ("packed 4", rules(strategy="token"), "strategy is 'token'"),
    ("packed 4", rules(symmetric=False), "weight_zero_point"),
    ("packed 4, zeros", rules(symmetric=True), "q_proj.weight_zero_point"),
    ("packed 4", config(format="sparse-24-bitmask"), "format is 'sparse-24-bitmask'"),
    ("packed 4", config(format="mixed-precision"), "format"),
    ("packed 4", config(transform_config={"config_groups": {}}), "transform_config"),
    ("packed 4", config(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config.format"),
    ("packed 4", config(config_groups=[]), "config_groups"),
    ("packed 4", config(config_groups={}), "config_groups"),
    ("packed 4", piece("weight_shape"), "lacks its tensor 'weight_shape'"),
    ("packed 4", piece("weight_shape", lambda a: a * 2**40), "q_proj.weight_shape"),
    ("packed 4", piece("weight_shape", lambda a: -a), "q_proj.weight_shape"),
    ("packed 4", piece("weight_packed", CUT), "q_proj.weight_shape"),
    ("packed 4", extra("weight", (20, 96)), "q_proj.weight"),
    ("packed act-order", piece("weight_g_idx", lambda a: a + np.int32(1)), "q_proj.weight_g_idx"),
    ("packed 4", piece("weight_shape", lambda a: np.array([1, *a])), "q_proj.weight_shape"),
    ("packed 4 experts", piece("weight_shape", lambda a: a + np.array([1, 0, 0])), "q_proj.weight_shape"),
    ("packed 4 experts", piece("weight_shape", lambda a: a[1:]), "q_proj.weight_shape"),
    (
        "packed 4 experts",
        piece("weight_scale", lambda a: a[:2]),
        "q_proj.weight_scale' is [2, 20, 3], expected 3 experts",
    ),
    ("packed 4 experts", extra("weight_g_idx", (96,), np.int32), "q_proj.weight_g_idx' is stored, expected none"),
    ("int8 experts", piece("weight_scale", lambda a: a[:, :1]), "q_proj.weight_scale"),
    ("gptq 4", config(rotation="hadamard"), "rotation is 'hadamard'"),
    ("auto_round", config(packing_format="auto_round:llm_compressor_nvfp4_e5m3"), "packing_format is 'auto_round:llm_"),
    ("auto_round", config(packing_format="auto_round:fp8"), "auto_round:fp8_static of data_type 'fp'"),
    ("auto_round", config(data_type="mx_int"), "data_type is 'mx_int', expected 'int'"),
    ("auto-round mxfp4", config(rotation_config={"algorithm": "hadamard"}), "rotation_config"),
    ("auto-round mxfp4", piece("weight_scale", lambda a: a[:, :1]), "q_proj.weight_scale"),
    ("auto-round rows", config(group_size=128), "group_size is 128, expected 0, -1 or a block"),
    ("auto-round rows", piece("weight_scale", lambda a: a[:5]), "q_proj.weight_scale"),
    ("auto_round", config(rotation_config={"algorithm": "hadamard"}), "rotation_config"),
    ("auto_round", config(spinquant_config={"algorithm": "spinquant"}), "spinquant_config"),
    ("modelopt nvfp4", extra("svdquant_lora_a", (2, 64)), "q_proj.svdquant_lora_a' does not go with"),
    ("mlx nvfp4", extra("global_scale", ()), "q_proj.global_scale' does not go with"),
    ("mlx nvfp4 experts", extra("globalScale", ()), "q_proj.globalScale' does not go with"),
    ("int8 channel", piece("weight_scale"), "q_proj.weight' is int8, and its scales are missing"),
    ("int8 channel", piece("weight"), "lacks its tensor 'weight'"),
    ("int8 channel", piece("weight_scale", CUT), "q_proj.weight_scale"),
    ("int8 group, zeros", piece("weight_zero_point", CUT), "q_proj.weight_zero_point"),
    ("float8 block", rules(block_structure=[16, 0]), "block_structure"),
    ("float8 block", rules(symmetric=False), "weights.symmetric is False, expected true"),
    ("float8 block", rules(block_structure=[16, 48]), "q_proj.weight_scale"),
    ("nvfp4", piece("weight_global_scale"), "weight_global_scale"),
    ("nvfp4", piece("weight_global_scale", lambda a: np.repeat(a, 2)), "q_proj.weight_global_scale"),
    ("mxfp4", piece("weight_scale", lambda a: a.view(np.int8)), "q_proj.weight_scale"),
    ("modelopt nvfp4", config(quant_algo="W4A8_AWQ"), "quant_algo"),
    ("modelopt nvfp4", piece("weight_scale_2"), "weight_scale_2"),
    ("modelopt nvfp4", config(group_size=64), "group_size is 64, expected 16 or 32"),
    ("modelopt nvfp4", config(group_size=32), "q_proj.weight_scale"),
    ("modelopt nvfp4", extra("pre_quant_scale", (64,)), "pre_quant_scale' is stored, expected none"),
    ("modelopt NVFP4, stated", config(group_size=16), "q_proj.weight_scale"),
    ("modelopt NVFP4", piece("weight_scale", lambda a: a[:, 0]), "q_proj.weight_scale"),
    ("modelopt W8A16", piece("weight_scale", CUT), "q_proj.weight_scale"),
    ("modelopt Q8_0", piece("weight", lambda a: a[..., 1:]), "q_proj.weight' is [6, 2, 33], expected [any, any, 34]"),
    ("modelopt MXFP8 experts", fused("_weight_scale", lambda a: a[:2]), "down_proj_weight_scale"),
    ("modelopt MXFP8 experts", fused("_weight_scale", lambda a: a[..., :1]), "down_proj_weight_scale"),
    ("modelopt MXFP8 experts", config(quant_algo="FP8_PB_WO"), "quant_algo of tensor"),
    ("modelopt FP8_PER_CHANNEL_PER_TOKEN experts", fused("_weight_scale", lambda a: a[:2]), "down_proj_weight_scale"),
    ("modelopt MXFP8, mixed", config(quantized_layers={"other": {"quant_algo": "FP8"}}), "quantized_layers of tensor"),
    ("fp8 f32", piece("weight_scale_inv"), "q_proj.weight' is float8_e4m3fn, and its scales are missing"),
    ("fp8 f32", piece("weight"), "lacks its tensor 'weight'"),
    ("fp8 e8m0", lambda e: e.tensors.update({"alone.scale": list(e.tensors.values())[1]}), "lacks its tensor 'weight'"),
    ("fp8 experts of fp4", fused("", lambda a: a[..., :8]), "experts.down_proj"),
    ("fp8 experts with a weight", piece("weight_scale_inv", lambda a: a[:2]), "q_proj.weight_scale_inv"),
    ("fp8 f32", piece("weight", lambda a: a.astype(BF16)), "weights beside scales of tensor"),
    ("fp8 f32", piece("weight_scale_inv", lambda a: a[None]), "q_proj.weight_scale_inv' is [1, 3, 3], expected [3, 3]"),
    ("fp8 f32", config(weight_block_size=[16]), "weight_block_size"),
    ("fp8 f32", config(weight_block_size=[16, 16]), "q_proj.weight_scale_inv"),
    ("fp8 f32", config(fmt="e5m2"), "q_proj.weight"),
    ("fp8 f32", config(fmt="e3m4"), "fmt is 'e3m4'"),
    ("fp8 f32", config(weight_scale_semantics="inverse"), "scales of GPTQModel divide"),
    ("gptq 4", renamed("embed_tokens"), "embed_tokens.qweight' is of embeddings"),
    ("awq", config(version=None, checkpoint_format="gemv"), "checkpoint_format is 'gemv'"),
    ("awq", config(pack_method="order"), "pack_method is 'order'"),
    ("awq", config(pack_method="reorder", zero_point=False), "pack_method is 'reorder', expected 'reorder', and zero"),
    ("fp8 f32", extra("weight_scale"), "q_proj.weight_scale"),
    ("gpt-oss", lambda e: e.tensors.pop(f"{e.name}_blocks"), "lacks its tensor 'blocks'"),
    ("gpt-oss", lambda e: e.tensors.update({e.name: np.zeros((3, 64, 144), np.float32)}), "is stored twice"),
    (LLAMA, fused(""), "experts.gate_up_proj' lacks its tensor 'weight'"),
    (LLAMA, fused("_weight_scale"), "lacks its tensor 'weight_scale'"),
    (LLAMA, fused("_weight_scale_2"), "lacks its tensor 'weight_scale_2'"),
    (LLAMA, fused("_weight_scale_2", lambda a: np.ones(3, a.dtype)), "experts.gate_up_proj_weight_scale_2"),
    (LLAMA, fused("_weight_scale_2", lambda a: a.astype(np.float64)), "experts.gate_up_proj_weight_scale_2"),
    (LLAMA, fused("_weight_scale", lambda a: a.swapaxes(1, 2)), "experts.gate_up_proj_weight_scale"),
    (LLAMA, fused("_weight_scale", lambda a: a[:2]), "experts.gate_up_proj_weight_scale"),
    (LLAMA, fused("_weight_scale", lambda a: a.view(np.uint8)), "experts.gate_up_proj_weight_scale"),
    (LLAMA, fused("", lambda a: a[0]), "experts.gate_up_proj'"),
    (LLAMA, fused("", lambda a: a[:, :30]), "experts.gate_up_proj'"),
    (LLAMA, fused("", lambda a: a[:, :29]), "is 58, expected a multiple of 16"),
    (LLAMA, fused("", lambda a: a.view(np.int8)), "experts.gate_up_proj'"),
    ("Llama 4 FP8", fused("_weight_scale", lambda _: np.ones(3, np.float32)), "experts.gate_up_proj_weight_scale"),
    ("Llama 4 FP8", fused("", lambda a: a.view(np.uint8)), "experts.gate_up_proj'"),
    (
        "Llama 4 FP8",
        lambda e: e.tensors.update({f"{e.name}_weight_scale_2": np.ones((), np.float32)}),
        "experts.gate_up_proj_weight_scale_2",
    ),
    ("fp8 experts", fused(""), "experts.down_proj' lacks its tensor 'weight'"),
    ("fp8 experts", fused("", lambda a: a[:, :10]), "experts.down_proj_scale_inv"),
    ("fp8 experts", fused("", lambda a: a[0]), "experts.down_proj'"),
    ("fp8 experts", fused("_scale_inv", lambda a: a[:, :1]), "experts.down_proj_scale_inv"),
    ("fp8 experts", config(weight_block_size=[16, 16]), "experts.down_proj_scale_inv"),
    ("fp8 experts, a scale each", fused("_scale_inv", lambda a: a[:, 0, 0]), "experts.down_proj_scale_inv"),
    (NF4, config(load_in_8bit=True), "load_in_4bit"),
    (NF4, config(load_in_4bit=False), "load_in_4bit"),
    (NF4, config(load_in_4bit=False, load_in_8bit=True), "q_proj.weight.absmax"),
    (NF4, state(shape=[7, 2**50]), "q_proj.weight"),
    (NF4, state(shape=[7, -33]), "shape"),
    (NF4, state(shape=[True, 231]), "shape"),
    (NF4, state(shape="x"), "shape"),
    (NF4, state(shape=[1] * 3000), "1 to 32 lengths"),
    (NF4, state(blocksize=32), "q_proj.weight.absmax"),
    (NF4, state(blocksize="64"), "blocksize"),
    (NF4, state(quant_type="fp4"), "quant_type is 'fp4'"),
    (NF4, state(dtype="int8"), "dtype is 'int8'"),
    (NF4, state(nested_blocksize=-1), "nested_blocksize is -1"),
    (NF4, state(nested_offset=None), "nested_offset"),
    (NF4, raw_state(b"{"), "q_proj.weight.quant_state"),
    (NF4, raw_state(b"[]"), "q_proj.weight.quant_state"),
    (NF4, raw_state(b"\xff"), "q_proj.weight.quant_state"),
    (NF4, raw_state(b"{}".ljust(65537)), "quant_state.bitsandbytes__nf4' is 65537, expected at most 65536"),
    (
        COMFYUI,
        piece("comfy_quant", lambda _: np.zeros(65537, np.uint8)),
        "comfy_quant' is 65537, expected at most",
    ),
    (NF4, extra("weight.quant_state.bitsandbytes__fp4", (1,), np.uint8), "two quant states"),
    (NF4, piece("weight.quant_map"), "weight.quant_map"),
    (NF4, piece("weight.nested_absmax", CUT), "q_proj.weight.nested_absmax"),
    (NF4, piece("weight", CUT), "q_proj.weight"),
    ("int8 of bitsandbytes", piece("weight_format", lambda _: np.array(1, np.uint8)), "q_proj.weight_format"),
    ("int8 of bitsandbytes", piece("SCB"), "q_proj.weight"),
]


@in_one_item("name, change, words", ROWS)
def test_defects_are_named(tmp_path, name, change, words):
    """Each defect is a FormatError that names the tensor or the key; stored tensors stay readable."""
    example = EXAMPLES[name]()
    change(example)
    with wm.open(example.write(tmp_path / "model")) as f:
        with pytest.raises(wm.FormatError) as raised:
            dict(f.weights)
        assert words in str(raised.value), str(raised.value)
        assert str(tmp_path) in str(raised.value)
        assert len(dict(f)) == len(f)


@pytest.mark.parametrize("content", ["[]", "{", '{"quantization_config": [1]}', '{"quantization_config": {}}', "\0"])
def test_configurations_that_are_none(tmp_path, content):
    """A damaged config.json is an error of `weights`, not of the file."""
    path = EXAMPLES["awq"]().write(tmp_path)
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with wm.open(path) as f:
        assert len(dict(f)) == 3
        with pytest.raises(wm.FormatError, match=r"config\.json"):
            f.weights  # noqa: B018


@pytest.mark.parametrize("number", [10**9, 10**12, 10**30])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        (NF4, lambda n: state(nested_blocksize=n)),
        (NF4, lambda n: state(blocksize=n)),
        ("fp8 f32", lambda n: config(weight_block_size=[n, n])),
        ("float8 block", lambda n: rules(block_structure=[n, n])),
        ("float8 group", lambda n: rules(group_size=n)),
        ("packed 4", lambda n: rules(group_size=n)),
        ("awq", lambda n: config(group_size=n)),
        ("gptq 4", lambda n: config(group_size=n)),
    ],
)
def test_huge_numbers_of_a_configuration_cost_nothing(tmp_path, name, change, number):
    """A number larger than the tensor means all of it: it causes no loop, memory or overflow."""
    example = EXAMPLES[name]()
    change(number)(example)
    with wm.open(example.write(tmp_path)) as f:
        tracemalloc.start()
        with contextlib.suppress(wm.FormatError):
            f.weights[example.name].dequantize()
        assert tracemalloc.get_traced_memory()[1] < 2**22
        tracemalloc.stop()


def damage(rng, example):
    """Change the configuration, or the shape, type or bytes of a piece."""
    if rng.random() < 0.5:
        example.config = mutated(rng, copy.deepcopy(example.config))
        return
    name = rng.choice(list(example.tensors))
    array = example.tensors[name]
    octets = np.frombuffer(array.tobytes(), np.uint8).copy()
    kind = rng.choice(("shape", "dtype", "bytes"))
    if kind == "shape":
        example.tensors[name] = np.resize(array, tuple(max(0, n + rng.choice((-1, 1, -n, n))) for n in array.shape))
    elif kind == "dtype":
        example.tensors[name] = octets.view(
            rng.choice([k for k in "bBeifdq" if not len(octets) % np.dtype(k).itemsize])
        )
    else:
        for _ in range(9):
            octets[rng.randrange(len(octets))] = rng.choice((0, 127, 128, 255))
        example.tensors[name] = octets.view(array.dtype).reshape(array.shape)


@in_one_item("number", range(400))
def test_mutants(tmp_path, number):
    """After any change, decoding gives values or a FormatError; always the same mutants."""
    rng = random.Random(number)
    example = EXAMPLES[rng.choice(list(EXAMPLES))]()
    damage(rng, example)
    with wm.open(example.write(tmp_path / "model")) as f, contextlib.suppress(wm.FormatError):
        for w in f.weights.values():
            assert np.asarray(w).shape == w.shape
            assert w.ndim == 0 or len(w[:1]) <= 1
            assert repr(w)
