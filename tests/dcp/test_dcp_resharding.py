"""Another number of ranks than saved a checkpoint loads it."""

import sys

import numpy as np
import pytest
from tests.dcp.ranks import Case, run, spawned

import weightmap as wm

pytest.importorskip("torch", reason="needs PyTorch: make distributed-test")
if sys.platform != "linux":
    pytest.skip("the bytes of a process are counted on Linux alone", allow_module_level=True)

# 10 rows over 4 ranks: 3, 3, 3 and 1; over 2 ranks: 5 and 5.
SHAPES = {"odd": (10, 7), "even": (512, 512), "row": (1, 64), "bias": (6,)}


def values(name):
    shape = SHAPES[name]
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + len(name)


def _save(rank, world, folder, group):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    state = {name: distribute_tensor(torch.from_numpy(values(name)), mesh, [Shard(0)]) for name in SHAPES}
    writer = HuggingFaceStorageWriter(folder, save_distributed=True, enable_consolidation=True)
    dcp.save(state, storage_writer=writer)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize(("before", "after"), [(4, 2), (1, 4)])
def test_other_ranks_load_what_ranks_have_saved(before, after, tmp_path):
    """Torch saves slices, other ranks load other slices: rows and columns, of sizes that neither number divides."""
    folder = tmp_path / "model"
    folder.mkdir()
    spawned(_save, before, (before, str(folder), str(tmp_path / "saving")))
    with wm.open(folder) as file:
        assert {name: np.array_equal(file[name], values(name)) for name in file} == dict.fromkeys(SHAPES, True)
    cases = {placement: Case(str(folder), (after,), (placement,)) for placement in ("0", "1", "R")}
    for placement, ranks in run(after, cases, tmp_path / "loading").items():
        assert [(rank.error, rank.wrong) for rank in ranks] == [(None, [])] * after
        if placement == "0":
            whole = sum(4 * int(np.prod(shape)) for shape in SHAPES.values())
            assert sum(rank.local_nbytes for rank in ranks) == whole
