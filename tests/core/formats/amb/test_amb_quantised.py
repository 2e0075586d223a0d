"""Quantised tensors in AMB: their values by the plain definition, and errors for damaged ones."""

import itertools
import json
import math
import struct

import numpy as np
import pytest
from tests.bounds_support import error_of
from tests.builders import amb, normal
from tests.core.quant.test_quant import payload_of

import weightmap as wm
from weightmap.core.quant.blocks import QuantizedTensor

BITS = {"int8": 8, "int4": 4, "int5": 5, "int4_block": 4, "int5_block": 5}
SCALES = ("fp32", "fp16")
# Of one element, of less than a block, of whole blocks, of one element more, of a prime number of elements.
SIZES = (1, 7, 31, 32, 33, 128, 129, 1009)
BLOCKED = ("int4_block", "int5_block")
WAYS = [(scheme, 0) for scheme in BITS if scheme not in BLOCKED]
WAYS += [(scheme, size) for scheme in BLOCKED for size in (8, 32, 128, 1000)]
WAYS += [("int4_block", 2), ("int4_block", 50)]


def record(scheme, size, block_size=0, scale_type=1, name="q"):
    data = payload_of(scheme, size, block_size, SCALES[scale_type])
    return amb.quantised(name, (size,), amb.SCHEMES[scheme], data, block_size, scale_type)


def adaptive_blocks(count, block_size, seed=0):
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(count):
        code = int(rng.integers(0, 3))
        values = rng.standard_normal(block_size) if code == 2 else rng.integers(-8, 8, block_size)
        blocks.append((code, float(np.float16(rng.standard_normal())), values.tolist()))
    return blocks


def adaptive(count=9, block_size=16, scale_type=1):
    data = amb.pack_adaptive(adaptive_blocks(count, block_size), block_size, scale_type)
    return amb.quantised("q", (count * block_size,), amb.ADAPTIVE, data, block_size, scale_type)


# By the definition they are in tests/core/quant/test_quant.py.


def test_int8_is_dense_or_quantised_by_its_size(put):
    dense = amb.Record("d", (6,), amb.INT8, bytes(range(6)))
    with wm.open(put(amb.build([dense, record("int8", 6), record("int8", 6, scale_type=0, name="w")]))) as f:
        assert f["d"].tolist() == list(range(6))
        assert isinstance(f["q"], QuantizedTensor)
        assert isinstance(f["w"], QuantizedTensor)
        assert [info.dtype for info in f.infos()] == ["int8", "int8", "int8"]
        f.verify()


def bare(scheme, size, block_size, scale_type):
    stored = record(scheme, size, block_size, scale_type)
    return stored.but(data=stored.data[4:])


@pytest.mark.parametrize("scale_type", [0, 1])
@pytest.mark.parametrize("block_size", [8, 32, 128])
@pytest.mark.parametrize("scheme", BLOCKED)
def test_bare_blocks_are_described_by_the_configuration(put, scheme, block_size, scale_type):
    stored, full = bare(scheme, 100, block_size, scale_type), record(scheme, 60, 16, 1 - scale_type, "full")
    quant = {"type": scheme, "block_size": block_size, "scale_type": SCALES[scale_type]}
    with wm.open(put(amb.build([stored, full], config=amb.text({"quant": quant})))) as f:
        assert (f["q"].block_size, f["q"].scale_type) == (block_size, SCALES[scale_type])
        wanted = np.array(amb.decode(stored.data, BITS[scheme], 100, block_size, scale_type), np.float32)
        np.testing.assert_array_equal(np.asarray(f["q"]), wanted)
        assert (f["full"].block_size, f["full"].scale_type) == (16, SCALES[1 - scale_type])
        f.verify()


@pytest.mark.parametrize("config", [b"", b"{}", b'{"quant": {"type": "int4_block"}}'])
def test_bare_blocks_without_a_word_are_of_32_with_halves(put, config):
    stored = bare("int4_block", 70, 32, 1)
    with wm.open(put(amb.build([stored], config=config))) as f:
        wanted = np.array(amb.decode(stored.data, 4, 70, 32, 1), np.float32)
        np.testing.assert_array_equal(np.asarray(f["q"]), wanted)


@pytest.mark.parametrize(
    ("scheme", "block_size", "at", "new", "words"),
    [
        ("int4_block", 32, 0, b"\x03", "quant_type is 3, expected 4"),
        ("int4_block", 32, 1, b"\x21", "block_size is 33"),
        ("int4_block", 32, 1, b"\x40", "data_size is 76, expected 72"),
        ("int4_block", 32, 3, b"\x02", "scale_type is 2, expected 0 or 1"),
        ("int4", 0, 1, b"\x02", "block_size is 2"),
        ("adaptive", 16, 1, b"\x08", "kind of block 12 is 3"),
    ],
)
def test_a_header_that_changed_under_a_handle(scheme, block_size, at, new, words):
    stored = adaptive() if scheme == "adaptive" else record(scheme, 100, block_size)
    data = bytearray(amb.build([stored]))
    with wm.open(data) as f:
        np.asarray(f["q"])
        begin = f.info("q").offset
        data[begin + at : begin + at + 1] = new
        for use in (lambda: f["q"], lambda: f.read("q"), f.verify):
            with pytest.raises(wm.TensorFileError):
                use()
        with pytest.raises(wm.QuantError, match=words) as caught:
            f["q"]
    assert caught.value.offset is not None
    assert begin <= caught.value.offset <= begin + 4


@pytest.mark.parametrize("scale_type", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("scheme", "block_size"), [("int8", 0), ("int4", 0), ("int4_block", 32), ("int5_block", 32)])
def test_scales_that_are_no_numbers(put, scheme, block_size, value, scale_type):
    stored = record(scheme, 100, block_size, scale_type, "w")
    block = 2 if block_size else 0
    step = (2 if scale_type else 4) + (BITS[scheme] * block_size + 7) // 8
    at = 4 + block * step
    scale = amb.pack_scale(value, scale_type)
    data = stored.data[:at] + scale + stored.data[at + len(scale) :]
    with wm.open(put(amb.build([stored.but(data=data)]))) as f:
        values = np.asarray(f["w"])
        begin = block * block_size
        assert not np.isfinite(values[begin : begin + (block_size or 100)]).any()
        assert np.isfinite(values[:begin]).all()
        assert f.verify().warnings == (f"tensor 'w': NaN or infinite scale of block {block}",)
        with pytest.raises(wm.QuantError, match=f"block {block}"):
            f["w"].dequantize(strict=True)


def small():
    records = [record(scheme, 20, 8 if scheme in BLOCKED else 0, name=scheme) for scheme in BITS]
    records += [bare("int4_block", 40, 32, 1), adaptive(3, 8).but(name="adaptive"), amb.dense("d", normal((3,)))]
    return amb.build(records, b'{"n": 1}', b'{"quant": {"block_size": 32}}')


def test_what_was_read_is_written_as_it_was(put, tmp_path):
    source = put(small())
    with wm.open(source) as f:
        wm.save(tmp_path / "saved.amb", f, metadata=f.metadata, config={"n_vocab": 3, "quant": "old"})
        stored = {name: f[name].payload.tobytes() for name in f if isinstance(f[name], QuantizedTensor)}
    _, config, _, records = amb.parse((tmp_path / "saved.amb").read_bytes())
    assert {record.name: record.data[4:] for record, _ in records if record.name != "d"} == stored
    known = json.loads(config)
    assert known["n_vocab"] == 3
    assert known["quant"] == {"type": "adaptive", "block_size": 8, "scale_type": "fp16"}
    with wm.open(source) as f, wm.open(tmp_path / "saved.amb", verify="full") as g:
        for name in f:
            np.testing.assert_array_equal(np.asarray(f[name]), np.asarray(g[name]))


@pytest.mark.parametrize(("scheme", "block_size"), WAYS)
def test_tensors_from_memory_are_written(tmp_path, scheme, block_size):
    for scale_type, size in itertools.product((0, 1), SIZES):
        data = payload_of(scheme, size, block_size, SCALES[scale_type])
        q = QuantizedTensor(scheme, (size,), data, block_size=block_size, scale_type=SCALES[scale_type])
        path = tmp_path / "x.amb"
        wm.save(path, {"q": q})
        _, config, _, [(stored, _)] = amb.parse(path.read_bytes())
        assert stored == amb.quantised("q", (size,), amb.SCHEMES[scheme], data, block_size, scale_type)
        quant = {"type": scheme, "block_size": block_size, "scale_type": SCALES[scale_type]}
        assert json.loads(config) == {"quant": quant}
        with wm.open(path, verify="full") as f:
            np.testing.assert_array_equal(np.asarray(f["q"]), np.asarray(q))
            np.testing.assert_array_equal(f.read("q"), np.asarray(q))
            read = f["q"]
            assert (read.scheme, read.shape, read.block_size) == (scheme, (size,), block_size)
            assert read.scale_type == q.scale_type
            assert (f.info("q").dtype, f.info("q").nbytes, read.nbytes) == (scheme, len(data) + 4, len(data))
            assert f.verify().warnings == ()


def test_the_configuration_describes_most_of_the_file(tmp_path):
    large = QuantizedTensor(
        "int5_block", (320,), payload_of("int5_block", 320, 32, "fp32"), block_size=32, scale_type="fp32"
    )
    few = QuantizedTensor("int4_block", (64,), payload_of("int4_block", 64, 64, "fp16"), block_size=64)
    wm.save(tmp_path / "x.amb", {"a": few, "b": large, "c": np.zeros(1000, np.float32)})
    with wm.open(tmp_path / "x.amb") as f:
        assert f.config["quant"] == {"type": "int5_block", "block_size": 32, "scale_type": "fp32"}


CODE_BITS = {amb.INT4: 4, amb.INT5: 5, amb.INT4BLOCK: 4, amb.INT5BLOCK: 5}


def packed(bits, count):
    return math.ceil(bits * count / 8)


def sizes(code, n, block, scale):
    """The fewest and the most bytes of n elements behind the header."""
    blocks = math.ceil(n / block) if block else 1
    if code == amb.ADAPTIVE:
        mask = math.ceil(blocks / 4)
        return mask + blocks * (scale + block // 2), mask + blocks * 2 * block
    size = blocks * (scale + packed(CODE_BITS[code], block or n))
    return size, size


def stored(code, n, size, block, scale_type, *, kind=None):
    config = amb.text({"quant": {"block_size": 0}})  # fits no blocks
    head = struct.pack("<BHB", code - 2 if kind is None else kind, block, scale_type)
    return amb.build([amb.Record("q", (n,), code, (head + bytes(max(size - 4, 0)))[:size])], config=config)


CODE_WAYS = [(code, 0) for code in (amb.INT4, amb.INT5)]
CODE_WAYS += [(amb.INT4BLOCK, 2), (amb.INT4BLOCK, 8), (amb.INT5BLOCK, 8), (amb.INT5BLOCK, 16)]
CODE_WAYS += [(amb.ADAPTIVE, 8), (amb.ADAPTIVE, 16)]


@pytest.mark.parametrize("scale_type", [0, 1])
@pytest.mark.parametrize(("code", "block"), CODE_WAYS)
def test_sizes_of_quantised_data(code, block, scale_type):
    for n in (*range(1, 18), 31, 32, 33, 63, 64, 65, 71, 72, 73, 127, 128, 129):
        least, most = (4 + size for size in sizes(code, n, block, 2 if scale_type else 4))
        for size in {least - 1, least, most, most + 1}:
            error = error_of(stored(code, n, size, block, scale_type))
            if least <= size <= most:
                assert error is None
                continue
            assert type(error) is wm.QuantError
            assert (error.field, error.actual) == ("data_size", size)
            assert str(error.expected) == f"{least if size < least else most} by its shape, block size and scale type"
