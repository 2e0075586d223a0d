"""Quantised blocks: decoding by size, and the errors of our int4 and int5 against ggml's Q4_0 and Q5_0.

The output fits into the second-level cache with its input, or into none, and every call overwrites it.
It begins on a page, but that of "np.empty", which numpy begins 16 bytes into a cache line. The limit writes as many
bytes. gguf-py decodes Q4_0 and Q5_0: blocks of 32 with a float16 scale, of the same size as ours. bitsandbytes decodes
nf4, a code book of sixteen numbers, in blocks of 64; onnxruntime integers of 4 bits in blocks of 64 with a float32
scale. "torch operations" decodes with torch alone.

The errors are root mean squares over normally distributed numbers, and over the matrices of all-MiniLM-L6-v2 where it
is installed. `extra_info` has them and their ratio to gguf-py's.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

import limits
import weightmap as wm
from minilm import find_checkpoint
from timing import AVX2, EVERY_ISA, Timed, each_contender, need, ours, rival
from weightmap import kernels
from weightmap.core.native import access, quantised

# Bytes of output.
CASES = {"L2": 1 << 19, "DRAM": 1 << 26}
PLACES = {"L2": 9, "DRAM": 3}  # how many the work lies in: the caches of physical addresses tell them apart
DEQUANTIZE = {4: kernels.dequantize_int4, 5: kernels.dequantize_int5}
QUANTIZE = {4: kernels.quantize_int4, 5: kernels.quantize_int5}
BLOCK = 64
GGML = 32  # the block of Q4_0 and Q5_0


class Work(NamedTuple):
    """The bits of a code (0 for mixed blocks), an output, and a place for the blocks made so far."""

    bits: int
    out: np.ndarray
    made: dict

    def once(self, make, *args):
        """Return make(*args), the same for all contenders: another copy may lie worse in the caches."""
        if (make, args) not in self.made:
            self.made[make, args] = make(*args)
        return self.made[make, args]


def blocks(bits, size, n):
    """Return random blocks of `size` elements with finite float16 scales."""
    raw = np.random.default_rng(1).integers(0, 256, (n // size, 2 + bits * size // 8), np.uint8)
    raw[:, 1] &= 0x3F
    return limits.memory_of(raw)


def mixed_blocks(size, n):
    """Return random blocks of int4, int5 and float16, half of them int4, and their decoding plan."""
    kinds = np.random.default_rng(1).choice(3, n // size, p=[0.5, 0.35, 0.15]).astype(np.uint8)
    four, five, half = np.bincount(kinds, minlength=3).tolist()
    pairs = kinds.reshape(-1, 4)
    mask = pairs[:, 0] | pairs[:, 1] << 2 | pairs[:, 2] << 4 | pairs[:, 3] << 6
    scales = np.full(four + five, 0.01, np.float16).view(np.uint8)
    codes = np.random.default_rng(2).integers(
        0, 60, four * size // 2 + five * size * 5 // 8 + half * 2 * size, np.uint8
    )
    raw = limits.memory_of(np.concatenate([mask, scales, codes]))
    return raw, quantised.adaptive_plan(raw, n, size)


def weightmap(work, bits=None, size=BLOCK, threads=1, *, empty=False):
    """Return ours; with `empty`, into an array of np.empty."""
    bits = work.bits if bits is None else bits
    out = np.empty(work.out.shape, work.out.dtype) if empty else work.out
    out[...] = 0
    if bits:
        raw = work.once(blocks, bits, size, out.size)
        options = {"bits": bits, "block_size": size, "scale_type": "fp16", "out": out, "threads": threads}
        function = partial(quantised.decode_blocks, raw, out.size, **options)
    else:
        raw, plan = work.once(mixed_blocks, size, out.size)
        function = partial(quantised.decode_adaptive, raw, out.size, size, out=out, threads=threads, plan=plan)
    assert function() is out
    return Timed(function, variant=access.variant("intblock"), begins=f"{out.ctypes.data % 64} bytes into a line")


def gguf_types():
    """Return gguf-py and its types of 4 and 5 bits, or skip when it is not installed."""
    gguf = need("gguf")
    return gguf, {4: gguf.GGMLQuantizationType.Q4_0, 5: gguf.GGMLQuantizationType.Q5_0}


def by_gguf(work):
    """Return gguf-py's decoder, which uses numpy."""
    gguf, types = gguf_types()
    return Timed(partial(gguf.dequantize, work.once(blocks, work.bits, GGML, work.out.size), types[work.bits]))


def nf4(n):
    """Return bitsandbytes' functions, and n codes of 4 bits; with one thread."""
    torch, functional = need("torch"), need("bitsandbytes.functional")
    torch.set_num_threads(1)
    return functional, functional.quantize_4bit(torch.randn(1, n), blocksize=BLOCK, quant_type="nf4")


def by_bitsandbytes(work):
    """Return the public decoder of nf4, which makes a fresh tensor."""
    functional, (packed, state) = nf4(work.out.size)
    return Timed(partial(functional.dequantize_4bit, packed, state))


def by_bitsandbytes_kernel(work):
    """Return its C function, which is not public, to write into the same output."""
    functional, (packed, state) = nf4(work.out.size)
    kernel = need("bitsandbytes.backends.cpu.ops").lib.cdequantize_blockwise_cpu_nf4_fp32
    addresses = packed.data_ptr(), state.absmax.data_ptr(), work.out.ctypes.data
    arguments = [*map(ctypes.c_void_p, addresses), *map(ctypes.c_longlong, (BLOCK, 1, work.out.size))]
    kernel(*arguments)
    assert np.array_equal(work.out, functional.dequantize_4bit(packed, state).numpy()[0])

    def call(_keep=(packed, state, work.out)):
        kernel(*arguments)

    return Timed(call)


def by_torch(work):
    """Return decoding with torch operations: mask, shift, stack, multiply; with one thread."""
    torch = need("torch")
    torch.set_num_threads(1)
    codes = torch.randint(0, 256, (work.out.size // BLOCK, BLOCK // 2), dtype=torch.uint8)
    scales = torch.rand(work.out.size // BLOCK, 1, dtype=torch.float16)

    def decode():
        low, high = (codes & 15).to(torch.int8) - 8, (codes >> 4).to(torch.int8) - 8
        return torch.stack([low, high], dim=-1).reshape(len(codes), BLOCK).to(torch.float32) * scales.to(torch.float32)

    return Timed(decode)


def by_onnxruntime(work):
    """Return DequantizeLinear of 4 bits, with one thread, into the output."""
    runtime, onnx = need("onnxruntime"), need("onnx")
    rows = work.out.size // BLOCK
    packed = np.random.default_rng(1).integers(0, 256, work.out.size // 2, np.uint8).tobytes()
    scales = np.ones((rows, 1), np.float32)
    helper, kinds = onnx.helper, onnx.TensorProto
    node = helper.make_node("DequantizeLinear", ["codes", "scales"], ["out"], axis=1, block_size=BLOCK)
    graph = helper.make_graph(
        [node],
        "decode",
        [helper.make_tensor_value_info("scales", kinds.FLOAT, scales.shape)],
        [helper.make_tensor_value_info("out", kinds.FLOAT, (rows, BLOCK))],
        [helper.make_tensor("codes", kinds.INT4, (rows, BLOCK), packed, raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("scales", scales)
    binding.bind_output("out", "cpu", 0, np.float32, (rows, BLOCK), work.out.ctypes.data)

    def run(_keep=work.out):
        session.run_with_iobinding(binding)

    return Timed(run)


EMPTY = ours(partial(weightmap, empty=True), "weightmap, np.empty", isas=EVERY_ISA)
SAME = (
    ours(weightmap, isas=EVERY_ISA)
    | EMPTY
    | ours(partial(weightmap, threads=2), "weightmap, 2 threads", isas=AVX2, threads=2)
    | ours(partial(weightmap, size=GGML), "weightmap, blocks of 32", isas=AVX2)
    | {"gguf-py, blocks of 32": rival(by_gguf)}
    | limits.of(limits.WRITE, lambda work: work.out, (1, 2))
)
RIVALS = {
    "bitsandbytes nf4": rival(by_bitsandbytes_kernel),
    "bitsandbytes nf4, fresh output": rival(by_bitsandbytes),
    "onnxruntime": rival(by_onnxruntime),
    "torch operations": rival(by_torch),
}
# With int4 in the same rounds, as the measure for int5.
FIVE = SAME | ours(partial(weightmap, bits=4), "weightmap, int4", isas=AVX2)
ALONE = ours(weightmap, isas=EVERY_ISA) | EMPTY | limits.of(limits.WRITE, lambda work: work.out)
GROUPS = (
    {f"dequantise int4/{case}": SAME | RIVALS for case in CASES}
    | {f"dequantise int5/{case}": FIVE for case in CASES}
    | {f"dequantise {what}/DRAM": ALONE for what in ("int8", "adaptive", "int4 to float16", "int5 to float16")}
)


@each_contender(GROUPS)
def test_decoding(compare, smoke, group, who):
    """Decode blocks to float32, or to float16."""
    question, _, case = group.partition("/")
    nbytes = 1 << 14 if smoke else CASES[case]
    what = question.split()[1]
    dtype = np.float16 if question.endswith("float16") else np.float32

    def work():
        return Work(0 if what == "adaptive" else int(what[-1]), limits.memory(nbytes).view(dtype), {})

    compare(GROUPS, work, nbytes=nbytes, places=PLACES.get(case, 1))


def weights(name, *, small):
    """Return the float32 arrays to quantise, or skip where they are not installed."""
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
    """Return the root mean square error of arrays after quantising and decoding."""
    squares = sum(float(np.square(a.ravel() - decode(a), dtype=np.float64).sum()) for a in arrays)
    return (squares / sum(a.size for a in arrays)) ** 0.5


@pytest.mark.parametrize("name", ["normal", "MiniLM"])
@pytest.mark.parametrize("bits", [4, 5])
def test_error(benchmark, smoke, bits, name):
    """Our error is smaller than ggml's at the same bits per weight; the time is the largest array's."""
    arrays = weights(name, small=smoke)

    def ours(a):
        return DEQUANTIZE[bits](QUANTIZE[bits](a, GGML, threads=2), a.size, GGML)

    benchmark.group = f"quantise int{bits}/{name}"
    largest = max(arrays, key=lambda a: a.size)
    about = {"role": "ours", "who": "weightmap", "threads": 1, "rms error": rms(arrays, ours), "bytes": largest.nbytes}
    benchmark.pedantic(QUANTIZE[bits], (largest, GGML), rounds=1)
    benchmark.extra_info |= about
    gguf, types = gguf_types()
    theirs = rms(
        arrays, lambda a: gguf.dequantize(gguf.quantize(a.reshape(-1, GGML), types[bits]), types[bits]).ravel()
    )
    ratio = about["rms error"] / theirs
    benchmark.extra_info |= {"rms error of gguf-py": theirs, "ratio": ratio}
    assert ratio < 1
