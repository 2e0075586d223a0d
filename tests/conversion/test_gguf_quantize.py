"""Quantising to GGUF, and quantised tensors on their way between AMB and GGUF."""

import math

import numpy as np
import pytest
from tests.builders import normal
from tests.builders import safetensors as st
from tests.support import listing

import weightmap as wm

SCHEMES = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4"]
INSTEAD = {"q2_k": "iq4_nl", "q3_k": "iq4_nl", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
ARCHITECTURE = {"general.architecture": "llama"}
MODEL = {
    "token_embd.weight": normal((7, 256), 1),
    "tok_embeddings.weight": normal((7, 256), 1),
    "blk.0.attn_q.weight": normal((3, 512), 2),
    "blk.0.experts.weight": normal((2, 3, 256), 3, "float16"),
    "blk.0.narrow.weight": normal((5, 96), 4, "bfloat16"),
    "blk.0.odd.weight": normal((5, 48), 5),
    "blk.0.norm.weight": normal((256,), 6),
    "empty": normal((0, 256), 7),
}
WHOLE = ["blk.0.attn_q.weight", "blk.0.experts.weight", "empty"]


@pytest.fixture
def model(put):
    return put(st.build(MODEL, ARCHITECTURE), "model.safetensors")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme(model, tmp_path, scheme):
    path = tmp_path / "q.gguf"
    report = wm.convert(model, path, quantize=scheme)
    other = INSTEAD.get(scheme, scheme)
    schemes = dict.fromkeys(WHOLE, scheme) | {"blk.0.narrow.weight": other}
    assert {info.name: info.scheme for info in report.quantized} == schemes
    with wm.open(path, verify="full") as file:
        assert list(file) == list(MODEL)
        for name, value in MODEL.items():
            if name in schemes:
                expected = wm.quantize(value.array, schemes[name])
                assert file.info(name).dtype == schemes[name]
                assert file[name].shape == value.shape
                assert file[name].payload.tobytes() == expected.payload.tobytes()
            else:
                assert file.info(name).dtype == value.dtype
                assert file[name].tobytes() == value.data
        for info in report.quantized:
            value = MODEL[info.name].array.astype(np.float64)
            assert (info.shape, info.nbytes) == (value.shape, file[info.name].nbytes)
            if value.size:
                error = file[info.name].dequantize(np.float64) - value
                assert info.rmse == pytest.approx(math.sqrt(np.square(error).mean()), rel=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gguf_py_reads_what_was_quantised(model, tmp_path, scheme):
    theirs = pytest.importorskip("gguf")
    wm.convert(model, tmp_path / "q.gguf", quantize=scheme)
    with wm.open(tmp_path / "q.gguf") as file:
        for found in theirs.GGUFReader(tmp_path / "q.gguf").tensors:
            if found.name in WHOLE[:2]:
                assert found.tensor_type.name == scheme.upper()
                values = theirs.dequantize(found.data, found.tensor_type)
                np.testing.assert_array_equal(values, file[found.name].dequantize())


def test_what_is_refused(model, tmp_path):
    with pytest.raises(wm.EncodeError, match="has no scheme q4_k: it is written with int8, int4"):
        wm.convert(model, tmp_path / "q.amb", quantize="q4_k")
    with pytest.raises(
        wm.QuantError, match=r"'iq3_s', expected .*, mxfp4; iq3_s is read, not written: the nearest is q3_k$"
    ):
        wm.convert(model, tmp_path / "q.gguf", quantize="iq3_s")
    with pytest.raises(wm.QuantError, match="scale_type of q8_0 is 'fp32', expected 'fp16'"):
        wm.convert(model, tmp_path / "q.gguf", quantize=wm.Quantize("q8_0", scale_type="fp32"))
    with pytest.raises(wm.QuantError, match=r"shape of q8_0 is \[31\]"):
        wm.quantize(np.zeros(31), "q8_0")


def amb_file(path):
    values = np.random.default_rng(3).standard_normal((5, 96)).astype(np.float32)
    found = {
        **{scheme: wm.quantize(values, scheme) for scheme in ("int4", "int5", "int8", "int4_block")},
        "int4_wide": wm.quantize(values, "int4_block", block_size=96),
        "int5_block": wm.quantize(values, "int5_block", block_size=64),
        "exact": wm.quantize(np.arange(-8, 8, dtype=np.float32).repeat(2), "int4", scale_type="fp32"),
        "empty": wm.quantize(np.zeros((0, 32)), "int8"),
        "dense": values,
    }
    wm.save(path, found, metadata={"name": "tiny"})
    return found


EXPECTED = {"int4": "q4_0", "int5": "q5_0", "int8": "q8_0", "int4_block": "q4_0", "int4_wide": "q4_0"}
EXPECTED |= {"int5_block": "q5_0", "exact": "q4_0", "empty": "q8_0", "dense": "float32"}


def test_amb_becomes_gguf_without_decoding(tmp_path, monkeypatch):
    tensors = amb_file(tmp_path / "a.amb")
    with monkeypatch.context() as patch:
        patch.setattr(wm.QuantizedTensor, "_decode", None)
        report = wm.convert(tmp_path / "a.amb", tmp_path / "g.gguf")
    assert "2 tensors of int8 became q8_0: the same integers and scales, nothing was decoded" in report.warnings
    assert "1 tensor of int5 became q5_0: the same integers and scales, nothing was decoded" in report.warnings
    assert not any("configuration" in warning for warning in report.warnings)  # how AMB stores them
    with wm.open(tmp_path / "g.gguf", verify="full") as file:
        assert {name: file.info(name).dtype for name in file} == EXPECTED
        for name, value in tensors.items():
            assert np.asarray(file[name]).tobytes() == np.asarray(value).tobytes()
    changed = wm.diff(tmp_path / "a.amb", tmp_path / "g.gguf", tensors_only=True).changed
    assert [(change.name, change.what, change.n_different, change.max_abs) for change in changed] == [
        (name, "dtype", 0, 0) for name in tensors if name != "dense"
    ]


def test_gguf_becomes_amb_without_decoding(tmp_path):
    amb_file(tmp_path / "a.amb")
    wm.convert(tmp_path / "a.amb", tmp_path / "g.gguf")
    report = wm.convert(tmp_path / "g.gguf", tmp_path / "b.amb")
    assert "4 tensors of q4_0 became int4_block: the same integers and scales, nothing was decoded" in (report.warnings)
    with wm.open(tmp_path / "a.amb") as a, wm.open(tmp_path / "b.amb", verify="full") as b:
        schemes = {name: b.info(name).dtype for name in b}
        assert schemes == {
            name: {"q4_0": "int4_block", "q5_0": "int5_block", "q8_0": "int8"}.get(kind, kind)
            for name, kind in EXPECTED.items()
        }
        for name in a:
            assert np.asarray(b[name]).tobytes() == np.asarray(a[name]).tobytes()
        assert b["int8"].payload.tobytes() == a["int8"].payload.tobytes()
        assert b["empty"].nbytes == 2
    changed = wm.diff(tmp_path / "a.amb", tmp_path / "b.amb", tensors_only=True).changed
    assert [change.name for change in changed if change.n_different is None] == ["int4_wide", "int5_block"]
    assert not any(change.n_different for change in changed)


@pytest.mark.parametrize("scheme", ["int4_block", "int5_block", "int8"])
def test_many_pieces_there_and_back(tmp_path, scheme):
    """A tensor of several pieces comes back byte by byte."""
    values = normal((300, 1088), 9).array
    wm.save(tmp_path / "a.amb", {"w": wm.quantize(values, scheme)})
    wm.convert(tmp_path / "a.amb", tmp_path / "g.gguf")
    wm.convert(tmp_path / "g.gguf", tmp_path / "b.amb")
    with wm.open(tmp_path / "a.amb") as a, wm.open(tmp_path / "b.amb") as b:
        assert a["w"].payload.tobytes() == b["w"].payload.tobytes()


def test_amb_that_has_no_counterpart(tmp_path):
    values = normal((4, 80), 2).array
    wide = wm.quantize(normal((1, 300_032), 4).array, "int4_block", scale_type="fp32")
    octets = wide.payload.copy()
    octets.reshape(-1, 20)[:, :4] = np.frombuffer(np.float32(0.5).tobytes(), np.uint8)
    octets.reshape(-1, 20)[9001, :4] = np.frombuffer(np.float32(0.1).tobytes(), np.uint8)
    wm.save(
        tmp_path / "a.amb",
        {
            "rows": wm.quantize(values, "int8"),
            "blocks": wm.quantize(values[:, :64], "int4_block", block_size=16),
            "scales": wm.QuantizedTensor("int4_block", wide.shape, octets, block_size=32, scale_type="fp32"),
            "mixed": wm.quantize(values, "adaptive"),
            "fine": wm.quantize(values[:, :64], "int4_block"),
        },
    )
    before = listing(tmp_path)
    with pytest.raises(wm.EncodeError) as error:
        wm.convert(tmp_path / "a.amb", tmp_path / "g.gguf")
    assert listing(tmp_path) == before
    rows, scale = "a last dimension that is a multiple of 32", "is 0.10000000149011612, expected a value of float16"
    assert list(error.value.refused) == [
        f"tensor 'rows': quantised to int8 (shape of q8_0 is [4, 80], expected {rows})",
        "tensor 'blocks': quantised to int4_block (block size is 16, expected a multiple of 32, as of q4_0)",
        f"tensor 'scales': quantised to int4_block (scale of block 9001 {scale})",
        "tensor 'mixed': quantised to adaptive",
    ]
    assert "convert with dtype='float32'" in str(error.value)
    wm.convert(tmp_path / "a.amb", tmp_path / "g.gguf", dtype="float32")
    assert wm.diff(tmp_path / "a.amb", tmp_path / "g.gguf", tensors_only=True).changed[0].what == "dtype"


@pytest.mark.parametrize("name", ["blocks", "integers"])
def test_globs_that_choose_nothing_to_quantise_are_named(tmp_path, name):
    """Quantised tensors and integers stay as they are, whatever a glob says."""
    ones = np.ones((2, 256), np.float32)
    wm.save(tmp_path / "a.gguf", {"blocks": wm.quantize(ones, "q4_0"), "integers": np.arange(256), "dense": ones})
    report = wm.convert(tmp_path / "a.gguf", tmp_path / "b.gguf", quantize=wm.Quantize("q8_0", include=name))
    assert report.warnings == ("quantize: no tensor was quantised",)
    assert wm.convert(tmp_path / "a.gguf", tmp_path / "b.gguf", quantize="q8_0").warnings == ()


@pytest.mark.parametrize("scheme", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "q2_k", "q3_k", "q4_k", "q6_k"])
def test_values_beyond_scales_of_float16_are_named(tmp_path, scheme):
    """gguf-py's formulas turn them into infinities or zeros."""
    ones = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    tensors = {"huge": ones * np.float32(1e30), "tiny": ones * np.float32(1e-30), "usual": ones}
    wm.save(tmp_path / "a.bt", tensors)
    report = wm.convert(tmp_path / "a.bt", tmp_path / "b.gguf", quantize=scheme)
    assert {info.name for info in report.quantized if info.out_of_range} == {"huge", "tiny"}
    assert "2 tensors lost values that scales of float16 do not hold ('huge', 'tiny')" in report.warnings
