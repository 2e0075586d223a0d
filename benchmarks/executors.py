"""What an executor costs and gains: ``python benchmarks/executors.py [FOLDER]``.

Converts small shards by one Dask worker beside a serial run (overhead), and quantises large ones by two workers beside
one (speed-up). Prints both; needs dask and distributed, and two processors that do nothing else.
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

import numpy as np

import weightmap as wm

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


def seconds(model: Path, out: Path, **options: object) -> float:
    """The time of one conversion."""
    start = time.perf_counter()
    wm.convert(model, f"{out}/", **OPTIONS, **options)
    took = time.perf_counter() - start
    shutil.rmtree(out)
    return took


def on_dask(workers: int, model: Path, out: Path, rounds: int, *, beside: bool) -> tuple[list[float], list[float]]:
    """Times on so many workers, and of serial runs in turn with them."""
    from distributed import Client, LocalCluster

    shared, serial = [], []
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster, set_as_default=False) as client,
        client.get_executor() as executor,
    ):
        seconds(model, out, executor=executor)  # the workers import
        for _ in range(rounds):
            shared.append(seconds(model, out, executor=executor))
            if beside:
                serial.append(seconds(model, out))
    return shared, serial


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="where to work (default: a temporary directory)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=200, help="small shards, of 4 MiB each")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        root = Path(name)
        small = make(root / "small", args.shards, 1024)
        shared, serial = on_dask(1, small, root / "out", args.rounds, beside=True)
        overhead = statistics.median(shared) / statistics.median(serial) - 1
        shutil.rmtree(small)
        large = make(root / "large", 16, 16 << 10)
        one, _ = on_dask(1, large, root / "out", args.rounds, beside=False)
        two, _ = on_dask(2, large, root / "out", args.rounds, beside=False)
        gain = statistics.median(one) / statistics.median(two)
    print(f"one worker, {args.shards} shards of 4 MiB: {overhead:+.1%} over the serial run (target: below 10 %)")  # noqa: T201 - a command
    print(f"two workers, 16 shards of 64 MiB: {gain:.2f} times as fast as one (target: 1.7)")  # noqa: T201
    return int(overhead >= 0.1 or gain < 1.7)


if __name__ == "__main__":
    sys.exit(main())
