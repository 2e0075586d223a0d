"""Tiny models of every architecture as Hugging Face has them, built here: configuration, tensors, tokenizer.

`expected` has the tensors under llama.cpp's names, by numpy alone, without the package.
"""

import json

import ml_dtypes
import numpy as np
from tests.builders import Tensor
from tests.builders import safetensors as st

BF16 = np.dtype(ml_dtypes.bfloat16)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCAB, HIDDEN, INNER, HEADS, KV, HEAD, LAYERS, EXPERTS, EXPERT_INNER = 384, 64, 96, 4, 2, 16, 2, 12, 32

COMMON = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "num_hidden_layers": LAYERS, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA = {
    "head_dim": HEAD,
    "query_pre_attn_scalar": HEAD,
    "sliding_window": 128,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
CONFIGS = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"sliding_window": None},
    "MixtralForCausalLM": {"num_local_experts": EXPERTS, "num_experts_per_tok": 2},
    "Qwen2ForCausalLM": {"use_sliding_window": False},
    "Qwen3ForCausalLM": {"head_dim": HEAD},
    "Qwen3MoeForCausalLM": {
        "head_dim": HEAD,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": EXPERT_INNER,
        "norm_topk_prob": True,
    },
    "Gemma2ForCausalLM": {
        **GEMMA,
        "rope_theta": 10000.0,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "Gemma3ForCausalLM": {**GEMMA, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
}
# llama.cpp's names, and its models that have them.
ARCHITECTURE = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3",
}  # fmt: skip


def config_of(name, **changes):
    return {"architectures": [name], "torch_dtype": "bfloat16", **COMMON, **CONFIGS[name], **changes}


def tensors_of(name, dtype=BF16):
    """Return the tensors of a model, by Hugging Face's names."""
    rng = np.random.default_rng(7)

    def of(*shape):
        return (rng.normal(size=shape) / 8).astype(dtype)

    gemma, moe = name.startswith("Gemma"), "Moe" in name or name == "MixtralForCausalLM"
    inner = EXPERT_INNER if "Moe" in name else INNER
    made = {"model.embed_tokens.weight": of(VOCAB, HIDDEN), "model.norm.weight": of(HIDDEN)}
    if not gemma:
        made["lm_head.weight"] = of(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        base = f"model.layers.{layer}"
        for part, rows in (("q", HEADS * HEAD), ("k", KV * HEAD), ("v", KV * HEAD)):
            made[f"{base}.self_attn.{part}_proj.weight"] = of(rows, HIDDEN)
            if name == "Qwen2ForCausalLM":
                made[f"{base}.self_attn.{part}_proj.bias"] = of(rows)
        made[f"{base}.self_attn.o_proj.weight"] = of(HIDDEN, HEADS * HEAD)
        if name in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM"):
            made[f"{base}.self_attn.q_norm.weight"] = of(HEAD)
            made[f"{base}.self_attn.k_norm.weight"] = of(HEAD)
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] * gemma
        for norm in norms:
            made[f"{base}.{norm}.weight"] = of(HIDDEN)
        if not moe:
            made[f"{base}.mlp.gate_proj.weight"] = of(INNER, HIDDEN)
            made[f"{base}.mlp.up_proj.weight"] = of(INNER, HIDDEN)
            made[f"{base}.mlp.down_proj.weight"] = of(HIDDEN, INNER)
            continue
        block = f"{base}.block_sparse_moe" if name == "MixtralForCausalLM" else f"{base}.mlp"
        gate, up, down = ("w1", "w3", "w2") if name == "MixtralForCausalLM" else ("gate_proj", "up_proj", "down_proj")
        made[f"{block}.gate.weight"] = of(EXPERTS, HIDDEN)
        # As files have them: 10 and 11 before 2.
        for expert in sorted(range(EXPERTS), key=str):
            made[f"{block}.experts.{expert}.{gate}.weight"] = of(inner, HIDDEN)
            made[f"{block}.experts.{expert}.{up}.weight"] = of(inner, HIDDEN)
            made[f"{block}.experts.{expert}.{down}.weight"] = of(HIDDEN, inner)
    return made


def pairs(array, heads):
    """Return the rows of q or k in llama.cpp's order, one by one."""
    half = len(array) // heads // 2
    order = [head * 2 * half + s * half + j for head in range(heads) for j in range(half) for s in (0, 1)]
    return array[order]


def expected(name, tensors):
    """Return the tensors under llama.cpp's names, with their types."""
    gemma = name.startswith("Gemma")
    parts = {
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm" if gemma else "ffn_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "mlp.gate": "ffn_gate_inp",
        "block_sparse_moe.gate": "ffn_gate_inp",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
    }
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    found = {}
    for old, array in tensors.items():
        stem, _, end = old.rpartition(".")
        if ".experts." in old:
            continue
        if stem in top:
            new = top[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            new = f"blk.{layer}.{parts[part]}"
            if ARCHITECTURE[name] == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                array = pairs(array, HEADS if part == "self_attn.q_proj" else KV)  # noqa: PLW2901
        if array.ndim == 1 or new.endswith("ffn_gate_inp"):
            array = array.astype(np.float32) + np.float32(gemma and "norm" in new)  # noqa: PLW2901
        found[f"{new}.{end}"] = array
    for layer in range(LAYERS):
        names = [old for old in tensors if f"layers.{layer}." in old and ".experts." in old]
        for ends, new in ((("gate_proj", "w1"), "gate"), (("up_proj", "w3"), "up"), (("down_proj", "w2"), "down")):
            several = {int(old.split(".")[5]): tensors[old] for old in names if old.split(".")[6] in ends}
            if several:
                found[f"blk.{layer}.ffn_{new}_exps.weight"] = np.stack([several[i] for i in range(EXPERTS)])
    return found


_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def tokenizer(**changes):
    """Return a tokenizer of bytes with a few merges, as Llama 3 has it."""
    alphabet = [chr(i) for i in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
    merges = [["h", "e"], ["l", "l"], ["he", "ll"]]
    vocab = {token: i for i, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    added = [
        {"id": len(vocab) + i, "content": content, "special": special, **_PLAIN}
        for i, (content, special) in enumerate(
            (("<|begin|>", True), ("<|end|>", True), ("\u2581tool", False), ("<|endoftext|>", True))
        )
    ]
    pattern = {"type": "Split", "pattern": {"Regex": CL100K}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pattern, level]},
        "post_processor": None,
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": merges},
        **changes,
    }


SETTINGS = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": True, "chat_template": "{{ messages }}"}


def fallback(**changes):
    """Return a tokenizer with byte fallback, as Llama 2 and Mistral have it."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", "h", "e", "he", "\u2581he"]
    added = [{"id": i, "content": tokens[i], "special": True, **_PLAIN} for i in range(3)]
    steps = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    vocab = {token: i for i, token in enumerate(tokens)}
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "model": {"type": "BPE", "byte_fallback": True, "vocab": vocab, "merges": ["h e", "\u2581 he"]},
        **changes,
    }


def tensor(array):
    return Tensor(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())


def write(folder, config, tensors, *, files=None, shards=1):
    """Write a model directory, with the tokenizer of bytes unless other `files` are given, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    if files is None:
        files = {"tokenizer.json": tokenizer(), "tokenizer_config.json": SETTINGS}
    for name, content in {"config.json": config, **files}.items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(raw)
    made = {name: tensor(array) for name, array in tensors.items()}
    if shards == 1:
        (folder / "model.safetensors").write_bytes(st.build(made))
        return folder
    where = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(made)}
    for shard in sorted(set(where.values())):
        (folder / shard).write_bytes(st.build({name: made[name] for name in made if where[name] == shard}))
    index = {"metadata": {"total_size": sum(len(one.data) for one in made.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
