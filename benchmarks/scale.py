"""The cost of a model that fits no disk: ``python benchmarks/scale.py [--plot docs/scale.svg]``.

Files are sparse: they have headers and no data. Measured are the first opening of the index of shards, with its memory,
the first plan, and then a plan for each of many ranks; each while shards, tensors or ranks grow ten-fold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# Shards, tensors, bytes, ranks (8 slices of tensors, the others replicas).
FULL = (1000, 500_000, 2 << 40, 1024)
GROWING = {
    "shards": [(10, 50_000), (100, 50_000), (1000, 50_000)],
    "tensors": [(1000, 5_000), (1000, 50_000), (1000, 500_000)],
}
RANKS = (8, 64, 1024)
COLUMNS = 4096

CHILD = """
import json, resource, sys, time
from pathlib import Path
import weightmap as wm

def memory(word="VmRSS"):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(word)) / 1024

def timed(function):
    start, cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - start, time.process_time() - cpu

path, ranks, slices = sys.argv[1], int(sys.argv[2]), 8
wm.plan  # imported before anything is timed
before = memory("VmHWM")
f, opened, cpu = timed(lambda: wm.open(path))
found = {"opened": opened, "opened_cpu": cpu, "memory": memory("VmHWM") - before}
found["descriptors"] = len(list(Path("/proc/self/fd").iterdir()))
_, found["first_plan"], found["first_plan_cpu"] = timed(lambda: wm.plan(f, wm.shard("", 0, 0, slices)))
times, cpus, wanted = [], [], {}
for rank in range(ranks):
    if rank in (0, slices):  # once each slice was planned, the allocator keeps what any of them needs
        after = memory()
    plan, seconds, cpu = timed(lambda: wm.plan(f, wm.shard("", 0, rank % slices, slices)))
    times.append(seconds)
    cpus.append(cpu)
    wanted[rank % slices] = plan.wanted_nbytes
    plan = None
found["plans"], found["plans_cpu"] = sorted(times)[len(times) // 2], sorted(cpus)[len(cpus) // 2]
found["growth"] = memory() - after
found["exact"] = sum(wanted.values()) == sum(info[4] for info in f.infos()) if ranks >= slices else None
print(json.dumps(found))
"""


def build(folder: Path, shards: int, tensors: int, nbytes: int) -> Path:
    """Write a sparse model; return its index."""
    folder.mkdir(parents=True)
    each, where, total = tensors // shards, {}, 0
    rows = max(8, nbytes // tensors // (2 * COLUMNS) // 8 * 8)
    size = rows * COLUMNS * 2
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        names = [f"model.layers.{number}.mlp.experts.{k}.down_proj.weight" for k in range(each)]
        entries = [
            f'"{name}":{{"dtype":"BF16","shape":[{rows},{COLUMNS}],"data_offsets":[{k * size},{(k + 1) * size}]}}'
            for k, name in enumerate(names)
        ]
        header = f"{{{','.join(entries)}}}".encode()
        header += b" " * (-len(header) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            out.truncate(8 + len(header) + each * size)
        where.update(dict.fromkeys(names, file))
        total += each * size
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}), encoding="utf-8")
    return index


def measure(index: Path, ranks: int, rounds: int = 3) -> dict[str, float]:
    """Return the medians of opening and planning, each in its own process."""
    runs = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(index), str(ranks)], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0] if runs[0][name] is not None}


def told(what: str, found: dict[str, float]) -> str:
    """Return a line about a measurement."""
    return (
        f"{what:38} open {found['opened']:6.3f} s ({found['opened_cpu']:.3f} s of CPU), {found['memory']:6.1f} MiB; "
        f"first plan {found['first_plan'] * 1e3:6.1f} ms; a rank {found['plans'] * 1e3:6.2f} ms, "
        f"growth {found['growth']:.1f} MiB, {found['descriptors']:.0f} descriptors"
    )


def main() -> None:
    """Measure, print, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the sparse files go, and are removed; a temporary folder")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="store_true", help="the full model alone")
    given = parser.parse_args()
    curves: dict[str, list[tuple[int, dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        index = build(folder / "full", *FULL[:3])
        found = measure(index, FULL[3], given.rounds)
        sys.stdout.write(told(f"{FULL[0]:,} shards, {FULL[1]:,} tensors, 2 TiB", found) + "\n")
        assert found["exact"], "the slices of eight ranks are not the model"
        if given.only:
            return
        curves["ranks"] = [(ranks, measure(index, ranks, given.rounds)) for ranks in RANKS]
        for what, sizes in GROWING.items():
            for shards, tensors in sizes:
                index = build(folder / f"{shards}-{tensors}-{what}", shards, tensors, FULL[2])
                count = shards if what == "shards" else tensors
                curves.setdefault(what, []).append((count, measure(index, 8, given.rounds)))
    for what, curve in curves.items():
        for count, found in curve:
            sys.stdout.write(told(f"{count:,} {what}", found) + "\n")
    if given.plot:
        draw(given.plot, curves)


def draw(path: Path, curves: dict[str, list[tuple[int, dict[str, float]]]]) -> None:
    """Draw the cost of each as ranks, shards and tensors grow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    lines = {
        "opened_cpu": ("open", "tab:blue"),
        "first_plan_cpu": ("first plan", "tab:orange"),
        "plans_cpu": ("a rank's plan", "tab:green"),
    }
    for axes, (what, curve) in zip(figure.subplots(1, 3, sharey=True), curves.items(), strict=True):
        for name, (label, colour) in lines.items():
            axes.loglog(
                [count for count, _ in curve],
                [found[name] * 1e3 for _, found in curve],
                "o-",
                label=label,
                color=colour,
            )
        axes.set_xlabel(what)
        axes.grid(visible=True, which="major", alpha=0.3)
    figure.axes[0].set_ylabel("milliseconds of CPU")
    figure.axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
