"""Quantising float32: blocks of int4, int5 and of different kinds, and conversion of a file.

gguf-py quantises to Q4_0, blocks of 32 with a float16 scale, by numpy: one division for the scale, no search. Our
blocks have the same size; their scales are searched, and their error is smaller (see bench_intblock.py). The conversion
is compared with the kernel alone, with as many threads. Its source lies in the page cache, as models do. Its target
lies on a file system in memory if there is one, since a disk may write the blocks more slowly than a core finds them;
each turn writes a new file.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from timing import AVX2, Timed, each_contender, limit, need, ours, rival
from weightmap.core.native import quantised

TENSORS, SHAPE, LARGE, SMALL = 4, (1024, 1024), (4096, 2048), (64, 64)
MEMORY = Path("/dev/shm")


def matrices(shape):
    """Return matrices of normally distributed numbers."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape, np.float32) * np.float32(0.02) for _ in range(TENSORS)]


@pytest.fixture(scope="module")
def model(smoke):
    """Matrices that fit into the caches."""
    return None, matrices(SMALL if smoke else SHAPE)


@pytest.fixture(scope="module")
def large(smoke, tmp_path_factory):
    """Matrices of 128 MiB, as a file and as arrays, and where to write."""
    arrays = matrices(SMALL if smoke else LARGE)
    path = tmp_path_factory.mktemp("quantise") / "model.safetensors"
    wm.save(path, {f"layer.{i}": array for i, array in enumerate(arrays)})
    folder = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None)
    yield path, arrays, Path(folder)
    shutil.rmtree(folder)


def blocks(bits, threads=1):
    """Quantise every matrix to blocks of 32."""
    options = {"bits": bits, "block_size": 32, "threads": threads}
    return lambda model: Timed(lambda: [quantised.encode_blocks(array, **options) for array in model[1]])


def adaptive(model):
    """Choose int4, int5 or float16 for each block, five bits a weight."""
    return Timed(lambda: [quantised.quantize_adaptive(array, 32) for array in model[1]])


def convert(threads):
    """Convert the file to AMB with int4 blocks."""

    def prepare(model):
        path = model[2] / f"model{threads}.amb"
        return Timed(
            lambda _: wm.convert(model[0], path, quantize="int4_block", threads=threads),
            lambda: path.unlink(missing_ok=True),
        )

    return prepare


def gguf_py(model):
    """Quantise every matrix to Q4_0."""
    gguf = need("gguf")
    kind = gguf.GGMLQuantizationType.Q4_0
    return Timed(lambda: [gguf.quantize(array, kind) for array in model[1]])


BLOCKS = {
    "quantise/blocks": ours(blocks(4), "int4", isas=AVX2)
    | ours(blocks(5), "int5", isas=AVX2)
    | ours(adaptive, "adaptive", isas=AVX2)
    | ours(blocks(4, 2), "int4, 2 threads", threads=2)
    | {"gguf-py, Q4_0": rival(gguf_py)},
}
FILES = {
    "quantise/convert": ours(convert(1), "convert")
    | ours(convert(2), "convert, 2 threads", threads=2)
    | ours(convert(None), "convert, threads=None", threads=2)
    | {"kernel": limit(blocks(4)), "kernel, 2 threads": limit(blocks(4, 2), threads=2)},
}
GROUPS = BLOCKS | FILES


@each_contender(BLOCKS)
def test_quantise(compare, model, group, who):
    """Quantise some MiB of float32 in memory."""
    compare(BLOCKS, model, nbytes=sum(array.nbytes for array in model[1]))


@each_contender(FILES)
def test_convert(compare, large, group, who):
    """Quantise a file."""
    compare(FILES, large, nbytes=sum(array.nbytes for array in large[1]))
