"""CRC-32 of parts of files: the same as zlib's of the bytes, with every gap that has a byte other than 0."""

import itertools
import os
import zlib

import numpy as np
import pytest

from weightmap._kernels import ffi, lib
from weightmap.native import access, checksums

STEP, PIECE = lib.WM_SUM_ROOM, 2 << 20
TOTAL = 5 * PIECE + 3


@pytest.fixture(scope="module")
def data():
    """Random bytes, more than two threads take at a time, with runs of zeros across every boundary."""
    found = np.random.default_rng(5).integers(1, 256, TOTAL, np.uint8)
    for edge in range(0, TOTAL, STEP // 2):
        found[max(edge - 40, 0) : edge + 40] = 0
    return found


@pytest.fixture(scope="module")
def file(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("sums") / "data"
    path.write_bytes(data.tobytes())
    with path.open("rb") as opened:
        yield opened.fileno()


PARTS = [
    (0, 0),
    (7, 1),
    *((begin, STEP + more) for begin in (0, 5) for more in (-1, 0, 1)),
    *((1, count * PIECE + more) for count in (1, 2, 4) for more in (-1, 0, 1)),
    (0, TOTAL),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("begin", "size"), PARTS)
@pytest.mark.parametrize("where", ["file", "memory"])
def test_sums_are_those_of_zlib(data, file, where, begin, size, threads):
    gaps = np.empty((0, 2), np.uint64)
    summer = checksums.PartSummer(threads)
    crc, filled = summer(file if where == "file" else data, begin, size, 0x12345678, gaps)
    assert crc == zlib.crc32(data[begin : begin + size], 0x12345678)
    assert filled.shape == (0,)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("where", ["file", "memory"])
def test_gaps_are_looked_at_where_the_part_has_them(data, file, where, threads):
    edges = [edge for at in range(0, TOTAL, STEP // 2) for edge in (max(at - 40, 0), at + 40) if edge <= TOTAL]
    zeros = list(itertools.pairwise(edges))[::2]
    whole = checksums.PartSummer(threads)
    source = file if where == "file" else data
    for before, after in itertools.product((0, 1), repeat=2):
        gaps = np.array([(max(a - before, 0), min(b + after, TOTAL)) for a, b in zeros], np.uint64)
        for begin, size in PARTS:
            expected = [bool(data[max(a, begin) : max(min(b, begin + size), begin)].any()) for a, b in gaps.tolist()]
            assert whole(source, begin, size, 0, gaps)[1].tolist() == expected
    one = np.array([(0, TOTAL)], np.uint64)
    assert whole(source, 0, TOTAL, 0, one)[1].tolist() == [True]
    assert whole(source, PIECE - 40, 80, 0, one)[1].tolist() == [False]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("beyond", [1, STEP, 3 * PIECE])
def test_a_file_that_ends_is_told_with_its_end(file, threads, beyond):
    """The first byte that the file does not have is named, however many threads read."""
    with pytest.raises(access.Failed) as caught:
        checksums.PartSummer(threads)(file, 3, TOTAL - 3 + beyond, 0, np.empty((0, 2), np.uint64))
    assert (caught.value.at, caught.value.error) == (TOTAL, 0)


def test_a_file_that_cannot_be_read_is_told_with_its_errno(tmp_path):
    """The system's number comes along."""
    with (tmp_path / "new").open("wb") as unreadable, pytest.raises(access.Failed) as caught:
        checksums.PartSummer(2)(unreadable.fileno(), 0, 8, 0, np.empty((0, 2), np.uint64))
    assert os.strerror(caught.value.error) == "Bad file descriptor"


@pytest.mark.parametrize(
    ("change", "is_legal"),
    [
        ({}, True),
        ({"at": 4, "size": 4}, True),
        ({"at": 8, "size": 0}, True),
        ({"at": 4, "size": 5}, False),
        ({"at": 9, "size": 0}, False),
        ({"at": 2**63, "size": 0}, False),
        ({"at": 1, "size": 2**63 - 1}, False),
        ({"n_gaps": 1}, False),
    ],
)
def test_parts_that_memory_does_not_have_are_refused(change, is_legal):
    memory, outcome, crc = ffi.new("uint8_t[8]"), ffi.new("wm_outcome *"), ffi.new("uint32_t *")
    fields = {"fd": -1, "memory": memory, "memory_size": 8, "at": 0, "size": 8, "gaps": ffi.NULL, "n_gaps": 0} | change
    lib.wm_crc32_of_part(ffi.new("wm_summed *", fields), ffi.NULL, 0, crc, ffi.NULL, 0, 1, outcome)
    assert outcome.what == (lib.WM_DONE if is_legal else lib.WM_UNFIT)


@pytest.mark.parametrize(("room", "is_legal"), [(STEP, True), (STEP - 1, False), (0, False)])
def test_a_file_is_read_through_enough_room(file, room, is_legal):
    """Less room than one thread needs is refused."""
    outcome, crc = ffi.new("wm_outcome *"), ffi.new("uint32_t *")
    part = ffi.new("wm_summed *", {"fd": file, "size": 3})
    lib.wm_crc32_of_part(part, ffi.NULL, 0, crc, ffi.new("uint8_t[]", max(room, 1)), room, 2, outcome)
    assert outcome.what == (lib.WM_DONE if is_legal else lib.WM_UNFIT)
