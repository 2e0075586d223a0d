"""Buffers that work on many files uses again."""

import sys
import threading

import numpy as np
import pytest
from tests.support import run_child

from weightmap.io import memory
from weightmap.native.files import room


def test_a_buffer_serves_again():
    """Within `keeping`, on the same thread, where it is large enough, and as long as there are few."""
    before = memory.room(100).obj
    assert memory.room(100).obj is not before, "nothing is kept outside"
    with memory.keeping():
        large, small = memory.room(200).obj, memory.room(300).obj
        others = []
        thread = threading.Thread(target=lambda: others.append(memory.room(50).obj))
        thread.start()
        thread.join()
        with memory.keeping():
            assert memory.room(50).obj is large
            assert memory.room(201).obj is small
            assert len(memory.room(50)) == 50
        assert others[0] not in (large, small)
        held = [memory.room(250) for _ in range(7)]
        assert len({id(view.obj) for view in held}) == 7
        last = {id(view.obj) for view in held[-5:]}
        del held
        again = [memory.room(250) for _ in range(7)]
        assert len(last & {id(view.obj) for view in again}) == 5, "the oldest ones gave way"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000, 1 << 20])
def test_buffers_begin_at_a_line(size):
    with memory.keeping():
        found = [room(size), *(np.frombuffer(memory.room(size), np.uint8) for _ in range(3))]
        del found[1]
        found.append(np.frombuffer(memory.room(size), np.uint8))
    outside = np.frombuffer(memory.room(size), np.uint8)
    for array in (*found, outside):
        assert len(array) == size
        assert size == 0 or array.__array_interface__["data"][0] % 64 == 0


def test_a_thread_keeps_its_buffers_afterwards():
    """As workers do from call to call; and no longer than the thread lives."""
    seen = []

    def work():
        with memory.keeping(afterwards=True):
            seen.append(memory.room(100).obj)
        with memory.keeping():
            seen.append(memory.room(100).obj)
        seen.append(memory.room(100).obj)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen[0] is seen[1] is seen[2]
    assert seen[3] is seen[4] is seen[5]
    assert seen[3] is not seen[0]


def test_a_buffer_that_somebody_looks_at_is_not_handed_out():
    with memory.keeping():
        view = memory.room(1 << 20)
        buffer, view = view.obj, view[10:20].toreadonly()
        assert memory.room(1 << 20).obj is not buffer
        del view
        again = [memory.room(1 << 20), memory.room(1 << 20)]
        assert buffer in [view.obj for view in again]
        assert [len(view) for view in again] == [1 << 20] * 2


def test_shards_share_their_buffers(tmp_path):
    """Faults of pages, where the allocator gives freed memory back at once, as it does in Dask's workers."""
    child = """
import resource, sys, json
from pathlib import Path
import numpy as np, weightmap as wm
from weightmap.conversion import shards, tasks

root, count = Path(sys.argv[1]), 24
(root / "model").mkdir()
where = {}
for i in range(count):
    wm.save(root / "model" / f"{i}.safetensors", {f"w{i}": np.full((1024, 1024), i, np.float32)}, durable=False)
    where[f"w{i}"] = f"{i}.safetensors"
(root / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
seen = []
convert_shard = tasks.convert_shard

def counted(task):
    seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return convert_shard(task)

shards.convert_shard = counted
wm.convert(root / "model", f"{root}/out/", format="amb", quantize="int4_block", threads=1)
print((seen[-1] - seen[8]) / (len(seen) - 9))
"""
    faults = float(run_child(child, tmp_path, env={"MALLOC_TRIM_THRESHOLD_": "65536"}).stdout)
    assert faults < 16, "each shard would have a page of its own for each 4 KiB that it reads and writes"


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_a_fresh_buffer_is_not_touched():
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    view = memory.room(64 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000
    assert len(view) == 64 << 20
