"""Blocks of ggml against gguf-py, on every instruction set there is."""

import numpy as np
import pytest
from tests import ggml_support
from tests.ggml_support import TYPES, UPPER, random_blocks

import weightmap as wm
from weightmap.kernels import late


def decode(blocks, name, **options):
    return late.decode_ggml(blocks, len(blocks) * TYPES[name][1], name, **options)


@pytest.fixture(scope="module")
def example():
    made = {}

    def make(name, count, *, finite=False):
        if (name, count, finite) not in made:
            blocks = random_blocks(np.random.default_rng(count), name, count, finite=finite)
            made[name, count, finite] = blocks, ggml_support.values(name, blocks).reshape(-1)
        return made[name, count, finite]

    return make


def same(got, values):
    return np.array_equal(got.view(np.uint32), values.view(np.uint32))


def test_types():
    """Every type that gguf-py 0.19 decodes has its name, its number and the size of its blocks."""
    assert {name: tuple(kind[1:]) for name, kind in late.GGML_TYPES.items()} == TYPES
    assert all(kind.name == name for name, kind in late.GGML_TYPES.items())


@pytest.mark.parametrize("name", [name for name in TYPES if name.startswith("iq")])
def test_every_entry_of_a_code_book(isa, example, name):
    """Each of the 2,048 entries of the largest code book is in some of these blocks."""
    blocks, values = example(name, 4_000, finite=True)
    assert same(decode(blocks, name), values)


@pytest.mark.parametrize("name", TYPES)
def test_random_blocks(isa, example, name):
    """Blocks of random bytes, some with scales that are NaN or infinite, give every bit as defined."""
    for finite in (False, True):
        blocks, values = example(name, 500, finite=finite)
        assert name == "mxfp4" or np.isfinite(values).all() == (finite or name == "nvfp4")
        assert same(decode(blocks, name), values)


@pytest.mark.parametrize("name", [name for name in TYPES if UPPER[name] and name != "iq1_m"])
def test_every_scale(isa, name):
    """Each of the 65,536 scales and minimums of 16 bits decodes as defined: subnormal, infinite, any NaN."""
    patterns = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    for k, upper in enumerate(UPPER[name]):
        few = patterns if TYPES[name][1] == 32 else patterns[k::17]
        blocks = np.tile(random_blocks(np.random.default_rng(1), name, 1, finite=True), (len(few), 1))
        blocks[:, upper - 1 : upper + 1] = few
        assert same(decode(blocks, name), ggml_support.values(name, blocks).reshape(-1))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_every_scale_of_8_bits(isa, name):
    blocks = np.tile(random_blocks(np.random.default_rng(1), name, 1), (256, 1))
    blocks[:, : 1 if name == "mxfp4" else 4] = np.arange(256)[:, None]
    assert same(decode(blocks, name), ggml_support.values(name, blocks).reshape(-1))


@pytest.mark.parametrize("name", TYPES)
def test_any_range(isa, example, name):
    blocks, values = example(name, 5)
    n, step = len(values), TYPES[name][1]
    edges = sorted({0, 1, 15, 16, 17, step - 1, step, step + 1, 2 * step, 3 * step + step // 2, n - 1, n})
    for start in edges:
        for stop in edges:
            if start <= stop:
                got = decode(blocks, name, start=start, stop=stop)
                assert same(got, values[start:stop]), (start, stop)


@pytest.mark.parametrize("name", TYPES)
def test_float16_output(isa, example, name):
    blocks, values = example(name, 500)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
    expected[np.isnan(values)] = 0x7E00
    got = decode(blocks, name, dtype=np.float16)
    assert np.array_equal(got.view(np.uint16), expected)
    out = np.empty((len(values) - 12, 1), np.float16)
    assert decode(blocks, name, out=out, start=5, stop=len(values) - 7) is out
    assert np.array_equal(out.reshape(-1).view(np.uint16), expected[5:-7])


@pytest.mark.parametrize("name", ["q8_0", "q4_k", "iq2_s"])
def test_threads(isa, name):
    """Any number of threads gives the same bits, also where parts begin within blocks."""
    n = 5 << 20
    blocks = random_blocks(np.random.default_rng(3), name, n // TYPES[name][1])
    expected = decode(blocks, name)
    for threads in (0, 2, 3, 99):
        assert same(decode(blocks, name, threads=threads), expected)
        assert same(decode(blocks, name, threads=threads, start=77, stop=n - 5), expected[77:-5])


@pytest.mark.parametrize(("name", "step"), [("q4_0", 4), ("q6_k", 16), ("iq4_xs", 20)])
def test_output_beyond_the_caches(isa, name, step):
    """An output larger than any cache, which may be stored in another way, has the same bits, wherever it begins."""
    elements = TYPES[name][1]
    n = (9 << 20) // elements * elements
    blocks = random_blocks(np.random.default_rng(4), name, n // elements)
    memory = np.empty(4 * n + 256, np.uint8)
    pieces = np.array_split(blocks, 64)
    small = np.concatenate([decode(piece, name) for piece in pieces])
    base = 64 - memory.__array_interface__["data"][0] % 64
    for shift in range(0, 64, step):
        for start, stop in ((0, n), (elements + 13, n - 3)):
            count = stop - start
            first = base + shift
            out = memory[first : first + 4 * count].view(np.float32)
            memory[first - 4 : first] = memory[first + 4 * count :][:4] = 0xA5
            decode(blocks, name, start=start, stop=stop, out=out, threads=1 + shift % 3)
            assert same(out, small[start:stop])
            assert set(memory[first - 4 : first].tolist()) == {0xA5}
            assert set(memory[first + 4 * count :][:4].tolist()) == {0xA5}


@pytest.mark.parametrize(
    ("name", "n", "missing", "match"),
    [
        ("q4_0", 64, 1, "size of the data of 64 elements of q4_0 is 35, expected 36"),
        ("q4_k", 512, -1, "is 289, expected 288"),
        ("q4_0", 48, 0, "number of elements of q4_0 is 48, expected a multiple of 32"),
        ("iq1_m", 32, 0, "is 32, expected a multiple of 256"),
        ("q8_1", 32, 0, "block type is 'q8_1', expected one of q4_0, "),
        ("Q4_0", 32, 0, "block type is 'Q4_0'"),
        ("q4_0", -32, 0, "number of elements is -32"),
        ("q4_0", 1 << 57, 0, "number of elements"),
    ],
)
def test_what_does_not_fit_is_a_quant_error(name, n, missing, match):
    _, elements, nbytes = TYPES.get(name, TYPES["q4_0"])
    data = bytes(max(0, min(n, 1024) // elements * nbytes - missing))
    with pytest.raises(wm.QuantError, match=match):
        late.decode_ggml(data, n, name)


def test_other_misuse():
    memory = np.zeros(300, np.uint8)
    with pytest.raises(ValueError, match="overlaps"):
        late.decode_ggml(memory[264:], 64, "q4_0", out=memory[12:268].view(np.float32))
    late.decode_ggml(memory[264:], 64, "q4_0", out=memory[8:264].view(np.float32))
    for start, stop in ((3, 65), (5, 4), (-1, 3)):
        with pytest.raises(ValueError, match=f"range {start} to {stop}"):
            late.decode_ggml(bytes(36), 64, "q4_0", start=start, stop=stop)
    with pytest.raises(ValueError, match="dtype is"):
        late.decode_ggml(bytes(36), 64, "q4_0", dtype=np.float64)
    assert late.decode_ggml(b"", 0, "q4_0").size == 0
