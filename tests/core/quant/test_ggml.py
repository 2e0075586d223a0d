"""Quantised tensors of ggml's block types: decoding, rows, parts, quantisation, and conversion without decoding."""

import math
import pickle

import numpy as np
import pytest
from tests import ggml_support
from tests.ggml_support import TYPES, random_blocks
from tests.support import in_one_item

import weightmap as wm
from weightmap import kernels
from weightmap.core.dtypes import GGML_SCHEMES
from weightmap.core.native import quantised
from weightmap.core.quant.blocks import decode_range
from weightmap.core.quant.ggml import GgmlTensor, quantize_ggml, regroup

ENCODED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4")
LIKE_GGUF_PY = ENCODED[:5]


def tensor(scheme, rows, *, finite=True):
    """A tensor of random blocks, two in a row."""
    count = 2 * math.prod(rows)
    blocks = random_blocks(np.random.default_rng(count), scheme, count, finite=finite)
    return GgmlTensor(scheme, (*rows, 2 * TYPES[scheme][1]), blocks.reshape(-1))


def test_schemes():
    assert set(GGML_SCHEMES) == set(TYPES)


@pytest.mark.parametrize("scheme", GGML_SCHEMES)
def test_decoding(scheme):
    q = tensor(scheme, (3, 5))
    values = ggml_support.values(scheme, q.payload.reshape(-1, TYPES[scheme][2])).reshape(q.shape)
    assert q.dequantize().tobytes() == values.tobytes()
    assert np.asarray(q).tobytes() == values.tobytes()
    assert q.dequantize(threads=3).tobytes() == values.tobytes()
    assert np.array_equal(q.dequantize(np.float64), values)
    with np.errstate(over="ignore"):
        assert np.array_equal(q.dequantize("float16"), values.astype(np.float16))
    out = np.empty(q.shape[::-1], np.float32).T
    assert q.dequantize(out=out) is out
    assert np.array_equal(out, values)
    assert np.array_equal(decode_range(q, 7, q.size - 3), values.reshape(-1)[7:-3])


@pytest.mark.parametrize("scheme", GGML_SCHEMES)
@in_one_item(
    "key",
    [0, -1, slice(1, 3), slice(None, None, -2), [2, 0, 2], np.array([True, False, True]), ..., (1, 3), (2, slice(1, 4)),
     (-1, [4, 1], slice(2, 9)), (np.int64(1), -2, 5), (slice(None), 2), (0, ...), (1, None), (True, 1)],
)  # fmt: skip
def test_indexing(scheme, key):
    q = tensor(scheme, (3, 5))
    assert np.array_equal(q[key], q.dequantize()[key])


def test_only_the_blocks_needed_are_decoded(monkeypatch):
    asked = []
    decode = quantised.decode_ggml

    def record(data, n, name, *, start, stop, **options):
        asked.append((len(data), start, stop))
        return decode(data, n, name, start=start, stop=stop, **options)

    q = tensor("q4_k", (3, 5))
    monkeypatch.setattr(quantised, "decode_ggml", record)
    expert = q.nbytes // 3
    for key, found in ((1, (q.nbytes, 5 * 512, 10 * 512)), ((1, 3), (expert, 3 * 512, 4 * 512))):
        asked.clear()
        q[key]
        assert asked == [found]


@pytest.mark.parametrize("scheme", GGML_SCHEMES)
def test_parts(scheme):
    """Scales, minimums and codes are views that make up the blocks."""
    q = tensor(scheme, (2, 2), finite=False)
    assert (q.n_blocks, q.block_size, q.nbytes) == (8, TYPES[scheme][1], 8 * TYPES[scheme][2])
    parts = [part for part in (q.scales, q.minimums, q.codes) if part is not None]
    for part in parts:
        assert len(part) == 8
        assert np.shares_memory(part, q.payload)
        assert not part.flags.writeable
    widths = [part.itemsize * math.prod(part.shape[1:]) for part in parts]
    assert sum(widths) == TYPES[scheme][2] + (8 if scheme == "iq1_m" else 0)
    assert q.bits_per_weight == 8 * TYPES[scheme][2] / TYPES[scheme][1]
    assert scheme in repr(q)
    again = pickle.loads(pickle.dumps(q))
    assert type(again) is GgmlTensor
    assert (again.scheme, again.shape, again.payload.tobytes()) == (q.scheme, q.shape, q.payload.tobytes())


@pytest.mark.parametrize("scheme", GGML_SCHEMES)
def test_a_strict_tensor_has_finite_scales(scheme):
    q = tensor(scheme, (4,))
    q.dequantize(strict=True)
    for at in ggml_support.UPPER[scheme]:
        blocks = np.array(q.payload).reshape(-1, TYPES[scheme][2])
        blocks[5, at] = 0x7F
        if scheme == "iq1_m":
            blocks[5, at - 2] = 0xFF
        with pytest.raises(wm.QuantError, match=r"(scale|minimum) of block 5 is (nan|inf)"):
            GgmlTensor(scheme, q.shape, blocks.reshape(-1)).dequantize(strict=True)


def arrays():
    rng = np.random.default_rng(8)
    normal = rng.standard_normal((16, 512))
    spiky = normal.copy()
    spiky[:, ::97] *= 40
    found = {
        "normal": normal,
        "heavy": rng.standard_t(3, (16, 512)),
        "positive": rng.random((16, 512)) + 0.5,
        "negative": -rng.random((16, 512)),
        "spiky": spiky,
        "small": normal * 1e-6,
        "large": normal * 1e4,
        "constant": np.repeat(rng.standard_normal((16, 4)), 128, 1),
        "sparse": normal * (rng.random((16, 512)) < 0.05) + 0.0,
        "zero": np.zeros((16, 512)),
    }
    return {name: array.astype(np.float32) for name, array in found.items()}


ARRAYS = arrays()


def error_of(array, q):
    return float(np.square(array - q.dequantize().astype(np.float64)).sum())


@pytest.mark.parametrize("scheme", LIKE_GGUF_PY)
@in_one_item("kind", ARRAYS)
def test_the_bytes_of_gguf_py(isa, scheme, kind):
    gguf = pytest.importorskip("gguf")
    array = ARRAYS[kind]
    expected = gguf.quantize(array, gguf.GGMLQuantizationType[scheme.upper()])
    assert quantize_ggml(array, scheme).payload.tobytes() == expected.tobytes()


@pytest.mark.parametrize("scheme", ENCODED)
def test_the_same_bytes_everywhere(scheme):
    """Every instruction set and any number of threads give the same bytes."""
    before = kernels.isa()
    for name, array in ARRAYS.items():
        found = set()
        for isa in kernels.available_isas():
            kernels.use_isa(isa)
            found |= {
                quantize_ggml(np.tile(array, (4, 1)), scheme, threads=threads).payload.tobytes() for threads in (1, 3)
            }
        assert len(found) == 1, name
    kernels.use_isa(before)


# Root mean square errors of ggml's own quantisers (llama.cpp of llama-cpp-python 0.3.36) for `ARRAYS`, divided by that
# of the values, rounded up.
SEARCHED = ENCODED[5:]
GGML_ERRORS = {
    "normal": (0.29619, 0.15063, 0.071403, 0.035903, 0.017727, 0.079256, 0.11271),
    "heavy": (0.33174, 0.16947, 0.090789, 0.050028, 0.029179, 0.1045, 0.12714),
    "positive": (0.11467, 0.093181, 0.024239, 0.011987, 0.010801, 0.060258, 0.10845),
    "negative": (0.13491, 0.10546, 0.02787, 0.014407, 0.013203, 0.064586, 0.14455),
    "spiky": (0.1697, 0.085924, 0.08308, 0.050012, 0.034027, 0.094707, 0.15957),
    "small": (0.36165, 0.98514, 3.0316, 3.0281, 1.0, 0.99991, 0.11231),
    "large": (0.29519, 0.15075, 0.071423, 0.035872, 0.017726, 0.079258, 0.11606),
    "constant": (0.014496, 0.0071332, 0.002845, 0.0028146, 0.0021232, 0.00025537, 0.14669),
    "sparse": (0.33729, 0.043221, 0.04587, 0.03119, 0.0056008, 0.050803, 0.13018),
}


@pytest.mark.parametrize("scheme", SEARCHED)
def test_the_search_gives_no_larger_errors_than_ggml(scheme):
    for name, theirs in GGML_ERRORS.items():
        array = ARRAYS[name]
        found = error_of(array, quantize_ggml(array, scheme))
        limit = theirs[SEARCHED.index(scheme)]
        assert math.sqrt(found / float(np.square(array, dtype=np.float64).sum())) <= limit, name
    assert error_of(ARRAYS["zero"], quantize_ggml(ARRAYS["zero"], scheme)) == 0


@pytest.mark.parametrize("scheme", SEARCHED)
def test_tiny_elements_become_zeros_rather_than_something_larger(scheme):
    """The smallest scale is 6e-8, and the table of iq4_nl has no 0."""
    alone = np.zeros_like(ARRAYS["normal"])
    alone[:, 3] = 1e-20
    for array in (*(ARRAYS["normal"] * np.float32(scale) for scale in (1e-7, 1e-8, 1e-10)), alone):
        assert error_of(array, quantize_ggml(array, scheme)) <= float(np.square(array, dtype=np.float64).sum())


@pytest.mark.parametrize(
    ("scheme", "block_size", "target"),
    [
        ("int4_block", 32, "q4_0"),
        ("int4_block", 64, "q4_0"),
        ("int4", 32, "q4_0"),
        ("int5_block", 32, "q5_0"),
        ("int5_block", 96, "q5_0"),
        ("int5", 32, "q5_0"),
        ("int8", 32, "q8_0"),
    ],
)
def test_the_same_integers_in_blocks_of_ggml(scheme, block_size, target):
    """Integers and scales move into ggml's blocks without being decoded: every value keeps its bits."""
    array = ARRAYS["normal"][:3, :64]
    q = wm.quantize(array, scheme, block_size=block_size)
    converted = regroup(q)
    assert (converted.scheme, converted.shape) == (target, q.shape)
    assert converted.dequantize().tobytes() == q.dequantize().tobytes()


@pytest.mark.parametrize("scheme", ["q4_0", "q5_0"])
def test_there_and_back(scheme):
    q = tensor(scheme, (3, 5), finite=False)
    blocks = regroup(q)
    assert blocks.scheme == {"q4_0": "int4_block", "q5_0": "int5_block"}[scheme]
    assert blocks.dequantize().tobytes() == q.dequantize().tobytes()
    assert regroup(blocks).payload.tobytes() == q.payload.tobytes()


@pytest.mark.parametrize(
    ("q", "match"),
    [
        (wm.quantize(ARRAYS["normal"], "adaptive"), "scheme is adaptive, expected one of int4, "),
        (wm.quantize(ARRAYS["normal"][:, :48], "int4_block"), r"shape of q4_0 is \[16, 48\]"),
        (wm.quantize(ARRAYS["normal"], "int4_block", block_size=16), "block size is 16, expected a multiple of 32"),
        (
            wm.quantize(ARRAYS["normal"] * np.float32(1.1), "int8", scale_type="fp32"),
            "scale of block 0 is .* a value of float16",
        ),
        (wm.quantize(ARRAYS["large"] * np.float32(1e20), "int5_block", scale_type="fp32"), "scale of block 0 is"),
    ],
)
def test_what_does_not_become_blocks_of_ggml(q, match):
    with pytest.raises(wm.QuantError, match=match):
        regroup(q)
