"""Loading by `torch.distributed.checkpoint`: weightmap's reader beside Hugging Face's, in one run.

    python benchmarks/distributed_load.py [--mib 2048] [--columns 2048] [--ranks 4] [--rounds 3] [--cold]

Ranks of gloo load a model of float32 in shards of safetensors, rows (`Shard(0)`) or columns (`Shard(1)`) of each
tensor. In each round the readers take turns. Printed for each reader:

* seconds: of the slowest rank, the files in the page cache, or with --cold on the disk; the median of the rounds, and
  that of the ratios to the time of Hugging Face's reader in the same round;
* processor: the time of processors of all ranks together, likewise. Other work on the machine changes it less;
* disk: what a rank alone reads of the disk with an empty page cache, in multiples of the bytes that it wants, the mean
  of all ranks. A page is the least: slices of columns that are shorter than pages read more;
* calls: what a rank reads by system calls, in multiples of the same (0 through a mapping);
* anonymous: the most private memory that a rank takes besides its slices.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import weightmap as wm

MIB = 1 << 20
THEIRS = "HuggingFaceStorageReader"
# Elements of a tensor.
SIZE = 1 << 23


def build(folder, mib, columns):
    """Write the model; return its index."""
    count = max(mib * MIB // (4 * SIZE), 1)
    rng = np.random.default_rng(0)
    one = rng.standard_normal((SIZE // columns, columns), np.float32)
    where, total = {}, 0
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        name = f"model.layers.{number}.weight"
        wm.save(folder / file, {name: one + np.float32(number)})
        where[name], total = file, total + one.nbytes
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    return index


def counted(name):
    """Return the bytes that this process has read: by system calls ("rchar"), or of a disk ("read_bytes")."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())[name])


def anonymous():
    """Return the bytes of private memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


class Peak(threading.Thread):
    """Watches private memory while a load runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self._stop_it = 0, threading.Event()

    def run(self):
        while not self._stop_it.wait(0.002):
            self.most = max(self.most, anonymous())

    def end(self):
        self._stop_it.set()
        self.join()
        return self.most


def bring_in(index):
    """Read all shards: a system may have taken pages back since the round before."""
    buffer = bytearray(8 * MIB)
    for path in sorted(index.parent.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def evict(index):
    """Give the pages of all shards back."""
    for path in index.parent.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rank_of(rank, world, index, rounds, out, cold):
    """Run one rank."""
    import warnings

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, zeros

    from weightmap.dcp import WeightmapStorageReader

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    index = Path(index)
    dist.init_process_group("gloo", init_method=f"file://{out}.group", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    readers = {
        "weightmap": lambda: WeightmapStorageReader(index),
        "weightmap, mapped": lambda: WeightmapStorageReader(index, how="map"),
        THEIRS: lambda: HuggingFaceStorageReader(str(index.parent)),
    }
    with wm.open(index) as file:
        infos = file.infos()
    found = {}
    for dim in (0, 1):
        state = {info.name: zeros(*info.shape, device_mesh=mesh, placements=[Shard(dim)]) for info in infos}
        for tensor in state.values():
            tensor.to_local().fill_(1)
        wanted = sum(tensor.to_local().nbytes for tensor in state.values())
        for name in readers:
            found[dim, name] = {"seconds": [], "processor": [], "wanted": wanted}
        for number in range(rounds + 1):
            for name, make in readers.items():
                of = found[dim, name]
                if rank == 0:
                    (evict if cold else bring_in)(index)
                dist.barrier()
                before, first, busy, start = anonymous(), counted("rchar"), time.process_time(), time.perf_counter()
                peak = Peak()
                if number == 0:  # not timed: memory is watched
                    peak.start()
                dcp.load(state, storage_reader=make())
                busy = time.process_time() - busy
                dist.barrier()
                seconds = time.perf_counter() - start
                if number == 0:
                    of["anonymous"] = peak.end() - before
                    of["calls"] = (counted("rchar") - first) / wanted
                else:
                    of["seconds"].append(seconds)
                    of["processor"].append(busy)
        for name, make in readers.items():
            for turn in range(world):
                dist.barrier()
                if rank == turn:
                    evict(index)
                    before = counted("read_bytes")
                    dcp.load(state, storage_reader=make(), no_dist=True)
                    found[dim, name]["disk"] = (counted("read_bytes") - before) / wanted
        dist.barrier()
    Path(f"{out}.{rank}").write_text(json.dumps([[dim, name, of] for (dim, name), of in found.items()]))
    dist.destroy_process_group()


def by_round(function, ranks, what):
    """Return a function's value for the numbers of all ranks, for each round."""
    return [function(numbers) for numbers in zip(*(of[what] for of in ranks), strict=True)]


def median_ratio(ours, theirs):
    """Return the median of the ratios of the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def main():
    """Print the results of a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=2048, help="of each tensor, which has 2**23 elements")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="drop the files from the page cache before each load")
    parser.add_argument("--folder", type=Path, help="where the model is written, and removed; a temporary folder")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    from torch.multiprocessing import spawn

    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        index = build(Path(folder), given.mib, given.columns)
        out = f"{folder}/out"
        spawn(rank_of, (given.ranks, str(index), given.rounds, out, given.cold), nprocs=given.ranks)
        ranks = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(given.ranks)]
    rows = []
    # Of each round, the time of the slowest rank, and the time of processors of all ranks.
    every = {(told[0][0], told[0][1]): [of for _, _, of in told] for told in zip(*ranks, strict=True)}
    slowest = {key: by_round(max, all_of, "seconds") for key, all_of in every.items()}
    busy = {key: by_round(sum, all_of, "processor") for key, all_of in every.items()}
    for (dim, name), all_of in every.items():
        theirs = dim, THEIRS
        row = {
            "slices": f"Shard({dim})",
            "reader": name,
            "seconds": statistics.median(slowest[dim, name]),
            "ratio": median_ratio(slowest[dim, name], slowest[theirs]),
            "processor": statistics.median(busy[dim, name]),
            "processor_ratio": median_ratio(busy[dim, name], busy[theirs]),
            "disk": statistics.mean(of["disk"] for of in all_of),
            "calls": max(of["calls"] for of in all_of),
            "anonymous": max(of["anonymous"] for of in all_of) / MIB,
        }
        rows.append(row)
        sys.stdout.write(
            f"{row['slices']}  {name:26}  {row['seconds']:7.3f} s  {row['ratio']:4.2f} x   processor "
            f"{row['processor']:7.3f} s  {row['processor_ratio']:4.2f} x   disk {row['disk']:5.2f} x   "
            f"calls {row['calls']:5.3f} x   anonymous {row['anonymous']:6.1f} MiB\n"
        )
    if given.json:
        given.json.write_text(json.dumps({"mib": given.mib, "ranks": given.ranks, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
