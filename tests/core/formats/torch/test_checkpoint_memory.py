"""What the machine of pickles keeps of a program, in memory."""

import struct
import subprocess
import sys

import pytest
from tests.builders import torch as files

CHILD = """
import gc, sys, weightmap as wm

def status():
    with open("/proc/self/status") as file:
        lines = [line.split() for line in file if line.startswith(("Vm", "Rss"))]
        return {line[0]: int(line[1]) for line in lines}

with wm.open(sys.argv[2]) as f:  # imports what opening needs
    dict(f.metadata)
gc.collect()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status()
with wm.open(sys.argv[1]) as f:
    after = status()
    print(len(f), after["VmHWM:"] - before["VmRSS:"], after["RssAnon:"] - before["RssAnon:"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the most memory that a process had")
@pytest.mark.parametrize("layout", ["zip", "legacy"])
def test_the_most_memory_that_opening_takes(tmp_path, layout):
    few, many = (write(tmp_path, count, layout) for count in (10, 30_000))
    done = subprocess.run([sys.executable, "-c", CHILD, many, few], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, peak, kept = map(int, done.stdout.split())
    assert count == 30_000
    # 230 bytes a tensor here; Python objects for the parts of each would take 1,000.
    assert peak * 1024 < (2 << 20) + 300 * count
    assert kept <= peak


def write(folder, count, layout):
    keys = [str(i) for i in range(count)]
    stored = {key: files.Stored(key, "float32", 4, 0, (2, 2), (2, 1)) for key in keys}
    program = files.dump({f"model.layers.{key}.self_attn.q_proj.weight": one for key, one in stored.items()})
    data = struct.pack("<4f", 1, 2, 3, 4)
    path = folder / f"{count}.pt"
    if layout == "zip":
        path.write_bytes(files.zipped(program, dict.fromkeys(keys, data), prefix="pytorch_model"))
    else:
        path.write_bytes(files.legacy(program, dict.fromkeys(keys, files.Item(data, 4))))
    return path
