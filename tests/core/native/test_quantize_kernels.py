"""Quantisation: codes against their definition, errors against plain scales, blocks of different kinds."""

import numpy as np
import pytest
from tests.core.native import scale_search

import weightmap as wm
from weightmap import kernels
from weightmap.core.native import quantised

QUANTIZE = {4: kernels.quantize_int4, 5: kernels.quantize_int5}
SCALES = {"fp16": "<f2", "fp32": "<f4"}
WIDTH = {0: 4, 1: 5, 2: 16}


def gaussian(n, seed=1):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def unpack(data, bits, count):
    """Fields of `bits` bits, two's complement, the first in the lowest bits of byte 0."""
    flat = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: bits * count].reshape(count, bits)
    q = (flat.astype(np.int64) << np.arange(bits)).sum(1)
    return np.where(q >= 1 << (bits - 1), q - (1 << bits), q)


def adaptive_counts(data, n, block_size, **options):
    five, half = quantised.adaptive_plan(data, n, block_size, **options)[:2].tolist()
    return -(-n // block_size) - five - half, five, half


def parse(data, n, bits, size, scale_type):
    dtype = np.dtype(SCALES[scale_type])
    width = dtype.itemsize + (bits * size + 7) // 8
    blocks = np.frombuffer(data, np.uint8).reshape(-(-n // size), width)
    scales = np.ascontiguousarray(blocks[:, : dtype.itemsize]).view(dtype).ravel()
    codes = [unpack(block[dtype.itemsize :].tobytes(), bits, size) for block in blocks]
    return scales, np.array(codes).reshape(len(blocks), size)


def nearest(x, scale, bits):
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        q = np.rint(np.float32(x) / np.float32(scale)) if scale else np.zeros(len(x))
    return np.clip(q, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize("bits", [4, 5])
def test_codes_are_the_nearest_to_their_scale(isa, bits, scale_type):
    """Every stored scale is finite and each code is the nearest to its value; missing elements are 0."""
    for size, n, factor in ((32, 1000, 1), (8, 77, 1e-6), (40, 801, 1e4), (512, 2000, 1), (128, 1, -1)):
        x = gaussian(n) * np.float32(factor)
        scales, codes = parse(QUANTIZE[bits](x, size, scale_type=scale_type), n, bits, size, scale_type)
        assert np.isfinite(scales).all()
        padded = np.concatenate([x, np.zeros(len(codes) * size - n, np.float32)]).reshape(codes.shape)
        for block, scale, q in zip(padded, scales, codes, strict=True):
            assert np.array_equal(q, nearest(block, scale, bits))


@pytest.mark.parametrize("bits", [4, 5])
def test_the_same_bytes_everywhere(bits):
    x = gaussian(70_001)
    x[:3000] *= 1e-20
    x[5000:6000] *= 1e18
    found = set()
    before = kernels.isa()
    for name in kernels.available_isas():
        kernels.use_isa(name)
        for threads in (1, 3):
            parts = [quantised.encode_blocks(x, bits=bits, block_size=size, threads=threads) for size in (0, 32, 1024)]
            found.add(b"".join(part.tobytes() for part in parts))
    kernels.use_isa(before)
    assert len(found) == 1


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize(("bits", "size"), [(4, 8), (4, 32), (5, 32), (5, 256), (4, 264), (4, 6)])
def test_a_block_does_not_depend_on_its_neighbours(isa, bits, size, scale_type):
    """Sixteen blocks are searched at once: each gets the same bytes as alone, whatever lies beside it."""
    x = gaussian(size * 37).reshape(-1, size)
    x[1::7] *= np.float32(1e-6)  # scales that are subnormal as float16
    x[2::7] *= np.float32(1e-30)
    x[3::7] *= np.float32(1e25)
    x[4::7] = np.round(x[4::7] * 3)
    x[5::7, 1:] = 0
    x[6] = 0
    together = quantised.encode_blocks(x, bits=bits, block_size=size, scale_type=scale_type)
    alone = [quantised.encode_blocks(block, bits=bits, block_size=size, scale_type=scale_type) for block in x]
    assert together.tobytes() == b"".join(part.tobytes() for part in alone)


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize("bits", [4, 5])
@pytest.mark.parametrize("kind", scale_search.KINDS)
def test_no_block_is_worse_than_by_exhaustive_search(kind, bits, scale_type):
    for size, count in ((32, 1000), (64, 200), (128, 100)):
        x = scale_search.blocks(kind, count, size)
        data = quantised.encode_blocks(x, bits=bits, block_size=size, scale_type=scale_type)
        back = quantised.decode_blocks(data, x.size, bits=bits, block_size=size, scale_type=scale_type)
        ours = ((x.astype(np.float64) - back.reshape(x.shape)) ** 2).sum(1)
        exhaustive = scale_search.least_errors(x, bits, scale_type)
        assert (ours <= exhaustive * 1.001 + 2.0**-22 * (x.astype(np.float64) ** 2).sum(1)).all()


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize("bits", [4, 5, 8])
def test_zeros_and_multiples_are_exact(isa, bits, scale_type):
    low = -(1 << (bits - 1))
    q = np.arange(low, -low, dtype=np.float32)
    smallest = 2.0**-24 if scale_type == "fp16" else 2.0**-149
    units = [0.0, 1.0, -0.5, 3 * smallest, smallest, 0.09997558593750]
    x = np.array([unit * q for unit in units], np.float32)
    data = quantised.encode_blocks(x, bits=bits, block_size=len(q), scale_type=scale_type)
    got = quantised.decode_blocks(data, x.size, bits=bits, block_size=len(q), scale_type=scale_type)
    assert np.array_equal(got, x.ravel())
    zeros = quantised.encode_blocks(-np.zeros(len(q)), bits=bits, block_size=len(q), scale_type=scale_type)
    assert not zeros.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("index", [0, 31, 1023, 1024, 4999])
def test_what_is_not_finite_is_named(value, index):
    x = gaussian(5000)
    x[index] = value
    x[4999] = value
    for function in (kernels.quantize_int4, kernels.quantize_int5, quantised.quantize_adaptive):
        with pytest.raises(wm.QuantError, match=f"element {index} is -?(nan|inf)"):
            function(x, 32)
    with pytest.raises(wm.QuantError, match=r"element 1 is 1e\+300"):
        kernels.quantize_int4(np.array([1, 1e300]), 2)


def assemble(kinds, size, scale_type, seed=3, odd=()):
    rng = np.random.default_rng(seed)
    mask = sum(kind << 2 * i for i, kind in enumerate(kinds)).to_bytes(-(-len(kinds) // 4), "little")
    scales, codes, values = b"", b"", []
    for number, kind in enumerate(kinds):
        if kind == 2:
            block = rng.standard_normal(size).astype("<f2")
            codes += block.tobytes()
            values.append(block.astype(np.float32))
            continue
        bits = WIDTH[kind]
        scale = np.array(rng.standard_normal(), SCALES[scale_type])
        if number in odd:
            scale[...] = (np.inf, -np.inf, np.nan)[number % 3]
        q = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), size)
        stream = sum((int(c) & ((1 << bits) - 1)) << (bits * k) for k, c in enumerate(q))
        scales += scale.tobytes()
        codes += stream.to_bytes(bits * size // 8, "little")
        with np.errstate(invalid="ignore"):
            products = scale.astype(np.float32) * q.astype(np.float32)
        values.append(np.where(np.isnan(products), np.float32(np.nan), products))
    return mask + scales + codes, np.concatenate(values) if values else np.zeros(0, np.float32)


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize("size", [8, 32, 72, 128])
def test_decoding_of_different_kinds(isa, size, scale_type):
    rng = np.random.default_rng(size)
    for blocks in (0, 1, 3, 4, 5, 33, 100):
        kinds = np.sort(rng.integers(0, 3, blocks)) if blocks == 33 else rng.integers(0, 3, blocks)
        data, values = assemble(kinds.tolist(), size, scale_type)
        n = max(0, blocks * size - (blocks % 7))
        options = {"scale_type": scale_type, "threads": 2}
        assert quantised.decode_adaptive(data, n, size, **options).tobytes() == values[:n].tobytes()
        assert adaptive_counts(data, n, size, scale_type=scale_type) == tuple(np.bincount(kinds, minlength=3))
        for start in range(0, n, 1 + n // 40):
            for stop in {start, min(n, start + 5), min(n, start + 3 * size), n}:
                got = quantised.decode_adaptive(data, n, size, start=start, stop=stop, **options)
                assert got.tobytes() == values[start:stop].tobytes()
        half = quantised.decode_adaptive(data, n, size, out=np.empty(n, np.float16), **options)
        assert half.tobytes() == values[:n].astype(np.float16).tobytes()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda data: data[:-1], r"size of the data is 33, expected 34 by its mask"),
        (lambda data: data + b"\0", r"size of the data is 35"),
        (lambda data: b"", r"size of the data is 0, expected 1"),
        (lambda data: bytes([data[0] | 0x0C]) + data[1:], r"kind of block 1 is 3, expected 0, 1 or 2"),
        (lambda data: bytes([data[0] | 0x40]) + data[1:], r"last byte of the mask of 3 blocks is 0x64, expected 0"),
        (lambda data: bytes([0]) + data[1:], r"expected 25 by its mask"),
    ],
)
def test_damaged_adaptive_data(damage, match):
    wrong = damage(assemble([0, 1, 2], 8, "fp32")[0])  # 1 + 2 * 4 + 4 + 5 + 16 bytes
    for call in (quantised.decode_adaptive, adaptive_counts):
        with pytest.raises(wm.QuantError, match=match):
            call(wrong, 24, 8, scale_type="fp32")
