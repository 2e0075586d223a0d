"""What an executor costs and gains: ``python benchmarks/executors.py [FOLDER]``.

Converts small shards by one Dask worker beside a serial run (overhead), and quantises large ones by two workers beside
one (speed-up). Prints both; needs dask and distributed, and two processors that do nothing else. The time of processors
is printed too: of the serial run with all its planning, of the worker with everything that Dask does in its process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import weightmap as wm

if TYPE_CHECKING:
    from concurrent.futures import Executor

OPTIONS = {"format": "amb", "quantize": "int4_block", "threads": 1}


def make(folder: Path, shards: int, rows: int) -> Path:
    """Write a model of shards with one tensor each."""
    folder.mkdir()
    values = np.random.default_rng(1).standard_normal((rows, 1024)).astype(np.float32)
    where = {}
    for i in range(1, shards + 1):
        name = f"model-{i:05}-of-{shards:05}.safetensors"
        wm.save(folder / name, {f"layer.{i}.weight": values}, durable=False)
        where[f"layer.{i}.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


class Took(NamedTuple):
    """What one conversion took: seconds, and those of a processor, here and in the worker."""

    wall: float
    here: float
    worker: float


def took(model: Path, out: Path, executor: Executor | None = None) -> Took:
    """Convert, and return what it took; that of the worker if there is one."""
    worker = time.process_time if executor is None else lambda: executor.submit(time.process_time, pure=False).result()
    before, here, start = worker(), time.process_time(), time.perf_counter()
    wm.convert(model, f"{out}/", **OPTIONS, executor=executor)
    wall, here = time.perf_counter() - start, time.process_time() - here
    shutil.rmtree(out)
    return Took(wall, here, worker() - before)


def on_dask(workers: int, model: Path, out: Path, rounds: int, *, beside: bool) -> tuple[list[Took], list[Took]]:
    """What runs on so many workers took, and serial runs in turn with them."""
    from distributed import Client, LocalCluster

    shared, serial = [], []
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster, set_as_default=False) as client,
        client.get_executor() as executor,
    ):
        took(model, out, executor)  # the workers import
        for _ in range(rounds):
            shared.append(took(model, out, executor))
            if beside:
                serial.append(took(model, out))
    return shared, serial


def median(runs: list[Took], field: str = "wall") -> float:
    """The median of a field."""
    return statistics.median(getattr(run, field) for run in runs)


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="where to work (default: a temporary directory)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=200, help="small shards, of 4 MiB each")
    parser.add_argument("--large", type=int, default=16, help="large shards, of 64 MiB each")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        root = Path(name)
        small = make(root / "small", args.shards, 1024)
        shared, serial = on_dask(1, small, root / "out", args.rounds, beside=True)
        overhead = median(shared) / median(serial) - 1
        processors = min(run.worker for run in shared), min(run.here for run in serial)
        shutil.rmtree(small)
        large = make(root / "large", args.large, 16 << 10)
        one, _ = on_dask(1, large, root / "out", args.rounds, beside=False)
        two, _ = on_dask(2, large, root / "out", args.rounds, beside=False)
        gain = median(one) / median(two)
    lines = (
        f"one worker, {args.shards} shards of 4 MiB: {overhead:+.1%} over the serial run (target: below 10 %)",
        f"    processor, least of {args.rounds}: worker {processors[0]:.2f} s, serial {processors[1]:.2f} s",
        f"two workers, {args.large} shards of 64 MiB: {gain:.2f} times as fast as one (target: 1.7)",
    )
    sys.stdout.write("\n".join((*lines, "")))
    return int(overhead >= 0.1 or gain < 1.7)


if __name__ == "__main__":
    sys.exit(main())
