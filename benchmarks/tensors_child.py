"""Loads a whole model with one library, and prints times, bytes read and memory: see `bench_tensors.py`.

    python tensors_child.py WHO SMALL FILE [memory]

First it loads the SMALL model, for the library's imports. With "memory" it asks for its anonymous memory at every
eighth tensor, which takes time.
"""

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

PAGE = 4096
# Keeps the memory of libraries that free it at the end of a `with` block.
KEPT = ExitStack()


def loader(who):
    """Import a library, and return load(path), which returns or yields the tensors of a file."""
    if who.startswith("weightmap"):
        import weightmap as wm

        if who == "weightmap, numpy":
            return lambda path: wm.load(path).values()
        import torch

        from weightmap.torch import load_file

        if who == "weightmap":
            return lambda path: load_file(path).values()

        def load(path):
            with wm.plan(path) as plan:
                plan.warm()
            return load_file(path).values()

    elif who == "safetensors":
        from safetensors.torch import load_file

        def load(path):
            return load_file(path).values()

    elif who == "fastsafetensors":
        from fastsafetensors import fastsafe_open

        def load(path):
            file = KEPT.enter_context(fastsafe_open(path, nogds=True))
            return (file.get_tensor(name) for name in file.keys())

    elif who == "Run:ai streamer":
        from runai_model_streamer import SafetensorsStreamer

        def load(path):
            streamer = KEPT.enter_context(SafetensorsStreamer())
            streamer.stream_file(path)
            return (tensor for _, tensor in streamer.get_tensors())

    elif who == "torch.load(mmap)":
        import torch

        def load(path):
            return torch.load(path, mmap=True, weights_only=True).values()

    else:
        import gguf

        def load(path):
            return (tensor.data for tensor in gguf.GGUFReader(path).tensors)

    return load


def system(path, name):
    """Return a number that the system has for this process."""
    for line in Path(path).read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def anonymous():
    """Return the anonymous memory of this process in MiB."""
    return system("/proc/self/smaps_rollup", "Anonymous") / 1024


def octets(tensor):
    """Return the bytes of an array, or of a tensor of torch."""
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor).reshape(-1).view(np.uint8)


def main():
    """Load, touch every page, and print the measurements."""
    who, small, path, *memory = sys.argv[1:]
    load = loader(who)
    list(load(small))
    before, peak = anonymous(), 0.0
    called, disk = (system("/proc/self/io", name) for name in ("rchar", "read_bytes"))
    tensors, first = [], None
    begin = time.perf_counter()
    for tensor in load(path):
        tensors.append(tensor)
        if first is None:
            first = time.perf_counter() - begin
        if memory and len(tensors) % 8 == 0:
            peak = max(peak, anonymous())
    last = time.perf_counter() - begin
    sum(int(octets(tensor)[::PAGE].max(initial=0)) for tensor in tensors)
    found = {"seconds": time.perf_counter() - begin, "s to the first tensor": first, "s to the last tensor": last}
    if memory:
        found = {
            "peak anonymous MiB": max(peak, anonymous()) - before,
            "MiB read by calls": (system("/proc/self/io", "rchar") - called) / 2**20,
            "MiB read from the disk": (system("/proc/self/io", "read_bytes") - disk) / 2**20,
        }
    print(json.dumps(found))
    sys.stdout.flush()


main()
