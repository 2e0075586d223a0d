"""Cost and gain of an executor: ``python benchmarks/executors.py [FOLDER]``.

Converts small shards by one Dask worker and serially (overhead), and quantises large ones by two workers and by one
(gain), in turn, and prints the median of the ratios. It needs dask and distributed, and two processors that do nothing
else. Files lie in memory where the system has a place for that: quantising is compared, and no disk.

This process has Dask's client and scheduler. Each call takes them and a worker some milliseconds of a processor, which
workers lack on a machine that has no third one: so two sizes of large shards are compared, and the larger ones show
what is left at the sizes that models have. Times of processors are printed too: of the serial run with all its
planning, of the worker with everything that Dask does in its process.
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

    from distributed import Client

OPTIONS = {"format": "amb", "quantize": "int4_block", "threads": 1}
MEMORY = Path("/dev/shm")
SMALL = 4  # MiB of a small shard


def make(folder: Path, shards: int, mib: int) -> Path:
    """Write a model of shards with one tensor each."""
    folder.mkdir()
    values = np.random.default_rng(1).standard_normal((mib << 8, 1024), np.float32)
    where = {}
    for i in range(1, shards + 1):
        name = f"model-{i:05}-of-{shards:05}.safetensors"
        wm.save(folder / name, {f"layer.{i}.weight": values}, output=wm.Output(durable=False))
        where[f"layer.{i}.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


class Took(NamedTuple):
    """The time of one conversion: seconds, and processor seconds, here and in the workers."""

    wall: float
    here: float
    workers: float


class Cluster:
    """Two workers of one thread each; a conversion uses one or both."""

    def __init__(self, client: Client) -> None:
        every = sorted(client.scheduler_info()["workers"])
        self._client = client
        self._executors = [None, client.get_executor(workers=every[:1]), client.get_executor(workers=every)]

    def took(self, model: Path, out: Path, workers: int) -> Took:
        """Convert on this many workers, 0 for a serial run, and return the time."""
        executor: Executor | None = self._executors[workers]
        before, here, start = self._processors(), time.process_time(), time.perf_counter()
        wm.convert(model, f"{out}/", run=wm.Run(executor), **OPTIONS)
        wall, here = time.perf_counter() - start, time.process_time() - here
        shutil.rmtree(out)
        return Took(wall, here, self._processors() - before)

    def in_turn(self, model: Path, rounds: int, *workers: int) -> list[tuple[Took, ...]]:
        """Return the times of conversions on these numbers of workers, one of each in every round."""
        out = model.with_name("out")
        self.took(model, out, 2)  # the workers import
        found = [tuple(self.took(model, out, number) for number in workers) for _ in range(rounds)]
        shutil.rmtree(model)
        return found

    def _processors(self) -> float:
        return sum(self._client.run(time.process_time).values())


def ratio(rounds: list[tuple[Took, ...]]) -> float:
    """The median ratio of the first to the second time of each round."""
    return statistics.median(first.wall / second.wall for first, second in rounds)


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="where to work (default: in memory, or a temporary directory)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=200, help=f"small shards, of {SMALL} MiB each")
    parser.add_argument("--large", type=int, default=16, help="large shards")
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 256], help="MiB of a large shard, rising")
    args = parser.parse_args()
    most = max(args.shards * SMALL, args.large * max(args.mib)) << 20
    fits = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * most
    with tempfile.TemporaryDirectory(dir=args.folder or (MEMORY if fits else None)) as name:
        return compare(Path(name), args)


def compare(root: Path, args: argparse.Namespace) -> int:
    """Measure in a directory and print; 1 if a target is missed."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as local,
        Client(local, set_as_default=False) as client,
    ):
        cluster = Cluster(client)
        rounds = cluster.in_turn(make(root / "small", args.shards, SMALL), args.rounds, 1, 0)
        overhead = ratio(rounds) - 1
        workers, serial = min(one.workers for one, _ in rounds), min(none.here for _, none in rounds)
        lines = [
            f"in {root.parent}, the median of {args.rounds} rounds",
            f"one worker, {args.shards} shards of {SMALL} MiB: {overhead:+.1%} over a serial run (target: below 10 %)",
            f"    processor, least of all rounds: worker {workers:.2f} s, serial {serial:.2f} s",
        ]
        for mib in args.mib:
            rounds = cluster.in_turn(make(root / "large", args.large, mib), args.rounds, 1, 2)
            gain = ratio(rounds)
            least = [
                f"{min(took.workers for took in some):.2f} s and {min(took.here for took in some):.2f} s here"
                for some in zip(*rounds, strict=True)
            ]
            lines += [
                f"two workers, {args.large} shards of {mib} MiB: {gain:.2f} times as fast as one (target: 1.7)",
                f"    processor, least of all rounds: one worker {least[0]}, two {least[1]}",
            ]
    sys.stdout.write("\n".join((*lines, "")))
    return int(overhead >= 0.1 or gain < 1.7)


if __name__ == "__main__":
    sys.exit(main())
