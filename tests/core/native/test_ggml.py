"""Blocks of ggml against gguf-py, on every instruction set there is."""

import numpy as np
import pytest
from tests import ggml_support
from tests.ggml_support import TYPES, UPPER, random_blocks

import weightmap as wm
from weightmap.core.native import quantised


def decode(blocks, name, **options):
    return quantised.decode_ggml(blocks, len(blocks) * TYPES[name][1], name, **options)


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
    """Every type that is decoded has its name, its number and the size of its blocks."""
    assert {name: tuple(kind[1:]) for name, kind in quantised.GGML_TYPES.items()} == TYPES
    assert all(kind.name == name for name, kind in quantised.GGML_TYPES.items())


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
        quantised.decode_ggml(data, n, name)


def test_types_that_are_not_encoded():
    with pytest.raises(wm.QuantError, match="block type to quantise to is 'iq2_xs'"):
        quantised.encode_ggml(np.zeros(256), "iq2_xs")
