"""GGUF: files of gguf-py, metadata, and headers of any length."""

import hashlib
import json

import numpy as np
import pytest
from tests.builders import Tensor, gguf, noise, normal
from tests.support import DATA

import weightmap as wm
from weightmap.core.native import access

KV = gguf.KeyValue
TRUTH = sorted((DATA / "gguf").glob("*.gguf"))
PLAIN = [path for path in TRUTH if not path.name.startswith("split-00001")]


# A part of a model that is opened alone warns of it: see test_gguf_split.py.
parts_too = pytest.mark.filterwarnings("ignore:.* the others are left out:weightmap.ModelWarning")


def by_name(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def opened(data, **options):
    return wm.open(data, format="gguf", **options)


@parts_too
@by_name(PLAIN)
def test_tensors_of_gguf_py(path):
    truth = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    values = np.load(path.with_suffix(".npz"))
    with wm.open(path, verify="full") as f:
        assert f.format == "gguf"
        assert len(f) == len(truth["tensors"])
        for i, stated in enumerate(truth["tensors"]):
            info = f.info(stated["name"])
            dtype = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}.get(stated["type"])
            dtype = dtype or stated["type"].lower().replace("i8", "int8").replace("i16", "int16")
            dtype = {"i32": "int32", "i64": "int64"}.get(dtype, dtype)
            assert (info.dtype, list(info.shape)) == (dtype, stated["shape_numpy"])
            assert (info.offset, info.nbytes) == (stated.get("offset", info.offset), stated.get("nbytes", info.nbytes))
            raw = path.read_bytes()[info.offset : info.offset + info.nbytes]
            assert hashlib.sha256(raw).hexdigest() == stated["sha256"]
            want = values[f"t{i}"]
            got = f.read(info.name, np.float32) if dtype == "bfloat16" else np.asarray(f[info.name])
            np.testing.assert_array_equal(got.astype(want.dtype), want)


@parts_too
@by_name([path for path in TRUTH if path.stem != "version2"])
def test_key_values_of_gguf_py(path):
    truth = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    part = wm.open(path.read_bytes())  # a buffer has no other parts
    assert list(part.metadata) == list(truth["kv"])
    for key, stated in truth["kv"].items():
        value = part.metadata[key]
        if stated["types"][0] != "ARRAY":
            assert type(value) is type(stated["value"])
            assert value == stated["value"]
        elif stated["types"][-1] == "STRING":
            assert value == stated["value"]
        else:
            assert value.tolist() == stated["value"]
            assert value.dtype.name.upper() == stated["types"][-1]
            assert not value.flags.writeable


def test_texts_of_an_array_are_decoded_when_they_are_used():
    """An array of texts is a sequence: indices, slices, search, equality, and a short repr."""
    words = [f"word{i}" for i in range(1000)]
    with opened(gguf.build({}, [KV("words", ["str"], words), KV("few", ["str"], ["a"])])) as f:
        found = f.metadata["words"]
        assert len(found) == 1000
        assert found[0] == found[-1000] == "word0"
        assert found[998:] == found[-2:] == ["word998", "word999"]
        assert "word5" in found
        assert "nothing" not in found
        assert found == words
        assert found != words[1:]
        assert found != "word"
        assert found.tolist() == list(found) == words
        assert len(repr(found)) < 100
        assert repr(f.metadata["few"]) == "['a']"
        with pytest.raises(IndexError):
            found[1000]
        with pytest.raises(TypeError):
            hash(found)


def test_metadata_keeps_its_types_where_it_is_changed(tmp_path):
    values = [KV("a", "u8", 7), KV("b", "f64", 0.5), KV("c", ["u16"], [1]), KV("d", ["str"], ["x"]), KV("e", "u64", 5)]
    path, target = tmp_path / "s.gguf", tmp_path / "t.gguf"
    path.write_bytes(gguf.build({}, values))
    with wm.open(path) as f:
        wm.save(target, {}, metadata=f.metadata | {"e": 6, "new": 1})
    assert gguf.parse(target.read_bytes())[1] == [*values[:4], KV("e", "i32", 6), KV("new", "i32", 1)]
    with wm.open(path) as f:
        wm.save(target, {}, metadata=dict(f.metadata))
    kinds = [kind for _, kind, _ in gguf.parse(target.read_bytes())[1]]
    assert kinds == ["i32", "f32", ["u16"], ["str"], "i32"]


NEW = {
    "bool": (True, "bool", True),
    "str": ("ü", "str", "ü"),
    "i32": (-(2**31), "i32", -(2**31)),
    "i64": (2**31, "i64", 2**31),
    "negative i64": (-(2**63), "i64", -(2**63)),
    "u64": (2**63, "u64", 2**63),
    "f32": (0.5, "f32", 0.5),
    "infinite": (float("inf"), "f32", float("inf")),
    "f64": (0.1, "f64", 0.1),
    "large f64": (1e300, "f64", 1e300),
    "bools": ([True, False], ["bool"], [True, False]),
    "strs": (("a", "b"), ["str"], ["a", "b"]),
    "i32s": ([1, -2], ["i32"], [1, -2]),
    "i64s": ([1, 2**40], ["i64"], [1, 2**40]),
    "u64s": ([1, 2**63], ["u64"], [1, 2**63]),
    "f32s": ([0.5, 1.0], ["f32"], [0.5, 1.0]),
    "f64s": ([0.5, 0.1], ["f64"], [0.5, 0.1]),
    "nothing": ([], ["i32"], []),
    "nested": ([[1, 2], [3]], [["i32"]], [[1, 2], [3]]),
    "numpy u8": (np.uint8(5), "u8", 5),
    "numpy i16": (np.int16(-5), "i16", -5),
    "numpy f32": (np.float32(0.1), "f32", float(np.float32(0.1))),
    "numpy f64": (np.float64(0.5), "f64", 0.5),
    "numpy f16": (np.float16(0.5), "f32", 0.5),
    "numpy bool": (np.bool_(1), "bool", True),
    "numpy str": (np.str_("x"), "str", "x"),
    "0-d array": (np.array(3, np.uint16), "u16", 3),
    "array": (np.array([1, 2], ">u4"), ["u32"], [1, 2]),
    "matrix": (np.array([[1, 2], [3, 4]], np.int8), [["i8"]], [[1, 2], [3, 4]]),
    "numpy scalars": ([np.uint16(1), np.uint16(2)], ["u16"], [1, 2]),
    "array of texts": (np.array(["a", "bc"]), ["str"], ["a", "bc"]),
}


@pytest.mark.parametrize("name", NEW)
def test_types_of_new_values(name, tmp_path):
    """A new value gets the smallest of the types that the rule names; numpy's keep their own."""
    given, kind, value = NEW[name]
    target = tmp_path / "t.gguf"
    wm.save(target, {}, metadata={"k": given})
    assert gguf.parse(target.read_bytes())[1] == [KV("k", kind, value)]


DEEP = [1]
for _ in range(65):
    DEEP = [DEEP]
REFUSED = {
    "none": (None, "of type NoneType"),
    "bytes": (b"x", "of type bytes"),
    "table": ({"a": 1}, "of type dict"),
    "set": ({1}, "of type set"),
    "complex": (np.complex64(1), "dtype complex64"),
    "mixed": ([1, "a"], "several types"),
    "numbers of two kinds": ([1, 0.5], "several types"),
    "a bool among integers": ([1, True], "several types"),
    "large": (2**64, "more than 64 bits"),
    "large ones": ([2**63, -1], "more than 64 bits"),
    "surrogate": ("\ud800", "not Unicode"),
    "surrogates": (["\ud800"], "not Unicode"),
    "deep": (DEEP, "nested"),
    "objects": (np.array([None]), "dtype object"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_no_type_holds(name, tmp_path):
    given, words = REFUSED[name]
    with pytest.raises(wm.EncodeError, match=words) as caught:
        wm.save(tmp_path / "t.gguf", {}, metadata={"the key": given})
    assert "'the key'" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["\ud800", "k" * 65536, 5])
def test_keys_that_cannot_be(key, tmp_path):
    """A key is Unicode text of at most 65,535 bytes."""
    with pytest.raises(wm.EncodeError, match="65535 bytes"):
        wm.save(tmp_path / "t.gguf", {}, metadata={key: 1})
    wm.save(tmp_path / "t.gguf", {}, metadata={"k" * 65535: 1})


def test_tokens_and_special_ids(tmp_path):
    with opened(gguf.build({}, gguf.VOCAB)) as f:
        assert list(f.vocab) == list(gguf.TOKENS)
        assert f.vocab.index("\u2581the") == 3
        assert f.vocab.get("nothing") is None
        assert f.vocab.special_ids == gguf.IDS
        target = tmp_path / "t.gguf"
        wm.save(target, {}, vocab=f.vocab, special_ids=f.vocab.special_ids)
    with wm.open(target) as f:
        assert list(f.vocab) == list(gguf.TOKENS)
        assert f.vocab.special_ids == gguf.IDS
        assert f.metadata["tokenizer.ggml.separator_token_id"] == 6
    _, values = gguf.parse(target.read_bytes())
    assert {kind for key, kind, _ in values if key.endswith("_id")} == {"u32"}


def test_tokens_and_special_ids_that_cannot_be(tmp_path):
    for ids in ({"other": 1}, {"bos": -1}, {"bos": 2**32}, {"bos": "x"}):
        with pytest.raises(wm.EncodeError, match="special id"):
            wm.save(tmp_path / "t.gguf", {}, vocab=["a"], special_ids=ids)
    for token in ("\ud800", 5):
        with pytest.raises(wm.EncodeError, match="token 1"):
            wm.save(tmp_path / "t.gguf", {}, vocab=["a", token])


def test_tensors_that_cannot_be_written(tmp_path):
    """Types, dimensions, rows and names that GGUF cannot hold are named together."""
    odd = wm.quantize(np.zeros((2, 32), np.float32), "int8")
    for tensors, words in (
        ({"a": np.zeros(3, np.uint8)}, "dtype uint8"),
        ({"a": np.zeros((1, 1, 1, 1, 1), np.float32)}, "5 dimensions"),
        ({"\ud800": np.zeros(3, np.float32)}, "not Unicode"),
        ({"a": odd}, "quantised to int8"),
    ):
        with pytest.raises(wm.EncodeError, match=words):
            wm.save(tmp_path / "t.gguf", tensors)
    assert not list(tmp_path.iterdir())


SHAPES = {"conv": (48, 4, 3, 4), "deep": (8, 1, 2, 3, 16), "dense": (6, 4, 2), "rows": (9, 256)}


def reshaped(tmp_path, *more):
    """A file of ComfyUI's converter: rows of whole blocks, and their original shapes."""
    blocks = {"conv": ("q8_0", (9, 256)), "deep": ("q4_0", (3, 256)), "rows": ("q4_0", (9, 256))}
    tensors = {"dense": noise("float16", (48,))}
    for name, (scheme, shape) in blocks.items():
        payload = wm.quantize(normal(shape).array, scheme).payload
        tensors[name] = Tensor(scheme, shape, payload.tobytes())
    noted = [KV(f"comfy.gguf.orig_shape.{name}", ["i32"], SHAPES[name]) for name in ("conv", "deep", "dense")]
    path = tmp_path / "s.gguf"
    path.write_bytes(gguf.build(tensors, [*noted, KV("comfy.gguf.orig_shape.gone", ["i32"], [7]), *more]))
    return path


@pytest.mark.parametrize(
    ("kind", "value"),
    [(["i32"], [9, 255]), (["i32"], [-9, -256]), (["f32"], [9, 256]), (["str"], ["9"]), ("u8", 9), (["i32"], [1] * 65)],
)
def test_shapes_that_do_not_fit(tmp_path, kind, value):
    path = reshaped(tmp_path, KV("comfy.gguf.orig_shape.rows", kind, value))
    with pytest.raises(wm.LayoutError, match=r"'comfy\.gguf\.orig_shape\.rows', expected an array of integers whose"):
        wm.open(path)
    with wm.open(path, strict=False) as f:
        assert (f.info("rows").shape, f.info("deep").shape) == ((9, 256), SHAPES["deep"])
        assert "orig_shape.rows" in "".join(f.verify().warnings)


@pytest.mark.parametrize("alignment", [8, 24, 64, 4096])
def test_alignment_is_written_as_asked(alignment, tmp_path):
    target = tmp_path / "t.gguf"
    tensors = {"a": normal((3,)), "b": noise("int8", (5,))}
    wm.save(target, {name: value.array for name, value in tensors.items()}, metadata={"general.alignment": alignment})
    found, values = gguf.parse(target.read_bytes())
    assert found == tensors
    assert values == [KV("general.alignment", "u32", alignment)]
    with wm.open(target, verify="full") as f:
        assert all(info.offset % alignment == 0 for info in f.infos())


def test_alignments_that_cannot_be(tmp_path):
    for alignment in (0, 4, 33, 2**32, "32", 32.0, -8):
        with pytest.raises(wm.EncodeError, match="multiple of 8"):
            wm.save(tmp_path / "t.gguf", {}, metadata={"general.alignment": alignment})


@pytest.mark.parametrize("count", [0, 1, 300, 5_000, 40_000])
def test_headers_of_any_length(count, tmp_path):
    """Any header is found: in the first page, or read in pieces that double."""
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf.tokens(count))
    with wm.open(path, verify="full") as f:
        assert len(f.vocab) == count
        assert f["w"].shape == (2, 2)
        assert list(f.vocab[-2:]) == [f"{i:07}" for i in range(count)][-2:]


def test_a_header_that_no_reader_counts_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(access, "U32_MAX", 100)
    wm.save(tmp_path / "t.gguf", {"w" * 42: np.zeros(1, np.float32)})
    with pytest.raises(wm.EncodeError, match="a header of 99 bytes"):
        wm.save(tmp_path / "t.gguf", {"w" * 43: np.zeros(1, np.float32)})
