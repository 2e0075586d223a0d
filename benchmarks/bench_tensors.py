"""A whole model as tensors of PyTorch, each library in its own process: time, bytes read, memory.

All files have the same tensors and were written alike, in pieces of 64 MiB, since the writer of a file decides how fast
its pages are touched. "warm" files lie in the page cache, and stay there as they were written: this process locks them
in memory, since a system that reclaims idle pages would take some, and bring them back as small ones. "cold" files were
dropped from the page cache before each call. The clock runs from opening until a byte of every page was read; the
library has loaded a small model before.

The warm group alone takes three quarters of a minute:
``make bench BENCHMARKS='benchmarks/bench_tensors.py -k "not cold"'``
"""

import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import files
import weightmap as wm
from timing import each_contender, need, ours, rival

CHILD = Path(__file__).with_name("tensors_child.py")
PIECE = 64 << 20  # bytes of a write
TENSORS, SHAPE = 128, (1024, 2048)  # 1 GiB of float32
SPARE = 6 << 30  # free bytes of disk that three files of 1 GiB need
WHAT = "whole model to torch tensors/1 GiB"


class Loading:
    """The clock of a process that loads a file; `info` has its memory, of the first call, and times to tensors."""

    alike = True

    def __init__(self, who, small, path, *, cold):
        if not sys.platform.startswith("linux"):
            pytest.skip("asks /proc")
        self.command = [sys.executable, str(CHILD), who, small, path]
        self.path, self.cold, self.info = path, cold, {}
        self.turns = 1 if cold else 3  # few: each is a process

    def __call__(self, calls):
        if not self.info and not self.cold:
            self.run("memory")
        return sum(self.run() for _ in range(calls))

    def run(self, *more):
        """Load once, and return the seconds that it took; None where it asks for its memory."""
        (evict if self.cold else bring_in)(self.path)
        self.info |= json.loads(subprocess.run([*self.command, *more], check=True, capture_output=True).stdout)
        return self.info.get("seconds")


class Locked:
    """A file whose pages stay in memory until `release`, if the system lets this process lock them."""

    def __init__(self, path):
        with Path(path).open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        where = np.frombuffer(self.map, np.uint8).ctypes.data
        self.holds = ctypes.CDLL(None).mlock(ctypes.c_void_p(where), ctypes.c_size_t(len(self.map))) == 0

    def release(self):
        """Unlock the pages, as the end of a mapping does."""
        self.map.close()


# Files that are warm, by path.
LOCKED = {}


def bring_in(path):
    """Lock a file in memory, or else read it: the system may have taken pages since the last call."""
    if path not in LOCKED:
        LOCKED[path] = Locked(path)
    if LOCKED[path].holds:
        return
    with Path(path).open("rb", buffering=0) as file:
        while file.read(PIECE):
            pass


def evict(path):
    """Drop a file from the page cache, or skip where that is not possible."""
    if path in LOCKED:
        LOCKED.pop(path).release()
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    with wm.open(path) as file:
        resident = sum(there for there, _ in file.residency().values())
    if resident > Path(path).stat().st_size // 10:
        pytest.skip("the system does not drop this file from the page cache")


def by(who, suffix="safetensors", *libraries):
    """Return a loading of the file with this suffix."""

    def prepare(model, *, cold):
        for library in libraries:
            need(library)
        return Loading(who, model("small", suffix), model("whole", suffix), cold=cold)

    return prepare


CONTENDERS = (
    ours(by("weightmap", "safetensors", "torch"))
    | ours(by("weightmap, numpy"), "weightmap, numpy")
    | {
        "safetensors": rival(by("safetensors", "safetensors", "safetensors", "torch")),
        "fastsafetensors": rival(by("fastsafetensors", "safetensors", "fastsafetensors")),
        "Run:ai streamer": rival(by("Run:ai streamer", "safetensors", "runai_model_streamer")),
        "torch.load(mmap)": rival(by("torch.load(mmap)", "pt", "torch")),
        "gguf-py": rival(by("gguf-py", "gguf", "gguf")),
    }
)
WARMING = ours(by("weightmap, warmed", "safetensors", "torch"), "weightmap, plan.warm")
GROUPS = {f"{WHAT}, warm": CONTENDERS, f"{WHAT}, cold": CONTENDERS | WARMING}


@pytest.fixture(scope="module")
def whole(smoke, tmp_path_factory):
    """Return whole(size, suffix) -> path of the "small" or the "whole" model in that format."""
    folder = tmp_path_factory.mktemp("whole")

    def write(size, suffix):
        path = folder / f"{size}.{suffix}"
        tensors, shape = (2, (4, 2048)) if smoke or size == "small" else (TENSORS, SHAPE)
        shapes = {f"model.layers.{i:03}.mlp.weight": shape for i in range(tensors)}
        if path.exists():
            return str(path)
        if not smoke and shutil.disk_usage(folder).free < SPARE:
            pytest.skip(f"needs {SPARE >> 30} GiB of disk in {folder}")
        made = folder / "made"
        files.WRITERS[suffix](made, shapes)
        with made.open("rb") as source, path.open("wb", buffering=0) as target:
            while piece := source.read(PIECE):
                target.write(piece)
            os.fsync(target.fileno())
        made.unlink()
        return str(path)

    yield write
    while LOCKED:
        LOCKED.popitem()[1].release()
    shutil.rmtree(folder)


@each_contender(GROUPS)
def test_whole_model(compare, whole, group, who):
    """Load all tensors, and touch all pages."""
    groups = {
        name: {
            who: contender._replace(prepare=partial(contender.prepare, cold=name.endswith("cold")))
            for who, contender in contenders.items()
        }
        for name, contenders in GROUPS.items()
    }
    compare(groups, whole, nbytes=TENSORS * 4 * SHAPE[0] * SHAPE[1])
