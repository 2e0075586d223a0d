"""A causal language model of transformers from its folder, with and without a first forward pass."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from workflows.common import COLD, Absent, need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write(folder: Path, mib: int) -> None:
    """Write a model of three files in bfloat16."""
    try:
        torch, transformers = need("torch"), need("transformers")
    except Absent:
        return
    hidden = 1024
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=max(1, mib // 27),  # 13.6 million parameters each
        num_attention_heads=16,
        num_key_value_heads=16,
        vocab_size=32000,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder / "model", max_shard_size=f"{mib // 3 + 64}MB")


def loaded_model(how: str, folder: Path, *, forward: bool) -> Callable[[], Any]:
    """Return loading by `how`, and perhaps a forward pass."""
    transformers, torch = need("transformers"), need("torch")
    cls, path = transformers.LlamaForCausalLM, folder / "model"
    patched, load_into = need("weightmap.compat").patched, need("weightmap.torch").load_into

    def load() -> Any:
        if how == "stock":
            return cls.from_pretrained(path, dtype=torch.bfloat16)
        if how == "patched()":
            with patched():
                return cls.from_pretrained(path, dtype=torch.bfloat16)
        with torch.device("meta"):
            empty = cls(transformers.AutoConfig.from_pretrained(path)).to(torch.bfloat16)
        load_into(empty, path, assign=True)
        empty.model.rotary_emb = type(empty.model.rotary_emb)(empty.config)  # its buffers lie in no file
        return empty.eval()

    def work() -> Any:
        loaded = load()
        if forward:
            with torch.inference_mode():
                loaded(torch.arange(8)[None])
        return loaded

    return work


LOADERS = {"weightmap load_into": "load_into", "weightmap patched()": "patched()", "from_pretrained": "stock"}
WORKFLOWS = {
    f"causal model{', forward pass' if forward else ''}{cold}": {
        who: partial(loaded_model, how, forward=forward) for who, how in LOADERS.items()
    }
    for cold, forward in itertools.product(("", COLD), (False, True))
}
