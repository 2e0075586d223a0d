"""float16 and bfloat16 to float32: every instruction set, one thread and two, beside numpy and torch with one thread.

Three cases: an output of half a mebibyte, which stays in the second-level cache with its input; one of 128 MiB, which
no cache holds, written again and again; and one of that size made for each call, which has the system clear its pages
too. The floors fill such an output with one number: the shortest way to write it, and it reads nothing. `extra_info`
holds the bytes of output and, for ours, how many times faster than the others it is, measured in turns.
"""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from benchmarks.ratios import times_faster

from weightmap import kernels

CASES = {"L2": 1 << 19, "DRAM, reused output": 1 << 27, "DRAM, fresh output": 1 << 27}  # bytes of output
KINDS = {
    "f16": (kernels.f16_to_f32, np.dtype(np.float16)),
    "bf16": (kernels.bf16_to_f32, np.dtype(ml_dtypes.bfloat16)),
}
OTHERS = ("fill", "numpy", "torch")
OURS = [*[(isa, 1) for isa in kernels.available_isas()], (kernels.isa(), 2)]


@pytest.fixture(autouse=True)
def restore():
    """Leave the instruction set as it was found."""
    before = kernels.isa()
    yield
    kernels.use_isa(before)


@pytest.fixture(params=[(kind, case) for kind in KINDS for case in CASES], ids="/".join)
def work(request):
    """Group, kind, input and output (None: a fresh one each time); tiny when nothing is timed."""
    kind, case = request.param
    n = 1 << 12 if request.config.option.benchmark_disable else CASES[case] // 4
    a = np.random.default_rng(1).standard_normal(n, np.float32).astype(KINDS[kind][1])
    return f"{kind} to f32/{case}", kind, a, None if "fresh" in case else np.ones(n, np.float32)


def other(name, kind, a, out):
    """Return the call of a rival, or of the floor; skip a rival that is not installed."""
    if name == "fill":
        return partial(out.fill, 1.0) if out is not None else lambda: np.empty(a.shape, np.float32).fill(1.0)
    if name == "numpy":
        return partial(np.copyto, out, a) if out is not None else partial(a.astype, np.float32)
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    tensor = torch.from_numpy(a.view(np.int16)).view({"f16": torch.float16, "bf16": torch.bfloat16}[kind])
    return partial(torch.from_numpy(out).copy_, tensor) if out is not None else partial(tensor.to, torch.float32)


@pytest.mark.parametrize("name", OTHERS)
def test_other(run, benchmark, work, name):
    """What others take, and the floor."""
    group, kind, a, out = work
    benchmark.extra_info["bytes"] = 4 * a.size
    run(group, "floor" if name == "fill" else "rival", other(name, kind, a, out))


@pytest.mark.parametrize(("isa", "threads"), OURS, ids=str)
def test_weightmap(run, benchmark, work, isa, threads):
    """Ours, on each instruction set, and with two threads on the best."""
    group, kind, a, out = work
    kernels.use_isa(isa)
    ours = partial(KINDS[kind][0], a, out=out, threads=threads)
    assert np.array_equal(ours(), a.astype(np.float32))
    benchmark.extra_info |= {"bytes": 4 * a.size, "variants": kernels.half_variants()}
    run(group, "ours", ours)
    if benchmark.enabled:
        for name in OTHERS:
            try:
                ratio = times_faster(ours, other(name, kind, a, out), rounds=5)
            except pytest.skip.Exception:
                continue
            benchmark.extra_info[f"times faster than {name}"] = ratio
