"""Models that no test machine has, as sparse files: what opening and planning cost is counted, not timed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import HANG, SOURCES

import scale
import weightmap as wm


def calls(function):
    """Return the result of a function and how many Python functions it called."""
    count = 0

    def tick(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(tick)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return result, count


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    return {count: scale.build(folder / str(count), 100, count, 2 << 40) for count in (1_000, 10_000)}


def test_opening_and_planning_make_no_call_for_a_tensor(models):
    """Ten times the tensors take as many calls of functions, but for a batch now and then: 2 TiB or not."""
    counts = {}
    for count, path in models.items():
        wm.open(path).close()  # imports
        f, opening = calls(lambda path=path: wm.open(path))
        with f:
            wm.plan(f).nbytes  # noqa: B018 - makes the columns
            _, sliced = calls(lambda f=f: wm.plan(f, wm.shard("", 0, 3, 8)))
            _, dealt = calls(lambda f=f: wm.plan(f, rank=3, world_size=1024))
        counts[count] = opening, sliced, dealt
    for few, many in zip(counts[1_000], counts[10_000], strict=True):
        assert many <= 1.2 * few + 50, counts


def test_the_slices_of_all_ranks_are_the_model(models):
    before = len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
    with wm.open(models[10_000]) as f:
        total = sum(info.nbytes for info in f.infos())
        assert sum(wm.plan(f, wm.shard("", 0, rank, 8), gap=0).wanted_nbytes for rank in range(8)) == total
        assert sum(wm.plan(f, rank=rank, world_size=1024).wanted_nbytes for rank in range(1024)) == total
        if sys.platform == "linux":
            assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


@pytest.mark.skipif(not os.environ.get("WEIGHTMAP_DISTRIBUTED"), reason="opt-in: make distributed-test")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted on Linux")
def test_a_thousand_shards_of_half_a_million_tensors(tmp_path):
    """2 TiB open within 200 MiB and a handful of descriptors; plans of 1,024 ranks are exact, and add nothing."""
    index = scale.build(tmp_path / "full", *scale.FULL[:3])
    done = subprocess.run(
        [sys.executable, "-c", scale.CHILD, str(index), "1024"],
        env={**os.environ, "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG,
    )
    found = json.loads(done.stdout)
    assert found["memory"] <= 200
    assert found["descriptors"] <= 8
    assert found["growth"] <= 8
    assert found["exact"]
