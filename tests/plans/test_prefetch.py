"""Bringing pages in beforehand: `TensorFile.prefetch`."""

import ctypes
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.builders import Tensor, embd
from tests.support import address, mappings, run_child, until

import weightmap as wm
from weightmap.core.bytes import Range
from weightmap.core.native import access
from weightmap.plans import pages as prefetching

PAGE = mmap.PAGESIZE
LINUX = sys.platform == "linux"
linux = pytest.mark.skipif(not LINUX, reason="looks into /proc, and at pages with mincore")


def model(path, tensors=4, elements=1 << 18):
    content = [(f"t{i}", Tensor("float32", (elements,), bytes([i]) * 4 * elements)) for i in range(tensors)]
    path.write_bytes(embd.Draft(content).seal())
    return path


@pytest.fixture
def path(tmp_path):
    return model(tmp_path / "model.weights")


def touched(array):
    """How many pages of an array this process has mapped: the bits "present" of /proc/self/pagemap."""
    first, last = address(array) // PAGE, (address(array) + array.nbytes - 1) // PAGE
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(first * 8)
        entries = np.frombuffer(file.read((last - first + 1) * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum())


def resident(array):
    """How many pages of an array are in the page cache, by mincore."""
    first, last = address(array) // PAGE, (address(array) + array.nbytes - 1) // PAGE
    count = last - first + 1
    found = (ctypes.c_ubyte * count)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(first * PAGE), ctypes.c_size_t(count * PAGE), found) == 0
    return sum(flag & 1 for flag in found)


def idle():
    return not prefetching._worker.instance._busy


def can_populate(path):
    """Whether this kernel has MADV_POPULATE_READ: without it, pages come into memory and not into the mapping."""
    f = wm.open(path)
    array = f["t0"]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        try:
            mapped.madvise(22)
        except OSError:
            return False
    return array is not None


@linux
@pytest.mark.parametrize("how", ["mmap", "cow", "random"])
def test_prefetch_maps_the_pages(path, how):
    """After a prefetch of everything, every page of every tensor is mapped before anybody has touched one."""
    if not can_populate(path):
        pytest.skip("this kernel has no MADV_POPULATE_READ")
    with wm.open(path, mode="cow" if how == "cow" else "mmap") as f:
        if how == "random":
            f.advise(how)
        arrays = list(f.values())
        assert touched(arrays[3]) <= 1  # the footer shares the last page of the mapping
        f.prefetch()
        until(idle)
        assert [touched(array) for array in arrays] == [-(-((address(a) % PAGE) + a.nbytes) // PAGE) for a in arrays]


@linux
def test_prefetch_of_one_tensor_leaves_the_others_alone(path):
    if not can_populate(path):
        pytest.skip("this kernel has no MADV_POPULATE_READ")
    with wm.open(path) as f:
        first, last = f["t0"], f["t3"]
        f.prefetch("t3")
        until(idle)
        assert touched(last) >= last.nbytes // PAGE
        assert touched(first) == 0


@linux
def test_prefetch_reads_pages_that_are_not_in_memory(path):
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with wm.open(path) as f:
        array = f["t2"]
        if resident(array):
            pytest.skip("this file system keeps its pages in memory")
        f.prefetch(["t2"])
        until(lambda: resident(array) >= array.nbytes // PAGE)


class Slow:
    """Stands for `access.populate`: each piece waits until it is let through."""

    def __init__(self):
        self.pieces = []
        self.allowed = 0

    def __call__(self, memory, offset, size, **_):
        self.pieces.append((offset, size))
        until(lambda: len(self.pieces) <= self.allowed)
        return 0


@pytest.fixture
def slow(monkeypatch):
    stand_in = Slow()
    monkeypatch.setattr(access, "populate", stand_in)
    monkeypatch.setattr(prefetching, "PIECE_BYTES", 1 << 18)
    return stand_in


def test_prefetch_returns_while_the_work_goes_on(path, slow):
    """Prefetch returns with the first piece still being read; then come pieces of bounded size, each byte once."""
    with wm.open(path) as f:
        f.prefetch("t1")
        until(lambda: len(slow.pieces) == 1)
        slow.allowed = 1 << 30
        until(idle)
        start, end = f.info("t1").offset, f.info("t1").offset + f.info("t1").nbytes
    assert slow.pieces == [(at, 1 << 18) for at in range(start, end, 1 << 18)]


@linux
def test_closing_ends_a_prefetch_and_the_mapping(path, slow):
    """If the handle is closed meanwhile and no array is left, the current piece ends, then the mapping is gone."""
    f = wm.open(path)
    f.prefetch()
    until(lambda: len(slow.pieces) == 1)
    f.close()
    assert mappings(path)  # the thread is in it
    slow.allowed = 1 << 30
    until(idle)
    assert len(slow.pieces) == 1
    assert mappings(path) == []


@linux
def test_a_file_that_became_shorter_is_no_crash(tmp_path):
    """Truncated before and during a prefetch: no SIGBUS, the thread ends, the next prefetch works."""
    code = """
import os, sys, time
import weightmap as wm
from weightmap.plans import pages as prefetching
prefetching.PIECE_BYTES = 1 << 16
for path, delay in zip(sys.argv[1:], (None, 0, 1e-4, 1e-3)):
    f = wm.open(path, mode="mmap")
    if delay is None:
        os.truncate(path, 4096)
        try:
            f.prefetch()
            raise AssertionError("the change went unnoticed")
        except wm.FileChangedError:
            pass
    else:
        f.prefetch()
        time.sleep(delay)
        os.truncate(path, 4096)
    while prefetching._worker.instance._busy:
        time.sleep(0.01)
    assert not prefetching._worker.instance._queue
print("alive")
"""
    paths = [model(tmp_path / f"{i}.weights", 16) for i in range(4)]
    assert run_child(code, *paths).stdout == "alive\n"


def test_reads_one_after_another_are_asked_for_a_window_ahead(monkeypatch):
    asked = []
    monkeypatch.setattr(prefetching, "ask_for", lambda _, part: asked.append(part))
    ranges = [Range(at, at + 10) for at in (0, 100, 40, 60)]
    ahead = prefetching.Ahead([(None, part) for part in ranges], window=15)
    ahead.reading(0)
    assert asked == ranges[:3]  # the third begins within the window behind the first
    ahead.reading(1)
    ahead.reading(3)
    assert asked == ranges
