"""Quantised blocks: decoding beside gguf-py, and the error of our int4 and int5 beside that of ggml's Q4_0 and Q5_0.

Decoding has two cases: an output of half a mebibyte, which stays in the second-level cache with its input, and one of
128 MiB, which no cache holds, written again and again. The floor fills such an output with one number: the shortest
way to write it, and it reads nothing. bitsandbytes decodes nf4, a code book of sixteen numbers. gguf-py decodes Q4_0
and Q5_0: blocks of 32 with a float16 scale, and so of the same size as ours. `extra_info` holds the bytes of output and
how many times faster than the others ours is, measured in turns.

The errors are root mean squares, over numbers drawn from a normal distribution and over the matrices of
all-MiniLM-L6-v2 where it is installed. They are printed side by side (``pytest -s``) and kept in `extra_info`, with
their ratio to those of gguf-py, which quantises as ggml does.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from benchmarks.ratios import times_faster

import weightmap as wm
from weightmap import kernels
from weightmap.demo import find_checkpoint

CASES = {"L2": 1 << 19, "DRAM, reused output": 1 << 27}  # bytes of output
DEQUANTIZE = {4: kernels.dequantize_int4, 5: kernels.dequantize_int5}
QUANTIZE = {4: kernels.quantize_int4, 5: kernels.quantize_int5}
OURS = [*[(isa, 1) for isa in kernels.available_isas()], (kernels.isa(), 2)]
BLOCK = 32  # ggml's


@pytest.fixture(autouse=True)
def restore():
    """Leave the instruction set as it was found."""
    before = kernels.isa()
    yield
    kernels.use_isa(before)


@pytest.fixture(params=[(bits, size, case) for bits in DEQUANTIZE for size in (BLOCK, 128) for case in CASES], ids=str)
def work(request):
    """Group, bits, block size, random blocks of finite scales, and output; tiny when nothing is timed."""
    bits, size, case = request.param
    n = 1 << 12 if request.config.option.benchmark_disable else CASES[case] // 4
    blocks = np.random.default_rng(1).integers(0, 256, (n // size, 2 + bits * size // 8), np.uint8)
    blocks[:, 1] &= 0x3F
    return f"int{bits} blocks of {size} to f32/{case}", bits, size, blocks, np.ones(n, np.float32)


def gguf_types():
    """Return gguf-py and its types of 4 and 5 bits, or skip when it is not installed."""
    gguf = pytest.importorskip("gguf")
    return gguf, {4: gguf.GGMLQuantizationType.Q4_0, 5: gguf.GGMLQuantizationType.Q5_0}


def other(name, bits, size, out):
    """Return the call of a rival, or of the floor; skip a rival that is not installed or has no such blocks."""
    if name == "fill":
        return partial(out.fill, 1.0)
    if name == "bitsandbytes":
        return bitsandbytes(bits, size, out)
    gguf, types = gguf_types()
    if size != BLOCK:
        pytest.skip("gguf-py has these types in blocks of 32")
    raw = np.random.default_rng(1).integers(0, 256, (out.size // BLOCK, 2 + bits * BLOCK // 8), np.uint8)
    raw[:, 1] &= 0x3F
    return partial(gguf.dequantize, raw, types[bits])


def bitsandbytes(bits, size, out):
    """Return the call that decodes nf4, a code book of 4 bits, in blocks of the same size, with one thread."""
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes.functional")
    if bits != 4 or size == BLOCK:
        pytest.skip("bitsandbytes has 4 bits, in blocks of 64 and more")
    torch.set_num_threads(1)
    packed, state = functional.quantize_4bit(torch.randn(out.size), blocksize=size, quant_type="nf4")
    return partial(functional.dequantize_4bit, packed, state)


@pytest.mark.parametrize("name", ["fill", "gguf-py", "bitsandbytes"])
def test_other(run, benchmark, work, name):
    """What the other takes, and the floor."""
    group, bits, size, _, out = work
    benchmark.extra_info["bytes"] = out.nbytes
    call = other(name, bits, size, out)
    run(group, "floor" if name == "fill" else "rival", call, rounds=3 if out.nbytes > 1 << 24 else None)


@pytest.mark.parametrize(("isa", "threads"), OURS, ids=str)
def test_weightmap(run, benchmark, work, isa, threads):
    """Ours, on each instruction set, and with two threads on the best."""
    group, bits, size, blocks, out = work
    kernels.use_isa(isa)
    ours = partial(DEQUANTIZE[bits], blocks, out.size, size, out=out, threads=threads)
    assert ours() is out
    benchmark.extra_info |= {"bytes": out.nbytes, "variant": kernels.intblock_variant()}
    run(group, "ours", ours, rounds=7 if out.nbytes > 1 << 24 else None)
    if benchmark.enabled:
        for name in ("fill", "gguf-py", "bitsandbytes"):
            try:
                rival = other(name, bits, size, out)
            except pytest.skip.Exception:
                continue
            benchmark.extra_info[f"times faster than {name}"] = times_faster(ours, rival, rounds=3)


def weights(name, *, small):
    """Return the float32 arrays whose error is measured, or skip when they are not installed."""
    if name == "normal":
        return [np.random.default_rng(2).standard_normal((1 << 10 if small else 1 << 20, 8), np.float32)]
    checkpoint = find_checkpoint()
    if checkpoint is None:
        pytest.skip("all-MiniLM-L6-v2 is not installed")
    with wm.open(checkpoint / "model.safetensors") as model:
        arrays = [
            np.array(model[key], np.float32) for key in model if model[key].dtype == np.float32 and model[key].ndim == 2
        ]
    return arrays[-2:] if small else arrays


def rms(arrays, decode):
    """Return the root mean square of the errors of arrays that were quantised and decoded."""
    squares = sum(float(np.square(a.ravel() - decode(a), dtype=np.float64).sum()) for a in arrays)
    return (squares / sum(a.size for a in arrays)) ** 0.5


@pytest.mark.parametrize("name", ["normal", "MiniLM"])
@pytest.mark.parametrize("bits", [4, 5])
def test_error(benchmark, request, bits, name):
    """Our error is smaller than ggml's at the same bits for each weight; timed is the largest array's quantisation."""
    arrays = weights(name, small=request.config.option.benchmark_disable)

    def ours(a):
        return DEQUANTIZE[bits](QUANTIZE[bits](a, BLOCK, threads=2), a.size, BLOCK)

    benchmark.group = f"int{bits} from f32/{name}"
    largest = max(arrays, key=lambda a: a.size)
    benchmark.extra_info |= {"role": "ours", "rms error": rms(arrays, ours), "bytes": largest.nbytes}
    benchmark.pedantic(QUANTIZE[bits], (largest, BLOCK), rounds=1)
    gguf, types = gguf_types()
    theirs = rms(
        arrays, lambda a: gguf.dequantize(gguf.quantize(a.reshape(-1, BLOCK), types[bits]), types[bits]).ravel()
    )
    ratio = benchmark.extra_info["rms error"] / theirs
    benchmark.extra_info |= {"rms error of gguf-py": theirs, "ratio": ratio}
    figures = f"{benchmark.extra_info['rms error']:.6g}, gguf-py {theirs:.6g}, ratio {ratio:.4f}"
    print(f"\nrms error of int{bits}, {name}: {figures}")  # noqa: T201 - the comparison is what this is for
    assert ratio < 1
