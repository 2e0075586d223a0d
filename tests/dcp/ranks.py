"""Processes of a gloo group that load parts of models by `torch.distributed.checkpoint`, and report the cost.

The functions whose names begin with an underscore run in the ranks; each imports what it needs there.
"""

import os
import pickle
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.support import HANG

import weightmap as wm


class Case(NamedTuple):
    """A load: the model, and the placement of its tensors on the ranks."""

    path: str  # the model's path; with "{rank}", each rank's
    mesh: tuple[int, ...]  # its shape
    placements: tuple[str, ...]  # for each dimension of the mesh "R", or "0", "1" … for `Shard`
    options: dict[str, Any] = {}  # noqa: RUF012 - of the reader; never changed
    wanted: dict[str, str] | None = None  # the names of the state dict, and the types; by default all, unchanged
    sound: str | None = None  # the model to compare with; by default rank 0's


class Outcome(NamedTuple):
    """A rank's outcome of a load: the bytes that it read by system calls, its report, and the result."""

    read: int
    report: Any
    wrong: list[str]
    local_nbytes: int
    error: Any
    failures: dict[int, tuple[str, str]]
    seconds: float
    disk: int


def run(world, cases, folder):
    """Run all cases in a group of `world` ranks; return each rank's outcomes. Fails when a rank hangs."""
    folder.mkdir(parents=True, exist_ok=True)
    spawned(_rank, world, (world, cases, str(folder)), folder)
    told = [pickle.loads((folder / f"rank{rank}").read_bytes()) for rank in range(world)]
    return {name: [of_rank[name] for of_rank in told] for name in cases}


def spawned(function, world, arguments, folder=None):
    """Call a function in `world` new processes, each with its number before the arguments; fail when one hangs."""
    from torch.multiprocessing import spawn

    group = spawn(function, arguments, nprocs=world, join=False)
    end = time.monotonic() + HANG
    try:
        while not group.join(timeout=1):
            seen = [] if folder is None else sorted(path.name for path in folder.iterdir())
            assert time.monotonic() < end, f"the ranks hang: {seen}"
    finally:
        for process in group.processes:
            if process.is_alive():
                process.kill()


def counters():
    """Return what this process has read so far: by calls ("rchar"), and of a disk ("read_bytes")."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").split("\n")
    return {name: int(value) for name, _, value in (line.partition(": ") for line in lines) if value}


def _rank(rank, world, cases, folder):
    import warnings

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    found = {}
    try:
        _warm_up(folder)
        for name, case in cases.items():
            Path(folder, f"rank{rank}-is-at-{name}").touch()
            found[name] = _load(case, rank)
        Path(folder, f"rank{rank}").write_bytes(pickle.dumps(found))
        dist.barrier()
    except BaseException:
        dist.destroy_process_group()
        raise
    # All pass the barrier before one ends, and each ends at once: C++ aborted a process once whose gloo threads still
    # ran as the interpreter ended (SIGABRT, "terminate called without an active exception").
    Path(folder, f"rank{rank}-is-through").touch()
    end = time.monotonic() + HANG
    while len(list(Path(folder).glob("rank*-is-through"))) < world and time.monotonic() < end:
        time.sleep(0.01)
    os._exit(0)


def _warm_up(folder):
    """Load something, so that no import counts."""
    import torch.distributed as dist

    path = f"{folder}/first.safetensors"
    if dist.get_rank() == 0:
        wm.save(path, {"a": np.arange(64, dtype=np.float32).reshape(8, 8)})
    dist.barrier()
    for how in ("map", "read"):
        outcome = _load(Case(path, (dist.get_world_size(),), ("0",), {"how": how}), dist.get_rank())
        assert not outcome.wrong, outcome
        assert outcome.error is None, outcome


def _state(case, path):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, zeros

    mesh = init_device_mesh("cpu", case.mesh)
    wanted = case.wanted
    with wm.open(path) as file:
        infos = {info.name: info for info in file.infos()}
        if wanted is None:
            wanted = {name: getattr(file[name], "dtype", np.dtype("f4")).name for name in infos}
    state = {}
    names = case.options.get("names", {})
    for name, dtype in wanted.items():
        shape = infos[names.get(name, name)].shape
        lie = [Replicate() if word == "R" or int(word) >= len(shape) else Shard(int(word)) for word in case.placements]
        state[name] = zeros(*shape, dtype=getattr(torch, dtype), device_mesh=mesh, placements=lie)
        state[name].to_local().fill_(7)
    return state


def _load(case, rank):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as local

    from weightmap.dcp import WeightmapStorageReader

    path = case.path.format(rank=rank)
    sound = case.path.format(rank=0) if case.sound is None else case.sound
    try:
        state = _state(case, sound)
    except (wm.FormatError, OSError):  # a damaged model: any state will do
        state = {"a": torch.zeros(4)}
    reader = WeightmapStorageReader(path, **case.options)
    before, start, error, failures = counters(), time.monotonic(), None, {}
    try:
        dcp.load(state, storage_reader=reader)
    except BaseException as caught:  # noqa: BLE001 - of torch, which is no Exception; the parent looks at it
        error = type(caught).__name__, str(caught)
        failures = {rank: (type(one[0]).__name__, str(one[0])) for rank, one in getattr(caught, "failures", {}).items()}
    seconds, after = time.monotonic() - start, counters()
    wrong, nbytes = [], 0
    if error is None:
        names = case.options.get("names", {})
        with wm.open(sound) as file:
            for name, tensor in state.items():
                shape, offsets = local(tensor.shape, tensor.device_mesh, tensor.placements)
                part = tuple(slice(at, at + size) for at, size in zip(offsets, shape, strict=True))
                expected = torch.from_numpy(np.array(file[names.get(name, name)])[(*part, ...)].copy())
                mine = tensor.to_local()
                nbytes += mine.nbytes
                came, meant = (values.double().numpy() for values in (mine, expected.to(mine.dtype)))
                same = came.shape == meant.shape and np.array_equal(came, meant, equal_nan=True)
                if not same:
                    wrong.append(name)
    read = after["rchar"] - before["rchar"]
    disk = after["read_bytes"] - before["read_bytes"]
    return Outcome(read, reader.report, wrong, nbytes, error, failures, seconds, disk)
