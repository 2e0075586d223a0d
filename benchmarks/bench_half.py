"""float16 and bfloat16 to float32: every instruction set, one thread and two, against numpy and torch with one.

The output fits into the second-level cache with its input, or into none, and every call overwrites it; a fresh output
also costs the system's clearing of pages. One limit writes as many bytes, another also reads half as many.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import limits
from timing import AVX2, EVERY_ISA, Timed, each_contender, limit, need, ours, rival
from weightmap import kernels
from weightmap.core.native import access

CASES = {"L2": 1 << 19, "DRAM": 1 << 26, "DRAM, fresh output": 1 << 26}  # bytes of output
PLACES = {"L2": 9, "DRAM": 3}  # how many the work lies in: the caches of physical addresses tell them apart
KINDS = {
    "f16": (kernels.f16_to_f32, np.dtype(np.float16)),
    "bf16": (kernels.bf16_to_f32, np.dtype(ml_dtypes.bfloat16)),
}


class Work(NamedTuple):
    """Input and output; None as output makes a fresh one for each call."""

    kind: str
    array: np.ndarray
    out: np.ndarray | None


@cache
def numbers(kind, n):
    """Return `n` normally distributed numbers."""
    return np.random.default_rng(1).standard_normal(n, np.float32).astype(KINDS[kind][1])


def weightmap(work, threads=1):
    """Return ours."""
    function = partial(KINDS[work.kind][0], work.array, out=work.out, threads=threads)
    assert np.array_equal(function(), work.array.astype(np.float32))
    return Timed(function, variants=(access.variant("f16_to_f32"), access.variant("bf16_to_f32")))


def by_numpy(work):
    """Return numpy's conversion, for bfloat16 ml_dtypes'."""
    if work.out is None:
        return Timed(partial(work.array.astype, np.float32))
    return Timed(partial(np.copyto, work.out, work.array))


def by_torch(work):
    """Return torch's conversion, with one thread."""
    torch: Any = need("torch")
    torch.set_num_threads(1)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[work.kind]
    tensor = torch.from_numpy(work.array.view(np.int16)).view(dtype)
    if work.out is None:
        return Timed(partial(tensor.to, torch.float32))
    return Timed(partial(torch.from_numpy(work.out).copy_, tensor))


OTHERS = {"numpy": rival(by_numpy), "torch": rival(by_torch)}
BOTH = (
    ours(weightmap, isas=EVERY_ISA)
    | ours(partial(weightmap, threads=2), "weightmap, 2 threads", isas=AVX2, threads=2)
    | OTHERS
)
REUSED = (
    BOTH
    | limits.of(limits.WRITE, lambda work: work.out, (1, 2))
    | {
        f"limit: {limits.WIDEN}{suffix}": limit(
            partial(lambda work, count: limits.loop(limits.WIDEN, work.out, count, work.array), count=count), count
        )
        for count, suffix in {1: "", 2: ", 2 threads"}.items()
    }
)
FRESH = BOTH | {
    f"limit: get memory and {kind} it": limit(
        partial(lambda work, on: limits.fresh(2 * work.array.nbytes, streaming=on), on=on)
    )
    for kind, on in {"write": False, "write, non-temporal,": True}.items()
}
GROUPS = {f"{kind} to f32/{case}": FRESH if "fresh" in case else REUSED for kind in KINDS for case in CASES}


@each_contender(GROUPS)
def test_widening(compare, smoke, group, who):
    """Convert to float32."""
    kind, case = group.split(" to f32/")
    n = 1 << 12 if smoke else CASES[case] // 4

    def work():
        out = None if "fresh" in case else limits.memory(4 * n).view(np.float32)
        return Work(kind, limits.memory_of(numbers(kind, n)), out)

    compare(GROUPS, work, nbytes=4 * n, places=PLACES.get(case, 1))
