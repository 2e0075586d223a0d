"""Page faults of reading a file for the first time, by its writer.

The system takes one page fault for each folio of a file in the page cache, and the writer decides how large folios are:
those of 2 MiB cost a hundredth of pages of 4 KiB. The benchmarks read one byte of each page.
"""

import mmap
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import limits
import weightmap as wm
from timing import Timed, each_contender, limit, need, ours, rival

ROWS = 1 << 20  # bytes


@pytest.fixture(scope="module")
def written(smoke, tmp_path_factory):
    """Return write(how) -> path of a file of 1 GiB, written at the first call."""
    folder = tmp_path_factory.mktemp("faults")
    array = np.zeros((2 if smoke else 1024, ROWS), np.uint8)

    def write(how):
        path = folder / f"{how}.safetensors"
        if path.exists():
            return path
        if how == "safetensors":
            need("safetensors.numpy").save_file({"w": array}, path)
            return path
        wm.save(path, {"w": array})
        if how == "in pieces of 4 KiB":
            whole = path.read_bytes()
            path.unlink()
            with path.open("wb", buffering=0) as file:
                for start in range(0, len(whole), mmap.PAGESIZE):
                    file.write(whole[start : start + mmap.PAGESIZE])
        return path

    yield write
    for path in folder.iterdir():
        path.unlink()


def first_touch(how, write):
    """Read a byte of every page of a fresh view."""
    path = write(how)
    return Timed(limits.touch, setup=lambda: wm.open(path)["w"])


def prefetched(write):
    """Read a byte of every page while `prefetch` works in the background."""
    path = write("weightmap")

    def setup():
        f = wm.open(path)
        f.prefetch()
        return f["w"]

    return Timed(limits.touch, setup=setup)


def again(write):
    """Read a byte of every page of a view that has no faults left."""
    view = wm.open(Path(write("weightmap")))["w"]
    limits.touch(view)
    return Timed(partial(limits.touch, view))


CONTENDERS = ours(partial(first_touch, "weightmap"), "written by weightmap") | {
    **ours(prefetched, "written by weightmap, prefetched"),
    "written by safetensors": rival(partial(first_touch, "safetensors")),
    "written in pieces of 4 KiB": rival(partial(first_touch, "in pieces of 4 KiB")),
    "limit: no faults": limit(again),
}


GROUPS = {"faults/1 GiB": CONTENDERS}


@each_contender(GROUPS)
def test_faults(compare, written, group, who):
    """Touch 1 GiB."""
    compare(GROUPS, written, nbytes=1 << 30)
