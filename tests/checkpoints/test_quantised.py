"""Quantised Llamas that transformers, compressed-tensors, gptqmodel and bitsandbytes write, decoded beside them.

`make quantised-test` runs this in its own environment.
"""

import json
import os
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest

import weightmap as wm

if not os.environ.get("WEIGHTMAP_QUANTISED"):
    pytest.skip("opt-in: make quantised-test", allow_module_level=True)
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # torch's threads that compile gptqmodel's layers would never end
torch = pytest.importorskip("torch")

from compressed_tensors.compressors import ModelCompressor, PackedQuantizationCompressor  # noqa: E402 - nothing here makes sense without torch
from compressed_tensors.quantization import (  # noqa: E402
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
    disable_quantization,
)
from gptqmodel.nn_modules.qlinear.torch import TorchLinear  # noqa: E402
from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear  # noqa: E402
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import Whitespace  # noqa: E402
from tqdm import tqdm  # noqa: E402
from transformers import (  # noqa: E402
    BitsAndBytesConfig,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize  # noqa: E402
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer  # noqa: E402

tqdm.monitor_interval = 0  # it would leave a thread behind
pytestmark = [
    # transformers uses a deprecated name, and only quantization_config makes it decode.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning"),
    # A temporary directory of gptqmodel's.
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]
# The presets of compressed-tensors with a specified format of weights.
PRESETS = (
    *("W2A16", "W3A16", "W4A16", "W4A16_ASYM", "W5A16", "W6A16", "W7A16", "W8A16", "W8A8"),
    *("FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4A16", "MXFP6A16", "MXFP8A16"),
)
BITS_AND_BYTES = {
    **{
        f"{kind}, nested {nested}": {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": kind,
            "bnb_4bit_use_double_quant": nested,
        }
        for kind in ("nf4", "fp4")
        for nested in (False, True)
    },
    "int8": {"load_in_8bit": True},
}


def plain(dtype=torch.bfloat16):
    """A tiny Llama with random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, dtype=dtype)
    model = LlamaForCausalLM(config).eval()
    for p in model.parameters():  # buffers stay float32, as from_pretrained has them
        p.data = p.data.to(dtype)
    return model


def decoded(folder, dtype):
    """The parameters that weightmap reads from a model, as tensors, and the names of the quantised ones."""
    with wm.open(folder) as f:
        quantised = [name for name in f.weights if isinstance(f.weights[name], wm.QuantizedTensor)]
        arrays = {name: np.array(w) for name, w in f.weights.items()}
    return {name: torch.from_numpy(a.view(np.uint16)).view(dtype) for name, a in arrays.items()}, quantised


def same(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours.contiguous().view(torch.uint8), theirs.detach().contiguous().view(torch.uint8))


def logits(model):
    with torch.no_grad():
        return model(torch.arange(16).reshape(1, 16)).logits


def check(folder, reference, layout=torch.clone):
    """Parameters have the bits of the reference, and so have the logits of the plain model with them.

    `layout` gives matrices the order in memory that the reference multiplies, since sums depend on it.
    """
    weights, names = decoded(folder, reference.dtype)
    assert len(names) == 7
    for name in names:
        same(weights[name], weight_of(reference, name))
        weights[name] = layout(weights[name])
    model = plain(reference.dtype)
    for name, tensor in weights.items():
        model.get_parameter(name).data = tensor
    same(logits(model), logits(reference))


def weight_of(model, name):
    """A weight as a model has it, or as its layer decodes it."""
    module = model.get_submodule(name.removesuffix(".weight"))
    if isinstance(module, TorchLinear):
        return module.dequantize_weight().T
    if isinstance(module, AwqTorchLinear):
        like = torch.empty(1, module.in_features, dtype=model.dtype)
        return module._dequantize_weight_for_inference(like, dtype=model.dtype).T
    return module.weight


def transposed(matrix):
    """The same matrix, its columns contiguous."""
    return matrix.T.contiguous().T


def write(model, folder, tensors, config):
    model.config.quantization_config = config
    model.config.save_pretrained(folder)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("preset", PRESETS)
def test_compressed_tensors(tmp_path, preset):
    """Weights and logits equal the model that transformers loads decompressed."""
    model = plain()
    config = QuantizationConfig(config_groups={preset: ["Linear"]}, ignore=["lm_head"])
    apply_quantization_config(model, config)
    random = torch.Generator().manual_seed(1)
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        for name, p in module.named_parameters(recurse=False):
            if name == "weight_scale":
                drawn = torch.rand(p.shape, generator=random) * 0.01 + 0.002
                p.data = (torch.exp2(torch.floor(torch.log2(drawn))) if "MX" in preset else drawn).to(p.dtype)
                if "NV" in preset:
                    p.data = (drawn * 1000).to(p.dtype)
            elif name == "weight_zero_point":
                zeros = torch.randint(-8, 8, p.shape, generator=random) * ("ASYM" in preset)
                p.data = zeros.to(p.dtype)
            elif name == "weight_global_scale":
                p.data = torch.full_like(p, 1234.5)
            elif name.endswith("scale"):
                p.data = torch.ones_like(p)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path)
    compressor.update_config(tmp_path)
    reference = LlamaForCausalLM.from_pretrained(
        tmp_path, quantization_config=CompressedTensorsConfig(dequantize=True), dtype=torch.bfloat16
    ).eval()
    reference.apply(disable_quantization)  # its layers would round weights and activations once more
    check(tmp_path, reference)


@pytest.mark.parametrize(("bits", "columns"), [(4, 64), (3, 96), (8, 64)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_experts_of_compressed_tensors(tmp_path, bits, columns, symmetric):
    """The library packs the experts of a layer one after another, and unpacks them to the same bits."""
    rules = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32}
    scheme, random = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**rules)), torch.Generator()
    shape = 3, 32, columns // 32
    tensors = {"weight": torch.randn(3, 32, columns, generator=random, dtype=torch.bfloat16)}
    tensors["weight_scale"] = torch.rand(shape, generator=random).to(torch.bfloat16) + 0.1
    if not symmetric:
        zeros = torch.randint(-(1 << bits - 1), 1 << bits - 1, shape, generator=random)
        tensors["weight_zero_point"] = zeros.to(torch.int8)
    stored = PackedQuantizationCompressor.compress(tensors, scheme)
    wanted = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save_file({f"{name}.{role}": t.contiguous() for role, t in stored.items()}, tmp_path / "model.safetensors")
    groups = {"group_0": {"targets": ["Linear"], "weights": rules}}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config |= {"version": version("compressed-tensors")}
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16", "quantization_config": config}))
    weights, _ = decoded(tmp_path, torch.bfloat16)
    same(weights[f"{name}.weight"], wanted)


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
@pytest.mark.parametrize("block", [(128, 128), (64, 32), None])
def test_fp8(tmp_path, block, scale_fmt):
    """transformers quantises the layers of a Llama, and decodes them as it loads the file."""
    model = plain()
    config = FineGrainedFP8Config(weight_block_size=block, scale_fmt=scale_fmt, modules_to_not_convert=["lm_head"])
    quantise, tensors = Fp8Quantize(SimpleNamespace(quantization_config=config)), {}
    for name, t in model.state_dict().items():
        tensors |= quantise.convert({name: t}) if "proj" in name else {name: t}
    write(model, tmp_path, tensors, config.to_dict())
    check(tmp_path, LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval())


@pytest.mark.parametrize("block", [(128, 128), None])
@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
def test_fp8_experts(tmp_path, monkeypatch, block, scale_fmt):
    """transformers saves codes of each expert and scales of all, if it quantised them itself.

    Without blocks it cannot load its own file, because of the shapes of the scales.
    """
    monkeypatch.setattr(FineGrainedFP8HfQuantizer, "validate_environment", lambda *_, **__: None)  # it wants a GPU
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "vocab_size": 128}
    torch.manual_seed(0)
    model = MixtralForCausalLM(
        MixtralConfig(**sizes, num_attention_heads=4, num_key_value_heads=4, num_local_experts=3)
    )
    model.to(torch.bfloat16).save_pretrained(tmp_path / "plain")
    config = FineGrainedFP8Config(weight_block_size=block, scale_fmt=scale_fmt, modules_to_not_convert=["lm_head"])
    model = MixtralForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config, device_map="cpu")
    model.save_pretrained(tmp_path / "quantised")
    if block is not None:
        model = MixtralForCausalLM.from_pretrained(tmp_path / "quantised", device_map="cpu")
    weights, _ = decoded(tmp_path / "quantised", torch.bfloat16)
    dequantise, experts = Fp8Dequantize(None), model.model.layers[0].mlp.experts
    for fused, leaves in (("gate_up_proj", ("w1", "w3")), ("down_proj", ("w2",))):
        codes, scales = getattr(experts, fused), getattr(experts, f"{fused}_scale_inv")
        wanted = dequantise._dequantize_one(codes, scales, torch.bfloat16)
        for number, matrix in enumerate(wanted):
            for leaf, part in zip(leaves, matrix.chunk(len(leaves)), strict=True):
                same(weights[f"model.layers.0.block_sparse_moe.experts.{number}.{leaf}.weight"], part)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        *((scheme, {"sym": sym}) for scheme in ("W2A16", "W3A16", "W4A16") for sym in (True, False)),
        *((scheme, {}) for scheme in ("FP8_STATIC", "MXFP4", "MXFP8", "NVFP4")),
    ],
)
def test_auto_round(tmp_path, monkeypatch, scheme, options):
    """AutoRound quantises a Llama, and its layers decode the file; the first ones by multiplying."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which it sets for good
    auto_round = pytest.importorskip("auto_round")
    words = Tokenizer(WordLevel({str(number): number for number in range(64)}, unk_token="0"))
    words.pre_tokenizer = Whitespace()
    tokens = [torch.arange(32).reshape(1, 32)] * 4
    settings = {"iters": 0, "nsamples": 4, "seqlen": 32, "dataset": tokens, "device_map": "cpu", "scheme": scheme}
    rounded = auto_round.AutoRound(plain(), PreTrainedTokenizerFast(tokenizer_object=words), **settings, **options)
    rounded.quantize_and_save(output_dir=str(tmp_path), format="auto_round")
    (folder,) = tmp_path.iterdir()
    reference = LlamaForCausalLM.from_pretrained(folder, dtype="auto", device_map="cpu")
    weights, names = decoded(folder, reference.dtype)
    assert len(names) == 7
    for name in names:
        module = reference.get_submodule(name.removesuffix(".weight"))
        if hasattr(module, "dequant_weight_online"):
            wanted = module.dequant_weight_online().to(reference.dtype)
        else:
            wanted = module(torch.eye(weights[name].shape[1], dtype=reference.dtype)).T
            weights[name] += 0  # sums have no -0
        same(weights[name], wanted)


GROUP = 64


def layers(model, make):
    """The tensors of a model, its layers' quantised."""
    tensors = {}
    for name, t in model.state_dict().items():
        module = name.removesuffix(".weight")
        pieces = make(model.get_submodule(module)).state_dict() if "proj" in name else None
        tensors |= {name: t} if pieces is None else {f"{module}.{role}": piece for role, piece in pieces.items()}
    return tensors


def sizes(layer):
    return {"in_features": layer.in_features, "out_features": layer.out_features, "bias": False, "group_size": GROUP}


def drawn(layer, most):
    """Random scales and zero points of the groups of a layer."""
    scales = torch.rand(layer.out_features, layer.in_features // GROUP) * 0.01 + 0.002
    return scales, torch.randint(1, most, scales.shape)


@pytest.mark.parametrize(("bits", "version"), [(2, "gptq"), (3, "gptq_v2"), (3, "gptq"), (4, "gptq"), (8, "gptq_v2")])
def test_gptq(tmp_path, bits, version):
    """gptqmodel packs a Llama's layers, groups in any order; transformers loads it with gptqmodel's layers."""

    def make(layer):
        made = TorchLinear(bits=bits, sym=False, desc_act=True, register_buffers=True, **sizes(layer))
        scales, zeros = drawn(layer, 1 << bits)
        groups = torch.arange(layer.in_features)[torch.randperm(layer.in_features)] // GROUP
        made.pack_original(layer, scales, zeros.float(), groups.int())
        if version == "gptq":
            convert_gptq_v2_to_v1_format_module(made, SimpleNamespace(bits=bits, pack_dtype=torch.int32))
        return made

    model = plain(torch.float16)
    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": True, "sym": False}
    config |= {"checkpoint_format": version, "backend": "gptq_torch"}
    write(model, tmp_path, layers(model, make), config)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float16, device_map="cpu").eval()
    check(tmp_path, reference, transposed)


def test_awq(tmp_path):
    def make(layer):
        made = AwqTorchLinear(bits=4, sym=False, desc_act=False, register_buffers=True, **sizes(layer))
        scales, zeros = drawn(layer, 16)
        made.pack(layer, scales.half(), zeros.half())
        return made

    model = plain(torch.float16)
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    write(model, tmp_path, layers(model, make), config | {"backend": "torch_awq"})
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float16, device_map="cpu").eval()
    check(tmp_path, reference, transposed)


@pytest.mark.parametrize("kind", BITS_AND_BYTES)
def test_bitsandbytes(tmp_path, kind):
    """Parameters and logits equal the model that transformers loads and dequantises."""
    plain().save_pretrained(tmp_path / "plain")
    config = BitsAndBytesConfig(**BITS_AND_BYTES[kind], llm_int8_skip_modules=["lm_head"])
    options = {"device_map": "cpu", "dtype": torch.bfloat16}
    model = LlamaForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config, **options)
    folder = tmp_path / "quantised"
    model.save_pretrained(folder)
    check(folder, LlamaForCausalLM.from_pretrained(folder, **options).dequantize().eval())


# At the end: with ModelOpt in the process gptqmodel's layers are compiled, which takes minutes.
ENDS = ("", "_scale", "_scale_2")
Q8_0 = {"num_bits": "q8_0", "block_sizes": {-1: 32}, "backend": "ggml"}
MODELOPT = {
    "FP8": "FP8_DEFAULT_CFG",
    "FP8_PER_CHANNEL_PER_TOKEN": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "FP8_PB_WO": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
    "MXFP8": "MXFP8_DEFAULT_CFG",
    "NVFP4": "NVFP4_DEFAULT_CFG",
    "W4A16_NVFP4": "W4A16_NVFP4_CFG",
    "W4A8_NVFP4_FP8": "W4A8_NVFP4_FP8_CFG",
    "MXFP4": "MXFP4_DEFAULT_CFG",
    "W4A8_MXFP4_FP8": "W4A8_MXFP4_FP8_CFG",
    "W8A16": "INT8_WEIGHT_ONLY_CFG",
    "Q8_0": {
        "quant_cfg": [
            {"quantizer_name": "*", "enable": False},
            {
                "quantizer_name": "*weight_quantizer",
                "cfg": {"num_bits": "q8_0", "block_sizes": {-1: 32}, "backend": "ggml"},
            },
            {"quantizer_name": "*lm_head*", "enable": False},
        ],
        "algorithm": None,
    },
}


def of_modelopt(algorithm, pieces, shape):
    """The values that ModelOpt's classes decode from the pieces of a matrix, or of experts in one parameter."""
    from modelopt.torch.quantization import qtensor

    codes, scale, whole = (pieces.get(role) for role in ("weight", "weight_scale", "weight_scale_2"))
    if algorithm == "Q8_0":
        from modelopt.torch.quantization.ggml import GGML_FORMAT_REGISTRY

        return GGML_FORMAT_REGISTRY["q8_0"].dequantize(codes, torch.tensor(shape), dtype=torch.float32)
    if algorithm in {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "W8A16"}:
        return codes.float() * scale.reshape(-1, *[1] * (codes.ndim - 1) * (scale.numel() > 1))
    kind, options = qtensor.MXFP8QTensor, {"block_sizes": {-1: 32}, "scale": scale}
    if algorithm == "FP8_PB_WO":
        blocks = [-(-size // 128) for size in shape]
        kind, options = qtensor.FP8QTensor, {"block_sizes": {-1: 128, -2: 128}, "scale": scale.reshape(blocks)}
    elif "MXFP4" in algorithm:
        kind, options["scale"] = qtensor.MXFP4QTensor, scale.reshape(-1, 1)
    elif "NVFP4" in algorithm:
        kind, options["double_scale"] = qtensor.NVFP4QTensor, whole
        turned = codes.ndim == 3 and algorithm != "W4A8_NVFP4_FP8"
        codes, scale = (piece.transpose(1, 2).contiguous() if turned else piece for piece in (codes, scale))
        shape, options["scale"] = (shape[0], shape[2], shape[1]) if turned else shape, scale
        options["block_sizes"] = {-1: 2 * codes.shape[-1] // scale.shape[-1]}
        values = kind(shape, torch.float32, codes).dequantize(**options)
        return values.transpose(1, 2) if turned else values
    return kind(shape, torch.float32, codes).dequantize(**options)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of its own
@pytest.mark.parametrize(
    ("family", "algorithm"),
    [*(("llama", one) for one in MODELOPT), *(("llama 4", one) for one in MODELOPT if one not in {"W8A16", "Q8_0"})],
)
def test_modelopt(tmp_path, family, algorithm):
    """ModelOpt quantises and exports a model; its classes decode the pieces.

    Experts of Llama 4 are one parameter; ModelOpt does not export them in W8A16 and Q8_0.
    """
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint

    sizes = {"hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": 32}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        experts = {"num_local_experts": 3, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 160}
        model = Llama4ForCausalLM(Llama4TextConfig(**sizes, **experts))
    model.config.architectures = [type(model).__name__]
    how = MODELOPT[algorithm]
    config = getattr(mtq, how) if isinstance(how, str) else how
    model = mtq.quantize(model.eval(), config, lambda model: model(torch.arange(32)[None]))
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=tmp_path)
    with wm.open(tmp_path) as f:
        assert len(f.shards) <= 1
        stored = {name: torch.from_numpy(np.array(f[name].view(f"u{f[name].dtype.itemsize}"))) for name in f}
        stored = {name: t.view(getattr(torch, f.info(name).dtype)) for name, t in stored.items()}
        decoded = 0
        for name in f.weights:
            fused = not name.endswith("weight")
            if fused and algorithm == "FP8_PB_WO":  # with the scales of the transposed blocks
                with pytest.raises(wm.UnsupportedError, match="FP8_PB_WO, expected another for experts"):
                    f.weights[name]
            elif isinstance(w := f.weights[name], wm.QuantizedTensor):
                roles = {f"weight{end}": f"{name}{'_weight' * (fused and bool(end))}{end}" for end in ENDS}
                pieces = {role: stored[piece] for role, piece in roles.items() if piece in stored}
                # NVFP4 has no -0 there.
                assert torch.equal(torch.from_numpy(w.dequantize("float32")), of_modelopt(algorithm, pieces, w.shape))
                decoded += 1
        assert decoded >= (7 if family == "llama" else 4)
