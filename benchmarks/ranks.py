"""Ranks that load a model of transformers together, each its part, by safetensors and under `compat.patched`.

    python benchmarks/ranks.py [--model llama] [--ranks 2] [--rounds 5]

Each rank has files of its own, so that ranks share no page cache. A load ends when a byte of every page of the local
parameters has been read. The kinds take turns; the digests of all parameters are equal, or the run fails. It prints
medians over ranks and rounds: seconds of loading and of all, processor seconds, MiB of anonymous memory, and the bytes
read from the disk as a share of the files'. A rank that takes columns reads whole pages: the share is more than one
part then.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import machine

SIZES = {"num_attention_heads": 16, "vocab_size": 32000, "dtype": "bfloat16"}
DENSE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 6, "num_key_value_heads": 8}
MIXTURE = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_key_value_heads": 4}
EXPERTS = {"head_dim": 64, "moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 4}
MODELS = {
    "llama": ("LlamaConfig", DENSE),
    "qwen3_moe": ("Qwen3MoeConfig", MIXTURE | EXPERTS),
    "mixtral": ("MixtralConfig", MIXTURE | {"num_local_experts": 8}),
}


def evict(folder):
    """Give the pages of all files back."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def proc(file, name):
    """Return a number that the system counts for this process."""
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def local_parameters(model):
    """Yield name and local part of each tensor of a model."""
    for name, value in model.state_dict().items():
        yield name, value.to_local() if hasattr(value, "to_local") else value


def load_all(rank, ranks, folder, rounds):
    """Run one rank."""
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    from weightmap.compat import patched

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks)
    files = Path(folder, f"rank{rank}")
    size, rows, digests = sum(path.stat().st_size for path in files.glob("*.safetensors")), [], set()
    for state in ("cold", "warm"):
        for _ in range(rounds):
            for kind, block in (("safetensors", contextlib.nullcontext()), ("patched()", patched())):
                if state == "cold":
                    evict(files)
                dist.barrier()
                read, anonymous = proc("io", "read_bytes"), proc("status", "RssAnon")
                start, busy = time.perf_counter(), time.process_time()
                with block:
                    config = DistributedConfig(tp_plan="auto")
                    model = AutoModelForCausalLM.from_pretrained(files, dtype="auto", distributed_config=config)
                loaded = time.perf_counter() - start
                for _, value in local_parameters(model):
                    octets = value.view(torch.uint8)
                    octets[..., :: min(4096, octets.shape[-1])].sum()
                row = {"state": state, "kind": kind, "load": loaded, "all": time.perf_counter() - start}
                row |= {"processor": time.process_time() - busy, "MiB": (proc("status", "RssAnon") - anonymous) / 1024}
                rows.append(row | {"read": (proc("io", "read_bytes") - read) / size})
                digest = hashlib.sha256()
                for name, value in local_parameters(model):
                    digest.update(name.encode())
                    digest.update(value.contiguous().view(torch.uint8).numpy())
                digests.add(digest.hexdigest())
                del model, value, octets
                gc.collect()
                dist.barrier()
    assert len(digests) == 1
    Path(f"{folder}/result.{rank}").write_text(json.dumps(rows))
    dist.destroy_process_group()


def main():
    """Print the results of a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where files are written and removed, on a disk")
    given = parser.parse_args()
    os.environ |= {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import transformers
    from torch.multiprocessing import spawn

    with tempfile.TemporaryDirectory(dir=given.folder or "/var/tmp") as folder:
        name, sizes = MODELS[given.model]
        config = getattr(transformers, name)(**SIZES, **sizes)
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.save_pretrained(f"{folder}/rank0", max_shard_size="200MB")
        for rank in range(1, given.ranks):
            shutil.copytree(f"{folder}/rank0", f"{folder}/rank{rank}")
        spawn(load_all, (given.ranks, folder, given.rounds), nprocs=given.ranks)
        rows = [row for rank in range(given.ranks) for row in json.loads(Path(f"{folder}/result.{rank}").read_text())]
    sys.stdout.write(f"{machine.cpu()}, transformers {transformers.__version__}\n")
    for state in ("cold", "warm"):
        for kind in ("safetensors", "patched()"):
            of = [row for row in rows if (row["state"], row["kind"]) == (state, kind)]
            values = {key: median(row[key] for row in of) for key in ("load", "all", "processor", "MiB", "read")}
            cells = "  ".join(f"{key} {value:7.3f}" for key, value in values.items())
            sys.stdout.write(f"{given.model}, {given.ranks} ranks, {state}  {kind:11}  {cells}\n")


if __name__ == "__main__":
    main()
