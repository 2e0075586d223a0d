"""Memory of work on a large model: ``python benchmarks/work_memory.py [--gib 8] [--only q8_0]``.

The sources are sparse safetensors files of three float32 matrices. Each command is a process; a line has its peak of
anonymous memory, sampled every 2 ms, and the sources' share of the page cache afterwards. `mode="direct"` holds a copy
of a file, by its contract. Status 1 if another command takes more than 256 MiB, or `mode="direct"` fills the cache.
Targets take up to the size of a source on the disk, one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from workflows.common import run

LIMIT = 256  # MiB
COLUMNS = 16384
TARGETS = {
    "EMBD": ["o.weights"],
    "safetensors": ["o.safetensors"],
    "BinTensors": ["o.bt"],
    "GGUF": ["o.gguf"],
    "AMB": ["o.amb"],
    "float16": ["o.safetensors", "--dtype", "float16"],
    "eight shards": ["shards/", "--max-shard-size", "1GB"],
    "q8_0": ["o.gguf", "--quantize", "q8_0"],
    "q4_k": ["o.gguf", "--quantize", "q4_k"],
    "int4_block": ["o.amb", "--quantize", "int4_block"],
    "int8": ["o.amb", "--quantize", "int8"],
    "adaptive": ["o.amb", "--quantize", "adaptive"],
}
DIRECT = {
    "convert": "wm.convert(wm.open(sys.argv[1], mode='direct'), 'o.weights')",
    "verify": "wm.verify(wm.open(sys.argv[1], mode='direct'))",
    "diff": "wm.diff(wm.open(sys.argv[1], mode='direct'), wm.open(sys.argv[2], mode='direct'))",
}


def build(path: Path, gib: int) -> Path:
    """Write a sparse file."""
    rows = (gib << 30) // (3 * 4 * COLUMNS)
    size = rows * COLUMNS * 4
    entries = {
        f"model.layers.{i}.mlp.up_proj.weight": {
            "dtype": "F32",
            "shape": [rows, COLUMNS],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(3)
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 3 * size)
    return path


def drop(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(path: Path) -> float:
    """Return how many MiB of a file lie in the page cache."""
    return int(subprocess.check_output(["fincore", "--bytes", "--noheadings", "--output", "RES", path])) / (1 << 20)


def work(folder: Path, gib: int, only: str) -> bool:
    """Run every command, and return whether one takes too much."""
    large, other = (build(folder / f"{name}.safetensors", gib) for name in ("large", "other"))
    failed = False
    ours = [sys.executable, "-m", "weightmap"]
    commands = {f"convert to {what}": [*ours, "convert", str(large), *rest] for what, rest in TARGETS.items()}
    for what in ("verify", "diff", "diff --by-value"):
        command, *options = what.split()
        commands[what] = [*ours, command, *options, str(large), *[str(other)] * (command == "diff")]
    for what, code in DIRECT.items():
        commands[f'{what}, mode="direct"'] = [
            *(sys.executable, "-c", f"import sys, weightmap as wm; {code}"),
            *(str(large), str(other)),
        ]
    for what, command in commands.items():
        if only not in what:
            continue
        os.chdir(folder)
        drop(large)
        drop(other)
        found = run(command)
        line, pages = f"{what}: {found['anonymous']:.0f} MiB, {found['seconds']:.1f} s", cached(large) + cached(other)
        over = pages > 1 if "direct" in what else found["anonymous"] > LIMIT
        failed |= over
        sys.stdout.write(f"{line}, {pages:.0f} MiB of the sources in the page cache{', TOO MUCH' * over}\n")
        sys.stdout.flush()
        for path in folder.iterdir():
            if path not in {large, other}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return failed


def main() -> None:
    """Measure every command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where the files lie meanwhile; by default the system's temporary files")
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--only", default="", help="commands that have this in their name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sys.exit(work(Path(folder), options.gib, options.only))


if __name__ == "__main__":
    main()
