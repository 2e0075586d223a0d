"""Every function of the C module, with all inputs and outputs flush against forbidden pages."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from tests import guard
from tests.kernel_calls import CALLS, LEFT_OUT, Place
from tests.places import ROOT

from weightmap import kernels
from weightmap._kernels import ffi, lib

# Every length up to two lines of the cache and a bit, so that flush at one end, a buffer takes every alignment at the
# other; and lengths around vectors, blocks that kernels step over, and pages.
FEW = (0, 1, 63, 64, 65, 200)
LENGTHS = (*range(131), 191, 192, 193, 255, 256, 257, 319, 384, 511, 512, 513, 1023, 1024, 1025, 1152, 2047, 4095, 4097)
VARIED = {
    *("wm_crc32", "wm_fnv1a32_many", "wm_f16_to_f32", "wm_bf16_to_f32", "wm_blocks_decode", "wm_search_scale"),
    *("wm_adaptive_decode", "wm_ggml_decode", "wm_ggml_encode", "wm_index_build", "wm_index_find_many"),
    *("wm_columns_check", "wm_records_check", "wm_pq_decode", "wm_quantize_numbers"),
}
TIERS = kernels.available_isas()
PAGES = [guard.Pages(1 << 18) for _ in range(110)]

pytestmark = pytest.mark.skipif(not guard.AVAILABLE, reason="needs mprotect")


@pytest.fixture(
    params=[(tier, name) for name in CALLS for tier in (TIERS if name in VARIED else TIERS[-1:])], ids="-".join
)
def name(request):
    """Choose an instruction set, and return the name of a function to be called with it."""
    before = kernels.isa()
    kernels.use_isa(request.param[0])
    yield request.param[1]
    kernels.use_isa(before)


def run(name, place, size):
    return list(CALLS[name](place, size)), place.outputs()


@pytest.mark.parametrize("at", ["start", "end"])
def test_kernels_access_no_memory_but_what_they_were_given(name, at):
    """With all memory flush against forbidden pages, the function reads and writes nothing beyond, at any length."""
    for size in LENGTHS:
        assert run(name, Place(PAGES, at), size) == run(name, Place(None), size), size


@pytest.mark.parametrize("at", ["start", "end"])
def test_any_alignment(name, at):
    """Wherever inputs and outputs lie within a cache line, the function returns and writes the same."""
    for size in FEW:
        expected = run(name, Place(None), size)
        for shift in range(1, 64):
            assert run(name, Place(PAGES, at, shift), size) == expected, (size, shift)


@pytest.mark.parametrize("short", [1, 32])
def test_one_record_too_many(short):
    """No search for a name reads a record, and no column a name, past the end, not even by one."""
    place, index = Place(PAGES), bytes(64)
    pointer = place.give(index[short:])
    assert lib.wm_records_find(pointer, 64 - short, 2, place.give(b""), 0) == -1
    columns = ffi.new("wm_columns *", (1, 0, 4, place.give(b"abcd"), place.array(np.array([0, 5], np.uint32))))
    assert lib.wm_columns_find(columns, 1, 5, place.give(b"abcde"), 5) == -1


def test_every_function_with_a_pointer_is_called():
    headers = ("kernels.h", "scans.h", "archives.h")
    header = "".join((ROOT / "csrc" / "core" / name).read_text(encoding="utf-8") for name in headers)
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    functions = re.findall(r"^\w[\w ]*[ *](wm_\w+)\(([^;]*)\);", header, flags=re.MULTILINE)
    assert len(functions) > 50
    taking = {name for name, parameters in functions if "*" in parameters}
    assert taking == set(CALLS) | set(LEFT_OUT)
    assert not set(CALLS) & set(LEFT_OUT)


@pytest.mark.parametrize("offset", [-1, 100])
def test_the_pages_are_forbidden(offset):
    """One byte before the memory, or behind it, is a segmentation fault."""
    at = "start" if offset < 0 else "end"
    code = f"import ctypes, guard; _, a = guard.Pages(1).place(100, at={at!r}); ctypes.string_at(a + {offset}, 1)"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests", capture_output=True, check=False)
    assert child.returncode == -signal.SIGSEGV
