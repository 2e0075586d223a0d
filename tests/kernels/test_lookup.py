"""`look_up`: values of codes by tables, compared with numpy's indexing."""

import numpy as np
import pytest
from tests.support import each

from weightmap import kernels


def definition(codes, bits, which, height, width, tables, shape):
    rows, columns = shape
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(rows, -1)[:, :columns]
    numbers = which[np.arange(rows)[:, None] // height, np.arange(columns) // width]
    return tables[numbers, codes]


def test_values_are_those_of_the_tables():
    rng = np.random.default_rng(0)

    def check(case):
        rows, columns, height, width, bits, dtype, threads = case
        codes = rng.integers(0, 256, (rows, columns if bits == 8 else -(-columns // 2))).astype(np.uint8)
        tables = rng.integers(0, 2**16, (9, 1 << bits)).astype(dtype)
        which = rng.integers(0, 9, (-(-rows // height), -(-columns // width))).astype(np.uint32)
        out = np.zeros((rows, columns), dtype)
        kernels.look_up(codes, bits, which, height, width, tables, out, threads=threads)
        wanted = definition(codes, bits, which, height, width, tables, (rows, columns))
        np.testing.assert_array_equal(out, wanted)

    shapes = [(1, 1, 1, 1), (3, 7, 2, 3), (5, 64, 1, 32), (40, 33, 16, 5), (7, 9, 9, 100), (4, 0, 1, 1)]
    cases = [(*shape, bits, dtype, 1) for shape in shapes for bits in (4, 8) for dtype in (np.uint16, np.uint32)]
    each([*cases, (2000, 1500, 128, 128, 8, np.uint16, 4), (2000, 1500, 1, 32, 4, np.uint16, 4)], check)


def test_what_does_not_fit_is_refused():
    """Sizes that contradict one another, numbers without a table, and memory that overlaps."""
    codes, tables = np.zeros((2, 4), np.uint8), np.zeros((3, 256), np.uint16)
    which, out = np.zeros((2, 1), np.uint32), np.zeros((2, 4), np.uint16)
    kernels.look_up(codes, 8, which, 1, 4, tables, out)
    for bad in (
        (codes[:1], 8, which, 1, 4, tables, out),
        (codes, 4, which, 1, 4, tables, out),
        (codes, 5, which, 1, 4, tables, out),
        (codes, 8, which[:1], 1, 4, tables, out),
        (codes, 8, which + np.uint32(3), 1, 4, tables, out),
        (codes, 8, which, 0, 4, tables, out),
        (codes, 8, which, 1, 0, tables, out),
        (codes, 8, which, 1, 4, tables[:, :200].copy(), out),
        (out.view(np.uint8)[:, :4].copy(), 8, which, 1, 4, out.view(np.uint8), out),
    ):
        with pytest.raises(ValueError, match=r"fit together|overlaps"):
            kernels.look_up(*bad)
