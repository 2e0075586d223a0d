"""The walkers of length-prefixed strings and the UTF-8 check, against plain Python."""

import itertools
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scan_support import pack, u8, u32

from weightmap._kernels import ffi, lib

# Where the ranges of table 3-7 of the Unicode standard begin and end.
EDGES = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def walk_oracle(data, count, width):
    bounds, pos = [], 0
    for i in range(count):
        if pos + width > len(data):
            return -1 - i, None
        (length,) = struct.unpack_from("<H" if width == 2 else "<I", data, pos)
        pos += width
        if pos + length > len(data):
            return -1 - i, None
        bounds.append(pos)
        pos += length
    return pos, [*bounds, pos + width]


def walk(data, count, width):
    bounds = np.zeros(min(count, len(data)) + 1, np.uint32)
    walked = lib.wm_walk_strings(u8(data), len(data), count, width, u32(bounds))
    assert lib.wm_walk_strings(u8(data), len(data), count, width, ffi.NULL) == walked
    return walked, (bounds[: count + 1].tolist() if walked >= 0 else None)


def first_bad(strings, width=0):
    blob, bounds = pack(strings, width) if width else (b"".join(strings), ends(strings))
    return lib.wm_utf8_strings(u8(blob), len(blob), u32(bounds), len(strings), width)


def ends(strings):
    return np.cumsum([0, *map(len, strings)]).astype(np.uint32)


def is_utf8(data):
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(st.binary(max_size=40), max_size=40), st.sampled_from([2, 4, 8]), st.binary(max_size=5))
def test_walk_finds_each_string(strings, width, tail):
    blob, bounds = pack(strings, width)
    assert walk(blob + tail, len(strings), width) == (len(blob), bounds.tolist())
    assert [blob[b : e - width] for b, e in itertools.pairwise(bounds.tolist())] == strings


@given(st.binary(max_size=60), st.integers(0, 40), st.sampled_from([2, 4, 8]))
def test_walk_of_junk(data, count, width):
    """On any bytes, the walk agrees with struct, or gives the number of the string that does not fit."""
    assert walk(data, count, width) == walk_oracle(data, count, width)


def test_utf8_at_every_edge():
    for n in (1, 2, 3):
        for string in map(bytes, itertools.product(EDGES, repeat=n)):
            assert (first_bad([string]) == -1) == is_utf8(string), string.hex()
    last = (0x7F, 0x80, 0xBF, 0xC0)
    for string in map(bytes, itertools.product((0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5), EDGES, last, last)):
        assert (first_bad([string]) == -1) == is_utf8(string), string.hex()
    good = [string for string in map(bytes, itertools.product(EDGES, repeat=4)) if is_utf8(string)]
    assert len(good) > 1000
    assert first_bad(good) == -1
    rng = random.Random(4)
    for string in (bytes(rng.choices(EDGES[3:], k=4)) for _ in range(20_000)):
        assert (first_bad([string]) == -1) == is_utf8(string), string.hex()


@pytest.mark.parametrize("bad", [b"\x80", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80"])
def test_utf8_wherever_the_bad_byte_stands(bad):
    """A bad sequence is found at every position of a string of any length, and does not spoil its neighbours."""
    for before in range(70):
        for after in (0, 1, 7, 8, 9, 64):
            assert first_bad([b"x" * before + bad + b"y" * after]) == 0
            assert first_bad(["é".encode() * before, b"", b"x" * before + bad + "é".encode() * after, b""]) == 2


def test_utf8_is_asked_of_each_string_by_itself():
    """A character cut in two by the end of a string is an error, even though the bytes together are UTF-8."""
    assert first_bad([b"caf\xc3\xa9"]) == -1
    assert first_bad([b"a", b"caf\xc3", b"\xa9"]) == 1
