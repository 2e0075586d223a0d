"""Quantised Llamas that transformers, compressed-tensors and bitsandbytes write, decoded beside them.

`make quantised-test` runs this in an environment of its own.
"""

import os

import numpy as np
import pytest

import weightmap as wm

if not os.environ.get("WEIGHTMAP_QUANTISED"):
    pytest.skip("opt-in: make quantised-test", allow_module_level=True)
torch = pytest.importorskip("torch")

import bitsandbytes.functional as bnb  # noqa: E402 - nothing here makes sense without torch
from compressed_tensors.compressors import ModelCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, disable_quantization  # noqa: E402
from tqdm import tqdm  # noqa: E402
from transformers import BitsAndBytesConfig, CompressedTensorsConfig, LlamaConfig, LlamaForCausalLM  # noqa: E402

tqdm.monitor_interval = 0  # it would leave a thread behind
# transformers warns of quantization_config, with which alone it can be told to decode.
pytestmark = pytest.mark.filterwarnings("ignore")
# Of the presets of compressed-tensors, those whose weights it writes in a format that is specified.
PRESETS = (
    *("W2A16", "W3A16", "W4A16", "W4A16_ASYM", "W5A16", "W6A16", "W7A16", "W8A16", "W8A8"),
    *("FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4A16", "MXFP8A16"),
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


def plain():
    """A tiny Llama with random weights, in bfloat16."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, dtype="bfloat16")
    model = LlamaForCausalLM(config).eval()
    for p in model.parameters():  # buffers stay float32, as from_pretrained has them
        p.data = p.data.to(torch.bfloat16)
    return model


def decoded(folder):
    """The parameters of a model as weightmap gives them, as tensors, and the names of those that are quantised."""
    with wm.open(folder) as f:
        quantised = [name for name in f.weights if isinstance(f.weights[name], wm.QuantizedTensor)]
        arrays = {name: np.array(w) for name, w in f.weights.items()}
    return {name: torch.from_numpy(a.view(np.uint16)).view(torch.bfloat16) for name, a in arrays.items()}, quantised


def same(ours, theirs):
    """Assert that two tensors have the same type and bits."""
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours.contiguous().view(torch.uint8), theirs.detach().contiguous().view(torch.uint8))


def logits(model):
    with torch.no_grad():
        return model(torch.arange(16).reshape(1, 16)).logits


def with_weights(weights):
    """The plain model with these weights."""
    model = plain()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model


@pytest.mark.parametrize("preset", PRESETS)
def test_compressed_tensors(tmp_path, preset):
    """Weights and logits are those of the model that transformers loads decompressed."""
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
    weights, quantised = decoded(tmp_path)
    assert len(quantised) == 7
    reference = LlamaForCausalLM.from_pretrained(
        tmp_path, quantization_config=CompressedTensorsConfig(dequantize=True), dtype=torch.bfloat16
    ).eval()
    held = dict(reference.named_parameters())
    for name in quantised:
        same(weights[name], held[name])
    reference.apply(disable_quantization)  # its layers would round weights and activations once more
    same(logits(with_weights(weights)), logits(reference))


@pytest.mark.parametrize("kind", BITS_AND_BYTES)
def test_bitsandbytes(tmp_path, kind):
    """Weights are those of its own functions, and the logits those of a model that has them."""
    plain().save_pretrained(tmp_path / "plain")
    config = BitsAndBytesConfig(**BITS_AND_BYTES[kind], llm_int8_skip_modules=["lm_head"])
    model = LlamaForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=config, device_map="cpu", dtype=torch.bfloat16
    )
    model.save_pretrained(tmp_path / "quantised")
    weights, quantised = decoded(tmp_path / "quantised")
    assert len(quantised) == 7
    theirs = dict(weights)
    for name in quantised:
        w = model.get_parameter(name)
        if kind == "int8":
            whole = w.data.to(torch.float32) * w.SCB.reshape(-1, 1) * 0.007874015718698502
            theirs[name] = whole.to(torch.bfloat16)
            same(theirs[name], bnb.int8_vectorwise_dequant(w.data, w.SCB).to(torch.bfloat16))
        else:
            theirs[name] = bnb.dequantize_4bit(w.data, w.quant_state)
        same(weights[name], theirs[name])
    same(logits(with_weights(weights)), logits(with_weights(theirs)))
