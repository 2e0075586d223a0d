"""FNV-1a 32 of many names: every instruction set, beside fnv-hash-fast (a call a name) and plain Python."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmarks.ratios import times_faster

from weightmap import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pytest_benchmark.fixture import BenchmarkFixture

LENGTH = 51  # a usual length of a tensor's name
COUNTS = (1_000, 100_000)


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Leave the instruction set as it was found."""
    before = kernels.isa()
    yield
    kernels.use_isa(before)


def fnv1a32(data: bytes) -> int:
    """Return the hash by its definition, in plain Python."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def make(count: int, *, mixed: bool = False) -> tuple[list[bytes], bytes, NDArray[np.uint32]]:
    """Return names as separate objects, as one blob, and their lengths."""
    rng = np.random.default_rng(count)
    lengths = rng.integers(20, 61, count, np.uint32) if mixed else np.full(count, LENGTH, np.uint32)
    blob = rng.integers(97, 123, int(lengths.sum()), np.uint8).tobytes()
    ends = np.cumsum(lengths).tolist()
    return [blob[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)], blob, lengths


@pytest.mark.parametrize("count", COUNTS)
def test_python(benchmark: BenchmarkFixture, count: int) -> None:
    """Plain Python, a hundredth of the names, since it takes so long; `extra_info` says how many."""
    names, _, _ = make(count)
    part = names[: count // 100]
    benchmark.group = f"fnv1a32/{count}/python"
    benchmark.extra_info["names"] = len(part)
    benchmark(lambda: [fnv1a32(name) for name in part])


@pytest.mark.parametrize("count", COUNTS)
def test_fnv_hash_fast(benchmark: BenchmarkFixture, count: int) -> None:
    """fnv-hash-fast, a call a name, from names that are Python objects already."""
    function = pytest.importorskip("fnv_hash_fast").fnv1a_32
    names, _, _ = make(count)
    benchmark.group = f"fnv1a32/{count}"
    benchmark.extra_info |= {"role": "rival", "names": count}
    assert benchmark(lambda: [function(name) for name in names])[0] == fnv1a32(names[0])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("isa", kernels.available_isas())
def test_weightmap(benchmark: BenchmarkFixture, count: int, isa: str) -> None:
    """Ours: one call."""
    names, blob, lengths = make(count)
    kernels.use_isa(isa)
    benchmark.group = f"fnv1a32/{count}"
    benchmark.extra_info |= {"role": "ours", "names": count, "variant": kernels.fnv1a32_variant()}
    assert benchmark(kernels.fnv1a32_many, blob, lengths)[0] == fnv1a32(names[0])
    if benchmark.enabled:
        ours = partial(kernels.fnv1a32_many, blob, lengths)
        fast = pytest.importorskip("fnv_hash_fast").fnv1a_32
        some = names[:1000]
        benchmark.extra_info["times faster than fnv-hash-fast"] = times_faster(ours, lambda: [fast(n) for n in names])
        benchmark.extra_info["times faster than Python"] = round(
            times_faster(ours, lambda: [fnv1a32(name) for name in some], rounds=3) * count / len(some),
        )


@pytest.mark.parametrize("isa", kernels.available_isas())
def test_weightmap_mixed(benchmark: BenchmarkFixture, isa: str) -> None:
    """Ours: one call, names of 20 to 60 bytes."""
    names, blob, lengths = make(100_000, mixed=True)
    kernels.use_isa(isa)
    benchmark.group = "fnv1a32/100000 mixed lengths"
    assert benchmark(kernels.fnv1a32_many, blob, lengths)[0] == fnv1a32(names[0])
