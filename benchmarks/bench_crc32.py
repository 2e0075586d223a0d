"""CRC-32 by length: every instruction set, one thread and two, against zlib, zlib-ng, ISA-L and reading alone."""

from __future__ import annotations

import zlib
from functools import partial

import numpy as np
import pytest

import limits
from timing import AVX2, EVERY_ISA, Timed, each_contender, need, ours, rival
from weightmap import kernels
from weightmap.core.native import access

# Short inputs are `bytes`, as most callers have them; the call is their cost.
SHORT = {f"{n} B": n for n in (0, 1, 8, 16, 32, 64, 128, 256, 512)} | {f"{n} KiB": n << 10 for n in (1, 2, 4)}
MIDDLE = {"16 KiB": 1 << 14, "64 KiB": 1 << 16, "256 KiB": 1 << 18}
LONG = {"1 MiB": 1 << 20, "16 MiB": 1 << 24, "1 GiB": 1 << 30}
BLOCK = 1 << 24


def call(function, data, **options):
    """Return the clock of a checksum, after checking its result."""
    head = data[:BLOCK]
    assert function(head, **options) == zlib.crc32(head)
    return Timed(partial(function, data, **options))


def weightmap(data, threads=1):
    """Return ours."""
    clock = call(kernels.crc32, data, **({"threads": threads} if threads > 1 else {}))
    clock.info["variant"] = access.variant("crc32")
    return clock


RIVALS = {
    "zlib": rival(partial(call, zlib.crc32)),
    "zlib-ng": rival(lambda data: call(need("zlib_ng.zlib_ng").crc32, data)),
    "isal": rival(lambda data: call(need("isal.isal_zlib").crc32, data)),
}
ONE_THREAD = ours(weightmap, isas=EVERY_ISA) | RIVALS
ALL = ONE_THREAD | limits.of(limits.READ, lambda data: data)
THREADS = (
    ALL
    | ours(partial(weightmap, threads=2), "weightmap, 2 threads", isas=AVX2, threads=2)
    | limits.of(limits.READ, lambda data: data, (2,))
)


@pytest.fixture(scope="module")
def data(request, smoke):
    """Return random bytes in huge pages, enough for the largest group: the same 16 MiB repeated."""
    wanted = {item.callspec.params["group"] for item in request.session.items if item.path == request.path}
    most = max((LONG.get(group.partition("/")[2], 0) for group in wanted), default=0) if not smoke else 0
    whole = limits.memory(max(most, BLOCK))
    block = np.random.default_rng(1).integers(0, 256, BLOCK, np.uint8)
    for start in range(0, len(whole), BLOCK):
        whole[start : start + BLOCK] = block[: len(whole) - start]
    return whole


CHECKSUMS = {
    f"crc32/{size}": contenders
    for sizes, contenders in ((SHORT, ONE_THREAD), (MIDDLE, ALL), (LONG, THREADS))
    for size in sizes
}


@each_contender(CHECKSUMS)
def test_crc32(compare, data, group, who):
    """Checksum this many bytes."""
    size = group.partition("/")[2]
    given = data[: SHORT[size]].tobytes() if size in SHORT else data[: (MIDDLE | LONG)[size]]
    compare(CHECKSUMS, given, nbytes=len(given))


COMBINE = {"crc32/combine": ours(lambda: Timed(partial(kernels.crc32_combine, 1, 2, 2**63 - 1)))}
GROUPS = CHECKSUMS | COMBINE


@each_contender(COMBINE)
def test_combine(compare, group, who):
    """Combine two CRCs for a length with all bits set."""
    compare(COMBINE)
