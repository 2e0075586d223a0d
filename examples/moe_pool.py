"""A mixture of experts that is larger than memory: ``python examples/moe_pool.py FOLDER [MIB]``.

FOLDER has a Mixtral or a Qwen3-MoE as on the Hub; in an empty one a tiny random model is made. Its experts come from a
pool of MIB mebibytes, 64 when not given; everything else is resident. It needs torch and transformers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import weightmap as wm
from weightmap.torch import serve_experts, to_torch

TINY = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}


def make(folder: Path) -> None:
    """Save a tiny random model."""
    transformers: Any = import_module("transformers")
    transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**TINY)).save_pretrained(folder)


def load(folder: Path, file: wm.TensorFile, pool: Any) -> Any:
    """Return a model whose experts come from a pool: they are never all in memory."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    serve_experts(model, pool)
    own, rest = model.state_dict(), {}
    for name in file:
        if ".experts." not in name:
            # transformers 5 calls a block of Mixtral by another name than its files do.
            known = name if name in own else name.replace(".block_sparse_moe.", ".mlp.")
            rest[known] = to_torch(file[name]).to(config.dtype or torch.float32)
    model.load_state_dict(rest, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # no file has its buffers
    return model.eval()


def main(folder: str, mebibytes: int = 64) -> None:
    """Generate a few tokens, and print what the pool read."""
    torch: Any = import_module("torch")
    where = Path(folder)
    if not (where / "config.json").exists():
        make(where)
    with wm.open(where) as file, file.pool(mebibytes << 20) as pool, torch.inference_mode():
        model = load(where, file, pool)
        tokens = torch.tensor([[1, 2, 3]])
        for _ in range(8):
            following = model(tokens).logits[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, following], 1)
            print(int(following), pool.stats)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
