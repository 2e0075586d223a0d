"""Loads a model to a GPU with one library, and prints time and memory: see `bench_device.py`.

    python device_child.py WHO SMALL FILE [memory]

First it loads the SMALL model, for the library's imports and pinned memory.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch

DEVICE = "cuda:0"
PIECE = 64 << 20
# Keeps the memory of libraries that free it at the end of a `with` block.
KEPT = ExitStack()


def loader(who):
    """Import a library, and return load(path), which returns the tensors of a file on the GPU."""
    if who.startswith("weightmap"):
        from weightmap.torch import load_file

        dtype = torch.bfloat16 if who.endswith("bfloat16") else None
        return lambda path: load_file(path, DEVICE, dtype=dtype).values()
    if who == "safetensors":
        from safetensors.torch import load_file

        return lambda path: load_file(path, device=DEVICE).values()
    if who == "fastsafetensors":
        from fastsafetensors import fastsafe_open

        def load(path):  # its direct way needs a driver and file systems that few machines have
            file = KEPT.enter_context(fastsafe_open(path, device=DEVICE, nogds=True))
            return [file.get_tensor(name) for name in file.keys()]

    elif who == "Run:ai streamer":
        from runai_model_streamer import SafetensorsStreamer

        def load(path):  # told of the device, it reads into a few buffers and copies each tensor from there
            with SafetensorsStreamer() as streamer:
                streamer.stream_file(path, device=DEVICE)
                return [tensor for _, tensor in streamer.get_tensors()]

    elif who.startswith("InstantTensor"):
        from instanttensor import BackendPolicy, safe_open

        # By default it reads past the page cache, which has the "warm" files.
        backend = BackendPolicy.BUFFERED if who.endswith("buffered") else None

        def load(path):
            with safe_open(path, framework="pt", device=0, backend=backend) as file:
                return [tensor for _, tensor in file.tensors()]  # they own their memory

    elif who == "pinned copies":

        def load(path):
            return copies(path, Path(path).stat().st_size)

    else:

        def load(path):
            return preads(path, Path(path).stat().st_size)

    return load


PINNED = {}


def copies(_, size):
    """Copy a file's number of bytes out of pinned memory."""
    pinned = PINNED.setdefault("memory", torch.full((PIECE,), 7, dtype=torch.uint8).pin_memory())
    target = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    for at in range(0, size, PIECE):
        part = target[at : at + PIECE]
        part.copy_(pinned[: len(part)], non_blocking=True)
    return [target]


def preads(path, size):
    """Read a file by 32 threads, each into its own memory, which it uses again."""
    fd = os.open(path, os.O_RDONLY)

    def read(number):
        room = memoryview(bytearray(1 << 20))
        for at in range(number << 20, size, 32 << 20):
            os.preadv(fd, [room], at)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(read, range(32)))
    os.close(fd)
    return []


def anonymous():
    """Return the anonymous memory of this process, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def main(who, small, path, *_):
    """Load, and print time and memory."""
    load = loader(who)
    found = load(small)
    torch.cuda.synchronize()
    del found
    KEPT.close()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, taken = anonymous(), torch.cuda.memory_allocated()
    begin = time.perf_counter()
    tensors = list(load(path))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    size = sum(tensor.nbytes for tensor in tensors)
    last = [int(tensor.reshape(-1)[-1:].view(torch.uint8)[-1]) for tensor in tensors]  # they are there
    print(
        json.dumps(
            {
                "seconds": seconds,
                "GB/s": size / seconds / 1e9,
                "anonymous": anonymous() - before,
                "device": torch.cuda.max_memory_allocated() - taken - size,
                "device name": torch.cuda.get_device_name(),
                "last bytes": sum(last),
            }
        )
    )
    KEPT.close()


main(*sys.argv[1:])
