"""The comparison of two tensors of one type, against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weightmap.kernels import COMPARED, differing

TYPES = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": ml_dtypes.bfloat16}


def expected(a, b):
    """The number of elements whose bytes differ, the largest of their differences in float64, the sum of squares."""
    bits = f"u{a.itemsize}"
    apart = a.view(bits) != b.view(bits)
    with np.errstate(invalid="ignore"):
        distance = np.abs(a[apart].astype(np.float64) - b[apart].astype(np.float64))
    return int(apart.sum()), float(distance.max(initial=0)), float((distance**2).sum())


def same(found, wanted):
    """Whether two results are equal, sums but for the order of additions; NaN is."""
    return found[0] == wanted[0] and np.allclose(found[1:], wanted[1:], rtol=(0, 1e-13), atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", COMPARED)
@pytest.mark.parametrize("n", [0, 1, 3, 8, 1023, 1024, 1025, 5000])
def test_counts_and_distances(isa, dtype, n):
    """As numpy has them: for equal arrays, one element apart, all apart, and at any alignment."""
    rng = np.random.default_rng(n)
    a = (rng.standard_normal(n) * 10).astype(TYPES[dtype])
    for places in ([], [0], [n - 1], [n // 2], range(n)):
        b = a.copy()
        for place in places if n else ():
            b[place] = -b[place]
        raw = b"x" + b.tobytes()
        assert same(differing(a, memoryview(raw)[1:], dtype), expected(a, b))


@pytest.mark.parametrize("dtype", COMPARED)
@pytest.mark.parametrize("n", [7, 2049])
def test_odd_values(dtype, n):
    """Infinities and zeros of both signs, equal and different NaN; one NaN that differs makes the distance NaN."""
    a = np.arange(n).astype(TYPES[dtype])
    b = a.copy()
    a[1], b[1] = 0.0, -0.0
    assert differing(a, b, dtype) == (1, 0.0, 0.0)
    a[2] = b[2] = np.nan
    a[3] = b[3] = np.inf
    assert differing(a, b, dtype) == (1, 0.0, 0.0)
    b[n - 1] = np.inf
    assert differing(a, b, dtype) == (2, float("inf"), float("inf"))
    a[4], b[4] = np.inf, -np.inf
    assert differing(a, b, dtype) == (3, float("inf"), float("inf"))
    b[5] = np.nan
    assert same(differing(a, b, dtype), (4, float("nan"), float("nan")))


def test_misuse():
    """Buffers of different sizes, or of parts of elements."""
    for a, b in ((bytes(4), bytes(8)), (bytes(6), bytes(6))):
        with pytest.raises(ValueError, match="different sizes"):
            differing(a, b, "float32")
