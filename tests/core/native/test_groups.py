"""`decode_groups`: integers with scales and zero points of groups, compared with numpy on every instruction set."""

import ml_dtypes
import numpy as np
import pytest
from tests.support import each

from weightmap import kernels
from weightmap.core.native import scans

_MOST = 500  # rows that are packed
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, 3e-8, 1e-40, 7e4, 3e38]
SPECIAL += [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11]


def packed(codes, bits):
    found = []
    for row in codes.tolist():
        number = sum(code << position * bits for position, code in enumerate(row))
        found.append([number >> 32 * k & 0xFFFFFFFF for k in range(codes.shape[1] * bits // 32)])
    return np.array(found, np.uint32).reshape(len(codes), -1).T.copy().view(np.int32)


def packed_by_rows(codes):
    grouped = codes.T.reshape(codes.shape[1], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].astype(np.uint32)
    return (grouped << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32).view(np.int32)


def definition(codes, group, scales, zeros, dtype):
    with np.errstate(all="ignore"):
        return (scales[group].T * (codes.astype(np.float32) - zeros[group].T)).astype(dtype)


def lines(shape, dtype):
    """Return an array that begins at a multiple of 64 bytes, to which lines may be streamed."""
    memory = np.zeros(np.prod(shape) * dtype.itemsize + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][: memory.size - 64].view(dtype).reshape(shape)


def bits_of(array):
    return array.view(f"u{array.itemsize}")


@pytest.mark.parametrize("isa", kernels.available_isas())
def test_values_are_those_of_numpy(isa):
    rng = np.random.default_rng(0)

    def check(case):
        rows, columns, bits, by_rows, threads = case
        times = max(rows // _MOST, 1)  # packing takes long
        codes = rng.integers(0, 1 << bits, (rows // times, columns))
        words = np.tile(packed_by_rows(codes) if by_rows else packed(codes, bits), (1, times))
        codes = np.tile(codes, (times, 1))
        count = 5
        scales = rng.normal(0, 0.02, (count, rows)).astype(np.float32)
        places = rng.integers(0, scales.size, scales.size // 4)
        scales.reshape(-1)[places] = rng.choice(np.array(SPECIAL, np.float32), len(places))
        zeros = rng.integers(0, 1 << bits, (count, rows)).astype(np.float32)
        runs = rng.integers(0, count, columns // 32 + 1).repeat(32)[:columns]
        for group in (np.arange(columns) * count // max(columns, 1), rng.integers(0, count, columns), runs):
            numbers = group.astype(np.uint32)
            for dtype in DTYPES:
                out = lines((rows, columns), dtype)
                scans.decode_groups(words, bits, numbers, scales, zeros, out, by_rows=by_rows, threads=threads)
                wanted = definition(codes, numbers, scales, zeros, dtype)
                np.testing.assert_array_equal(bits_of(out), bits_of(wanted))

    before = kernels.isa()
    kernels.use_isa(isa)
    try:
        shapes = [(8, 32), (128, 32), (136, 64), (264, 96)]
        along = [(*shape, bits, False, 1) for shape in [*shapes, (16, 0)] for bits in range(1, 9)]
        awq = [(*shape, 4, True, 1) for shape in [*shapes, (128, 7), (256, 45)]]
        each([*along, *awq, (1280, 2048, 4, False, 4), (1280, 2056, 4, True, 4)], check)
    finally:
        kernels.use_isa(before)


def test_what_does_not_fit_is_refused():
    words, group = np.zeros((4, 8), np.int32), np.zeros(32, np.uint32)
    scales, out = np.ones((2, 8), np.float32), np.zeros((8, 32), np.float32)
    scans.decode_groups(words, 4, group, scales, scales, out)
    for args, by_rows in (
        ((words[:3], 4, group, scales, scales, out), False),
        ((words, 8, group, scales, scales, out), False),
        ((words, 5, group, scales, scales, out), False),
        ((words[:0], 0, group, scales, scales, out), False),
        ((words, 9, group, scales, scales, out), False),
        ((words, 4, group + np.uint32(2), scales, scales, out), False),
        ((words, 4, group[:31], scales, scales, out), False),
        ((words, 4, group, scales, scales[:1], out), False),
        ((words, 4, group, scales[:, :5].copy(), scales[:, :5].copy(), out), False),
        ((words, 4, group, scales, scales, out[:, :31].copy()), False),
        ((words, 3, group, scales, scales, out), True),
        ((words, 4, group, scales, scales, out[:7]), True),
        ((words, 4, group, out.reshape(-1)[:16].reshape(2, 8), scales, out), False),
        ((out.view(np.int32).reshape(-1)[:32].reshape(4, 8), 4, group, scales, scales, out), False),
    ):
        with pytest.raises(ValueError, match=r"fit together|overlaps"):
            scans.decode_groups(*args, by_rows=by_rows)
