"""Large results: backed by huge pages, in memory that is used again, and never in that of an array that still lives."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support import run_child

from weightmap.core.native import access

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere numpy makes these arrays")
LARGE = 40 << 20


def no_huge_pages():
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists():
        return "no transparent huge pages on this system"
    return "transparent huge pages are switched off" if "[never]" in enabled.read_text() else ""


HUGE = """
import sys, numpy as np, weightmap as wm
from weightmap import kernels

N = 1 << 24  # elements: 64 MiB of float32
halves = np.ones(N, np.float16)
wm.save(sys.argv[1], {"t": halves})
quantized = wm.QuantizedTensor("int8", (N,), np.ones(4 + N, np.uint8), scale_type="fp32")
arrays = {
    "f16_to_f32": lambda: kernels.f16_to_f32(halves),
    "dequantize_int4": lambda: kernels.dequantize_int4(np.zeros(N // 32 * 18, np.uint8), N, 32),
    "dequantize": lambda: quantized.dequantize(),
    "read": lambda: wm.open(sys.argv[1]).read("t", np.float32),
}

def huge(array):
    begin, found = array.__array_interface__["data"][0], 0
    end = begin + array.nbytes
    with open("/proc/self/smaps") as file:
        for line in file:
            first, _, rest = line.partition(" ")
            if "-" in first:
                low, high = (int(part, 16) for part in first.split("-"))
                inside = low < end and begin < high
            elif inside and first == "AnonHugePages:":
                found += int(rest.split()[0])
    return found >> 10

for name, make in arrays.items():
    array = make()
    assert array.nbytes == 64 << 20 and array.flags.carray
    print(name, huge(array))
    keep = globals().setdefault("kept", [])
    keep.append(array)  # so that each has memory of its own
"""


@LINUX
@pytest.mark.skipif(bool(no_huge_pages()), reason=no_huge_pages())
def test_outputs_are_backed_by_huge_pages(tmp_path):
    """Of 64 MiB that the library allocates for a result, 60 or more are in huge pages."""
    lines = run_child(HUGE, tmp_path / "t.safetensors").stdout.splitlines()
    found = {name: int(mib) for name, mib in (line.split() for line in lines)}
    assert set(found) == {"f16_to_f32", "dequantize_int4", "dequantize", "read"}
    assert min(found.values()) >= 60, found


def test_arrays_that_live_have_memory_of_their_own():
    """Arrays made one after another, views of them kept alone too, keep what was written to them."""
    kept = []
    for number in range(6):
        array = access.empty((2, LARGE // 8), np.float32)
        array.fill(number)
        kept.append(array[1, -5:])  # keeps all of it
        del array
        if number % 2:
            del kept[0]  # whose memory the next may take
    assert [part.tolist() for part in kept] == [[number] * 5 for number in (3, 4, 5)]


FORKED = """
import os, numpy as np
from weightmap.core.native import access

def make(value):
    array = access.empty((40 << 20,), np.uint8)
    array.fill(value)
    return array

held = make(1)
make(2)  # freed at once, and kept
child = os.fork()
other = make(3 if child else 4)
assert (held == 1).all() and (other == (3 if child else 4)).all()
del held, other
assert (make(5) == 5).all()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("ok")
else:
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork_each_has_its_own():
    assert run_child(FORKED).stdout == "ok\n"
