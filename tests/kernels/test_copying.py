"""Bytes copied from one file to another: the same as the slices of Python."""

import errno
import os

import numpy as np
import pytest

from weightmap.native import access
from weightmap.native import files as native_files

DATA = np.random.default_rng(3).integers(0, 256, 1_000_003, np.uint8).tobytes()
BEFORE = bytes(range(256)) * 200
PIECE = 4096


@pytest.fixture
def files(tmp_path):
    """Descriptors of a file to read and of one to write, which holds something."""
    (tmp_path / "from").write_bytes(DATA)
    (tmp_path / "to").write_bytes(BEFORE)
    with (tmp_path / "from").open("rb") as source, (tmp_path / "to").open("r+b") as target:
        yield source.fileno(), target.fileno()


def copied(files, begin, at, count, threads, piece=PIECE, rooms=None):
    room = np.empty(piece * (rooms or threads), np.uint8)
    native_files.copy_range(files[0], begin, files[1], at, count, piece=piece, room=room, threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE, PIECE + 1, 50 * PIECE + 77, len(DATA) - 9])
@pytest.mark.parametrize(("begin", "at"), [(0, 0), (9, 51_201)])
def test_any_range(files, begin, at, count, threads):
    """Of any size, from anywhere to anywhere; what lies around it stays."""
    copied(files, begin, at, count, threads)
    expected = bytearray(BEFORE.ljust(at, b"\0") if count else BEFORE)
    expected[at : at + count] = DATA[begin : begin + count]
    assert os.pread(files[1], len(expected) + 1, 0) == expected


def test_more_threads_than_room(files):
    copied(files, 5, 0, 90_000, threads=9, rooms=2)
    assert os.pread(files[1], 90_000, 0) == DATA[5:90_005]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_fails(files, threads):
    """A source that ends, one that cannot be read, and a target that cannot be written: which, where and why."""
    for given, begin, expected in (
        (files, len(DATA) - 10_000, ("read", len(DATA), 0)),
        ((files[1] + 100, files[1]), 7, ("read", 7, errno.EBADF)),
        ((files[0], files[0]), 0, ("write", 0, errno.EBADF)),
    ):
        with pytest.raises(access.Failed) as caught:
            copied(given, begin, 0, 10_001, threads)
        assert (caught.value.what, caught.value.at, caught.value.error) == expected


@pytest.mark.parametrize(
    ("begin", "at", "count", "piece", "rooms"),
    [(0, 0, 9, 0, 1), (0, 0, 9, 8, 0.5), (1 << 63, 0, 9, 8, 1), (0, 1 << 63, 9, 8, 1), (9, 0, (1 << 63) - 9, 8, 1)],
)
def test_what_does_not_fit(files, begin, at, count, piece, rooms):
    room = np.empty(int(piece * rooms), np.uint8)
    with pytest.raises(ValueError, match="sizes"):
        native_files.copy_range(files[0], begin, files[1], at, count, piece=piece, room=room, threads=1)
    assert os.pread(files[1], len(BEFORE) + 1, 0) == BEFORE
