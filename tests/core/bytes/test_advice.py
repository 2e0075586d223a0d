"""Advice on how pages are touched: `TensorFile.advise`."""

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.builders import Tensor, embd

import weightmap as wm

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
FLAGS = {"normal": set(), "random": {"rr"}, "sequential": {"sr"}}


@pytest.fixture
def path(tmp_path):
    tensors = [(f"t{i}", Tensor("float32", (1 << 18,), bytes([i]) * (1 << 20))) for i in range(4)]
    (tmp_path / "model.weights").write_bytes(embd.Draft(tensors).seal())
    return tmp_path / "model.weights"


def flags(path):
    """The advice that the kernel has for each mapping of a file in this process: `rr` random, `sr` sequential."""
    found, inside = [], False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(" ", 1)[0]:  # "7f00-7f10 r--s ... path"
            inside = line.endswith(os.path.realpath(path))
        elif inside and line.startswith("VmFlags:"):
            found.append(set(line.split()[1:]) & {"rr", "sr"})
    return found


@linux
@pytest.mark.parametrize("advise", FLAGS)
@pytest.mark.parametrize("mode", [None, "mmap", "cow"])
def test_advice_reaches_the_mapping(path, mode, advise):
    with wm.open(path, mode=mode) as f:
        if mode == "cow":
            f["t0"]  # mapped before the advice
        f.advise(advise)
        assert f["t1"][0] == np.frombuffer(b"\1\1\1\1", np.float32)[0]
        assert flags(path) == [FLAGS[advise]]


@linux
def test_advice_goes_with_pickled_handles_and_to_every_shard(path, tmp_path):
    with wm.open(path) as f:
        f.advise("random")
        data = pickle.dumps(f)
    with pickle.loads(data) as again:
        kept = again["t0"]
        assert flags(path) == [{"rr"}]
    del kept
    with wm.open(path) as f:
        f.advise("sequential")
        loaded = dict(f)
    assert flags(path) == [{"sr"}]
    del loaded
    shards = [tmp_path / "a.weights", tmp_path / "b.weights"]
    for i, shard in enumerate(shards):
        shard.write_bytes(embd.Draft([(f"t{i}", Tensor("float32", (1,), b"1234"))]).seal())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"t0": "a.weights", "t1": "b.weights"}}', encoding="utf-8")
    with wm.open(index) as f:
        f.advise("random")
        kept = list(f.values())
        assert [flags(shard) for shard in shards] == [[{"rr"}], [{"rr"}]]
        del kept


@pytest.mark.parametrize("advise", ["Random", "", b"random", 1])
def test_unknown_advice_is_refused(path, advise):
    for source in (path, path.read_bytes()):
        with wm.open(source) as f, pytest.raises(ValueError, match="expected one of normal, random, sequential"):
            f.advise(advise)
