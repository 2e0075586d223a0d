"""The CRC-32 kernels against zlib and against the definition, on every instruction set that this CPU has."""

import random
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightmap import kernels

MIB = 1 << 20

# Lengths beyond the exhaustive ones, each with one less and one more.
LENGTHS = (
    1536,  # three steps of eight registers of 64 bytes
    1536 + 7 * 64 + 48 + 15,  # the same, and the most that can remain after the last whole step
    3072,  # three streams of 1024 bytes on arm64
    4096,  # a page
    6144,  # two blocks of 3072
    65536 + 240,
    4 * MIB,  # the least work of a thread
    10 * MIB,
)

DATA = np.random.default_rng(20).integers(0, 256, 32 * MIB + 4097, np.uint8).tobytes()


def by_definition(data, value=0):
    """CRC-32 as the remainder of a division of polynomials, a bit at a time, most significant term first."""
    polynomial = 0x104C11DB7
    bits = int("0" + "".join(f"{byte:08b}"[::-1] for byte in data), 2) << 32
    n = 8 * len(data) + 32
    bits ^= int(f"{value ^ 0xFFFFFFFF:032b}"[::-1], 2) << (n - 32)
    for place in range(n - 1, 31, -1):
        if bits >> place & 1:
            bits ^= polynomial << (place - 32)
    return int(f"{bits:032b}"[::-1], 2) ^ 0xFFFFFFFF


@pytest.mark.usefixtures("isa")
def test_definition():
    """Up to 80 bytes, with any initial value, the result is the remainder of the division itself."""
    rng = random.Random(1)
    for length in range(81):
        data, value = rng.randbytes(length), rng.getrandbits(32)
        assert kernels.crc32(data, value) == by_definition(data, value), length


@pytest.mark.usefixtures("isa")
def test_all_short_lengths():
    for length in range(1101):
        data = DATA[1100 - length : 1100]
        assert kernels.crc32(data) == zlib.crc32(data), length


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.usefixtures("isa")
def test_lengths_at_which_kernels_change(length):
    """At the edges of steps, blocks and threads the result is zlib's."""
    for n in (length - 1, length, length + 1, length + 13):
        data = memoryview(DATA)[:n]
        assert kernels.crc32(data, 77) == zlib.crc32(data, 77), n


@given(st.lists(st.integers(0, 700), max_size=12), st.integers(0, 2**32 - 1))
def test_chained_calls(lengths, value):
    """Data handed over in pieces gives the CRC of the whole."""
    at, crc = 0, value
    for length in lengths:
        crc = kernels.crc32(DATA[at : at + length], crc)
        at += length
    assert crc == zlib.crc32(DATA[:at], value)


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_combine(first, second):
    a, b = DATA[:first], DATA[first : first + second]
    assert kernels.crc32_combine(zlib.crc32(a), zlib.crc32(b), second) == zlib.crc32(a + b)


SIZES = (0, 1, 8 * MIB - 1, 8 * MIB, 12 * MIB + 5, 17 * MIB + 4095, 32 * MIB)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("isa")
def test_threads(size):
    """The number of threads, more than there are cores too, never changes the result."""
    data = memoryview(DATA)[3 : 3 + size]
    expected = zlib.crc32(data, 9)
    for threads in (1, 2, 3, 4, 5, 64, 1000, 2**70):
        assert kernels.crc32(data, 9, threads=threads) == expected, threads
