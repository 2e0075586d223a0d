"""Experts of models larger and smaller than their control group, in a new process.

Each token takes two of 32 experts of each layer, routed by Zipf's law. Figures are of all tokens, from a dropped page
cache on; `extra_info` has the bytes read from disk and the most anonymous memory.

Every contender finds the budget's bytes free, which were in use until then. A virtual machine may return free memory to
its host within seconds, and the first touch of such memory takes twenty times as long: the previous contender, and its
time, would decide.
"""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from timing import each_contender, need, ours, rival

CHILD = Path(__file__).with_name("pool_child.py")
GROUPS_OF_SYSTEM = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
LAYERS, EXPERTS, MEBIBYTES = 24, 32, 3072
# The bytes that the process and the pool may fill, and tokens.
SHORT, ENOUGH = (1024, 800, 28), (8192, 3400, 250)


@pytest.fixture(scope="module")
def experts(tmp_path_factory, smoke):
    """A file of stacked experts, a tensor for each layer."""
    path = tmp_path_factory.mktemp("pool") / "experts.safetensors"
    each = 1024 if smoke else (MEBIBYTES << 18) // (LAYERS * EXPERTS)
    stack = np.random.default_rng(0).random((EXPERTS, each), np.float32)
    wm.save(path, {f"layers.{layer:02}.experts": stack for layer in range(2 if smoke else LAYERS)})
    return path


@pytest.fixture(scope="module")
def memory():
    """Memory that contenders get."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("asks Linux for memory")
    memory = mmap.mmap(-1, ENOUGH[1] << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Serving:
    """The clock of a process in its own control group; `memory` is given back when it begins."""

    alike = True

    def __init__(self, who, turns, path, memory, limit, budget, tokens):
        self.path, self.memory, self.limit, self.budget = path, memory, limit << 20, budget << 20
        self.command = [sys.executable, str(CHILD), who, str(path), str(self.budget), str(tokens)]
        self.turns, self.info = turns, {}

    def __call__(self, calls):
        total = 0.0
        for _ in range(calls):
            group = next((root for root in GROUPS_OF_SYSTEM if root.is_dir()), None)
            group = group and group / f"weightmap-bench-{os.getpid()}"
            try:
                assert group is not None
                group.mkdir()
                name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
                (group / name).write_text(str(self.limit), encoding="ascii")
            except (AssertionError, OSError) as error:
                pytest.skip(f"no control group can be made here: {error}")
            try:
                self.info |= json.loads(self.run(group / "cgroup.procs"))
            finally:
                group.rmdir()
            total += self.info["seconds"]
        return total

    def run(self, members):
        """Serve once, and return the output."""
        with self.path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        np.frombuffer(self.memory, np.uint8, self.budget)[:: mmap.PAGESIZE] = 1
        joining = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(members), *self.command]
        with subprocess.Popen(joining, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            child.stdout.readline()
            self.memory.madvise(mmap.MADV_DONTNEED, 0, self.budget)
            printed, _ = child.communicate("\n")
        assert not child.returncode
        return printed


def serving(who, turns=3):
    """Return a function that prepares a contender."""

    def prepare(path, memory, limits):
        if who == "safetensors":
            need("safetensors")
        return Serving(who, turns, path, memory, *limits)

    return prepare


POOL = ours(serving("pool"), "weightmap, pool")
LIMITS = {"pool/memory for a third of the experts": SHORT, "pool/memory for all": ENOUGH}
# One turn each suffices, as rivals take eight times as long.
GROUPS = {
    "pool/memory for a third of the experts": POOL
    | {"weightmap, mapping": rival(serving("mapping", 1)), "safetensors": rival(serving("safetensors", 1))},
    "pool/memory for all": POOL | {"weightmap, mapping": rival(serving("mapping"))},
}


@each_contender(GROUPS)
def test_pool(compare, experts, memory, group, who, smoke):
    """Serve tokens whose experts are held one by one, prefetched by token."""
    limit, budget, tokens = (1024, 64, 3) if smoke else LIMITS[group]
    compare(GROUPS, experts, memory, (limit, budget, tokens), items=tokens)
