"""The comparison of two tensors of one type, against numpy."""

import errno
import os

import ml_dtypes
import numpy as np
import pytest

from weightmap.core.native.access import Failed
from weightmap.core.native.files import COMPARED, FileComparer, differing

TYPES = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": ml_dtypes.bfloat16}


def expected(a, b):
    """The number of elements whose bytes differ, the largest of their differences in float64, the sum of squares."""
    bits = f"u{a.itemsize}"
    apart = a.view(bits) != b.view(bits)
    with np.errstate(invalid="ignore"):
        distance = np.abs(a[apart].astype(np.float64) - b[apart].astype(np.float64))
    return int(apart.sum()), float(distance.max(initial=0)), float((distance**2).sum())


def same(found, wanted):
    """Whether two results are equal, NaN too, sums up to the order of additions."""
    exact = np.array_equal(found[:2], wanted[:2], equal_nan=True)
    return exact and np.allclose(found[2], wanted[2], rtol=1e-13, atol=0, equal_nan=True)


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


@pytest.mark.parametrize("dtype", COMPARED)
@pytest.mark.parametrize("threads", [1, 3])
def test_tensors_of_files(tmp_path, dtype, threads):
    """Many tensors in a call, of one element up to many pieces, at any place: each has what `differing` returns."""
    rng = np.random.default_rng(1)
    sizes = np.array([1, 3, 4096, 1_300_001, 9, 5_000_000])
    a = (rng.standard_normal(sizes.sum()) * 10).astype(TYPES[dtype])
    b = a.copy()
    b[4:1_000_000:3] += b.dtype.type(1)
    b[-2] = np.nan
    for path, array, before in (("a", a, b""), ("b", b, b"xyz")):
        (tmp_path / path).write_bytes(before + array.tobytes())
    ends = np.cumsum(sizes)
    begins = ends - sizes
    files = os.open(tmp_path / "a", os.O_RDONLY), os.open(tmp_path / "b", os.O_RDONLY)
    try:
        offsets = begins * a.itemsize + np.array([[0], [3]])
        found = FileComparer(threads)(files, offsets, sizes, dtype)
        with pytest.raises(Failed) as caught:
            FileComparer(threads)(files, np.add(offsets, [[0], [a.itemsize]]), sizes, dtype)
        assert (caught.value.what, caught.value.at, caught.value.error) == ("read other", 3 + a.nbytes, 0)
        with pytest.raises(Failed) as caught:
            FileComparer(threads)((files[1] + 100, files[1]), offsets, sizes, dtype)
        assert (caught.value.what, caught.value.at, caught.value.error) == ("read", 0, errno.EBADF)
    finally:
        for file in files:
            os.close(file)
    for one, begin, end in zip(found, begins, ends, strict=True):
        assert same(one, expected(a[begin:end], b[begin:end]))
