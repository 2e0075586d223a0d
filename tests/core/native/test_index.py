"""The hash index over strings, against a dict, and under attack."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collisions import colliding, fnv1a
from tests.scan_support import pack, u8, u32

from weightmap._kernels import ffi, lib

FLOOD = -2
GOLDEN = 0x9E3779B9


def capacity_for(n):
    capacity = 1
    while 3 * capacity < 4 * n:
        capacity *= 2
    return capacity


class Index:
    def __init__(self, strings, gap=0, capacity=None):
        if gap:
            blob, bounds = pack(strings, gap)
        else:
            blob, bounds = b"".join(strings), np.cumsum([0, *map(len, strings)]).astype(np.uint32)
        capacity = capacity or capacity_for(len(strings))
        self.bounds, self.slots = bounds, np.zeros(capacity, np.uint32)
        self.strings = strings
        self.base = (u8(blob), len(blob), u32(self.bounds), len(strings), gap)
        self.table = (u32(self.slots), capacity)
        duplicate, original = ffi.new("uint64_t *", 99), ffi.new("uint64_t *", 99)
        self.result = lib.wm_index_build(*self.base, *self.table, duplicate, original)
        self.twins = (duplicate[0], original[0])

    def find(self, name):
        return lib.wm_index_lookup(ffi.new("wm_index *", (*self.base, *self.table)), u8(name), len(name))

    def find_many(self, names):
        bounds = np.cumsum([0, *map(len, names)]).astype(np.uint32)
        out = np.full(len(names), -7, np.int64)
        blob = b"".join(names)
        pointers = (u8(blob), len(blob), u32(bounds), len(names), ffi.from_buffer("int64_t[]", out))
        assert lib.wm_index_find_many(*self.base, *self.table, *pointers) == 0
        return out.tolist()


def words(n, seed=0):
    rng = random.Random(seed)
    found = {}
    while len(found) < n:
        found[bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 10)))] = None
    return list(found)


@given(st.lists(st.binary(max_size=3), max_size=80), st.sampled_from([0, 2, 4]), st.sampled_from([1, 2, 8]))
def test_index_is_a_dict(strings, gap, room):
    """Each string is found under its first number, missing strings are not found, repeated ones are counted."""
    expected = {}
    twins = []
    for i, string in enumerate(strings):
        if string in expected:
            twins.append((i, expected[string]))
        expected.setdefault(string, i)
    index = Index(strings, gap, capacity_for(len(strings)) * room)
    assert index.result == len(twins)
    assert index.twins == (twins[0] if twins else (99, 99))
    names = [*strings, b"", b"\0", b"zzzz", *(s + b"\0" for s in strings), *(s[:-1] for s in strings)]
    assert [index.find(name) for name in names] == [expected.get(name, -1) for name in names]
    assert index.find_many(names) == [expected.get(name, -1) for name in names]


# Around the chunks of 1024 names, the lines of 16 slots, and three quarters of powers of two.
@pytest.mark.parametrize(
    "n", [0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 24, 48, 96, 767, 768, 769, 1023, 1024, 1025, 3072, 49152, 196608]
)
def test_full_tables_are_no_flood(n):
    """At the smallest capacity, up to three quarters full, all ordinary names are found, without a flood."""
    names = words(n)
    index = Index(names)
    assert index.result == 0
    assert index.find_many(names) == list(range(n))
    assert index.find(b"not there") == -1


def test_a_few_colliding_names_are_distinguished():
    """Sixty-five names of one hash are all found: the last met sixty-four others."""
    names = colliding()[:65]
    index = Index([*words(100), *names])
    assert index.result == 0
    assert index.find_many(names) == list(range(100, 165))


def test_collision_flood_is_refused():
    """Names of one hash by the hundred are refused, though the table has room."""
    assert Index(colliding()[:66]).result == FLOOD
    assert Index([*words(1000), *colliding()[:300]], capacity=1 << 16).result == FLOOD


def test_flood_of_one_place_is_refused():
    numbers = np.arange(100_000)
    blocks = np.stack([numbers // 26**k % 26 + 97 for k in range(4)], axis=1).astype(np.uint8)
    hashes = fnv1a(blocks)
    homes = hashes * np.uint32(GOLDEN) >> np.uint32(32 - 10) >> np.uint32(4)  # capacity 1024: 64 lines of 16 slots
    crowd = [blocks[i].tobytes() for i in np.flatnonzero(homes == 5)]
    assert len(crowd) > 300
    assert len({int(fnv1a(np.frombuffer(name, np.uint8)[None])[0]) for name in crowd}) > 300
    assert Index(crowd[:256], capacity=1024).result == 0
    assert Index(crowd[:256], capacity=1024).find_many(crowd[:257]) == [*range(256), -1]
    assert Index(crowd[:257], capacity=1024).result == FLOOD
