"""FNV-1a against its definition and its authors' vectors, one name and many, on every instruction set."""

import random

import numpy as np
import pytest

from weightmap import kernels
from weightmap._kernels import ffi, lib
from weightmap.core.native import checksums

# From the authors' test vectors.
VECTORS_32 = {
    b"": 0x811C9DC5,
    b"a": 0xE40C292C,
    b"b": 0xE70C2DE5,
    b"foobar": 0xBF9CF968,
    b"\xff\x00\x00\x01": 0xC48FB86D,
}
VECTORS_64 = {b"": 0xCBF29CE484222325, b"a": 0xAF63DC4C8601EC8C, b"foobar": 0x85944171F73967E8}


def by_definition(data, bits=32):
    value, prime = {32: (0x811C9DC5, 0x01000193), 64: (0xCBF29CE484222325, 0x100000001B3)}[bits]
    for byte in data:
        value = (value ^ byte) * prime % (1 << bits)
    return value


def hash_with_gap(names, gap, buffer=None):
    blob = (b"\xa5" * gap).join(names) if buffer is None else buffer
    lengths = np.array([len(name) for name in names], np.uint32)
    out = np.zeros(len(names), np.uint32)
    result = lib.wm_fnv1a32_many(
        ffi.from_buffer("uint8_t[]", blob),
        len(blob),
        ffi.from_buffer("uint32_t[]", lengths),
        len(names),
        gap,
        ffi.from_buffer("uint32_t[]", out),
    )
    return result, out.tolist()


def test_vectors():
    """Both hashes give their authors' vectors, alone and in a batch."""
    for data, expected in VECTORS_32.items():
        assert kernels.fnv1a32(data) == expected
        assert kernels.fnv1a32_many(data, [len(data)]).tolist() == [expected]
    for data, expected in VECTORS_64.items():
        assert kernels.fnv1a64(data) == expected


@pytest.mark.parametrize("size", [0, 1, 51, 8191, 8192, 100_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_one_name_in_any_buffer(kind, size):
    """A name of any length gives the same hashes from bytes and any other buffer, and by either way into C."""
    data = random.Random(size).randbytes(size)
    for function, by_cffi, bits in (
        (kernels.fnv1a32, checksums.fnv1a32_by_cffi, 32),
        (kernels.fnv1a64, checksums.fnv1a64_by_cffi, 64),
    ):
        expected = by_definition(data, bits)
        assert function(kind(data)) == function(data=kind(data)) == by_cffi(kind(data)) == expected


@pytest.mark.usefixtures("isa")
def test_every_length():
    """Names of every length from 0 to 200, in rising, falling and mixed order, hash as each does alone."""
    rng = random.Random(3)
    names = [rng.randbytes(length) for length in range(201)]
    for order in (names, names[::-1], rng.sample(names, len(names))):
        expected = [by_definition(name) for name in order]
        assert kernels.fnv1a32_many(b"".join(order), [len(name) for name in order]).tolist() == expected


# Counts around a group of 8, a group of 16 lanes, the 16 names worth a batch, and one and two batches of 64.
COUNTS = (0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 79, 80, 128, 200)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("gap", [0, 2, 4])
@pytest.mark.usefixtures("isa")
def test_counts_and_gaps(count, gap):
    """Any number of names, back to back or behind prefixes of two or four bytes, hash as each does alone."""
    rng = random.Random(count)
    for longest in (0, 3, 17, 60):
        names = [rng.randbytes(rng.randint(0, longest)) for _ in range(count)]
        assert hash_with_gap(names, gap) == (-1, [by_definition(name) for name in names])
