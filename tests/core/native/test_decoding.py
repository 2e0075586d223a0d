"""All decoders of blocks: ranges, types, threads, places of outputs; on every instruction set."""

import numpy as np
import pytest
from tests import ggml_support
from tests.core.native import test_intblock as blocks_of_integers
from tests.core.native.test_quantize_kernels import assemble
from tests.ggml_support import TYPES, random_blocks

from weightmap.core.native import quantised

ODD = [1.5, float("inf"), -2, float("nan"), 65504.0, 6e-8]


def integers(bits, size, scale_type):
    """Integer blocks of one kind: a function that makes data and values of n elements, and one that decodes."""
    options = {"bits": bits, "block_size": size, "scale_type": scale_type}
    return (
        lambda n: blocks_of_integers.example(np.random.default_rng(n), n, bits, size, scale_type, ODD),
        lambda data, n, **more: quantised.decode_blocks(data, n, **options, **more),
    )


def ggml(name):
    """The same for a type of ggml."""

    def make(n):
        blocks = random_blocks(np.random.default_rng(n), name, n // TYPES[name][1])
        return blocks, ggml_support.values(name, blocks).reshape(-1)

    return make, lambda data, n, **more: quantised.decode_ggml(data, n, name, **more)


def adaptive(size):
    """The same for blocks of different kinds."""

    def make(n):
        kinds = np.random.default_rng(n).integers(0, 3, -(-n // size)).tolist()
        data, values = assemble(kinds, size, "fp16", odd={2, 3})
        return data, values[:n]

    return make, lambda data, n, **more: quantised.decode_adaptive(data, n, size, **more)


KINDS = {f"int{bits} {size}": integers(bits, size, "fp16") for bits in (4, 5, 8) for size in (0, 8, 32, 128)}
KINDS |= {"int4 of float32": integers(4, 32, "fp32"), "adaptive": adaptive(32), **{name: ggml(name) for name in TYPES}}


def same(found, expected):
    return np.array_equal(found.view(f"u{found.itemsize}"), expected.view(f"u{expected.itemsize}"))


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def test_any_range(isa, kind):
    """Elements start to stop equal the whole's, wherever in a block they begin and end."""
    make, decode = kind
    n = 1280
    data, values = make(n)
    edges = [0, 1, 7, 15, 16, 17, 31, 32, 33, 100, 255, 256, 257, 640, n - 1, n]
    for start in edges:
        for stop in (stop for stop in edges if stop >= start):
            assert same(decode(data, n, start=start, stop=stop), values[start:stop]), (start, stop)


def test_float16_output(isa, kind):
    make, decode = kind
    n = 25_600
    data, values = make(n)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
    expected[np.isnan(values)] = 0x7E00
    assert same(decode(data, n, out=np.empty(n, np.float16)), expected)
    out = np.empty((n - 12, 1), np.float16)
    assert decode(data, n, out=out, start=5, stop=n - 7) is out
    assert same(out.reshape(-1), expected[5:-7])


# One of each kind with outputs that may bypass the caches, float32 and float16, and how far they are moved.
STREAMED = [("int5 32", "<f4", 4), ("int4 32", "<f4", 16), ("int8 32", "<f4", 20), ("int4 32", "<f2", 14)]
STREAMED += [("int5 32", "<f2", 16), ("int8 32", "<f2", 22), ("q4_0", "<f4", 4), ("q6_k", "<f4", 16)]
STREAMED += [("iq4_xs", "<f4", 20)]
# One of float32, of float16 and of ggml.
QUICK = STREAMED[0], STREAMED[3], STREAMED[-1]


@pytest.mark.parametrize(
    ("name", "dtype", "step"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in STREAMED],
)
def test_output_beyond_the_caches(isa, name, dtype, step):
    """An output larger than any cache has the same bits with any number of threads and any beginning."""
    make, decode = KINDS[name]
    item, part = np.dtype(dtype).itemsize, 1 << 18
    n = (36 << 20) // item // part * part
    piece, _ = make(part)
    data = np.tile(np.frombuffer(piece, np.uint8), n // part)
    small = np.tile(decode(piece, part, out=np.empty(part, dtype)), n // part)
    memory = np.empty(n * item + 256, np.uint8)
    base = 64 - memory.__array_interface__["data"][0] % 64
    for shift in range(0, 64, step):
        for start, stop in ((0, n), (173, n - 3)):
            first, end = base + shift, base + shift + (stop - start) * item
            out = memory[first:end].view(dtype)
            memory[first - 4 : first] = memory[end : end + 4] = 0xA5
            assert decode(data, n, out=out, start=start, stop=stop, threads=(1, 2, 3, 4, 99)[shift % 5]) is out
            assert same(out, small[start:stop])
            assert {*memory[first - 4 : first].tolist(), *memory[end : end + 4].tolist()} == {0xA5}


@pytest.mark.parametrize("name", ["int4 32", "adaptive", "q4_0"])
def test_misuse(name):
    make, decode = KINDS[name]
    data, _ = make(64)
    data = np.frombuffer(data, np.uint8)
    memory = np.zeros(1000, np.uint8)
    given = memory[300 : 300 + len(data)]
    given[:] = data
    with pytest.raises(ValueError, match="overlaps"):
        decode(given, 64, out=memory[48:304].view(np.float32))
    decode(given, 64, out=memory[44:300].view(np.float32))
    for start, stop in ((3, 65), (5, 4), (-1, 3)):
        with pytest.raises(ValueError, match=f"range {start} to {stop}"):
            decode(data, 64, start=start, stop=stop)
    for out in (np.empty(64, np.float64), np.empty(63, np.float32)):
        with pytest.raises(ValueError, match="out is"):
            decode(data, 64, out=out)
    with pytest.raises(TypeError, match="out must be an array"):
        decode(data, 64, out=[])
    with pytest.raises(TypeError, match="contiguous"):
        decode(np.repeat(data, 2)[::2], 64)
