"""Open a model larger than memory: ``python examples/larger_than_memory.py FOLDER [GIB]``.

Makes a sparse safetensors file of 40 GiB or of GIB, which takes no room on most file systems, and opens it: with
weightmap, and with safetensors for PyTorch where both are installed.
"""

import json
import struct
import sys
import time
from importlib import import_module
from pathlib import Path

import weightmap

EACH = 1 << 30
LAST = "layer.{}.weight"


def sparse(path: Path, gib: int) -> None:
    """Make a file of `gib` tensors of 1 GiB, all zeros."""
    header = {
        LAST.format(i): {"dtype": "F32", "shape": [16384, 16384], "data_offsets": [i * EACH, (i + 1) * EACH]}
        for i in range(gib)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + gib * EACH)


def main(folder: str, gib: int = 40) -> None:
    """Make the file, and say how long opening it and reading one element takes."""
    path = Path(folder, "larger.safetensors")
    sparse(path, gib)
    name = LAST.format(gib - 1)
    try:
        for time_of in ("the first time", "again"):
            start = time.perf_counter()
            with weightmap.open(path) as file:
                value = float(file[name][-1, -1])
            print(f"weightmap, {time_of}: {(time.perf_counter() - start) * 1e3:.2f} ms for {gib} GiB, value {value}")
        try:
            import_module("torch")
            peer = import_module("safetensors")
        except ImportError:
            return
        start = time.perf_counter()
        try:
            with peer.safe_open(str(path), "pt") as file:
                value = float(file.get_tensor(name)[-1, -1])
        except RuntimeError as error:
            print(f"safetensors, torch: {error}")
        else:
            print(f"safetensors, torch: {(time.perf_counter() - start) * 1e3:.2f} ms, value {value}")
    finally:
        path.unlink()


if __name__ == "__main__":
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
