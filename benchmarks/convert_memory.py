"""Memory that a conversion takes: ``python benchmarks/convert_memory.py [--folder FOLDER]``.

The sources are sparse files: 4 GiB in three tensors, and 100,000 tensors of 4 KiB. A process converts a small file
first, and then tells by how many MiB its peak of resident memory grew while it converted the large one. Targets take up
to 4 GiB of disk, one at a time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = (3, 64, 64)
SOURCES = {"4 GiB in 3 tensors": (3, 21845, 16384), "100,000 tensors": (100_000, 32, 32)}
TARGETS = {
    "EMBD": ("o.weights", {}),
    "safetensors": ("o.safetensors", {}),
    "BinTensors": ("o.bt", {}),
    "GGUF": ("o.gguf", {}),
    "AMB": ("o.amb", {}),
    "safetensors, float16": ("o.safetensors", {"dtype": "float16"}),
    "AMB, int4_block": ("o.amb", {"quantize": "int4_block"}),
    "GGUF, q8_0": ("o.gguf", {"quantize": "q8_0"}),
}

CHILD = """
import json, sys
from pathlib import Path
import weightmap as wm

def status(word):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(word)) / 1024

small, large, target, options = *sys.argv[1:4], json.loads(sys.argv[4])
wm.convert(small, target, **options)
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = status("VmRSS")
wm.convert(large, target, **options)
print(status("VmHWM") - before)
"""


def build(path: Path, tensors: int, rows: int, columns: int) -> Path:
    """Write a sparse safetensors file of float32."""
    size = 4 * rows * columns
    entries = {
        f"model.layers.{i}.weight": {
            "dtype": "F32",
            "shape": [rows, columns],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(tensors)
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + tensors * size)
    return path


def main() -> None:
    """Measure every conversion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where the files lie meanwhile; by default the system's temporary files")
    parser.add_argument("--only", default="", help="sources whose name begins so")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        small = build(Path(folder, "small.safetensors"), *SMALL)
        for what, shape in SOURCES.items():
            if not what.startswith(given.only):
                continue
            large = build(Path(folder, "large.safetensors"), *shape)
            for target, (name, options) in TARGETS.items():
                command = [sys.executable, "-c", CHILD, small, large, Path(folder, name), json.dumps(options)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                sys.stdout.write(f"{what}, to {target}: {float(done.stdout):.1f} MiB\n")
                sys.stdout.flush()
                Path(folder, name).unlink()


if __name__ == "__main__":
    main()
