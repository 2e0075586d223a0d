"""float16 and bfloat16 to float32: every pattern, every bit, on every instruction set, wherever the numbers lie."""

import ml_dtypes
import numpy as np
import pytest

from weightmap import kernels
from weightmap.core.native import floats

ALL = np.arange(1 << 16, dtype=np.uint16)
# In an order with neighbours of different kinds; the multiplier is odd, so every pattern comes once.
MIXED = (np.arange(1 << 16, dtype=np.uint32) * 40503).astype(np.uint16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def bits_of_half(half):
    """The contract: the bits of the float32 for a float16, by integers."""
    sign, exponent, fraction = half >> 15 << 31, half >> 10 & 31, half & 1023
    if exponent == 31:
        return sign | 255 << 23 | (fraction << 13 | 1 << 22 if fraction else 0)
    if exponent == 0:
        if fraction == 0:
            return sign
        # fraction * 2**-24: the highest bit becomes the one that is not written down.
        highest = fraction.bit_length() - 1
        return sign | highest - 24 + 127 << 23 | (fraction << 23 - highest) - (1 << 23)
    return sign | exponent - 15 + 127 << 23 | fraction << 13


F16_TABLE = np.array([bits_of_half(half) for half in range(1 << 16)], np.uint32)
BF16_TABLE = np.array([half << 16 for half in range(1 << 16)], np.uint32)
KINDS = {
    "f16": (kernels.f16_to_f32, F16_TABLE, np.dtype(np.float16), "float16"),
    "bf16": (kernels.bf16_to_f32, BF16_TABLE, BFLOAT16, "bfloat16"),
}


@pytest.fixture(params=KINDS)
def kind(request):
    """Run the test for each conversion: the function, the expected bits of each pattern, the dtype, its name."""
    return KINDS[request.param]


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("order", [ALL, MIXED], ids=["in order", "mixed"])
def test_every_pattern(kind, order):
    """All 65,536 patterns become the bits that the contract names."""
    convert, table, dtype, _ = kind
    for a in (order, order.view(dtype), order.astype("<u2").tobytes()):
        result = convert(a)
        assert result.dtype == np.float32
        assert result.shape == order.shape
        assert np.array_equal(bits(result), table[order])


@pytest.mark.usefixtures("isa")
def test_every_length(kind):
    """Every length from 0 to 300 and some at the edges of large blocks, and nothing is written behind the end."""
    convert, table, _, _ = kind
    for length in (*range(301), 1023, 1024, 1025, 4095, 4097, 65535):
        out = np.full(length + 20, -7.0, np.float32)
        assert convert(MIXED[:length], out=out[:length]).shape == (length,)
        assert np.array_equal(bits(out[:length]), table[MIXED[:length]])
        assert (out[length:] == -7).all()


@pytest.mark.usefixtures("isa")
def test_threads_change_nothing(kind):
    """Any number of threads, more than there are cores too, gives the same."""
    convert, table, _, _ = kind
    order = np.tile(MIXED, 160)[:10_000_003]
    expected = table[order]
    out = np.empty(len(order) + 1, np.float32)[1:]
    for threads in (1, 2, 5, 64, 2**40, 2**70):
        out.fill(0)
        convert(order, out=out, threads=threads)
        assert np.array_equal(bits(out), expected)


def test_shapes_and_strides(kind):
    convert, table, dtype, _ = kind
    cube = MIXED[:6000].reshape(10, 20, 30)
    views = [cube, cube[::-1, 3:7, ::3], cube.T, np.asfortranarray(cube), cube[0, 0, 0], cube[:, :0]]
    views += [np.broadcast_to(cube[0, 0], (4, 30)), cube[2, 3, 4, ...]]
    for patterns in map(np.asarray, views):
        as_halves = patterns.view(dtype) if patterns.ndim else patterns.copy().view(dtype)
        swapped = np.dtype(np.uint16).newbyteorder("S")
        other_order = patterns.astype(swapped)
        for a in (patterns, as_halves, other_order, other_order.view(dtype.newbyteorder("S"))):
            result = convert(a)
            assert result.shape == patterns.shape
            assert np.array_equal(result.view(np.uint32), table[patterns])


def test_out(kind):
    """`out` is filled and returned, whatever its shape."""
    convert, table, _, _ = kind
    out = np.empty((10, 100), np.float32)
    assert convert(MIXED[:1000].reshape(10, 100), out=out) is out
    assert np.array_equal(bits(out).ravel(), table[MIXED[:1000]])


def test_overlap(kind):
    """An output that shares a byte with the input is a ValueError; neighbours are fine."""
    convert, table, _, _ = kind
    memory = np.zeros(120, np.uint8)
    memory = memory[-memory.__array_interface__["data"][0] % 4 :][:116]
    for begin in range(0, 97, 4):
        out = memory[begin : begin + 16].view(np.float32)
        memory[40:48] = ALL[1000:1004].view(np.uint8)
        if 24 < begin < 48:
            with pytest.raises(ValueError, match="overlaps"):
                convert(memory[40:48].view(np.uint16), out=out)
        else:
            assert np.array_equal(bits(convert(memory[40:48].view(np.uint16), out=out)), table[1000:1004])


def test_float32_is_rounded_to_float16_as_numpy_does():
    """All halves, midpoints and their neighbours, and too large values; any layout; without a warning."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        between = (halves + np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float32)) / 2
        exact = np.concatenate(
            [halves, between, np.nextafter(between, np.float32(0)), np.array([65519, 65520, 3e38], np.float32)]
        )
        wanted = exact.astype(np.float16)
    raw = np.frombuffer(b"." + exact.tobytes(), np.uint8)[1:].view(np.float32)  # at an odd address
    for values, rounded in ((exact, wanted), (raw, wanted), (exact[::-3], wanted[::-3]), (exact[:0], wanted[:0])):
        found = floats.in_type(values, np.dtype(np.float16))
        assert found.dtype == np.float16
        assert np.array_equal(np.isnan(found), np.isnan(rounded))
        assert found[~np.isnan(found)].tobytes() == rounded[~np.isnan(rounded)].tobytes()
    assert floats.in_type(exact, exact.dtype) is exact
