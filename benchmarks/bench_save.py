"""Saving and converting to safetensors, on tmpfs and on a disk, beside safetensors' `save_file`.

`weightmap.save` flushes to the disk by default, and `convert` always; `save_file` never does, so it is timed with a
flush, too. A conversion also reads its source, which is in memory; `save_file` alone does not. Every call makes a new
file, once the previous one is gone and the disk has all earlier writes. Directories of the disk are pytest's; set
``--basetemp`` to choose another disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from timing import Timed, each_contender, need, ours, rival

COUNTS = {"1 tensor": (1, 128 << 20), "300 tensors": (300, 448 << 10), "100,000 tensors": (100_000, 256)}
FEW = 1000


@lru_cache(maxsize=1)
def tensors(count, nbytes):
    """Return `count` tensors of `nbytes` bytes."""
    rng = np.random.default_rng(count)
    return {f"model.layers.{i}.weight": rng.random(nbytes // 4, np.float32) for i in range(count)}


class Case:
    """A model, a file of it, and the file to write."""

    def __init__(self, folder, count, nbytes):
        self.tensors = tensors(count, nbytes)
        self.nbytes = count * nbytes
        self.turns = 5 if count <= FEW else 3
        self.disk = folder.parent != Path("/dev/shm")
        self.source, self.target = folder / "source.safetensors", folder / "target.safetensors"
        wm.save(self.source, self.tensors)

    def timed(self, function):
        """Return the clock of a function that writes the target."""

        def begin():
            self.target.unlink(missing_ok=True)
            if self.disk:
                os.sync()

        clock = Timed(lambda _: function(), begin)
        clock.turns = self.turns
        return clock


@pytest.fixture(scope="module")
def case(tmp_path_factory, smoke):
    """Return case(count, kind) of a file system; a missing kind skips. Each replaces the previous one."""
    made = {}

    def case(count, kind):
        if (count, kind) not in made:
            while made:
                shutil.rmtree(made.popitem()[1].target.parent)
            memory = Path("/dev/shm")
            if kind == "tmpfs" and not memory.is_dir():
                pytest.skip("there is no tmpfs at /dev/shm")
            folder = tmp_path_factory.mktemp("saving") if kind == "disk" else Path(tempfile.mkdtemp(dir=memory))
            number, nbytes = COUNTS[count]
            made[count, kind] = Case(folder, -(-number // 100), nbytes >> 8) if smoke else Case(folder, number, nbytes)
        return made[count, kind]

    yield case
    while made:
        shutil.rmtree(made.popitem()[1].target.parent)


def save(case, **options):
    """Ours."""
    return case.timed(lambda: wm.save(case.target, case.tensors, **options))


def convert(case):
    """Ours, from the file."""
    return case.timed(lambda: wm.convert(case.source, case.target))


def save_file(case, *, load=False, flush=False):
    """Theirs, of arrays or from the file; with a flush of the new file."""
    safetensors = need("safetensors.numpy")

    def call():
        safetensors.save_file(safetensors.load_file(case.source) if load else case.tensors, case.target)
        if flush:
            with case.target.open("rb") as file:
                os.fsync(file.fileno())

    return case.timed(call)


EVERYWHERE = ours(save, "save") | ours(convert, "convert") | {"save_file": rival(save_file)}
ON = {"tmpfs": EVERYWHERE, "disk": EVERYWHERE | {"save_file, flushed": rival(partial(save_file, flush=True))}}
# Only few tensors: with many the processor decides, and they take long.
MORE = {
    "tmpfs": {"load_file and save_file": rival(partial(save_file, load=True))},
    "disk": ours(partial(save, output=wm.Output(durable=False)), "save, not durable"),
}
GROUPS = {
    f"save/{count}, {kind}": contenders | (MORE[kind] if number <= FEW else {})
    for count, (number, _) in COUNTS.items()
    for kind, contenders in ON.items()
}


@each_contender(GROUPS)
def test_save(compare, case, group, who):
    """Write a model to a new file."""
    given = case(*group.removeprefix("save/").rsplit(", ", 1))
    compare(GROUPS, given, nbytes=given.nbytes)
