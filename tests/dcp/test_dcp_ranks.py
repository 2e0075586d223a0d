"""Each rank of a gloo group reads only the bytes of its own slices; a failure on one ends all.

The kernel counts the bytes of each rank's system calls (``how="read"``), the plan its own.
"""

import os
import shutil
import sys

import numpy as np
import pytest
from tests.builders import amb, normal
from tests.builders import safetensors as safe
from tests.dcp.ranks import Case, run

import weightmap as wm

pytest.importorskip("torch", reason="needs PyTorch: make distributed-test")
if sys.platform != "linux":
    pytest.skip("the bytes of a process are counted on Linux alone", allow_module_level=True)

# Sixteen MiB in one file: headers and indices are far below two per cent of that.
SHAPES = {"wide": (512, 4096), "tall": (4096, 512)}
BYTES = sum(4 * a * b for a, b in SHAPES.values())
# 8 rows of blocks: 1 MiB of float32 as int4 blocks of 32.
QUANTISED = {"rows": (1024, 2048)}
SCHEMES = {"int4_block.amb": "int4_block", "int5.amb": "int5", "adaptive.amb": "adaptive", "q4_k.gguf": "q4_k"}


def big(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def odd():
    """Return tensors whose dimensions no number of ranks divides, a scalar and empty ones among them."""
    shapes = {"a": (7, 5), "b": (1, 3), "c": (3,), "d": (5, 1, 6), "scalar": (), "none": (0, 4), "void": (6, 0)}
    return {name: np.asarray(normal(shape, at).array) for at, (name, shape) in enumerate(shapes.items())}


def models(folder):
    wm.save(folder / "big.safetensors", big())
    wm.save(folder / "odd.safetensors", odd())
    wm.save(folder / "big.weights", big())
    rng = np.random.default_rng(1)
    dense = {name: rng.standard_normal(shape, np.float32) for name, shape in QUANTISED.items()}
    for file, scheme in SCHEMES.items():
        wm.save(folder / file, {name: wm.quantize(a, scheme) for name, a in dense.items()})
    (folder / "schemes.amb").write_bytes(amb.every_scheme())
    sharded = folder / "sharded"
    sharded.mkdir()
    parts = {
        f"part-{i}.safetensors": {f"layer.{i}.{k}": normal((60 + i, 64), 10 * i + k) for k in range(3)}
        for i in range(4)
    }
    safe.shard(sharded, parts)
    tied = folder / "tied.safetensors"
    wm.save(tied, {"embed.weight": big()["tall"]})
    for kind in ("header", "missing", "truncated", "value"):
        shutil.copytree(sharded, folder / kind)
    (folder / "header" / "part-2.safetensors").write_bytes(b"\xff" * 64)
    (folder / "missing" / "part-2.safetensors").unlink()
    short = folder / "truncated" / "part-2.safetensors"
    os.truncate(short, short.stat().st_size - 8)
    wm.save(folder / "value.weights", big())
    with (folder / "value.weights").open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"\x55" * 8)
    # A model that is damaged for one rank only, as on its own disk.
    for rank in range(4):
        shutil.copy(folder / "odd.safetensors", folder / f"odd-{rank}.safetensors")
    (folder / "odd-1.safetensors").write_bytes(b"\0" * 100)
    return {path.name: str(path) for path in folder.iterdir()}


READ = {"how": "read"}
DAMAGED = ("header", "missing", "truncated", "value.weights", "odd-{rank}.safetensors", "absent.safetensors")


def cases(folder, world):
    path = models(folder)
    found = {
        f"{kind} {placement} {how}": Case(path[kind], (world,), (placement,), {"how": how})
        for kind in ("big.safetensors", "big.weights", "odd.safetensors", "sharded")
        for placement in ("0", "1", "R")
        for how in ("read", "map")
    }
    for kind in (*SCHEMES, "schemes.amb"):
        for placement in ("0", "1"):
            for how in ("read", "map"):
                found[f"{kind} {placement} {how}"] = Case(path[kind], (world,), (placement,), {"how": how})
    names = {"lm_head.weight": "embed.weight"}
    both = {"embed.weight": "float32", "lm_head.weight": "float32"}
    found["tied"] = Case(path["tied.safetensors"], (world,), ("0",), {**READ, "names": names}, both)
    half = dict.fromkeys(SHAPES, "bfloat16")
    found["narrowed"] = Case(path["big.safetensors"], (world,), ("0",), READ, half)
    found["kind"] = Case(path["big.safetensors"], (world,), ("0",), READ, dict.fromkeys(SHAPES, "int32"))
    found["small chunks"] = Case(path["odd.safetensors"], (world,), ("0",), {**READ, "chunk": 8})
    for name in DAMAGED:
        options = {"verify": True} if name == "value.weights" else {}
        found[name] = Case(str(folder / name), (world,), ("0",), options)
    if world == 4:
        for one, other in (("0", "1"), ("0", "0"), ("R", "0"), ("1", "R"), ("R", "R")):
            for kind in ("big.safetensors", "odd.safetensors", "int4_block.amb"):
                found[f"{kind} 2x2 {one}{other}"] = Case(path[kind], (2, 2), (one, other), READ)
    return found


@pytest.fixture(scope="module", params=[2, 4])
def world(request):
    return request.param


@pytest.fixture(scope="module")
def outcomes(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"world{world}")
    return run(world, cases(folder, world), tmp_path_factory.mktemp("group"))


def sound(outcomes):
    return {name: ranks for name, ranks in outcomes.items() if name not in (*DAMAGED, "kind")}


def test_every_rank_has_the_values_of_the_whole_load(outcomes):
    for name, ranks in sound(outcomes).items():
        for rank in ranks:
            assert rank.error is None, (name, rank)
            assert not rank.wrong, (name, rank)


@pytest.mark.parametrize("kind", ["big.safetensors", "big.weights"])
@pytest.mark.parametrize("placement", ["0", "1"])
def test_a_rank_reads_its_part_and_no_more(outcomes, world, kind, placement):
    """At most 1/N of the model plus two per cent, rows as well as columns, counted by the kernel."""
    for rank in outcomes[f"{kind} {placement} read"]:
        assert rank.report.wanted_nbytes == BYTES // world
        assert BYTES // world <= rank.read <= BYTES // world + BYTES // 50
        assert rank.report.nbytes - rank.report.wanted_nbytes <= BYTES // 50
    for rank in outcomes[f"{kind} {placement} map"]:
        assert rank.report.nbytes <= BYTES // world + BYTES // 50
        assert rank.read <= BYTES // 50, "a mapping is not read"


def test_replicas_are_read_from_the_disk_once(outcomes):
    """Each rank has all bytes, and the page cache one copy."""
    ranks = outcomes["big.safetensors R read"]
    assert all(BYTES <= rank.read <= BYTES + BYTES // 50 for rank in ranks)
    assert sum(rank.disk for rank in ranks) <= BYTES + BYTES // 50


@pytest.mark.parametrize("world", [4], indirect=True)
@pytest.mark.parametrize(("placements", "parts"), [("01", 4), ("00", 4), ("R0", 2), ("1R", 2), ("RR", 1)])
def test_meshes_of_two_dimensions(outcomes, placements, parts):
    for rank in outcomes[f"big.safetensors 2x2 {placements}"]:
        assert BYTES // parts <= rank.read <= BYTES // parts + BYTES // 50


@pytest.mark.parametrize("kind", SCHEMES)
@pytest.mark.parametrize("placement", ["0", "1"])
def test_quantised_tensors_are_read_by_blocks(outcomes, world, kind, placement):
    """A rank reads 1/N plus two per cent of blocks and their scales, too, and the mask of an adaptive tensor."""
    ranks = outcomes[f"{kind} {placement} read"]
    rng = np.random.default_rng(1)
    tensor = wm.quantize(rng.standard_normal(QUANTISED["rows"], np.float32), SCHEMES[kind])
    mask = 0 if tensor.mask is None else len(tensor.mask)
    for rank in ranks:
        assert rank.read <= tensor.nbytes // world + tensor.nbytes // 50 + mask
        assert rank.local_nbytes == 4 * tensor.size // world


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("header", "UnknownFormatError", "part-2.safetensors"),
        ("missing", "LayoutError", "'part-2.safetensors' of this model is missing"),
        ("truncated", "TruncatedError", "part-2.safetensors"),
        ("value.weights", "ChecksumError", "value.weights"),
        ("absent.safetensors", "FileNotFoundError", "absent.safetensors"),
        ("kind", "StateError", "torch.int32, which cannot hold torch.float32"),
    ],
)
def test_damage_ends_the_load_on_every_rank(outcomes, world, case, error, message):
    """Each rank raises, within seconds, an error with our error of each rank."""
    for rank in outcomes[case]:
        assert rank.error is not None
        assert rank.error[0] == "CheckpointException"
        assert rank.seconds < 30
        assert len(rank.failures) == world
        for kind, text in rank.failures.values():
            assert kind == error
            assert message in text


def test_damage_that_one_rank_sees_ends_all(outcomes):
    for rank in outcomes["odd-{rank}.safetensors"]:
        assert rank.error is not None
        assert rank.seconds < 30
        assert {number: kind for number, (kind, _) in rank.failures.items()} == {1: "UnknownFormatError"}
