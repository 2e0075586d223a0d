"""ggml's blocks beside ggml's own C: `make ggml-test` compiles it, and `WEIGHTMAP_GGML` names the library."""

import ctypes
import os

import numpy as np
import pytest
from tests.core.quant.test_ggml import ARRAYS, ENCODED, error_of
from tests.ggml_support import PLAIN, TYPES, random_blocks

from weightmap.core.native import quantised
from weightmap.core.quant.ggml import GgmlTensor, quantize_ggml

PATH = os.environ.get("WEIGHTMAP_GGML")
pytestmark = pytest.mark.skipif(not PATH, reason="ggml is compiled by make ggml-test")


def upstream(function, name, source, target, count):
    spelled = name.replace("_k", "_K") if name.startswith("q") else name
    call = getattr(ctypes.CDLL(PATH), function.format(spelled))
    call(ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(target.ctypes.data), ctypes.c_int64(count))
    return target


@pytest.mark.parametrize("name", [name for name in TYPES if name not in PLAIN])
def test_values(name):
    blocks = random_blocks(np.random.default_rng(17), name, 4096, finite=True)
    count = len(blocks) * TYPES[name][1]
    theirs = upstream("dequantize_row_{}", name, blocks, np.empty(count, np.float32), count)
    np.testing.assert_array_equal(quantised.decode_ggml(blocks, count, name), theirs)


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("name", ENCODED)
def test_errors_of_quantisation(name, kind):
    array = ARRAYS[kind]
    blocks = np.empty(quantised.ggml_size(array.size, name), np.uint8)
    theirs = GgmlTensor(name, array.shape, upstream("quantize_row_{}_ref", name, array, blocks, array.size))
    assert error_of(array, quantize_ggml(array, name)) <= error_of(array, theirs)
