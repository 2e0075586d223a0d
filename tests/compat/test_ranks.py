"""Ranks that load a model of transformers together, each its part: under `patched` the bits that safetensors gives."""

import hashlib
import json
import os
from contextlib import nullcontext

import pytest
from tests.dcp.ranks import spawned

import weightmap as wm
from weightmap.compat import patched

if not os.environ.keys() & {"WEIGHTMAP_CLIENTS", "WEIGHTMAP_QUANTISED"}:
    pytest.skip("opt-in: make clients-test, make quantised-test", allow_module_level=True)
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("tqdm").tqdm.monitor_interval = 0  # no thread that a test would leave behind

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "pad_token_id": 0,
}
HEADS = {"head_dim": 32}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, **HEADS}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32}
ROUTED = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
# Configurations of transformers, and their settings besides the sizes.
DENSE = {"Llama": {}, "Qwen2": {}, "Phi3": {}, "Olmo2": {}} | dict.fromkeys(
    ("Qwen3", "Gemma2", "Glm4", "Cohere2"), HEADS
)
MIXTURES = {
    "Mixtral": {"num_local_experts": 8},
    "Qwen3Moe": EXPERTS,
    "GptOss": {"num_local_experts": 8, **HEADS},
    "DeepseekV3": {**ROUTED, **LATENT, "first_k_dense_replace": 1},
}
EVERY = DENSE | MIXTURES
PLANS = {
    "tensor": ({"tp_plan": "auto"}, EVERY),
    "expert": (
        {"tp_plan": "auto", "enable_expert_parallel": True},
        [name for name in MIXTURES if name != "DeepseekV3"],
    ),
    "fully sharded": ({"fsdp_size": ...}, ["Llama", "Qwen3Moe"]),  # the number of ranks
    "quantised": ({"tp_plan": "auto"}, ["Llama", *MIXTURES]),
    "packed": ({"tp_plan": "auto"}, ["Llama", "Qwen3"]),
}
# Integers of four bits, as compressed-tensors packs them
GROUP = 32
_WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": GROUP, "strategy": "group"}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _WEIGHTS}},
    "ignore": ["lm_head"],
    "quantization_status": "compressed",
}


def _quantise(folder):
    """Replace projections by float8 with scales of blocks, and the experts of gpt-oss by MXFP4; both are random."""
    config = json.loads((folder / "config.json").read_text())
    fused = config["model_type"] == "gpt_oss"
    block = 32 if fused else 16
    method = {"modules_to_not_convert": ["self_attn", "router", "embed_tokens", "lm_head"]} if fused else {}
    method |= {"quant_method": "mxfp4"} if fused else {"quant_method": "fp8", "weight_block_size": [block, block]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    for path in folder.glob("*.safetensors"):
        tensors = safetensors.load_file(path)
        for name, tensor in list(tensors.items()):
            if fused and tensor.ndim == 3:
                experts, columns, rows = tensors.pop(name).shape
                blocks = experts, rows, columns // block
                tensors[f"{name}_blocks"] = torch.randint(256, (*blocks, block // 2), dtype=torch.uint8)
                tensors[f"{name}_scales"] = torch.randint(118, 128, blocks, dtype=torch.uint8)
            elif not fused and tensor.ndim == 2 and "layers" in name and "gate.weight" not in name:
                tensors[name] = tensor.to(torch.float8_e4m3fn)
                tensors[f"{name}_scale_inv"] = torch.rand([-(-size // block) for size in tensor.shape])
        safetensors.save_file(tensors, path, {"format": "pt"})


def _pack(folder):
    """Replace projections by pieces of compressed-tensors, which are random."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": PACKED}))
    index = {}
    for path in folder.glob("*.safetensors"):
        tensors = safetensors.load_file(path)
        for name, tensor in list(tensors.items()):
            if tensor.ndim == 2 and "layers" in name:
                rows, columns = tensors.pop(name).shape
                packed = torch.randint(-(2**31), 2**31 - 1, (rows, columns // 8), dtype=torch.int32)
                scale = torch.rand(rows, columns // GROUP).bfloat16() / 100
                tensors |= {
                    f"{name}_packed": packed,
                    f"{name}_scale": scale,
                    f"{name}_shape": torch.tensor([rows, columns]),
                }
        safetensors.save_file(tensors, path, {"format": "pt"})
        index |= dict.fromkeys(tensors, path.name)
    listed = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))


def _load(rank, ranks, folder, names, plan):
    """Load each model twice, in a rank; write the digests of the results to files."""
    import torch.distributed as dist
    from transformers.distributed import DistributedConfig

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks)
    for name in names:
        for kind, block in (("theirs", nullcontext()), ("ours", patched())):
            with block:
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    f"{folder}/{name}", dtype="auto", distributed_config=DistributedConfig(**plan)
                )
            digest = hashlib.sha256()
            for key, value in model.state_dict().items():
                local = value.to_local() if hasattr(value, "to_local") else value
                digest.update(f"{key} {local.dtype} {tuple(local.shape)}".encode())
                digest.update(local.contiguous().view(torch.uint8).numpy())
            (folder / f"{name}.{kind}.{rank}").write_text(digest.hexdigest())
            dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", PLANS)
def test_ranks_get_the_same_bits(tmp_path, kind, ranks):
    plan, names = PLANS[kind]
    plan = {key: ranks if value is ... else value for key, value in plan.items()}
    if kind == "packed":
        pytest.importorskip("compressed_tensors")
    for name in names:
        config = getattr(transformers, f"{name}Config")(**SIZES, **EVERY[name])
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        model.save_pretrained(tmp_path / name, max_shard_size="1MB")
        if kind == "quantised":
            _quantise(tmp_path / name)
        elif kind == "packed":
            _pack(tmp_path / name)
    spawned(_load, ranks, (ranks, tmp_path, list(names), plan))
    theirs, ours = ({path.name: path.read_text() for path in tmp_path.glob(f"*.{who}.*")} for who in ("theirs", "ours"))
    assert len(ours) == ranks * len(names)
    assert {name.replace("ours", "theirs"): digest for name, digest in ours.items()} == theirs
    assert len(set(ours.values())) == len(ours)  # each rank has its own part


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "DeepseekV3", "ViT"])
def test_models_with_other_names_than_their_files_load_as_the_error_says(tmp_path, name):
    config = getattr(transformers, f"{name}Config")(**SIZES, **EVERY.get(name, {}))
    model = transformers.AutoModel.from_config(config)
    model.save_pretrained(tmp_path)
    with pytest.raises(wm.torch.StateError, match=r"`from_pretrained` within `weightmap\.compat\.patched\(\)`"):
        wm.torch.load_into(model, tmp_path)
    with patched():
        loaded = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
