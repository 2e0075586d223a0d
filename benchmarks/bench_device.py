"""A model to a GPU, each library in its own process: time, memory of host and device. Skipped without a GPU.

`make device-bench` runs it. "warm" files lie in the page cache; "cold" ones were dropped from it before each call. The
clock runs from opening until the GPU has every byte; the library has loaded a small model before, and holds its pool.
Limits of the same run: copies from pinned memory to the GPU, and reading the file by pread with 32 threads. Each run
reports `anonymous`, memory of the host beside the pinned pool, and `device`, the peak there beyond the tensors, both in
bytes.
"""

import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from bench_tensors import Loading
from timing import each_contender, limit, need, ours, rival

CHILD = Path(__file__).with_name("device_child.py")
TENSORS, SHAPE = 64, (8192, 8192)  # 8 GiB of bfloat16
ELEMENTS = SHAPE[0] * SHAPE[1]
SPARE = 16 << 30  # free bytes of disk that the files need
WHAT = "model to a GPU/8 GiB of bfloat16"
PACKED = "model to a GPU/int4 blocks to 8 GiB of bfloat16, warm"


class ToDevice(Loading):
    """The clock of a process that loads a file to a GPU."""

    def __init__(self, who, small, path, *, cold):
        super().__init__(who, small, path, cold=cold)
        self.command = [sys.executable, str(CHILD), who, small, path]
        self.turns = 5


def by(who, suffix="safetensors", *libraries):
    """Return a loading of the file with this suffix."""

    def prepare(model, *, cold):
        for library in libraries:
            need(library)
        return ToDevice(who, model("small", suffix), model("whole", suffix), cold=cold)

    return prepare


CONTENDERS = ours(by("weightmap")) | {
    "safetensors": rival(by("safetensors", "safetensors", "safetensors")),
    "fastsafetensors": rival(by("fastsafetensors", "safetensors", "fastsafetensors")),
    "Run:ai streamer": rival(by("Run:ai streamer", "safetensors", "runai_model_streamer")),
    "InstantTensor": rival(by("InstantTensor", "safetensors", "instanttensor")),
}
GROUPS = {
    f"{WHAT}, warm": CONTENDERS
    | {
        "InstantTensor": rival(by("InstantTensor, buffered", "safetensors", "instanttensor")),
        "pinned copies": limit(by("pinned copies")),
    },
    f"{WHAT}, cold": CONTENDERS | {"pread": limit(by("pread"))},
    PACKED: ours(by("weightmap, bfloat16", "amb")) | {"the same as bfloat16": rival(by("weightmap"))},
}


@pytest.fixture(scope="module")
def model(smoke, tmp_path_factory):
    """Return model(size, suffix) -> path of the "small" or the "whole" model in that format."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: make device-bench")
    folder = tmp_path_factory.mktemp("device")

    def write(size, suffix):
        path = folder / f"{size}.{suffix}"
        if path.exists():
            return str(path)
        whole = size == "whole" and not smoke
        if whole and shutil.disk_usage(folder).free < SPARE:
            pytest.skip(f"needs {SPARE >> 30} GiB of disk in {folder}")
        count, rows = (TENSORS, SHAPE[0]) if whole else (2, 64)
        WRITERS[suffix](path, count, (rows, SHAPE[1]))
        return str(path)

    yield write
    shutil.rmtree(folder)


def safetensors(path, count, shape):
    """Write tensors of bfloat16: random numbers from 1 to 4, different in each tensor."""
    nbytes = 2 * shape[0] * shape[1]
    header = {
        f"model.layers.{i:03}.weight": {"dtype": "BF16", "shape": shape, "data_offsets": [i * nbytes, (i + 1) * nbytes]}
        for i in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = np.random.default_rng(0).integers(0x3F80, 0x4080, shape[0] * shape[1], np.uint16)
    with path.open("wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for i in range(count):
            rest = memoryview(np.roll(values, i)).cast("B")
            while rest:
                rest = rest[file.write(rest[: 64 << 20]) :]
        os.fsync(file.fileno())


def blocks(path, count, shape):
    """Write tensors of int4 blocks: random codes, scales near 0.01."""
    rng = np.random.default_rng(0)
    octets = rng.integers(0, 256, (shape[0] * shape[1] // 32, 18), np.uint8)
    octets[:, :2] = rng.uniform(0.01, 0.02, (len(octets), 1)).astype("<f2").view(np.uint8)
    tensors = {
        f"model.layers.{i:03}.weight": wm.QuantizedTensor(
            "int4_block", shape, np.roll(octets, i, 0).reshape(-1), block_size=32
        )
        for i in range(count)
    }
    wm.save(path, tensors)


WRITERS = {"safetensors": safetensors, "amb": blocks}


@each_contender(GROUPS)
def test_model_to_a_gpu(compare, model, group, who):
    """Load all tensors, and wait for the GPU."""
    groups = {
        name: {
            who: contender._replace(prepare=partial(contender.prepare, cold=name.endswith("cold")))
            for who, contender in contenders.items()
        }
        for name, contenders in GROUPS.items()
    }
    compare(groups, model, nbytes=2 * TENSORS * ELEMENTS)
