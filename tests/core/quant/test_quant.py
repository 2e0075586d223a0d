"""QuantizedTensor and quantize: the parts of a quantised tensor, its values, and indexing."""

import copy
import itertools
import math
import pickle
import struct

import ml_dtypes
import numpy as np
import pytest
from tests.builders import amb
from tests.support import in_one_item

import weightmap as wm
from weightmap.core.quant.blocks import QuantizedTensor, decode_range

BITS = {"int8": 8, "int4": 4, "int5": 5, "int4_block": 4, "int5_block": 5}
SCALES = {"fp16": "<e", "fp32": "<f"}
# Scheme and block size: the smallest blocks, the usual ones, and some that are neither.
KINDS = [
    *(("int8", 0), ("int4", 0), ("int5", 0)),
    *(("int4_block", size) for size in (2, 6, 32, 128)),
    *(("int5_block", size) for size in (8, 24, 32, 128)),
    *(("adaptive", size) for size in (8, 32, 64)),
]
# Shapes without, with one and with more elements, and every kind of tail behind whole blocks.
SHAPES = [(), (0,), (1,), (3, 0), (7,), (5, 13), (32,), (2, 3, 43), (11, 32)]


def scale_bytes(generator, scale_type):
    return struct.pack(SCALES[scale_type], generator.normal())


def payload_of(scheme, size, block_size, scale_type, seed=0):
    """A payload of random codes and scales, laid out by the schemes' definitions."""
    generator = np.random.default_rng([seed, size, block_size])
    if scheme == "adaptive":
        count = math.ceil(size / block_size)
        kinds = generator.integers(0, 3, count).tolist()
        mask = sum(kind << 2 * i for i, kind in enumerate(kinds)).to_bytes(math.ceil(count / 4), "little")
        scales = b"".join(scale_bytes(generator, scale_type) for kind in kinds if kind < 2)
        halves = generator.normal(size=block_size).astype("<f2").tobytes
        codes = [halves() if kind == 2 else generator.bytes((4 + kind) * block_size // 8) for kind in kinds]
        return mask + scales + b"".join(codes)
    length = block_size or size
    count = math.ceil(size / block_size) if block_size else 1
    width = math.ceil(BITS[scheme] * length / 8)
    return b"".join(scale_bytes(generator, scale_type) + generator.bytes(width) for _ in range(count))


def plain(payload, scheme, shape, block_size, scale_type):
    """The values by definition: scale times integer, one product of float32."""
    size, width = math.prod(shape), struct.calcsize(SCALES[scale_type])
    values = []

    def block(scale, codes, bits, count):
        factor = np.float32(struct.unpack(SCALES[scale_type], scale)[0])
        values.extend(factor * np.float32(q) for q in amb.unpack(codes, bits, count))

    if scheme == "adaptive":
        count = math.ceil(size / block_size)
        kinds = [payload[i // 4] >> i % 4 * 2 & 3 for i in range(count)]
        scale = math.ceil(count / 4)
        code = scale + width * sum(kind < 2 for kind in kinds)
        for kind in kinds:
            if kind == 2:
                values.extend(np.frombuffer(payload, "<f2", block_size, code).astype(np.float32))
                code += 2 * block_size
                continue
            step = (4 + kind) * block_size // 8
            block(payload[scale : scale + width], payload[code : code + step], 4 + kind, block_size)
            scale, code = scale + width, code + step
    else:
        length = block_size or size
        step = width + math.ceil(BITS[scheme] * length / 8)
        for at in range(0, len(payload) if size else 0, step):
            block(payload[at : at + width], payload[at + width : at + step], BITS[scheme], length)
    return np.array(values[:size], np.float32).reshape(shape)


def make(scheme, shape, block_size, scale_type="fp16", seed=0):
    payload = payload_of(scheme, math.prod(shape), block_size, scale_type, seed)
    tensor = QuantizedTensor(scheme, shape, payload, block_size=block_size, scale_type=scale_type)
    return tensor, plain(payload, scheme, shape, block_size, scale_type)


def identical(a, b):
    """Whether shape, dtype and every bit are the same."""
    if not isinstance(a, (np.ndarray, np.generic)):
        return False
    return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize(("scheme", "block_size"), KINDS)
def test_values_are_those_of_the_definition(scheme, block_size, scale_type):
    for shape in SHAPES:
        tensor, expected = make(scheme, shape, block_size, scale_type)
        assert identical(tensor.dequantize(), expected), shape
        assert (tensor.shape, tensor.ndim, tensor.size) == (shape, len(shape), math.prod(shape))


@pytest.mark.parametrize("scale_type", SCALES)
@pytest.mark.parametrize(("scheme", "block_size"), KINDS)
def test_parts_are_views_of_the_payload(scheme, block_size, scale_type):
    shape = (5, 13)
    payload = payload_of(scheme, 65, block_size, scale_type)
    for shift in range(4):
        given = np.frombuffer(bytearray(shift) + payload, np.uint8)[shift:]
        assert given.flags.writeable
        tensor = QuantizedTensor(scheme, shape, given, block_size=block_size, scale_type=scale_type)
        parts = [tensor.payload, tensor.scales, tensor.codes] + ([] if tensor.mask is None else [tensor.mask])
        for part in parts:
            assert np.shares_memory(part, given)
            assert not part.flags.writeable
        assert identical(tensor.dequantize(), plain(payload, scheme, shape, block_size, scale_type))
        assert tensor.nbytes == len(payload)
        assert tensor.payload.tobytes() == payload
        assert tensor.bits_per_weight == 8 * len(payload) / 65
        assert tensor.scales.dtype == {"fp16": np.float16, "fp32": np.float32}[scale_type]


def test_a_mapped_tensor_is_a_view_of_the_file(tmp_path):
    path = tmp_path / "q.amb"
    wm.save(path, {"w": wm.quantize(np.arange(64, dtype=np.float32), "int5_block")})
    with wm.open(path) as file:
        one, two = file["w"], file["w"]
        assert np.shares_memory(one.scales, two.scales)
        assert np.shares_memory(one.codes, two.payload)
        expected = one.dequantize()
    assert identical(one.dequantize(), expected)
    assert two.codes.sum() == one.codes.sum()


@pytest.fixture(scope="module")
def adaptive_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("adaptive") / "q.amb"
    values = np.random.default_rng(1).standard_normal(1 << 21).astype(np.float32)
    wm.save(path, {"w": wm.quantize(values, "adaptive")}, output=wm.Output(durable=False))
    return path.read_bytes()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("value", [0x00, 0x55, 0xAA, 0xFF])
def test_a_mask_that_is_overwritten_after_the_look_up(put, adaptive_file, value):
    """An adaptive tensor decodes by its mask at the look-up, and all of the output is written."""
    path = put(adaptive_file, "q.amb")
    with wm.open(path) as file:
        offset, tensor = file.info("w").offset + 4, file["w"]
        expected, kinds = tensor.dequantize(), tensor.kinds
        with path.open("r+b") as writer:
            writer.seek(offset)
            writer.write(bytes([value]) * len(tensor.mask))
        assert set(tensor.mask.tolist()) == {value}
        for dtype, threads in itertools.product((np.float32, np.float16), (1, 2)):
            found = tensor.dequantize(out=np.full(tensor.shape, 777, dtype), threads=threads)
            assert np.array_equal(found, expected.astype(dtype))
        assert np.array_equal(tensor[5:-7], expected[5:-7])
        assert np.array_equal(tensor.kinds, kinds)


@pytest.mark.parametrize(("scheme", "block_size"), KINDS)
def test_decoding_to_other_types_is_astype(scheme, block_size):
    tensor, values = make(scheme, (5, 13), block_size)
    for dtype in (np.float16, np.float64, np.int32, ">f4", ml_dtypes.bfloat16):
        with np.errstate(all="ignore"):
            assert identical(tensor.dequantize(dtype), values.astype(dtype)), dtype


@pytest.mark.parametrize(("scheme", "block_size"), KINDS)
def test_out_is_filled_in_place(scheme, block_size):
    tensor, values = make(scheme, (5, 13), block_size)
    unaligned = np.frombuffer(bytearray(1 + 4 * 65), np.uint8)[1:].view(np.float32).reshape(5, 13)
    room = np.full((10, 26), 7, np.float32)
    outs = [
        np.empty((5, 13), np.float32),
        np.empty((13, 5), np.float32).T,
        room[::2, ::-2],
        np.empty((5, 13), np.float16),
        np.empty((5, 13), np.float64)[::-1],
        unaligned,
        np.zeros((5, 13)).view(np.matrix),
    ]
    for out in outs:
        assert tensor.dequantize(out=out) is out
        assert identical(out, values.astype(out.dtype))
    assert (room[1::2] == 7).all()
    assert (room[::2, ::2] == 7).all()


def test_strict_refuses_scales_that_are_no_numbers():
    scales = [1.0, 2.0, math.inf, 4.0]
    payload = b"".join(struct.pack("<e", scale) + bytes([0x21]) for scale in scales)
    tensor = QuantizedTensor("int4_block", (8,), payload, block_size=2)
    with pytest.raises(wm.QuantError, match=r"scale of block 2 is inf, expected a finite number"):
        tensor.dequantize(strict=True)
    assert tensor.dequantize().tolist() == [1, 2, 2, 4, math.inf, math.inf, 4, 8]
    good, values = make("int4_block", (5, 13), 2)
    assert identical(good.dequantize(strict=True), values)


def test_numpy_takes_it_as_an_array():
    tensor, values = make("int5_block", (5, 13), 32)
    assert identical(np.asarray(tensor), values)
    assert identical(np.asarray(tensor, np.float16), values.astype(np.float16))
    assert identical(np.add(tensor, 1), values + np.float32(1))
    with pytest.raises(ValueError, match="copy=False"):
        tensor.__array__(copy=False)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match="copy=False"):
            np.asarray(tensor, copy=False)


MATRIX_KEYS = [
    *(0, 4, -1, -5, np.int64(2), True, False, np.True_),
    *(slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(4, 0, -2), slice(3, 1)),
    *(slice(-2, 99), slice(-99, 2), slice(5, 5)),
    *([0, 2], [-1, 0, 0], [], [True, False, True, False, True], [False] * 5),
    *(np.array([3, 1]), np.array([[0, 1], [4, -2]]), np.array([], int), np.array([1, 4], np.uint8), np.array(2)),
    *(np.arange(65).reshape(5, 13) % 3 == 0, None, Ellipsis, ()),
    *((1, 2), (-1, slice(3, 7)), (slice(1, 4), 5), (slice(None, None, -2), slice(None, None, 3)), (2,)),
    *(([0, 3], [1, 12]), ([0, 3], slice(2)), (slice(2), [1, 1]), (2, [0, 5]), (np.array([1, 2])[:, None], [0, 1])),
    *((..., 3), (None, 1), (1, None), (1, ...), (..., None, 2), (slice(1, 3), None, slice(2)), (True, 1)),
    *((0, 0, Ellipsis), (slice(0, 0), 3)),
]


@pytest.mark.parametrize(("scheme", "block_size"), [("int8", 0), ("int5", 0), ("int4_block", 6), ("adaptive", 8)])
@in_one_item("key", MATRIX_KEYS)
def test_indexing_is_that_of_the_decoded_array(scheme, block_size, key):
    tensor, values = make(scheme, (5, 13), block_size)
    assert identical(tensor[key], np.asarray(values[key]) if np.ndim(values[key]) else values[key])


@pytest.mark.parametrize(
    "key",
    [5, -6, 2**70, [5], [0, -6], (0, 13), (0, 0, 0), [True, False], 1.0, "a", [0.5], (slice(None), "a")],
    ids=repr,
)
def test_what_is_no_index_is_an_index_error(key):
    tensor, values = make("int4_block", (5, 13), 32)
    with pytest.raises(IndexError):
        values[key]
    with pytest.raises(IndexError):
        tensor[key]


def test_length_and_iteration():
    tensor, values = make("adaptive", (5, 13), 8)
    assert len(tensor) == 5
    assert all(identical(row, expected) for row, expected in zip(tensor, values, strict=True))
    scalar, _ = make("int8", (), 0)
    with pytest.raises(TypeError):
        len(scalar)


def poisoned(scheme, block_size, good):
    """A tensor whose scales are NaN but in some blocks, and the values it had before."""
    clean, values = make(scheme, (10, 32), block_size, "fp32")
    payload = bytearray(clean.payload.tobytes())
    width = 4 + BITS[scheme] * block_size // 8
    for block in set(range(clean.n_blocks)) - good:
        payload[block * width : block * width + 4] = struct.pack("<f", math.nan)
    return QuantizedTensor(scheme, (10, 32), payload, block_size=block_size, scale_type="fp32"), values


@pytest.mark.parametrize("scheme", ["int4_block", "int5_block"])
def test_only_the_blocks_needed_are_decoded(scheme, monkeypatch):
    """A row, a range or a choice of rows decodes only its own blocks, each once."""
    decode, done = QuantizedTensor._decode, []

    def counted(self, start, stop, *rest):
        done.append((start, stop))
        decode(self, start, stop, *rest)

    monkeypatch.setattr(QuantizedTensor, "_decode", counted)
    # Rows of 32 elements and blocks of 48: rows 3, 4 and 5 are elements 96 to 192, blocks 2 and 3; 6 is in
    # block 4, and 9 in block 6.
    tensor, values = poisoned(scheme, 48, {2, 3, 4, 6})
    cases = [
        (4, [(128, 160)]),
        (-6, [(128, 160)]),
        (slice(3, 6), [(96, 192)]),
        ([5, 3], [(96, 192)]),
        ([6, 3], [(96, 128), (192, 224)]),
        ([9, 4, 9, -1], [(128, 160), (288, 320)]),
        (np.array([[9, 3], [3, 3]]), [(96, 128), (288, 320)]),
        (np.arange(10) // 2 == 2, [(128, 192)]),
        (slice(5, 2, -2), [(96, 192)]),
        (slice(3, None, 6), [(96, 128), (288, 320)]),
        ((3, slice(4, 9)), [(96, 128)]),
        ((slice(3, 5), 1), [(96, 160)]),
    ]
    for key, ranges in cases:
        done.clear()
        assert identical(tensor[key], values[key]), key
        assert done == ranges, key
    assert identical(decode_range(tensor, 100, 190), values.reshape(-1)[100:190])
    assert np.isnan(tensor[2]).any()


@pytest.mark.parametrize(("scheme", "block_size"), KINDS)
def test_a_copy_is_the_same_tensor(scheme, block_size):
    tensor, values = make(scheme, (5, 13), block_size, "fp32")
    for twin in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
        for name in ("scheme", "shape", "block_size", "scale_type", "nbytes", "size"):
            assert getattr(twin, name) == getattr(tensor, name)
        assert not np.shares_memory(twin.payload, tensor.payload)
        assert identical(twin.dequantize(), values)


def test_repr_shows_scheme_shape_and_size():
    tensor, _ = make("int4_block", (5, 13), 32)
    assert repr(tensor) == "<QuantizedTensor int4_block [5, 13], blocks of 32, fp16 scales, 54 bytes>"
    assert repr(make("int8", (4,), 0, "fp32")[0]) == "<QuantizedTensor int8 [4], fp32 scales, 8 bytes>"
    assert repr(wm.quantize(np.ones((2, 32)), "q8_0")) == "<QuantizedTensor q8_0 [2, 32], blocks of 32, 68 bytes>"


@pytest.mark.parametrize("name", ["T", "astype", "reshape", "tobytes"])
def test_what_arrays_have_says_to_decode_first(name):
    tensor, _ = make("int4_block", (5, 13), 32)
    with pytest.raises(AttributeError, match=rf"decode it first, dequantize\(\)\.{name}"):
        getattr(tensor, name)
    assert tensor.dtype == tensor.dequantize().dtype
    assert not hasattr(tensor, "no_such_member")


@pytest.mark.parametrize(
    "make_sum", [lambda q: q + 1, lambda q: 2.0 * q, lambda q: q - q, lambda q: q > 0, lambda q: -q]
)
def test_arithmetic_says_to_decode_first(make_sum):
    for tensor in (make("int4_block", (5, 13), 32)[0], wm.quantize(np.ones((2, 32)), "q8_0")):
        with pytest.raises(
            TypeError, match=r"^a QuantizedTensor has no arithmetic: decode it first, with dequantize\(\)$"
        ):
            make_sum(tensor)
        ones = np.ones(tensor.shape, np.float32)
        assert identical(tensor + ones, tensor.dequantize() + ones)
        assert identical(np.float32(2) * tensor, 2 * tensor.dequantize())


@in_one_item("scheme, block_size", KINDS)
@in_one_item("change", [-1, 1, 4])
def test_a_payload_of_another_size_is_refused(scheme, block_size, change):
    payload = payload_of(scheme, 65, block_size, "fp16")
    wrong = payload[:change] if change < 0 else payload + bytes(change)
    with pytest.raises(wm.QuantError, match=rf"{len(wrong)}, expected {len(payload)}"):
        QuantizedTensor(scheme, (5, 13), wrong, block_size=block_size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scheme": "int3"}, "int3.*expected one of int8"),
        ({"scheme": "int8", "block_size": 32}, "block size of int8 is 32, expected 0"),
        ({"scheme": "int4_block", "block_size": 0}, "block size of int4_block is 0"),
        ({"scheme": "int4_block", "block_size": 7}, "7, expected .*multiple of 2"),
        ({"scheme": "int5_block", "block_size": 12}, "12, expected .*multiple of 8"),
        ({"scheme": "adaptive", "block_size": 0}, "0, expected"),
        ({"scheme": "int4_block", "block_size": 32, "scale_type": "fp8"}, "fp8"),
    ],
)
def test_what_no_tensor_can_be_is_refused(arguments, message):
    with pytest.raises(wm.QuantError, match=message):
        QuantizedTensor(shape=(8,), payload=bytes(64), **arguments)


SCHEMES = [("int8", 32), ("int4", 32), ("int5", 32), ("int4_block", 32), ("int5_block", 32), ("adaptive", 32)]


@pytest.mark.parametrize(("scheme", "block_size"), SCHEMES)
@in_one_item("shape", [(0,), (3, 0), (), (1,), (1, 1, 1)])
def test_arrays_of_no_and_one_element(scheme, block_size, shape):
    values = np.full(shape, 7, np.float32)
    tensor = wm.quantize(values, scheme, block_size=block_size)
    assert tensor.shape == shape
    assert identical(tensor.dequantize(), values)
    assert math.isnan(tensor.bits_per_weight) == (values.size == 0)


@pytest.mark.parametrize(("scheme", "block_size"), SCHEMES)
def test_how_the_array_lies_in_memory_does_not_matter(scheme, block_size):
    values = np.random.default_rng(3).normal(size=(24, 35)).astype(np.float16).astype(np.float32)
    expected = wm.quantize(values, scheme, block_size=block_size).payload.tobytes()
    wide = np.zeros((48, 70), np.float32)
    wide[::2, ::2] = values
    unaligned = np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(np.float32).reshape(values.shape)
    others = [
        wide[::2, ::2],
        np.asfortranarray(values),
        values.astype(">f4"),
        values.astype(np.float64),
        values.astype(np.float16),
        unaligned,
        values.tolist(),
    ]
    for other in others:
        assert wm.quantize(other, scheme, block_size=block_size).payload.tobytes() == expected
    assert wm.quantize(values, scheme, block_size=block_size, threads=3).payload.tobytes() == expected


MASKED = np.ma.masked_array([1.0, 2.0], [False, True])


@pytest.mark.parametrize(
    ("values", "scheme", "options", "message"),
    [
        (np.ones(64), "int3", {}, "int3"),
        (np.ones(64), "int4_block", {"block_size": 0}, "0, expected"),
        (np.ones(64), "int4_block", {"block_size": 3}, "3, expected"),
        (np.ones(64), "int5_block", {"block_size": 4}, "4, expected"),
        (np.ones(64), "int5_block", {"block_size": -8}, "-8, expected"),
        (np.ones(64), "adaptive", {"block_size": 12}, "12, expected"),
        (np.ones(64), "adaptive", {"bits": 4.0}, "bits is 4.0, expected 4.5"),
        (np.ones(64), "adaptive", {"bits": 17.0}, "bits is 17.0, expected"),
        (np.ones(64), "adaptive", {"bits": math.nan}, "bits is nan, expected"),
        (np.ones(64), "int8", {"scale_type": "bf16"}, "bf16"),
        (np.ones(3, np.complex64), "int8", {}, "real numbers"),
        (np.array(["a"]), "int8", {}, "real numbers"),
        (np.array([None]), "int8", {}, "real numbers"),
        # signalling NaN: no warning of numpy comes first
        (np.array([0x7FF0000000000001], np.uint64).view(np.float64), "int8", {}, "element 0 is nan, expected a number"),
        ([[1.0], [2.0, 3.0]], "int8", {}, "real numbers"),
        (MASKED, "int8", {}, "mask"),
        (MASKED, "int4_block", {}, "mask"),
        (MASKED, "adaptive", {}, "mask"),
    ],
)
def test_what_cannot_be_quantised_is_refused(values, scheme, options, message):
    with pytest.raises(wm.QuantError, match=message):
        wm.quantize(values, scheme, **options)
