"""`look_up`: codes with scales of blocks, compared with numpy on every instruction set."""

import ml_dtypes
import numpy as np
import pytest
from tests.support import each

from weightmap.core.native import access, scans

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
# NaN with a fraction, infinity, and values that become infinite, subnormal or a tie in a half.
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, 3e-8, 1e-40, 7e4, 3e38, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11]


def definition(codes, values, scales, zeros, biases, which, blocks, dtype, factor):
    """Return the values by numpy; `blocks` has the number of the block of each element."""
    numbers = blocks if which is None else which[blocks]
    with np.errstate(all="ignore"):
        found = values[codes]
        if zeros is not None:
            found = found - zeros[numbers]
        found = found * scales[numbers] * np.float32(factor)
        return (found if biases is None else found + biases[numbers]).astype(dtype)


def packed(codes, bits, high_first):
    """Lay the codes of each row end to end in bytes."""
    if high_first:
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2))).reshape(len(codes), -1, 2)[..., ::-1]
        codes = codes.reshape(len(codes), -1)
    single = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(single.reshape(len(codes), codes.shape[1] * bits), axis=-1, bitorder="little")


@pytest.mark.usefixtures("isa")
def test_values_are_those_of_numpy():
    """Blocks of any size, odd columns, rows inside a block, padded rows, all types of values, and threads."""
    rng = np.random.default_rng(0)

    def check(case):
        rows, columns, height, width, bits, threads = case
        codes = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)
        values = rng.normal(0, 3, 1 << bits).astype(np.float32)
        before, across = height // 2, -(-columns // width)
        count = -(-(before + rows) // height) * across
        blocks = (np.arange(rows)[:, None] + before) // height * across + np.arange(columns) // width
        for numbered, zeroed, biased, turned in (
            (True, False, False, True),
            (False, True, False, False),
            (False, False, True, True),
            (True, True, True, False),
        ):
            scales = rng.normal(0, 1, 256 if numbered else count).astype(np.float32)
            places = rng.integers(0, max(scales.size, 1), scales.size // 4)
            scales[places] = rng.choice(np.array(SPECIAL, np.float32), len(places))
            zeros = rng.integers(0, 9, scales.size).astype(np.float32) if zeroed else None
            biases = rng.normal(0, 2, scales.size).astype(np.float32) if biased else None
            which = rng.integers(0, 256, count).astype(np.uint8) if numbered else None
            high_first = turned and bits == 4
            stored = packed(codes, bits, high_first)
            stored = np.pad(stored, ((0, 0), (0, 3 * numbered)))
            factor = 0.3 if biased else 1
            for dtype in DTYPES:
                out = access.empty((rows, columns), dtype)  # of whole lines, so that large ones are streamed
                scans.look_up(
                    *(stored, bits, values, scales, out),
                    height=height,
                    width=width,
                    before=before,
                    zeros=zeros,
                    biases=biases,
                    which=which,
                    factor=factor,
                    high_first=high_first,
                    threads=threads,
                )
                wanted = definition(codes, values, scales, zeros, biases, which, blocks, dtype, factor)
                np.testing.assert_array_equal(out.view(f"u{dtype.itemsize}"), wanted.view(f"u{dtype.itemsize}"))

    shapes = [(1, 1, 1, 1), (3, 7, 2, 3), (5, 64, 1, 32), (40, 33, 16, 5), (7, 9, 9, 100), (4, 0, 1, 1)]
    shapes += [(3, 96, 1, 16), (2, 1100, 1, 16), (1, 4099, 1, 64), (9, 300, 4, 128)]
    cases = [(*shape, bits, 1) for shape in shapes for bits in range(1, 9)]
    cases += [(10, 2100, 3, width, bits, 1) for bits in (1, 3, 5, 6, 7) for width in (64, 1500, 2100)]
    large = [(1200, 1024, 128, 128, 8, 4), (1200, 1024, 1, 32, 4, 4), (1, 1_100_001, 1, 64, 4, 4)]
    large += [(1200, 1024, 1, 32, 6, 4), (1, 1_100_001, 1, 67, 5, 4)]
    each([*cases, *large], check)


# The numbers of 8-bit codes in checkpoints: a kernel may compute these instead of looking them up.
NUMBERS = {
    kind: np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, kind, kind)).astype(np.float32)
    for kind in ("int8", "float8_e4m3fn", "float8_e5m2")
}


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_streamed_is_the_same(bits):
    """An output that exceeds the caches, in whole lines and beside them."""
    rng = np.random.default_rng(1)
    rows, columns = 4100, 4096
    codes = rng.integers(0, 256, (rows, columns * bits // 8), np.uint8)
    values = rng.normal(0, 1, 16).astype(np.float32) if bits == 4 else NUMBERS["float8_e4m3fn"]
    scales, memory = (
        np.ones(rows * columns // 32, np.float32),
        access.empty((rows * columns + 32,), np.dtype(np.float16)),
    )
    found = []
    for at in (0, 8):
        out = memory[at : at + rows * columns].reshape(rows, columns)
        scans.look_up(codes, bits, values, scales, out, height=1, width=32, threads=2)
        found.append(out.view(np.uint16)[::64].copy())
    both = codes if bits == 8 else np.stack([codes & 15, codes >> 4], -1).reshape(rows, columns)
    wanted = values.astype(np.float16)[both[::64]].view(np.uint16)
    for bits_of in found:
        np.testing.assert_array_equal(bits_of, wanted)


def test_what_does_not_fit_is_refused():
    """Sizes that contradict one another, numbers without a scale, and memory that overlaps."""
    codes, every, scales = np.zeros((2, 4), np.uint8), np.zeros(256, np.float32), np.ones(2, np.float32)
    out, which = np.zeros((2, 4), np.float32), np.zeros(2, np.uint8)
    nibbles = every[:16]
    same = {"height": 1, "width": 4}
    scans.look_up(codes, 8, every, scales, out, **same)
    for args, more in (
        ((codes[:1], 8, every, scales, out), same),
        ((codes[:, :1].copy(), 4, nibbles, scales, out), same),
        ((codes, 4, every, scales, out), same),
        ((codes, 5, every[:31], scales, out), same),
        ((codes[:, :2].copy(), 5, every[:32], scales, out), same),
        ((codes, 0, every[:1], scales, out), same),
        ((codes, 9, np.zeros(512, np.float32), scales, out), same),
        ((codes, 8, every, scales, out), same | {"high_first": True}),
        ((codes, 8, every, scales[:1], out), same),
        ((codes, 8, every, scales, out), same | {"zeros": scales[:1]}),
        ((codes, 8, every, scales, out), same | {"which": which[:1]}),
        ((codes, 8, every, scales, out), same | {"which": which + np.uint8(2)}),
        ((codes, 8, every, np.ones(257, np.float32), out), same | {"which": which}),
        ((codes, 8, every, scales, out), {"height": 0, "width": 4}),
        ((codes, 8, every, scales, out), {"height": 1, "width": 0}),
        ((codes, 8, every, scales, out), {"height": 2, "width": 4, "before": 2}),
        ((out.view(np.uint8)[:, :4].copy(), 8, every, out.reshape(-1)[:2], out), same),
        ((out.view(np.uint8), 8, every, scales, out), same),
    ):
        with pytest.raises(ValueError, match=r"fit together|overlaps"):
            scans.look_up(*args, **more)
