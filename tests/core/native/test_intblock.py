"""Decoding of quantised blocks against a definition in plain Python and numpy, on every instruction set there is."""

import itertools
import struct

import numpy as np
import pytest

import weightmap as wm
from weightmap import kernels
from weightmap.core.native import quantised

DEQUANTIZE = {4: kernels.dequantize_int4, 5: kernels.dequantize_int5}
SCALES = {"fp16": ("<e", 2), "fp32": ("<f", 4)}
STEP = {4: 2, 5: 8, 8: 1}
NAN = 0x7FC00000


def pack(codes, bits):
    stream = sum((int(q) & ((1 << bits) - 1)) << (bits * k) for k, q in enumerate(codes))
    return stream.to_bytes((bits * len(codes) + 7) // 8, "little")


def as_value(scale, q):
    with np.errstate(invalid="ignore", over="ignore"):
        product = scale.astype(np.float32) * q.astype(np.float32)
    bits = product.view(np.uint32).copy()
    bits[np.isnan(product)] = NAN
    return bits.view(np.float32)


def example(rng, n, bits, block_size, scale_type, scales=None):
    size = block_size or n
    count = -(-n // size) if block_size else 1
    form, _ = SCALES[scale_type]
    if scales is None:
        scales = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 4, count)
    scales = np.resize(np.asarray(scales, form), count)
    codes = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (count, size))
    data = b"".join(struct.pack(form, s) + pack(q, bits) for s, q in zip(scales, codes, strict=True))
    values = as_value(np.repeat(scales, size), codes.ravel())[:n]
    return data, values


def decode(data, n, bits, block_size, scale_type, **options):
    return quantised.decode_blocks(data, n, bits=bits, block_size=block_size, scale_type=scale_type, **options)


def test_examples_worked_out_by_hand(isa):
    block = struct.pack("<e", 0.5) + bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE])
    expected = [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, -4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5]
    assert kernels.dequantize_int4(block, 16, 16).tolist() == expected
    for k, q in itertools.product(range(8), range(-16, 16)):
        codes = (sum((q & 31) << (5 * j) for j in [k])).to_bytes(5, "little")
        got = kernels.dequantize_int5(struct.pack("<f", 2) + codes, 8, 8, scale_type="fp32")
        assert got.tolist() == [2 * q if j == k else 0 for j in range(8)]


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize("bits", [4, 5, 8])
def test_every_block_size_and_tail(isa, bits, scale_type):
    """Block sizes up to 72, and some beyond, with every number of elements in the last block, give each bit right."""
    rng = np.random.default_rng(bits)
    sizes = [0, *range(STEP[bits], 73, STEP[bits]), 96, 128, 256, 1000, 2048, 4096]
    for size in sizes:
        for n in {0, 1, size - 1, size, size + 1, 2 * size + size // 2, 5 * size, 5 * size + 3, 333} - {-1}:
            data, values = example(rng, n, bits, size, scale_type)
            got = decode(data, n, bits, size, scale_type)
            assert got.tobytes() == values.tobytes(), (size, n)


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize("bits", [4, 5])
def test_every_scale_of_16_bits(isa, bits, scale_type):
    patterns = np.arange(1 << 16, dtype="<u2")
    scales = patterns.view("<e") if scale_type == "fp16" else (patterns.astype("<u4") << 16 | 0x8001).view("<f")
    codes = np.arange(-(1 << (bits - 1)), 1 << (bits - 1))
    block = pack(codes, bits)
    raw = scales.view(np.uint8).reshape(len(scales), -1)
    data = np.hstack([raw, np.tile(np.frombuffer(block, np.uint8), (len(scales), 1))])
    n = len(scales) * len(codes)
    values = as_value(np.repeat(scales, len(codes)), np.tile(codes, len(scales)))
    got = decode(data, n, bits, len(codes), scale_type)
    assert np.array_equal(got.view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize(
    ("bits", "n", "size", "scale_type", "missing", "match"),
    [
        (4, 64, 32, "fp16", 1, "35, expected 36"),
        (5, 64, 32, "fp16", -1, "45, expected 44"),
        (4, 65, 32, "fp32", 4, "56, expected 60"),
        (4, 64, 0, "fp16", 0, "block_size for 4-bit codes is 0"),
        (4, 64, 33, "fp16", 0, "is 33, expected 1 to 2.* a multiple of 2"),
        (5, 64, 12, "fp16", 0, "is 12, expected 1 to 2.* a multiple of 8"),
        (5, 64, -8, "fp16", 0, "is -8"),
        (4, 64, 1 << 33, "fp16", 0, "is 8589934592"),
        (4, 64, 32, "fp64", 0, "scale_type is 'fp64', expected 'fp16' or 'fp32'"),
        (4, -1, 32, "fp16", 0, "number of elements is -1"),
        (4, 1 << 57, 32, "fp16", 0, "number of elements"),
    ],
)
def test_what_does_not_fit_is_a_quant_error(bits, n, size, scale_type, missing, match):
    width = {"fp16": 2, "fp32": 4}.get(scale_type, 2)
    blocks = -(-n // size) if 0 < size < 1 << 20 and 0 < n < 1 << 20 else 1
    data = bytes(max(0, blocks * (width + bits * max(0, min(size, 64)) // 8) - missing))
    with pytest.raises(wm.QuantError, match=match):
        DEQUANTIZE[bits](data, n, size, scale_type=scale_type)
