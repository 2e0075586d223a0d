"""Quantisation on the way from one file to another: which tensors, how, with what error, and in how much memory."""

import math

import numpy as np
import pytest
from tests.builders import noise, normal, tensor
from tests.builders import safetensors as st
from tests.support import listing

import weightmap as wm

SCHEMES = ["int8", "int4", "int5", "int4_block", "int5_block", "adaptive"]
MODEL = {
    "tok_Embeddings.weight": normal((7, 16), 1),
    "layer.0.Attention.weight": normal((12, 16), 2),
    "layer.0.attention.bias": normal((16,), 3),
    "layer.1.attention.weight": normal((3, 4, 11), 4, "float16"),
    "layer.1.norm": normal((), 5),
    "ids": noise("int8", (4, 4)),
    "empty": normal((0, 8), 6),
    "wide": normal((9, 5), 7, "bfloat16"),
}
CHOSEN = ["layer.0.Attention.weight", "layer.1.attention.weight", "empty", "wide"]


def of_its_own(scheme, block_size, bits):
    if scheme == "adaptive":
        return {"block_size": block_size, "bits": bits}
    return {"block_size": block_size} if scheme.endswith("_block") else {}


def quantised_names(path):
    with wm.open(path) as file:
        return [name for name in file if isinstance(file[name], wm.QuantizedTensor)]


@pytest.fixture
def model(put):
    return put(st.build(MODEL, {"format": "pt"}), "model.safetensors")


def test_matrices_are_quantised_and_all_else_stays(model, tmp_path):
    """By default: floating point, two dimensions or more, no name of an embedding. The rest keeps every bit."""
    report = wm.convert(model, tmp_path / "q.amb", quantize=wm.Quantize("int5_block", block_size=8))
    assert [info.name for info in report.quantized] == CHOSEN == quantised_names(tmp_path / "q.amb")
    with wm.open(tmp_path / "q.amb") as file:
        assert list(file) == list(MODEL)
        for name, value in MODEL.items():
            if name not in CHOSEN:
                assert file.info(name).dtype == value.dtype
                assert file[name].tobytes() == value.data
        assert file.config["quant"] == {"type": "int5_block", "block_size": 8, "scale_type": "fp16"}
        assert file.metadata["format"] == "pt"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"include": "*"}, [*MODEL]),
        ({"include": ["*.bias", "*norm"]}, ["layer.0.attention.bias", "layer.1.norm"]),
        ({"include": "*attention*"}, ["layer.0.attention.bias", "layer.1.attention.weight"]),
        ({"include": "*Embed*", "exclude": "*tok*"}, []),
        ({"exclude": "layer.?.*"}, ["empty", "wide"]),
        ({"exclude": ["layer.0*", "w*"]}, ["layer.1.attention.weight", "empty"]),
        ({"include": "*", "exclude": "*weight"}, [name for name in MODEL if "weight" not in name]),
        ({"exclude": "*"}, []),
    ],
)
def test_globs_choose(model, tmp_path, options, names):
    """`include` takes exactly the matching tensors, of any shape, `exclude` leaves out; integers stay."""
    report = wm.convert(model, tmp_path / "q.amb", quantize=wm.Quantize("int8", **options))
    expected = [name for name in names if name != "ids"]
    assert [info.name for info in report.quantized] == quantised_names(tmp_path / "q.amb") == expected


@pytest.mark.parametrize("scale_type", ["fp16", "fp32"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_bytes_are_those_of_quantize(model, tmp_path, scheme, scale_type):
    options = {"scale_type": scale_type, **of_its_own(scheme, 16, 7)}
    wm.convert(model, tmp_path / "q.amb", quantize=wm.Quantize(scheme, **options), threads=2)
    with wm.open(tmp_path / "q.amb") as file:
        for name in CHOSEN:
            expected = wm.quantize(MODEL[name].array, scheme, **options)
            found = file[name]
            assert (found.scheme, found.shape, found.block_size, found.scale_type) == (
                (scheme, expected.shape, expected.block_size, scale_type)
            )
            assert found.payload.tobytes() == expected.payload.tobytes(), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_report_has_size_and_error(model, tmp_path, scheme):
    report = wm.convert(model, tmp_path / "q.amb", quantize=wm.Quantize(scheme, **of_its_own(scheme, 8, 8)))
    assert report.nbytes == (tmp_path / "q.amb").stat().st_size
    with wm.open(tmp_path / "q.amb") as file:
        for info in report.quantized:
            value, found = MODEL[info.name].array.astype(np.float64), file[info.name]
            assert (info.scheme, info.shape) == (scheme, value.shape)
            assert (info.nbytes_before, info.nbytes) == (len(MODEL[info.name].data), found.nbytes)
            if value.size == 0:
                assert (info.bits_per_weight, info.rmse, info.relative_error) == (0, 0, 0)
                continue
            rmse = math.sqrt(np.square(found.dequantize(np.float64) - value).mean())
            assert info.bits_per_weight == 8 * found.nbytes / value.size
            assert info.rmse == pytest.approx(rmse, rel=1e-6)
            assert info.relative_error == pytest.approx(rmse / math.sqrt(np.square(value).mean()), rel=1e-6)
            assert info.rmse > 0


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_named_and_no_file_is_left(put, tmp_path, scheme, bad):
    """A NaN or infinity, deep in a later piece, is a QuantError with file, tensor and index; nothing is left behind."""
    values = np.ones((2, 300_000), np.float32)
    values[1, 234_567] = bad
    source = put(st.build({"fine": normal((8, 8)), "a\x1bb": tensor(values)}), "a.safetensors")
    (tmp_path / "q.amb").write_bytes(b"before")
    with pytest.raises(wm.QuantError, match=r"a\\x1bb.*element 534567") as caught:
        wm.convert(source, tmp_path / "q.amb", quantize=scheme)
    assert str(bad) in str(caught.value)
    assert caught.value.path == str(source)
    assert listing(tmp_path) == ["a.safetensors", "q.amb"]
    assert (tmp_path / "q.amb").read_bytes() == b"before"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "int3"}, "int3"),
        ({"scheme": "int4_block", "block_size": 3}, "3, expected"),
        ({"scheme": "int5_block", "block_size": 4}, "4, expected"),
        ({"scheme": "adaptive", "bits": 3.0}, "bits is 3"),
        ({"scheme": "int8", "scale_type": "fp64"}, "fp64"),
        ({"scheme": "int8", "block_size": 64}, "block_size is for .* and adaptive: int8 has no blocks"),
        ({"scheme": "q4_0", "block_size": 64}, "block_size is for .*: q4_0 has blocks of one size"),
        ({"scheme": "int4_block", "bits": 6.0}, "bits is for adaptive: int4_block has a fixed number of bits"),
    ],
)
def test_options_that_do_not_exist_are_refused_first(options, message):
    with pytest.raises(wm.QuantError, match=message):
        wm.Quantize(**options)


@pytest.fixture
def quantised(tmp_path):
    values = np.random.default_rng(9).normal(size=(6, 37)).astype(np.float32)
    tensors = {scheme: wm.quantize(values, scheme, block_size=8, bits=8.0) for scheme in SCHEMES}
    tensors["fp32"] = wm.quantize(values, "int4_block", block_size=2, scale_type="fp32")
    tensors["dense"] = values
    path = tmp_path / "quantised.amb"
    wm.save(path, tensors, metadata={"name": "q"}, config={"n_embd": 37})
    return path, tensors


@pytest.mark.parametrize("quantize", [None, "int5_block"])
def test_amb_to_amb_keeps_quantised_tensors(quantised, tmp_path, quantize):
    path, tensors = quantised
    report = wm.convert(path, tmp_path / "again.amb", quantize=quantize and wm.Quantize(quantize, include="*"))
    assert [info.name for info in report.quantized] == (["dense"] if quantize else [])
    if quantize is None:
        assert (tmp_path / "again.amb").read_bytes() == path.read_bytes()
    with wm.open(tmp_path / "again.amb") as file:
        for name, value in tensors.items():
            if name != "dense":
                assert file[name].payload.tobytes() == value.payload.tobytes()


def test_a_dtype_for_dense_tensors_decodes_nothing(quantised, tmp_path):
    path, tensors = quantised
    wm.convert(path, tmp_path / "again.amb", quantize=wm.Quantize("int8", exclude="*"), dtype="float16")
    with wm.open(tmp_path / "again.amb") as file:
        assert {name: file.info(name).dtype for name in file} == {
            **{name: value.scheme for name, value in tensors.items() if name != "dense"},
            "dense": "float16",
        }
        assert file["int5"].payload.tobytes() == tensors["int5"].payload.tobytes()


def test_to_other_formats_only_decoded(quantised, tmp_path):
    path, tensors = quantised
    with pytest.raises(wm.EncodeError) as caught:
        wm.convert(path, tmp_path / "q.safetensors")
    assert all(f"{name!r}" in str(caught.value) for name in tensors if name != "dense")
    assert not (tmp_path / "q.safetensors").exists()
    wm.convert(path, tmp_path / "q.safetensors", dtype="float32")
    wm.convert(path, tmp_path / "half.safetensors", dtype="bfloat16")
    with wm.open(tmp_path / "q.safetensors") as file, wm.open(tmp_path / "half.safetensors") as half:
        for name, value in tensors.items():
            assert file[name].tobytes() == np.asarray(value).tobytes()
            assert half[name].tobytes() == np.asarray(value).astype(half[name].dtype).tobytes()


def test_decoding_in_pieces(tmp_path):
    value = wm.quantize(np.random.default_rng(10).normal(size=(3, 200_001)), "int5_block", block_size=24)
    wm.save(tmp_path / "q.amb", {"w": value})
    wm.convert(tmp_path / "q.amb", tmp_path / "d.weights", dtype="float16")
    with wm.open(tmp_path / "d.weights") as file:
        assert file["w"].tobytes() == value.dequantize(np.float16).tobytes()


def test_differences_of_quantised_files(quantised, tmp_path):
    path, tensors = quantised
    wm.convert(path, tmp_path / "same.amb")
    assert wm.diff(path, tmp_path / "same.amb").equal
    payload = bytearray(tensors["int4_block"].payload.tobytes())
    payload[2] ^= 0x11  # two codes of the first block
    changed = wm.QuantizedTensor("int4_block", (6, 37), payload, block_size=8)
    other = wm.quantize(tensors["dense"], "int5_block", block_size=16)
    wm.save(tmp_path / "other.amb", tensors | {"int4_block": changed, "int5_block": other}, metadata={"name": "q"})
    report = wm.diff(path, tmp_path / "other.amb")
    found = {change.name: change for change in report.changed}
    assert set(found) == {"int4_block", "int5_block"}
    assert (found["int4_block"].what, found["int4_block"].n_different) == ("values", 2)
    distance = np.abs(changed.dequantize(np.float64) - tensors["int4_block"].dequantize(np.float64)).max()
    assert found["int4_block"].max_abs == distance
    assert found["int5_block"].what == "dtype"
    assert "blocks of 16" in found["int5_block"].b


def test_a_damaged_mask_is_an_error_with_file_and_place(tmp_path):
    """Every use of a tensor with a damaged mask is an error with the file and the byte of its data."""
    value = wm.quantize(np.ones((4, 16), np.float32), "adaptive")
    wm.save(tmp_path / "q.amb", {"w": value})
    data = bytearray((tmp_path / "q.amb").read_bytes())
    with wm.open(bytes(data)) as file:
        at = file.info("w").offset + 4
    data[at] |= 3
    bad = tmp_path / "bad.amb"
    bad.write_bytes(data)
    with wm.open(bad) as file:
        uses = [
            lambda: file["w"],
            lambda: file.read("w"),
            lambda: list(file.values()),
            lambda: wm.convert(bad, tmp_path / "x.amb"),
            lambda: wm.convert(bad, tmp_path / "x.bt", dtype="float16"),
            lambda: wm.diff(tmp_path / "q.amb", bad),
        ]
        for use in uses:
            with pytest.raises(wm.QuantError, match="kind of block 0 is 3") as caught:
                use()
            assert (caught.value.path, caught.value.offset) == (str(bad), at)


@pytest.mark.parametrize("scheme", ["int8", "int4", "int5", "int4_block", "int5_block", "adaptive"])
def test_values_beyond_the_scales_are_named(tmp_path, scheme):
    """A float16 holds no scale of 65504 or more, and tiny ones become 0: the file would hold other numbers silently."""
    usual = np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64)
    tensors = {"huge": 1e9 * usual, "tiny": 1e-8 * usual, "usual": usual, "zero": 0 * usual, "empty": usual[:0]}
    wm.save(tmp_path / "t.bt", tensors)
    for target in ("t.amb", "shards/"):
        report = wm.convert(
            tmp_path / "t.bt", f"{tmp_path}/{target}", format="amb", quantize=scheme, max_shard_size=900
        )
        (line,) = report.warnings
        assert line.startswith("2 tensors lost values that scales of float16 do not hold ('huge', 'tiny'): ")
        assert line.endswith("Quantize(scale_type='fp32') (--scale-type fp32) holds them")
        assert {info.name for info in report.quantized if info.out_of_range} == {"huge", "tiny"}
    report = wm.convert(tmp_path / "t.bt", tmp_path / "u.amb", quantize=wm.Quantize(scheme, scale_type="fp32"))
    assert report.warnings == ()
    for name in ("huge", "tiny"):
        with pytest.raises(
            wm.QuantError,
            match=r"largest magnitude is .* for scales of float16; quantize\(scale_type='fp32'\) takes any",
        ):
            wm.quantize(tensors[name], scheme)
        values = wm.quantize(tensors[name], scheme, scale_type="fp32").dequantize()
        assert np.abs(values - tensors[name]).max() < 0.15 * np.abs(tensors[name]).max()
    assert not wm.quantize(tensors["zero"], scheme).dequantize().any()
    for largest in (2e-4, 450_000):
        wm.quantize(np.float32(largest) * usual, scheme)


def test_a_dense_file_describes_no_quantisation(tmp_path):
    wm.save(tmp_path / "t.bt", {"w": np.ones((4, 64), np.float32)})
    wm.convert(tmp_path / "t.bt", tmp_path / "q.amb", quantize="int4_block")
    wm.save(tmp_path / "q.amb", wm.open(tmp_path / "q.amb"), config={"n_embd": 64})
    assert wm.convert(tmp_path / "q.amb", tmp_path / "d.amb", dtype="float32").warnings == ()
    assert wm.open(tmp_path / "d.amb").config == {"n_embd": 64}
    wm.convert(tmp_path / "q.amb", tmp_path / "again.amb")
    assert wm.open(tmp_path / "again.amb").config == wm.open(tmp_path / "q.amb").config
    assert wm.open(tmp_path / "q.amb").config["quant"]["type"] == "int4_block"
