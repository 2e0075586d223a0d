"""Comparing two model files: equal ones, and ones whose every element differs.

The limit is the least work: reading both files once, by pread into one buffer of 256 KiB.
"""

import os

import numpy as np
import pytest

import weightmap as wm
from timing import Timed, each_contender, limit, ours

TENSORS = 16


@pytest.fixture(scope="module")
def files(tmp_path_factory, smoke):
    """Three files of random tensors: the first two are equal."""
    rng = np.random.default_rng(1)
    shape = (8, 8) if smoke else (1024, 1024)
    tensors = {f"layer.{i}": rng.standard_normal(shape, np.float32) for i in range(TENSORS)}
    folder = tmp_path_factory.mktemp("diff")
    wm.save(folder / "a.weights", tensors)
    wm.save(folder / "b.weights", tensors)
    wm.save(folder / "c.weights", {name: array + np.float32(1e-3) for name, array in tensors.items()})
    return folder


def diff(other, *, equal):
    """Compare the first file with another."""

    def prepare(files):
        assert wm.diff(files / "a.weights", files / other).equal is equal
        return Timed(lambda: wm.diff(files / "a.weights", files / other))

    return prepare


def read_both(files):
    """Read both files."""
    buffer = bytearray(1 << 18)

    def call():
        for name in ("a.weights", "b.weights"):
            file = os.open(files / name, os.O_RDONLY)
            at = 0
            while got := os.preadv(file, [buffer], at):
                at += got
            os.close(file)

    return Timed(call)


GROUPS = {
    f"diff/{what}": ours(diff(other, equal=what == "equal")) | {"two reading passes": limit(read_both)}
    for what, other in (("equal", "b.weights"), ("different", "c.weights"))
}


@each_contender(GROUPS)
def test_diff(compare, files, group, who):
    """Compare files in the page cache."""
    compare(GROUPS, files, nbytes=2 * (files / "a.weights").stat().st_size)
