"""Zero-copy, measured: looking at tensors costs page cache, not anonymous memory."""

import json

import pytest
from tests.builders import Tensor, embd
from tests.builders import safetensors as st
from tests.support import run_child

MIB = 2**20
TENSORS = 16

SUM = """
import sys, numpy as np, weightmap as wm

def anonymous():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:"))

wm.open(sys.argv[2])["t0"].reshape(-1).view(np.uint64).max()
before = anonymous()
f = wm.open(sys.argv[1], **eval(sys.argv[3]))
views = list(f.values())
assert sum(view.nbytes for view in views) == 256 << 20
largest = [int(view.reshape(-1).view(np.uint64).max()) for view in views]
assert largest == [number + 1 for number in range(16)], largest
print(anonymous() - before)
"""


def write(path, kind, size):
    """A file of 16 tensors of `size` bytes each, tensor i holding one u64 of i + 1 among zeros; written sparse."""
    if kind == "embd":
        draft = embd.Draft([(f"t{i}", Tensor("uint8", (0, 8), b"")) for i in range(TENSORS)], checksums=False)
        for i in range(TENSORS):
            draft.descriptor(i, shape0=size // 8, data_offset=i * size)
        start, total = draft.data_offset, TENSORS * size
        draft.header(tensor_data_size=total, total_file_size=start + total + 16)
        head, tail = draft.seal()[:start], draft.seal()[-16:]
    else:
        entries = {f"t{i}": st.entry("U8", [size // 8, 8], i * size, (i + 1) * size) for i in range(TENSORS)}
        text = json.dumps(entries).encode()
        head, tail = st.raw(text + b" " * (-len(text) % 8)), b""
    with path.open("wb") as file:
        file.write(head)
        for i in range(TENSORS):
            file.seek(len(head) + i * size + size // 2 // 8 * 8)
            file.write(bytes([i + 1]))
        file.seek(len(head) + TENSORS * size)
        file.write(tail)
        file.truncate(len(head) + TENSORS * size + len(tail))


@pytest.mark.parametrize("kind", ["embd", "safetensors"])
@pytest.mark.parametrize("options", [{}, {"mode": "cow"}], ids=["mmap", "cow"])
def test_viewing_256_mib_takes_no_memory(tmp_path, kind, options):
    """All of 256 MiB viewed and read through leaves less than 4 MiB of new anonymous memory."""
    big, small = tmp_path / "big", tmp_path / "small"
    write(big, kind, 16 * MIB)
    write(small, kind, 64)
    assert int(run_child(SUM, big, small, repr(options)).stdout) < 4096


def test_verifying_takes_little_memory(tmp_path):
    """Verify reads 256 MiB through a bounded buffer: less than 32 MiB of the Python heap at its peak."""
    code = """
import sys, tracemalloc, weightmap as wm
f = wm.open(sys.argv[1])
tracemalloc.start()
f.verify()
print(tracemalloc.get_traced_memory()[1])
"""
    write(tmp_path / "big", "embd", 16 * MIB)
    assert int(run_child(code, tmp_path / "big").stdout) < 32 * MIB
