"""Buffers that work on many files uses again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.support import run_child

from weightmap.io import buffers

if TYPE_CHECKING:
    from pathlib import Path


def test_a_buffer_serves_again() -> None:
    """Within `keeping`, on the same thread, where it is large enough, and as long as there are few."""
    first = buffers.take(100)
    buffers.put(first)
    assert buffers.take(100) is not first, "nothing is kept outside"
    with buffers.keeping():
        small, large = buffers.take(100), buffers.take(200)
        buffers.put(large)
        buffers.put(small)
        others: list[bytearray] = []
        thread = threading.Thread(target=lambda: others.append(buffers.take(50)))
        thread.start()
        thread.join()
        with buffers.keeping():
            assert buffers.take(50) is small
            assert buffers.take(101) is large
        assert others[0] is not small
        assert len(buffers.take(300)) == 300
        for _ in range(9):
            buffers.put(bytearray(500))
        buffers.put(small)
        taken = [buffers.take(10) for _ in range(6)]
        assert [len(buffer) for buffer in taken] == [100, 500, 500, 500, 10, 10]
    assert len(buffers.take(500)) == 500


def test_a_buffer_that_somebody_looks_at_is_not_handed_out() -> None:
    """Whoever still has a view of it keeps its content; afterwards it serves again, with its length."""
    with buffers.keeping():
        buffer = buffers.take(1 << 20)
        view = memoryview(buffer)[10:20].toreadonly()
        buffers.put(buffer)
        assert buffers.take(1 << 20) is not buffer
        del view
        assert buffers.take(1 << 20) is buffer
        assert len(buffer) == 1 << 20


def test_shards_share_their_buffers(tmp_path: Path) -> None:
    """Faults of pages, where the allocator gives freed memory back at once, as it does in Dask's workers."""
    child = """
import resource, sys, json
from pathlib import Path
import numpy as np, weightmap as wm
from weightmap.conversion import shard, shards

root, count = Path(sys.argv[1]), 24
(root / "model").mkdir()
where = {}
for i in range(count):
    wm.save(root / "model" / f"{i}.safetensors", {f"w{i}": np.full((256, 1024), i, np.float32)}, durable=False)
    where[f"w{i}"] = f"{i}.safetensors"
(root / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
seen = []
convert_shard = shard.convert_shard

def counted(task):
    seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return convert_shard(task)

shards.convert_shard = counted
wm.convert(root / "model", f"{root}/out/", format="amb", quantize="int4_block", threads=1)
print((seen[-1] - seen[8]) / (len(seen) - 9))
"""
    faults = float(run_child(child, tmp_path, env={"MALLOC_TRIM_THRESHOLD_": "65536"}).stdout)
    assert faults < 16, "each shard would have a page of its own for each 4 KiB that it reads and writes"
