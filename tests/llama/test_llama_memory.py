"""Memory of a conversion to llama.cpp's names: flat for any size of a tensor stacked from experts."""

import json
import struct
import subprocess
import sys

import pytest

from . import models

# Of Qwen3-30B-A3B: 128 experts, and so tensors of 384 MiB each in bfloat16.
SIZES = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_hidden_layers": 1, "head_dim": 128}
MOST = 96 << 10  # KiB
CHILD = """
import sys, threading, weightmap as wm
import gguf, sentencepiece

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

peak, done = [anonymous()], threading.Event()

def watch():
    while not done.wait(0.002):
        peak.append(anonymous())

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
wm.convert(sys.argv[1], sys.argv[2], **eval(sys.argv[3]))
done.set()
watcher.join()
print(max(peak) - peak[0])
"""


def sparse(folder):
    """Write a model whose tensors are holes of a file."""
    hidden, inner, experts, rows = 2048, 768, 128, 128
    config = models.config_of("Qwen3MoeForCausalLM", **SIZES)
    shapes = {f"{name}.weight": (models.VOCAB, hidden) for name in ("model.embed_tokens", "lm_head")}
    base = "model.layers.0"
    for part, heads in (("q", models.HEADS), ("k", models.KV), ("v", models.KV)):
        shapes[f"{base}.self_attn.{part}_proj.weight"] = (heads * rows, hidden)
    shapes[f"{base}.self_attn.o_proj.weight"] = (hidden, models.HEADS * rows)
    shapes |= {f"{base}.self_attn.{part}_norm.weight": (rows,) for part in "qk"}
    norms = ("model.norm", f"{base}.input_layernorm", f"{base}.post_attention_layernorm")
    shapes |= {f"{name}.weight": (hidden,) for name in norms}
    shapes[f"{base}.mlp.gate.weight"] = (experts, hidden)
    for expert in range(experts):
        stem = f"{base}.mlp.experts.{expert}"
        shapes |= {f"{stem}.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
        shapes[f"{stem}.down_proj.weight"] = (hidden, inner)
    models.write(folder, config, {})
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for count in shape:
            size *= count
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + at)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/status is of Linux")
@pytest.mark.parametrize("options", [{}, {"quantize": "q4_k_m"}])
def test_memory_stays_flat(tmp_path, options):
    pytest.importorskip("gguf")
    arguments = [str(sparse(tmp_path / "model")), str(tmp_path / "x.gguf"), repr(options)]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=True)
    assert int(done.stdout) < MOST
