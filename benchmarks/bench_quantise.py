"""Quantising float32: blocks of int4, int5 and of different kinds, and conversion of a file.

gguf-py quantises to Q4_0, blocks of 32 with a float16 scale, by numpy: one division for the scale, no search. Our
blocks have the same size; their scales are searched, and their error is smaller (see bench_intblock.py). The conversion
is compared with the kernel alone, with as many threads.
"""

import numpy as np
import pytest

import weightmap as wm
from timing import AVX2, Timed, each_contender, need, ours, rival
from weightmap import kernels

TENSORS, SHAPE, SMALL = 4, (1024, 1024), (64, 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory, smoke):
    """Matrices of normally distributed numbers, as a file and as arrays."""
    rng = np.random.default_rng(1)
    shape = SMALL if smoke else SHAPE
    tensors = {f"layer.{i}": rng.standard_normal(shape, np.float32) * np.float32(0.02) for i in range(TENSORS)}
    path = tmp_path_factory.mktemp("quantise") / "model.safetensors"
    wm.save(path, tensors)
    return path, list(tensors.values())


def blocks(bits, threads=1):
    """Quantise every matrix to blocks of 32."""
    options = {"bits": bits, "block_size": 32, "threads": threads}
    return lambda model: Timed(lambda: [kernels.encode_with_errors(array, **options) for array in model[1]])


def adaptive(model):
    """Choose int4, int5 or float16 for each block, five bits a weight."""
    return Timed(lambda: [kernels.quantize_adaptive(array, 32) for array in model[1]])


def convert(threads):
    """Convert the file to AMB with int4 blocks."""

    def prepare(model):
        path = model[0].with_name(f"model{threads}.amb")
        return Timed(lambda: wm.convert(model[0], path, quantize="int4_block", threads=threads))

    return prepare


def gguf_py(model):
    """Quantise every matrix to Q4_0."""
    gguf = need("gguf")
    kind = gguf.GGMLQuantizationType.Q4_0
    return Timed(lambda: [gguf.quantize(array, kind) for array in model[1]])


GROUPS = {
    "quantise/blocks": ours(blocks(4), "int4", isas=AVX2)
    | ours(blocks(5), "int5", isas=AVX2)
    | ours(adaptive, "adaptive", isas=AVX2)
    | ours(blocks(4, 2), "int4, 2 threads", threads=2)
    | {"gguf-py, Q4_0": rival(gguf_py)},
    "quantise/convert": ours(convert(1), "convert")
    | ours(convert(2), "convert, 2 threads", threads=2)
    | ours(blocks(4), "kernel")
    | ours(blocks(4, 2), "kernel, 2 threads", threads=2),
}


@each_contender(GROUPS)
def test_quantise(compare, model, group, who):
    """Quantise some MiB of float32 in memory or in the page cache."""
    compare(GROUPS, model, nbytes=sum(array.nbytes for array in model[1]))
