"""Ranks of a gloo group load one model by the device path: each reads a part, and gets the rest from the others."""

import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.dcp.ranks import counters, spawned
from tests.support import HANG

import weightmap as wm

pytest.importorskip("torch", reason="needs PyTorch: make distributed-test")
if sys.platform != "linux":
    pytest.skip("the bytes of a process are counted on Linux alone", allow_module_level=True)

WORLD = 2


def _rank(rank, folder):
    import torch.distributed as dist

    from weightmap import vllm as ours
    from weightmap.torch import TorchExchange
    from weightmap.torch._device import load_plan

    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=WORLD)
    exchange, found = TorchExchange(), []
    for path in sorted(Path(folder).glob("*.safetensors")) + sorted(Path(folder).glob("*.weights")):
        settings = ours.ExtraConfig(threads=0)
        for turn in range(2):  # the first one imports
            before = counters()["rchar"]
            if turn:
                got = dict(ours.tensors([str(path)], settings, shared=False, device="cpu", exchange=exchange))
            else:
                with wm.plan(path) as plan:
                    got = dict(load_plan(plan, "cpu", exchange=exchange, verify=True, group=1 << 20))
            read = counters()["rchar"] - before
        with wm.open(path) as file:
            wrong = [name for name in file if not np.array_equal(got[name].numpy(), file[name])]
            found.append((path.name, read, wrong, list(got) == list(file)))
    # Ranks that want other tensors read them alone.
    options = {"shared": False, "device": "cpu", "exchange": exchange, "skip": lambda name: name == str(rank)}
    other = dict(ours.tensors([str(path)], settings, **options))
    found.append(sorted(other))
    Path(folder, f"rank{rank}").write_bytes(pickle.dumps(found))
    end = time.monotonic() + HANG
    while len(list(Path(folder).glob("rank?"))) < WORLD and time.monotonic() < end:
        time.sleep(0.01)
    os._exit(0)  # as the ranks of `run` do


def test_two_processes_read_a_file_once(tmp_path):
    """Counted by the kernel, through vLLM's loader too, and with a checksum over bytes that the ranks share."""
    tensors = {str(n): np.random.default_rng(n).standard_normal(700_000 + n, np.float32) for n in range(4)}
    for name in ("a.safetensors", "a.weights"):
        wm.save(tmp_path / name, tensors)
    spawned(_rank, WORLD, (str(tmp_path),), tmp_path)
    told = [pickle.loads((tmp_path / f"rank{rank}").read_bytes()) for rank in range(WORLD)]
    size = sum(array.nbytes for array in tensors.values())
    for of_rank in zip(*(found[:-1] for found in told), strict=True):
        assert [(wrong, ordered) for _, _, wrong, ordered in of_rank] == [([], True)] * WORLD
        assert size <= sum(read for _, read, _, _ in of_rank) <= 1.02 * size
        assert max(read for _, read, _, _ in of_rank) <= 0.51 * size
    assert [found[-1] for found in told] == [["1", "2", "3"], ["0", "2", "3"]]


def _deserted(rank, folder):
    import torch.distributed as dist

    from weightmap.torch import TorchExchange
    from weightmap.torch._device import load_plan

    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=WORLD)
    with wm.plan(Path(folder, "a.safetensors")) as plan:
        loading, told = load_plan(plan, "cpu", exchange=TorchExchange(), group=1), "nothing"
        try:
            for _ in loading:
                if rank:
                    os._exit(0)  # like a killed process, which tells nobody
        except wm.PlanError as error:
            told = str(error)
    Path(folder, "told").write_text(told, encoding="utf-8")
    os._exit(0)


def test_a_rank_that_is_gone_is_an_error_of_the_others(tmp_path):
    wm.save(tmp_path / "a.safetensors", {str(n): np.full(100_000, n, np.float32) for n in range(6)})
    spawned(_deserted, WORLD, (str(tmp_path),), tmp_path)
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert told.startswith("another rank of this load has ended, or does not answer: "), told
