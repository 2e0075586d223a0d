"""Walk-through of docs/distributed.md: ``walk_through.py model`` fills a bucket, ``walk_through.py rank MODEL`` loads.

`model` needs obstore and the variables of an S3 server, `rank` is one of the processes that ``torchrun`` starts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import weightmap as wm

FILES, SHAPE = 8, (256, 512)


def model() -> None:
    """Put a model of eight files into the bucket "models", as model/."""
    store: Any = import_module("obstore.store").S3Store(
        "models", endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True}
    )
    rng, where = np.random.default_rng(0), {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, FILES + 1):
            file, name = f"model-{number:05}-of-{FILES:05}.safetensors", f"layers.{number}.weight"
            wm.save(f"{folder}/{file}", {name: rng.standard_normal(SHAPE, np.float32)})
            store.put(f"model/{file}", Path(folder, file).read_bytes())
            where[name] = file
    store.put("model/model.safetensors.index.json", json.dumps({"weight_map": where}).encode())


def rank(path: str) -> None:
    """Load the rows of this rank, compare them with the model, and print the report."""
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    dcp: Any = import_module("torch.distributed.checkpoint")
    tensors: Any = import_module("torch.distributed.tensor")
    reader_of: Any = import_module("weightmap.dcp").WeightmapStorageReader
    dist.init_process_group("gloo")
    mesh = import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (dist.get_world_size(),))
    with wm.open(path) as file:
        state = {
            info.name: tensors.zeros(*info.shape, device_mesh=mesh, placements=[tensors.Shard(0)])
            for info in file.infos()
        }
        reader = reader_of(path)
        dcp.load(state, storage_reader=reader)
        rows = SHAPE[0] // dist.get_world_size()
        first = rows * dist.get_rank()
        for name, tensor in state.items():
            if not torch.equal(tensor.to_local(), torch.from_numpy(file.read(name)[first : first + rows])):
                sys.exit(f"{name} differs")
    # Ranks print at the same time, and torchrun's do not buffer: in one write, the line stays whole.
    sys.stdout.write(f"rank {dist.get_rank()}: {reader.report}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["model"]:
        model()
    elif len(sys.argv) == 3 and sys.argv[1] == "rank":
        rank(sys.argv[2])
    else:
        sys.exit(__doc__)
