"""Experts of a model that is larger than its control group, and of one that is not, in a process of their own.

Each token takes two of 32 experts of each layer, routed by Zipf's law. Figures are of all tokens, from a dropped page
cache on; `extra_info` has the bytes read from disk and the most anonymous memory.
"""

import json
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
# What the process may fill, what the pool may, and tokens.
SHORT, ENOUGH = (1024, 800, 40), (8192, 3400, 400)


@pytest.fixture(scope="module")
def experts(tmp_path_factory, smoke):
    """A file of stacked experts, a tensor for each layer."""
    path = tmp_path_factory.mktemp("pool") / "experts.safetensors"
    each = 1024 if smoke else (MEBIBYTES << 18) // (LAYERS * EXPERTS)
    stack = np.random.default_rng(0).random((EXPERTS, each), np.float32)
    wm.save(path, {f"layers.{layer:02}.experts": stack for layer in range(2 if smoke else LAYERS)})
    return path


class Serving:
    """The clock of a process in a control group of its own."""

    turns = 3

    def __init__(self, who, path, limit, budget, tokens):
        self.command = [sys.executable, str(CHILD), who, str(path), str(budget << 20), str(tokens)]
        self.limit, self.info = limit << 20, {}

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
            members = group / "cgroup.procs"
            try:
                done = subprocess.run(
                    self.command,
                    check=True,
                    capture_output=True,
                    text=True,
                    preexec_fn=lambda members=members: members.write_text(str(os.getpid()), encoding="ascii"),
                )
            finally:
                group.rmdir()
            self.info |= json.loads(done.stdout)
            total += self.info["seconds"]
        return total


def serving(who):
    """Return a function that prepares a contender."""

    def prepare(path, limits):
        if who == "safetensors":
            need("safetensors")
        return Serving(who, path, *limits)

    return prepare


CONTENDERS = ours(serving("pool"), "weightmap, pool") | {
    "weightmap, mapping": rival(serving("mapping")),
    "safetensors": rival(serving("safetensors")),
}
LIMITS = {"pool/memory for a third of the experts": SHORT, "pool/memory for all": ENOUGH}
GROUPS = dict.fromkeys(LIMITS, CONTENDERS)


@each_contender(GROUPS)
def test_pool(compare, experts, group, who, smoke):
    """Serve tokens whose experts are held one by one, prefetched by token."""
    limit, budget, tokens = LIMITS[group]
    compare(GROUPS, experts, (limit, budget, 3 if smoke else tokens), items=3 if smoke else tokens)
