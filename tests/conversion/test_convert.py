"""Conversion: content survives, memory stays flat, and the report lists everything that the target cannot hold."""

import json
import os
import re
import struct
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from tests.builders import embd, noise, normal, tensor
from tests.builders import safetensors as st
from tests.builders import torch as checkpoints
from tests.support import listing

import weightmap as wm
from weightmap.core.bytes.source import Source

MODEL = {
    "encoder.weight": normal((4, 6), 1),
    "encoder.bias": normal((6,), 2),
    "decoder.weight": normal((6, 4), 3),
    "ids": noise("int32", (5,)),
}


def test_include_and_exclude(put, tmp_path):
    source, out = put(st.build(MODEL), "a.safetensors"), tmp_path / "out.weights"

    def kept(**options):
        wm.convert(source, out, **options)
        return sorted(embd.parse(out.read_bytes()).tensors)

    assert kept(include=["encoder.*"]) == ["encoder.bias", "encoder.weight"]
    assert kept(exclude=["ids"]) == ["decoder.weight", "encoder.bias", "encoder.weight"]
    assert kept(include=["encoder.*"], exclude=["encoder.bias"]) == ["encoder.weight"]
    assert kept(include=["encoder.*", "ids"]) == ["encoder.bias", "encoder.weight", "ids"]
    assert kept(include="ids") == ["ids"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", np.float16, np.dtype("float32")], ids=str)
def test_dtype_casts_floating_tensors(put, tmp_path, dtype):
    source, out = put(st.build(MODEL), "a.safetensors"), tmp_path / "out.safetensors"
    wm.convert(source, out, dtype=dtype)
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    found = st.parse(out.read_bytes())[0]
    for key, value in MODEL.items():
        if value.dtype == "float32":
            wanted = normal((1,), dtype=name).array.dtype
            assert found[key] == tensor(value.array.astype(wanted)), key
        else:
            assert found[key] == value


# Values beyond the range of each type: 65,519 rounds down to the largest float16, 65,520 up to infinity.
RANGES = {
    "float16": (65519.0, 65520.0, "infinite"),
    "bfloat16": (3.3895313e38, 3.4e38, "infinite"),
    "float32": (3.4028235e38, 1e39, "infinite"),
    "float8_e4m3fn": (464.0, 465.0, "NaN"),
    "float8_e5m2": (61439.0, 61441.0, "infinite"),
}


@pytest.mark.parametrize("sharded", [False, True], ids=["file", "shards"])
@pytest.mark.parametrize("dtype", RANGES)
def test_values_that_overflow_are_counted(tmp_path, dtype, sharded):
    """The report has one line about finite values that became infinite or NaN; older ones do not count."""
    last, first, became = RANGES[dtype]
    source, out = tmp_path / "a.safetensors", tmp_path / "out"
    wide = np.float64 if dtype == "float32" else np.float32
    wm.save(source, {"fits": np.array([last, -last, np.inf, -np.inf, np.nan, 0], wide)})
    target = f"{out}/" if sharded else out.with_suffix(".safetensors")
    assert wm.convert(source, target, format="safetensors", dtype=dtype).warnings == ()
    wm.save(source, {"a": np.array([first, 1, np.inf], wide), "b": np.array([-first, first, last], wide)})
    target = f"{out}2/" if sharded else target
    report = wm.convert(source, target, format="safetensors", dtype=dtype)
    assert report.warnings == (f"3 values of 2 tensors are out of the range of {dtype}: they became {became}",)
    wm.save(source, {"a": np.array([first], wide), "n": np.array([2**31 - 1], np.int32)})
    target = f"{out}3/" if sharded else target
    report = wm.convert(source, target, format="safetensors", dtype=dtype)
    assert report.warnings == (f"1 value of 1 tensor is out of the range of {dtype}: it became {became}",)


SIGNALLING = {
    "float16": np.array([0x7C01], np.uint16).view(np.float16),
    "bfloat16": np.array([0x7F81], np.uint16).view(ml_dtypes.bfloat16),
    "float32": np.array([0x7F800001], np.uint32).view(np.float32),
    "float64": np.array([0x7FF0000000000001], np.uint64).view(np.float64),
}


@pytest.mark.parametrize("stored", SIGNALLING)
def test_signalling_nan_gives_no_warning_of_numpy(tmp_path, stored):
    """Memory that was never written holds them. They become quiet NaN, as `diff` compares them."""
    wm.save(tmp_path / "a.safetensors", {"t": SIGNALLING[stored]})
    for dtype in SIGNALLING:
        wm.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", dtype=dtype)
        [value] = wm.open(tmp_path / "b.safetensors")["t"]
        assert np.isnan(float(value))
        for options in ({"by_value": True}, {"rtol": 0.5}):
            changed = wm.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", **options).changed
            assert all(change.n_different == 0 for change in changed)


def test_decoded_values_that_overflow_are_counted(tmp_path):
    source, out = tmp_path / "a.amb", tmp_path / "out.safetensors"
    wm.save(source, {"w": wm.quantize(np.full((4, 32), 1e6, np.float32), "int4_block", scale_type="fp32")})
    *_, said = wm.convert(source, out, dtype="float16").warnings
    assert said == "128 values of 1 tensor are out of the range of float16: they became infinite"
    assert not [line for line in wm.convert(source, out, dtype="bfloat16").warnings if "range" in line]
    wm.save(out, {"w": np.array([np.inf, 65504], np.float16)})
    assert wm.convert(out, tmp_path / "again.safetensors", dtype="bfloat16").warnings == ()


@pytest.mark.parametrize("options", [{"include": "lyaer*"}, {"include": ["a", "b"]}, {"exclude": "*"}], ids=str)
def test_globs_that_leave_nothing_are_errors(put, tmp_path, options):
    """A glob that no name matches is an error that names it; an existing file stays."""
    source, out = put(st.build(MODEL), "a.safetensors"), tmp_path / "out.weights"
    out.write_bytes(b"old")
    ((name, globs),) = options.items()
    spelt = repr(globs) if isinstance(globs, str) else ", ".join(map(repr, globs))
    with pytest.raises(wm.EncodeError, match=re.escape(f"{source}: {name} is {spelt}, which ")):
        wm.convert(source, out, **options)
    assert out.read_bytes() == b"old"
    empty = put(st.build({}), "empty.safetensors")
    with pytest.raises(wm.EncodeError, match=f"{name} is .* none of 0 tensors"):
        wm.convert(empty, out, **options)
    assert wm.convert(empty, out).warnings == ("there is no tensor to write",)


@pytest.mark.parametrize("options", [{}, {"include": "a"}, {"dtype": "float16"}, {"quantize": "int8"}], ids=str)
@pytest.mark.parametrize("kind", ["file", "descriptor", "words", "shards"])
def test_nothing_is_converted_onto_its_source(tmp_path, kind, options):
    path, sources = tmp_path / "m.amb", ["m.amb"]
    if kind in {"file", "descriptor"}:
        wm.save(path, {name: np.ones((4, 64), np.float32) for name in "abc"})
    elif kind == "words":
        path.write_text("a 1 2\nb 3 4\n")
    else:
        wm.save(path, {name: np.ones((4, 64), np.float32) for name in "abc"}, max_shard_size=1100)
        sources = sorted(entry.name for entry in tmp_path.iterdir())
        path = tmp_path / "m.amb.index.json"
    before = {name: (tmp_path / name).read_bytes() for name in sources}
    (tmp_path / "link.amb").symlink_to(sources[-1])
    os.link(tmp_path / sources[-1], tmp_path / "hard.amb")
    for name in (*sources, "link.amb", "hard.amb"):
        with path.open("rb") as source, pytest.raises(wm.TargetError):
            wm.convert(source if kind == "descriptor" else path, tmp_path / name, format="amb", **options)
    assert {name: (tmp_path / name).read_bytes() for name in sources} == before
    assert sorted(listing(tmp_path)) == sorted([*sources, "link.amb", "hard.amb"])


MANY = 8192
TARGETS = [
    ("spec.weights", {}),
    ("simple.weights", {"output": wm.Output("simple")}),
    ("o.safetensors", {}),
    ("spec.bt", {}),
    ("current.bt", {"output": wm.Output("current")}),
    ("o.gguf", {}),
    ("o.amb", {}),
]


@pytest.mark.parametrize(("target", "options"), TARGETS)
def test_many_tensors_are_written_as_save_writes_them(tmp_path, target, options):
    """A conversion keeps its tensors as columns, `save` as objects: the bytes of files are the same."""
    simple = target == "simple.weights"
    dtypes = [np.float32] if simple else [np.float32, np.float16, np.int8]
    ends = ["", "é", "\uffff", "\U0001f600", "a" * 6]  # the order of UTF-8 is not that of UTF-16
    names = [f"{i * 7919 % MANY}{ends[i % len(ends)]}" for i in range(MANY)]
    model = {name: np.full((i % 3 + 1, 2), i % 100, dtypes[i % len(dtypes)]) for i, name in enumerate(names)}
    (tmp_path / "in").write_bytes(st.build({name: tensor(value) for name, value in model.items()}))
    wm.save(tmp_path / f"saved-{target}", model, **options)
    wm.convert(tmp_path / "in", tmp_path / target, **options)
    assert (tmp_path / target).read_bytes() == (tmp_path / f"saved-{target}").read_bytes()


@pytest.mark.parametrize("target", ["out.safetensors", "out.bt"])
@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float16"}, {"exclude": ["*3", "*7?"]}, {"rename": {"000": "zzz"}}], ids=str
)
@pytest.mark.parametrize("shards", [1, 2])
def test_neighbours_that_are_copied_at_once(tmp_path, target, options, shards):
    """Runs of tensors that end at a cast or excluded tensor, or with the file; some tensors are empty."""
    dtypes = ["float32"] * 5 + ["int32"] * 3 + ["float64"]
    shapes = [(2, 3), (1,), (0, 4), (300,)]
    model = {
        f"{i:03}": np.random.default_rng(i).integers(-99, 99, shapes[i % 4]).astype(dtypes[i % 9]) for i in range(200)
    }
    wm.save(tmp_path / "in.safetensors", model, max_shard_size=None if shards == 1 else 60_000)
    source = tmp_path / ("in.safetensors" if shards == 1 else "in.safetensors.index.json")
    wm.convert(source, tmp_path / target, **options)
    kept = {
        name: value
        for name, value in model.items()
        if not ("exclude" in options and (name[2] == "3" or name[1] == "7"))
    }
    with wm.open(tmp_path / target) as f:
        assert f.keys() == {options.get("rename", {}).get(name, name) for name in kept}
        for name, value in kept.items():
            cast = "dtype" in options and value.dtype.kind == "f"
            found = f[options.get("rename", {}).get(name, name)]
            np.testing.assert_array_equal(found, value.astype(np.float16) if cast else value, strict=True)


CONFIG = {
    "_name_or_path": "somebody/tiny-bert",
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "vocab_size": 7,
    "pad_token_id": 0,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
VOCAB = ["[PAD]", "hello", "[UNK]", "[CLS]", "##ing", "[SEP]", "[MASK]"]
BERT = {"embeddings.word_embeddings.weight": normal((7, 8), 1), "encoder.layer.0.output.dense.bias": normal((8,), 2)}
POSITIONS = {"embeddings.position_ids": tensor(np.arange(16, dtype="<i8")[None])}


@pytest.fixture
def bert(tmp_path):
    """A small model directory as Hugging Face lays it out."""
    folder = tmp_path / "tiny-bert"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in VOCAB), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(st.build(BERT | POSITIONS, {"format": "pt"}))
    return folder


def test_a_model_directory_brings_its_configuration_and_vocabulary(bert, tmp_path):
    """The ten metadata keys that the specification requires; without position_ids, which EMBD cannot express."""
    out = tmp_path / "tiny.weights"
    report = repr(wm.convert(bert, out))
    assert "embeddings.position_ids" in report
    assert "int64" in report
    parsed = embd.parse(out.read_bytes())
    assert parsed.tensors == BERT
    assert parsed.vocab == VOCAB
    assert parsed.special_ids == {"pad": 0, "unk": 2, "cls": 3, "sep": 5, "mask": 6}
    assert parsed.metadata.keys() >= embd.REQUIRED.keys()
    assert parsed.metadata.items() >= {
        ("embedding_dim", "8"),
        ("vocab_size", "7"),
        ("num_layers", "2"),
        ("num_attention_heads", "4"),
        ("hidden_size", "8"),
        ("intermediate_size", "32"),
        ("max_position_emb", "16"),
    }
    assert "tiny-bert" in parsed.metadata["model_name"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", parsed.metadata["created_at"])
    with wm.open(out) as f:
        assert list(f.verify().warnings) == []
        assert f.vocab.index("hello") == 1
    wm.convert(bert, tmp_path / "tiny.safetensors")
    assert st.parse((tmp_path / "tiny.safetensors").read_bytes())[0] == BERT | POSITIONS


def test_any_other_int64_tensor_is_an_error(bert, tmp_path):
    """Only position_ids that count 0, 1, 2 … are dropped; another int64 tensor is an EncodeError that names it."""
    for odd in ("other_ids", "embeddings.position_ids"):
        (bert / "model.safetensors").write_bytes(st.build(BERT | POSITIONS | {odd: noise("int64", (3,))}))
        with pytest.raises(wm.EncodeError, match=odd):
            wm.convert(bert, tmp_path / "tiny.weights")
    assert listing(tmp_path) == ["tiny-bert"]


@pytest.mark.parametrize(
    "config", [b"{", b"[]", b"\xff", b'{"a":' + b"[" * 100_000, b'{"hidden_size":NaN}'], ids=lambda b: repr(b[:12])
)
def test_a_bad_config_is_a_format_error(bert, tmp_path, config):
    (bert / "config.json").write_bytes(config)
    with pytest.raises(wm.FormatError, match=r"config\.json"):
        wm.convert(bert, tmp_path / "tiny.weights")
    assert listing(tmp_path) == ["tiny-bert"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_in_a_model_directory_is_refused_at_once(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b"{}      ")
    os.mkfifo(tmp_path / "vocab.txt")
    with pytest.raises(wm.NotRegularFileError, match=r"vocab\.txt"):
        wm.convert(tmp_path, tmp_path / "out.weights")


@pytest.mark.parametrize("mode", ["copy", "sealed"])
def test_the_mode_of_the_environment_is_not_for_conversions(tmp_path, monkeypatch, mode):
    """`convert` and `diff` hand out no tensors, so they copy no whole file into memory."""
    source, target = tmp_path / "m.safetensors", tmp_path / "m.weights"
    wm.save(source, {"t": np.ones(6, np.float32)})
    copied, copy = [], Source._copy
    monkeypatch.setattr(Source, "_copy", lambda self, file: copied.append(self.name) or copy(self, file))
    monkeypatch.setenv("WEIGHTMAP_MODE", mode)
    wm.convert(source, target)
    assert wm.diff(source, target).equal
    assert not copied
    wm.load(source)
    assert copied


def test_damage_is_converted(tmp_path):
    """Checksums of the source are not compared, unless its handle compares them."""
    source = tmp_path / "a.weights"
    wm.save(source, {"w": np.arange(64, dtype=np.float32)})
    data = bytearray(source.read_bytes())
    with wm.open(source) as f:
        data[f.info("w").offset] ^= 1
    source.write_bytes(data)
    with pytest.raises(wm.ChecksumError):
        wm.convert(wm.open(source, verify="full"), tmp_path / "b.weights")
    assert listing(tmp_path) == ["a.weights"]
    wm.convert(source, tmp_path / "b.weights")
    with wm.open(tmp_path / "b.weights") as f:
        f.verify()


@pytest.mark.parametrize(
    ("name", "scheme", "said"),
    [
        ("t.gguf", "int8", r"GGUF has no scheme int8: it is written with q4_0, .* mxfp4; the nearest is q8_0$"),
        ("t.gguf", "int4", "GGUF has no scheme int4: .*; the nearest is q4_0$"),
        ("t.gguf", "int5", "GGUF has no scheme int5: .*; the nearest is q5_0$"),
        ("t.gguf", "Int4-Block", "GGUF has no scheme int4_block: .*; the nearest is q4_0$"),
        ("t.amb", "q4_k", "has no scheme q4_k: it is written with int8, .*, adaptive; the nearest is int4_block$"),
        ("t.safetensors", "int8", "safetensors has no scheme int8: it holds no quantised tensors, as AMB does$"),
        ("t.safetensors", "q4_K_M", "has no scheme q4_K_M: it holds no quantised tensors, as AMB and .* and GGUF do$"),
        ("t.gguf", "iq4_xs", r"'iq4_xs', expected .*, mxfp4; iq4_xs is read, not written: the nearest is mxfp4$"),
        ("t.gguf", "q2_0", r"'q2_0', expected .*, mxfp4; q2_0 is read, not written: the nearest is q2_k$"),
        ("t.amb", "Q4_K_M", r"scheme is 'Q4_K_M', expected one of int8, .*, adaptive; the nearest is int4_block$"),
        ("t.amb", "q8", r"scheme is 'q8', expected one of int8, .*, adaptive; the nearest is int8$"),
        ("t.gguf", "zip", r"scheme is 'zip', expected one of q3_k_s, [^;]*, mxfp4$"),
        ("t.gguf", "q4km", r"expected one of q3_k_s, .*, mxfp4; the nearest is q4_k_m$"),
    ],
)
def test_a_scheme_that_the_target_lacks(put, tmp_path, name, scheme, said):
    source = put(st.build(MODEL), "a.safetensors")
    with pytest.raises(wm.EncodeError if "has no" in said else wm.QuantError, match=said) as caught:
        wm.convert(source, tmp_path / name, quantize=scheme)
    assert "iq4_xs," not in str(caught.value)
    assert not (tmp_path / name).exists()


DOUBLES, LAYER, ONES = {"w": np.ones((2, 32))}, {"layer.0.weight": np.ones((1, 1, 1, 1))}, np.ones(3, np.float32)
OF_AMB = "(expected float32, float16, bfloat16, int8)"
OF_EMBD = "(expected float32, float16, bfloat16, int32, int16, int8, uint32, uint16, uint8)"
OF_GGUF = "(expected float32, float16, int8, int16, int32, int64, float64, bfloat16)"
OUT = "; leave these out with exclude=, or write"
# The tensors, the target, the requested dtype, and the message.
UNHELD = [
    (DOUBLES, "m.amb", None, f"dtype float64 {OF_AMB}; convert with dtype='float32'"),
    (LAYER, "m.bin", "float32", "dtype float32 (expected float16); convert with dtype='float16'"),
    ({"w": np.ones(3, int)}, "m.weights", "float32", f"dtype int64 {OF_EMBD}; write bintensors, gguf or safetensors"),
    ({"w": np.ones(3, np.complex64)}, "m.gguf", None, f"dtype complex64 {OF_GGUF}; write safetensors"),
    ({"x": np.ones(3, int)} | DOUBLES, "m.amb", None, f"dtype float64 {OF_AMB}; write bintensors, gguf or safetensors"),
    ({"b": np.ones(3, bool), "w": ONES}, "m.gguf", None, f"{OUT} bintensors or safetensors"),
    ({"b": np.ones(3, int), "w": ONES}, "m.amb", None, f"{OUT} bintensors, gguf or safetensors"),
    (
        DOUBLES,
        "m.bin",
        None,
        "dtype float64 (expected float16), 2 dimensions (expected 4: out, in, kernel, kernel); for ",
    ),
    (DOUBLES, "m.bin", None, "; for words, convert with format='word2vec' or fasttext; for a model, write safetensors"),
    (
        {"w": ONES},
        "m.bin",
        None,
        "m.bin: .bin means CNN v2 here, weights of convolutions in float16: CNN v2 cannot expr",
    ),
    ({"w": ONES}, "m.txt", None, "; for words, convert with format='text', textdims or word2vec"),
]


@pytest.mark.parametrize(("tensors", "name", "dtype", "said"), UNHELD)
def test_a_type_that_the_target_lacks(tmp_path, tensors, name, dtype, said):
    options = {} if dtype is None else {"dtype": dtype}
    wm.save(tmp_path / "a.safetensors", tensors)
    with pytest.raises(wm.EncodeError) as caught:
        wm.convert(tmp_path / "a.safetensors", tmp_path / name, **options)
    assert said in str(caught.value)
    assert listing(tmp_path) == ["a.safetensors"]
    remedy = caught.value.remedy
    if remedy.option == "dtype":
        assert str(caught.value).endswith(said)
        options = {"dtype": remedy.value}
        assert wm.convert(tmp_path / "a.safetensors", tmp_path / name, **options).tensors == len(tensors)


@pytest.mark.parametrize("limits", [5, {"max_tensors": 1}])
def test_limits_are_limits(put, tmp_path, limits):
    source = put(st.build(MODEL), "a.safetensors")
    for call in (
        lambda: wm.open(source, limits=limits),
        lambda: wm.convert(wm.open(source, limits=limits), tmp_path / "b.bt"),
    ):
        with pytest.raises(TypeError, match=r"limits must be weightmap\.Limits, not"):
            call()
    with pytest.raises(TypeError, match="max_tensors is 'a', expected a number"):
        wm.Limits(max_tensors="a")
    with pytest.raises(ValueError, match="max_shards is -1, expected at least 0"):
        wm.Limits(max_shards=-1)


NUMBERS = {"epoch": 3, "model.layer.version": 1, "optimizer.param_groups.0.lr": 0.5, "schedule.step": 4}


@pytest.mark.parametrize(
    ("chosen", "stays"),
    [
        ({"include": "model.*"}, ["epoch", "model.layer.version"]),
        ({"include": "model.layer.weight"}, ["epoch", "model.layer.version"]),
        ({"exclude": "optimizer.*"}, ["epoch", "model.layer.version", "schedule.step"]),
        ({"exclude": "model.*"}, ["epoch", "optimizer.param_groups.0.lr", "schedule.step"]),
        ({"include": ["optimizer.state*", "model.head"]}, ["epoch", "optimizer.param_groups.0.lr"]),
        ({"exclude": "model.layer.bias"}, [*NUMBERS]),
    ],
)
def test_metadata_of_what_is_left_out_stays_behind(chosen, stays, tmp_path):
    """In a training checkpoint, whose keys lead through modules; the report names the rest."""
    names = ["model.layer.weight", "model.layer.bias", "model.head", "optimizer.state.0.exp_avg"]
    tensors = dict.fromkeys(names, tensor(np.ones(2, np.float32)))
    value, storages = checkpoints.stored(tensors, NUMBERS)
    (tmp_path / "train.pt").write_bytes(checkpoints.zipped(checkpoints.dump(value), storages))
    report = wm.convert(tmp_path / "train.pt", tmp_path / "o.amb", **chosen)
    with wm.open(tmp_path / "o.amb") as f:
        assert dict(f.metadata) == {key: NUMBERS[key] for key in stays}
    gone = [key for key in NUMBERS if key not in stays]
    count = f"{len(gone)} metadata {'entry' if len(gone) == 1 else 'entries'} of modules that are left out"
    assert [count in warning and repr(gone[-1]) in warning for warning in report.warnings] == [True] * bool(gone)


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def quantised_directory(folder):
    """Write a model of two shards, with an FP8 parameter in blocks and a configuration that says so."""
    folder.mkdir()
    codes = np.arange(4096, dtype=np.uint8).reshape(64, 64) % 64
    tensors = {"a.weight": codes.view(ml_dtypes.float8_e4m3fn), "a.weight_scale_inv": np.ones((1, 1), np.float32)}
    wm.save(folder, {**tensors, "norm.weight": np.ones(64, np.float32)}, format="safetensors", max_shard_size=4096)
    how = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", "quantization_config": how}))


@pytest.mark.parametrize("target", ["one.safetensors", "new/", "x.safetensors.index.json"])
@pytest.mark.parametrize("parameters", [False, True])
def test_a_handle_is_converted_as_its_path_is(tmp_path, target, parameters):
    """In this process and by an executor; the handle stays open, and files of its directory are copied."""
    quantised_directory(tmp_path / "model")
    written = []
    with wm.open(tmp_path / "model") as f, ThreadPoolExecutor(2) as pool:
        for number, run in enumerate([None] if target == "one.safetensors" else [None, wm.Run(pool)]):
            folder = tmp_path / f"out{number}"
            folder.mkdir()
            report = wm.convert(f.weights if parameters else f, f"{folder}/{target}", run=run)
            assert report.src == str(tmp_path / "model")
            written.append(files_in(folder / "new") if target == "new/" else files_in(folder))
        assert f["norm.weight"].tolist() == [1.0] * 64
    assert all(files == written[0] for files in written)
    if not parameters:
        (tmp_path / "again").mkdir()
        wm.convert(tmp_path / "model", f"{tmp_path}/again/{target}")
        assert files_in(tmp_path / "again" / target if target == "new/" else tmp_path / "again") == written[0]
    with wm.open(next((tmp_path / "out0").rglob(target)) if target != "new/" else tmp_path / "out0" / "new") as f:
        assert f.info("a.weight").dtype == ("bfloat16" if parameters else "float8_e4m3fn")
        if target == "new/":
            assert ("quantization_config" in json.loads((tmp_path / "out0/new/config.json").read_text())) != parameters


def test_options_of_opening_hold_for_a_conversion(tmp_path):
    """A handle's configuration and limits hold, also where workers open files again."""
    quantised_directory(tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").unlink()
    with wm.open(tmp_path / "model", config=config) as f, ThreadPoolExecutor(2) as pool:
        wm.convert(f.weights, f"{tmp_path}/out/", run=wm.Run(pool))
    assert wm.open(tmp_path / "out").info("a.weight").dtype == "bfloat16"
    with wm.open(tmp_path / "model", limits=wm.Limits(max_copy_bytes=4096)) as f:
        with pytest.raises(wm.LimitError, match="max_copy_bytes"):
            wm.convert(f, f"{tmp_path}/more/")
        wm.convert(f, tmp_path / "norm.amb", include="norm.*")


def test_checksums_of_the_target(tmp_path):
    """Output(checksums=False) writes none, in a file as in shards."""
    wm.save(tmp_path / "m.safetensors", {"w": np.ones(64, np.float32)})
    for output in (wm.Output(), wm.Output(checksums=False)):
        wm.convert(tmp_path / "m.safetensors", tmp_path / "m.weights", output=output)
        wm.convert(tmp_path / "m.safetensors", tmp_path / "x.weights.index.json", output=output)
        for path in (tmp_path / "m.weights", *tmp_path.glob("x-0*")):
            assert (wm.verify(path).scope == "structure and checksums") == output.checksums
            path.unlink()
        (tmp_path / "x.weights.index.json").unlink()


@pytest.mark.parametrize("dtype", ["<U2", ">U2", ">M8[s]", ">c32"])
def test_arrays_of_numpy_that_no_target_holds(tmp_path, dtype):
    """In either byte order, they are named."""
    np.savez(tmp_path / "a.npz", text=np.zeros(2, dtype), w=np.ones(2, ">f4"))
    for suffix in ("safetensors", "gguf", "amb"):
        with pytest.raises(wm.EncodeError, match=r"tensor 'text': dtype \S+ \(expected "):
            wm.convert(tmp_path / "a.npz", tmp_path / f"out.{suffix}")
