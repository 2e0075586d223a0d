"""CRC-32: every instruction set, one thread and two, beside zlib, zlib-ng and ISA-L.

`extra_info` holds the length and, for ours, the name of the C function and how many times faster than each rival it is,
measured in turns.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from benchmarks.ratios import times_faster

from weightmap import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

SIZES = {"64KiB": 1 << 16, "1MiB": 1 << 20, "16MiB": 1 << 24, "256MiB": 1 << 28}
RIVALS = ("zlib", "zlib-ng", "isal")
SMALL = (0, 16, 64, 256, 1024, 4096)


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Leave the instruction set as it was found."""
    before = kernels.isa()
    yield
    kernels.use_isa(before)


@pytest.fixture(scope="module")
def data() -> bytes:
    """Return random bytes, as many as the longest benchmark takes."""
    return np.random.default_rng(1).integers(0, 256, max(SIZES.values()), np.uint8).tobytes()


def run(
    benchmark: BenchmarkFixture,
    group: str,
    function: Callable[..., int],
    part: memoryview,
    **options: int,
) -> None:
    """Time `function` on `part`, and hold its result for the first MiB against zlib's."""
    benchmark.group = f"crc32/{group}"
    ours = function is kernels.crc32
    benchmark.extra_info |= {"role": "ours" if ours else "rival", "bytes": len(part)}
    benchmark(function, part, **options)
    head = part[: SIZES["1MiB"]]
    assert function(head, **options) == zlib.crc32(head)
    if ours and benchmark.enabled:
        for name in RIVALS:
            benchmark.extra_info[f"times faster than {name}"] = times_faster(
                partial(function, part, **options),
                partial(rival(name), part),
            )


def rival(name: str) -> Callable[..., int]:
    """Return the crc32 of a rival, or skip when it is not installed."""
    if name == "zlib":
        return zlib.crc32
    module: Any = pytest.importorskip({"zlib-ng": "zlib_ng.zlib_ng", "isal": "isal.isal_zlib"}[name])
    function: Callable[..., int] = module.crc32
    return function


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RIVALS)
def test_rival(benchmark: BenchmarkFixture, data: bytes, name: str, size: str) -> None:
    """The libraries that others use."""
    run(benchmark, size, rival(name), memoryview(data)[: SIZES[size]])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("isa", kernels.available_isas())
def test_weightmap(benchmark: BenchmarkFixture, data: bytes, isa: str, size: str) -> None:
    """Ours, on each instruction set."""
    kernels.use_isa(isa)
    benchmark.extra_info["variant"] = kernels.crc32_variant()
    run(benchmark, size, kernels.crc32, memoryview(data)[: SIZES[size]])


@pytest.mark.parametrize("size", ["1MiB", "16MiB", "256MiB"])
def test_weightmap_two_threads(benchmark: BenchmarkFixture, data: bytes, size: str) -> None:
    """Ours, the best instruction set, two threads."""
    run(benchmark, size, kernels.crc32, memoryview(data)[: SIZES[size]], threads=2)


@pytest.mark.parametrize("length", SMALL)
@pytest.mark.parametrize("name", ["zlib", "weightmap"])
def test_small(benchmark: BenchmarkFixture, data: bytes, name: str, length: int) -> None:
    """Short inputs, where the call itself is the cost; bytes, as most callers have them."""
    benchmark.group = f"crc32/{length}B"
    function = kernels.crc32 if name == "weightmap" else zlib.crc32
    benchmark.extra_info["role"] = "ours" if name == "weightmap" else "rival"
    part = data[:length]
    assert benchmark(function, part) == zlib.crc32(part)
    if name == "weightmap" and benchmark.enabled:
        benchmark.extra_info["times faster than zlib"] = times_faster(
            partial(function, part),
            partial(zlib.crc32, part),
        )


def test_combine(benchmark: BenchmarkFixture) -> None:
    """Combining two CRCs for a length whose every bit is set."""
    benchmark.group = "crc32/combine"
    benchmark(kernels.crc32_combine, 1, 2, 2**63 - 1)
