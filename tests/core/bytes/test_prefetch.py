"""Advice on how pages are touched, and bringing them in beforehand: `TensorFile.advise` and `TensorFile.prefetch`."""

import ctypes
import mmap
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.builders import Tensor, embd
from tests.support import address, mappings, run_child, until

import weightmap as wm
from weightmap.core.bytes import prefetch as prefetching
from weightmap.core.native import access

PAGE = mmap.PAGESIZE
LINUX = sys.platform == "linux"
linux = pytest.mark.skipif(not LINUX, reason="looks into /proc, and at pages with mincore")
FLAGS = {"normal": set(), "random": {"rr"}, "sequential": {"sr"}}


def flags(path):
    """The advice that the kernel has for each mapping of a file in this process: `rr` random, `sr` sequential."""
    found, inside = [], False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(" ", 1)[0]:  # "7f00-7f10 r--s ... path"
            inside = line.endswith(os.path.realpath(path))
        elif inside and line.startswith("VmFlags:"):
            found.append(set(line.split()[1:]) & {"rr", "sr"})
    return found


def model(path, tensors=4, elements=1 << 18):
    content = [(f"t{i}", Tensor("float32", (elements,), bytes([i]) * 4 * elements)) for i in range(tensors)]
    path.write_bytes(embd.Draft(content).seal())
    return path


@pytest.fixture
def path(tmp_path):
    return model(tmp_path / "model.weights")


@linux
@pytest.mark.parametrize("advise", FLAGS)
@pytest.mark.parametrize("mode", [None, "mmap", "cow"])
def test_advice_reaches_the_mapping(path, mode, advise):
    with wm.open(path, mode=mode) as f:
        if mode == "cow":
            f["t0"]  # mapped before the advice
        f.advise(advise)
        assert f["t1"][0] == np.frombuffer(b"\1\1\1\1", np.float32)[0]
        assert flags(path) == [FLAGS[advise]]


@linux
def test_advice_goes_with_pickled_handles_and_to_every_shard(path, tmp_path):
    with wm.open(path) as f:
        f.advise("random")
        data = pickle.dumps(f)
    with pickle.loads(data) as again:
        kept = again["t0"]
        assert flags(path) == [{"rr"}]
    del kept
    with wm.open(path) as f:
        f.advise("sequential")
        loaded = dict(f)
    assert flags(path) == [{"sr"}]
    del loaded
    shards = [tmp_path / "a.weights", tmp_path / "b.weights"]
    for i, shard in enumerate(shards):
        shard.write_bytes(embd.Draft([(f"t{i}", Tensor("float32", (1,), b"1234"))]).seal())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"t0": "a.weights", "t1": "b.weights"}}', encoding="utf-8")
    with wm.open(index) as f:
        f.advise("random")
        kept = list(f.values())
        assert [flags(shard) for shard in shards] == [[{"rr"}], [{"rr"}]]
        del kept


@pytest.mark.parametrize("advise", ["Random", "", b"random", 1])
def test_unknown_advice_is_refused(path, advise):
    for source in (path, path.read_bytes()):
        with wm.open(source) as f, pytest.raises(ValueError, match="expected one of normal, random, sequential"):
            f.advise(advise)


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
    return not prefetching._worker.own._busy


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
        assert touched(arrays[3]) <= 1  # the last page of the mapping belongs to the footer too
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
    """A handle that is closed meanwhile with no array left: the piece at hand is finished, then the mapping is gone."""
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
from weightmap.core.bytes import prefetch as prefetching
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
    while prefetching._worker.own._busy:
        time.sleep(0.01)
    assert not prefetching._worker.own._queue
print("alive")
"""
    paths = [model(tmp_path / f"{i}.weights", 16) for i in range(4)]
    assert run_child(code, *paths).stdout == "alive\n"
