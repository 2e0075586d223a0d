"""From the shell: importing and a first tensor, looking into a model of many files."""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import files
from workflows import loading
from workflows.common import need

if TYPE_CHECKING:
    from pathlib import Path

SHARDS = 282
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_norm", "ffn_gate", "ffn_up", "ffn_down", "ffn_norm")
NAME = "embeddings.position_embeddings.weight"
FIRST = {
    "weightmap": f"import weightmap as wm; wm.open(sys.argv[1])[{NAME!r}].sum()",
    "safetensors": f"from safetensors import safe_open; safe_open(sys.argv[1], 'np').get_tensor({NAME!r}).sum()",
}
# A user's ten lines that list a model of many files, with safetensors and without.
WITH_SAFETENSORS = """
import pathlib
from safetensors import safe_open
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors")):
    with safe_open(path, "np") as f:
        for name in f.keys():
            part = f.get_slice(name)
            print(name, part.get_dtype(), part.get_shape())
"""
WITHOUT = """
import json, pathlib
folder = pathlib.Path(sys.argv[1])
index = json.loads((folder / "model.safetensors.index.json").read_text())
total = 0
for name in sorted(set(index["weight_map"].values())):
    with open(folder / name, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    for tensor, entry in header.items():
        if tensor != "__metadata__":
            begin, end = entry["data_offsets"]
            total += end - begin
            print(tensor, entry["dtype"], entry["shape"], end - begin)
print(total)
"""


def write(folder: Path, mib: int) -> None:
    """Write MiniLM, and a model of many files with sparse data."""
    minilm = folder / "minilm"
    minilm.mkdir()
    files.write_safetensors(minilm / "model.safetensors", files.minilm_shapes())
    many = folder / "many"
    many.mkdir()
    weights = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        shapes = {f"model.layers.{shard}.mlp.experts.{i}.weight": (2048, 7168) for i in range(64)}
        files.write_safetensors(many / name, shapes)
        weights |= dict.fromkeys(shapes, name)
    size = 64 * SHARDS * int(np.prod((2048, 7168))) * 4
    index = {"metadata": {"total_size": size}, "weight_map": weights}
    (many / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    # The names and the vocabulary of a Llama 3 of 8 billion parameters, and little data.
    names = (f"blk.{layer}.{part}.weight" for layer in range(32) for part in PARTS)
    tensors = dict.fromkeys(names, np.ones((32, 32), np.float32))
    with contextlib.suppress(ImportError):
        loading.write_gguf(folder / "model.gguf", tensors, [f"token {i}" for i in range(128_256)])


def code(module: str, text: str, path: str, folder: Path) -> list[str]:
    """Return a command that runs Python code on a file."""
    need(module)
    return [sys.executable, "-c", f"import sys\n{text}", str(folder / path)]


def command(module: str, words: str, path: str, folder: Path) -> list[str]:
    """Return a command of a module on a file."""
    need(module.partition(".")[0])
    return [sys.executable, "-m", module, *words.split(), str(folder / path)]


WORKFLOWS: dict[str, dict[str, Any]] = {
    "import, open, a tensor": {
        who: partial(code, who, text, "minilm/model.safetensors") for who, text in FIRST.items()
    },
    f"list {SHARDS} files": {
        "weightmap inspect": partial(command, "weightmap", "inspect", "many"),
        "weightmap doctor": partial(command, "weightmap", "doctor", "many"),
        "ten lines with safetensors": partial(code, "safetensors", WITH_SAFETENSORS, "many"),
    },
    f"list {SHARDS} files, no library": {
        "weightmap inspect": partial(command, "weightmap", "inspect", "many"),
        "ten lines with json": partial(code, "json", WITHOUT, "many"),
    },
    "list a GGUF": {
        "weightmap inspect": partial(command, "weightmap", "inspect", "model.gguf"),
        "gguf-dump": partial(command, "gguf.scripts.gguf_dump", "", "model.gguf"),
    },
}
