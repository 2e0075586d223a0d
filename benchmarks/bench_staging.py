"""The host's part of a load to a device: bytes of a warm file to pinned memory, for a device whose copies take no time.

Needs no GPU. The limit reads the same bytes by pread into as much memory of the same kind, 1 MiB at a time, by as many
threads.
"""

import mmap
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import weightmap as wm
from timing import AVX2, Timed, each_contender, limit, ours
from weightmap.device import Backend, Staging, load

MEBIBYTES = 512
SLOTS, SLOT, READ = 3, 32 << 20, 1 << 20


class Nowhere(Backend):
    """A device whose copies are done at once, and go nowhere."""

    key = "nowhere"

    def allocate(self, nbytes):
        """Return an address space that nobody touches."""
        return np.empty(nbytes, np.uint8)

    def tensor(self, buffer, at, dtype, shape):
        """Return where the tensor would be."""
        return buffer[at:]

    def event(self):
        """Return an event that has come."""
        return self

    def decodes(self, scheme):
        """Decode everything."""
        return True

    def _nothing(self, *_):
        pass

    free = pin = unpin = begin = end = copy = synchronize = change = check = flip = wait = _nothing


@pytest.fixture(scope="module")
def model(tmp_path_factory, smoke):
    """Return model(suffix), the path of a model in that format."""
    folder = tmp_path_factory.mktemp("staging")
    values = np.random.default_rng(1).random((1 if smoke else 16) << 19, np.float32)  # 32 MiB

    def write(suffix):
        path = folder / f"m.{suffix}"
        if not path.exists():
            wm.save(path, {f"layers.{i}.weight": values + i for i in range(2 if smoke else MEBIBYTES // 32)})
        return path

    yield write
    shutil.rmtree(folder)


def weightmap(model, suffix, threads, *, verify=False):
    """Load everything."""
    path, device, staging = model(suffix), Nowhere(), Staging(SLOTS, SLOT, threads)

    def call():
        with wm.plan(path) as plan:
            for _ in load(plan, device, staging=staging, verify=verify):
                pass

    return Timed(call)


def preads(model, threads):
    """Read everything by pread, a part of each slot by each thread."""
    path = model("safetensors")
    size = path.stat().st_size
    slots = [mmap.mmap(-1, SLOT) for _ in range(SLOTS)]
    for slot in slots:
        slot.madvise(mmap.MADV_HUGEPAGE)
        slot[:] = bytes(SLOT)

    def read(file, first):
        for at in range(first * READ, size, threads * READ):
            to = at % (SLOTS * SLOT)
            os.preadv(file, [memoryview(slots[to // SLOT])[to % SLOT : to % SLOT + READ]], at)

    def call():
        with path.open("rb", buffering=0) as file, ThreadPoolExecutor(threads) as pool:
            if threads == 1:
                read(file.fileno(), 0)
            else:
                list(pool.map(partial(read, file.fileno()), range(threads)))

    return Timed(call)


GROUPS = {
    f"host side of a load to a device/{MEBIBYTES} MiB, {threads} thread{'s' * (threads > 1)}": ours(
        partial(weightmap, suffix="safetensors", threads=threads), threads=threads
    )
    | ours(partial(weightmap, suffix="weights", threads=threads), "weightmap, EMBD", threads=threads)
    | ours(
        partial(weightmap, suffix="weights", threads=threads, verify=True),
        "weightmap, EMBD, verified",
        isas=AVX2,
        threads=threads,
    )
    | {"pread": limit(partial(preads, threads=threads), threads)}
    for threads in (1, 2)
}


@each_contender(GROUPS)
def test_host_side(compare, model, group, who):
    """Load all tensors of a model in the page cache."""
    compare(GROUPS, model, nbytes=MEBIBYTES << 20)
