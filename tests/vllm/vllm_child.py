"""test_vllm_server.py runs this in the environment of vLLM: it makes models, loads one and generates tokens."""

import json
import sys
from pathlib import Path

# The random models' vocabulary, also for prompts.
TOKENS = 256
PROMPTS = [[5, 9, 200, 31], [7], [44, 45, 46, 47, 48, 49, 50]]


def make(folder):
    """Write a Llama in three shards, a tied Qwen2, and that with a head of its own, all random, with a tokenizer."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    sizes = {
        "vocab_size": TOKENS, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(TOKENS)}, unk_token="t2"))
    kinds = {
        "llama": (LlamaForCausalLM, LlamaConfig, False, 3),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config, True, 1),
        "headed": (Qwen2ForCausalLM, Qwen2Config, True, 1),
    }
    for name, (kind, config, tied, shards) in kinds.items():
        torch.manual_seed(7)
        model = kind(config(**sizes, tie_word_embeddings=tied)).to(torch.bfloat16)
        model.config.architectures = [kind.__name__]
        model.config.dtype = torch.bfloat16
        state = {key: value.detach().clone() for key, value in model.state_dict().items()}
        if tied:
            state.pop("lm_head.weight", None)
        if name == "headed":
            state["lm_head.weight"] = torch.randn(TOKENS, 128).to(torch.bfloat16)
        place = Path(folder) / name
        model.config.save_pretrained(place)
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t2", bos_token="t0", eos_token="t1").save_pretrained(
            place
        )
        names = sorted(state)
        files = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
        where = {key: files[at * shards // len(names)] for at, key in enumerate(names)}
        for file in files:
            part = {key: state[key] for key in names if where[key] == file}
            save_file(part, place / (file if shards > 1 else "model.safetensors"), metadata={"format": "pt"})
        if shards > 1:
            index = json.dumps({"metadata": {}, "weight_map": where})
            (place / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def load(folder, settings, result):
    """Write the greedy tokens for each prompt, and the SHA-256 of every parameter on every rank."""
    from vllm import LLM, SamplingParams

    llm = LLM(model=folder, enforce_eager=True, max_model_len=64, max_num_seqs=4, seed=0, **json.loads(settings))
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], greedy)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    ranks = llm.collective_rpc("compute_weight_checksums")
    Path(result).write_text(json.dumps({"tokens": tokens, "ranks": ranks}), encoding="utf-8")


if __name__ == "__main__":
    {"make": make, "load": load}[sys.argv[1]](*sys.argv[2:])
