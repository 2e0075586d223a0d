"""From the shell: importing and a first tensor, looking into a model of many files."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import files
from workflows.common import need

if TYPE_CHECKING:
    from pathlib import Path

SHARDS = 282
NAME = "embeddings.position_embeddings.weight"
FIRST = {
    "weightmap": f"import weightmap as wm; wm.open(sys.argv[1])[{NAME!r}].sum()",
    "safetensors": f"from safetensors import safe_open; safe_open(sys.argv[1], 'np').get_tensor({NAME!r}).sum()",
}
# What a user writes in ten lines to list a model of many files.
TEN_LINES = """
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


def code(module: str, text: str, path: str, folder: Path) -> list[str]:
    """Return a command that runs Python code on a file."""
    need(module)
    return [sys.executable, "-c", f"import sys\n{text}", str(folder / path)]


def command(name: str, folder: Path) -> list[str]:
    """Return a command of ours on the model of many files."""
    return [sys.executable, "-m", "weightmap", name, str(folder / "many")]


WORKFLOWS: dict[str, dict[str, Any]] = {
    "import, open, a tensor": {
        who: partial(code, who, text, "minilm/model.safetensors") for who, text in FIRST.items()
    },
    f"list {SHARDS} files": {
        "weightmap inspect": partial(command, "inspect"),
        "weightmap doctor": partial(command, "doctor"),
        "ten lines of Python": partial(code, "json", TEN_LINES, "many"),
    },
}
