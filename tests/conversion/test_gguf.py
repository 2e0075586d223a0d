"""GGUF, converted: versions, types, alignment and vocabularies, there and back."""

import numpy as np
import pytest
from tests.builders import Tensor, gguf, noise, normal
from tests.core.formats.gguf.test_gguf import KV, PLAIN, SHAPES, by_name, parts_too, reshaped
from tests.support import DATA

import weightmap as wm


@parts_too
@by_name([path for path in PLAIN if path.stem not in {"version2", "dense_be"}])
def test_what_was_read_is_written_again(path, tmp_path):
    """A file of gguf-py converted, or saved with its metadata, is the same file: order, types, blocks, padding."""
    again, saved = tmp_path / "again.gguf", tmp_path / "saved.gguf"
    wm.convert(path, again)
    assert again.read_bytes() == path.read_bytes()
    with wm.open(path) as f:
        wm.save(saved, f, metadata=f.metadata, vocab=f.vocab)
    assert saved.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["version2", "dense_be"])
def test_other_versions_become_version_3(name, tmp_path):
    """Of version 2 and big-endian files everything is written again, as version 3 and little-endian."""
    path, target = DATA / "gguf" / f"{name}.gguf", tmp_path / "t.gguf"
    wm.convert(path, target)
    _, values = gguf.parse(target.read_bytes())
    assert [value[:2] for value in values] == [value[:2] for value in gguf.dissect(path.read_bytes()).values]
    assert wm.diff(path, target).equal


def test_a_vocabulary_goes_to_other_formats_and_back(tmp_path):
    source, embd, back = tmp_path / "s.gguf", tmp_path / "t.weights", tmp_path / "b.gguf"
    source.write_bytes(gguf.build({"w": normal((9, 2))}, gguf.VOCAB))
    report = wm.convert(source, embd)
    with wm.open(embd) as f:
        assert list(f.vocab) == list(gguf.TOKENS)
        assert "tokenizer.ggml.tokens" not in f.metadata
        assert f.metadata["tokenizer.ggml.mask_token_id"] == str(gguf.IDS["mask"])
        assert f.vocab.special_ids == {name: gguf.IDS[name] for name in ("pad", "unk", "cls", "sep", "mask")}
        assert f.metadata["tokenizer.ggml.bos_token_id"] == "1"  # which its vocabulary has no place for
        assert f.metadata["tokenizer.ggml.add_bos_token"] == "true"
    assert not report.warnings
    wm.convert(embd, back)
    found = [(entry.key, entry.kind, list(np.atleast_1d(entry.value))) for entry in gguf.parse(back.read_bytes())[1]]
    assert sorted(found) == sorted((entry.key, entry.kind, list(np.atleast_1d(entry.value))) for entry in gguf.VOCAB)


def test_blocks_that_nothing_decodes_are_bytes(tmp_path):
    tensors = {
        name: Tensor(name, (2, elements), bytes(range(octets % 256)) * 2 + bytes(2 * octets - 2 * (octets % 256)))
        for name, (_, elements, octets) in gguf.BLOCKS.items()
        if name in {"q8_1", "q8_k"}
    }
    source, target = tmp_path / "s.gguf", tmp_path / "t.gguf"
    source.write_bytes(gguf.build(tensors))
    with wm.open(source, verify="full") as f:
        for name, value in tensors.items():
            assert (f.info(name).dtype, f.info(name).shape) == (name, value.shape)
            assert f[name].dtype == np.uint8
            assert f[name].tobytes() == value.data
            with pytest.raises(wm.UnsupportedError, match="has no decoder"):
                f.read(name)
    wm.convert(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert wm.diff(source, target).equal
    with pytest.raises(wm.EncodeError, match="dtype q8_1"):
        wm.convert(source, tmp_path / "t.safetensors")


def test_types_that_are_not_known_are_bytes_where_not_strict(tmp_path):
    """All else is as in a file without them; their bytes end at the next tensor, or with the file."""
    infos = [
        gguf.Info("last", (3, 7), 139, 128),
        gguf.Info("a", (2,), gguf.CODES["float32"], 0),
        gguf.Info("u", (64, 3), 139, 32),
        gguf.Info("empty", (0, 5), 4, 96),
        gguf.Info("v", (4,), gguf.CODES["float32"], 96),
    ]
    head = gguf.header(infos, [KV("general.architecture", "str", "llama")])
    data = np.arange(2, dtype=np.float32).tobytes() + bytes(24) + bytes(range(64)) + bytes(32) + b"xyz"
    path = tmp_path / "t.gguf"
    path.write_bytes(head + gguf.padding(len(head)) + data)
    with pytest.raises(
        wm.UnsupportedError, match=r"tensor info 0: type is 139, expected one of .*; open\(\.\.\., strict=False\) reads"
    ):
        wm.open(path)
    with wm.open(path, strict=False) as f:
        assert f.metadata["general.architecture"] == "llama"
        assert [(info.name, info.dtype, info.shape, info.nbytes) for info in f.infos()] == [
            ("a", "float32", (2,), 8),
            ("u", "gguf_139", (3, 64), 64),
            ("empty", "gguf_4", (5, 0), 0),
            ("v", "float32", (4,), 16),
            ("last", "gguf_139", (7, 3), 3),
        ]
        assert f["a"].tolist() == [0, 1]
        assert [f[name].dtype for name in ("u", "empty", "last")] == [np.uint8] * 3
        assert (f["u"].tobytes(), f["empty"].size, f["last"].tobytes()) == (bytes(range(64)), 0, b"xyz")
        for dtype in (None, np.float32):
            with pytest.raises(wm.UnsupportedError, match=r"dtype gguf_139 has no decoder"):
                f.read("u", dtype)
        warning = "tensors of types that weightmap does not know are shown as bytes (type codes: 139, 4)"
        assert f.verify().warnings == (warning,)
    with pytest.raises(wm.EncodeError, match=r"'u', 'last': dtype gguf_139 .*leave these out with exclude="):
        wm.convert(wm.open(path, strict=False), tmp_path / "u.gguf")
    wm.convert(wm.open(path, strict=False), tmp_path / "u.gguf", exclude=["u", "empty", "last"])
    assert list(wm.open(tmp_path / "u.gguf")) == ["a", "v"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_more_than_four_dimensions_are_for_lenient_reading(version):
    """ComfyUI's tools add weights of convolutions of five dimensions to a file."""
    shape, coder = (3, 1, 2, 2, 5), gguf.Coder(version)
    infos = [gguf.Info("w", shape[::-1], gguf.CODES["float32"], 0), gguf.Info("v", (7,), gguf.CODES["float32"], 256)]
    data = np.arange(64 + 7, dtype=np.float32)
    head = gguf.header(infos, coder=coder)
    raw = head + gguf.padding(len(head)) + data.tobytes()
    refusal = r"n_dimensions is 5, expected 0 to 4; open\(\.\.\., strict=False\) reads up to 64, and ComfyUI writes 5"
    with pytest.raises(wm.FormatError, match=refusal):
        wm.open(raw)
    with wm.open(raw, strict=False) as f:
        assert np.array_equal(f["w"], data[:60].reshape(shape))
        assert f["v"].tolist() == data[64:].tolist()
    head = gguf.header([gguf.Info("w", (1,) * 65, gguf.CODES["float32"], 0)], coder=coder)
    with pytest.raises(wm.FormatError, match="n_dimensions is 65, expected 0 to 64") as caught:
        wm.open(head + gguf.padding(len(head)) + bytes(4), strict=False)
    assert caught.value.remedy is None


def test_big_endian_files_have_numbers_and_no_blocks(tmp_path):
    tensors = {"n": normal((2, 3)), "h": noise("float16", (3,)), "b": noise("bfloat16", (2,))}
    tensors |= {"q": Tensor("q8_0", (1, 32), bytes(34)), "opaque": Tensor("q8_1", (1, 32), bytes(40))}
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf.build(tensors, big=True))
    with wm.open(path) as f:
        assert f["n"].dtype == np.dtype(">f4")
        np.testing.assert_array_equal(f["n"], tensors["n"].array)
        np.testing.assert_array_equal(f.read("h"), tensors["h"].array.astype(np.float32))
        for name in ("b", "q", "opaque"):
            with pytest.raises(wm.UnsupportedError, match="big-endian"):
                f[name]
            with pytest.raises(wm.UnsupportedError, match="big-endian"):
                f.read(name)
    little = tmp_path / "little.gguf"
    wm.convert(path, little, include=["n", "h"])
    assert gguf.parse(little.read_bytes())[0] == {name: tensors[name] for name in ("n", "h")}
    assert wm.diff(path, little).only_in_a == ("b", "q", "opaque")
    wm.convert(path, tmp_path / "n.safetensors", include=["n"], dtype="float16")
    np.testing.assert_array_equal(wm.load(tmp_path / "n.safetensors")["n"], tensors["n"].array.astype(np.float16))


def test_quantised_tensors_in_pieces(tmp_path):
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (9000, 34), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    value = Tensor("q8_0", (90, 3200), blocks.tobytes())
    source, target = tmp_path / "s.gguf", tmp_path / "t.safetensors"
    source.write_bytes(gguf.build({"w": value}))
    wm.convert(source, target, dtype="float32")
    with wm.open(source) as f:
        assert f["w"].scheme == "q8_0"
        np.testing.assert_array_equal(wm.load(target)["w"], np.asarray(f["w"]))
        np.testing.assert_array_equal(f["w"][3:5], np.asarray(f["w"])[3:5])
    other = tmp_path / "o.gguf"
    blocks[-1, -1] ^= 1
    other.write_bytes(gguf.build({"w": Tensor("q8_0", (90, 3200), blocks.tobytes())}))
    [change] = wm.diff(source, other).changed
    assert change.n_different == 1


@pytest.mark.parametrize("suffix", [".safetensors", ".amb"])
def test_the_alignment_of_a_file_is_its_own(tmp_path, suffix):
    """Other formats receive it but do not return it: there it may be text, or turn a small file into a huge one."""
    source, between, target = tmp_path / "a.gguf", tmp_path / f"b{suffix}", tmp_path / "c.gguf"
    wm.save(source, {"w": np.ones(3, np.float32)}, metadata={"general.alignment": 128, "general.architecture": "a"})
    assert not wm.convert(source, between).warnings
    (warning,) = wm.convert(between, target).warnings
    assert "metadata 'general.alignment' describes the layout of a file of GGUF" in warning
    with wm.open(target) as f:
        assert dict(f.metadata) == {"general.architecture": "a"}
    wm.convert(source, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("suffix", "metadata", "warned"),
    [
        (".safetensors", {"format": "pt"}, True),
        (".weights", None, True),
        (".safetensors", {"general.architecture": "llama"}, False),
        (".gguf", {"k": "v"}, False),  # it was so before
    ],
)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_without_an_architecture(tmp_path, suffix, metadata, warned, sharded):
    wm.save(tmp_path / f"a{suffix}", {"w": np.ones((2, 32), np.float32)}, metadata=metadata)
    target = tmp_path / ("m-gguf/" if sharded else "b.gguf")
    (tmp_path / "m-gguf").mkdir()
    warnings = wm.convert(tmp_path / f"a{suffix}", target, format="gguf").warnings
    assert sum("llama.cpp will not load this file" in warning for warning in warnings) == warned


def test_shapes_that_the_metadata_name(tmp_path):
    """Blocks may span rows; written again, a tensor keeps its shape and its bytes."""
    path, target = reshaped(tmp_path), tmp_path / "t.gguf"
    wm.convert(path, target, rename={"conv": "other"})
    infos = {info.name: tuple(info.dims[::-1]) for info in gguf.dissect(target.read_bytes()).infos}
    assert infos == {"other": (9, 256), "deep": (3, 256), "dense": (6, 4, 2), "rows": (9, 256)}
    with wm.open(path, verify="full") as f, wm.open(target) as t, f.pool(1 << 20) as pool:
        assert {info.name: info.shape for info in f.infos()} == SHAPES
        for name, shape in SHAPES.items():
            whole = np.asarray(f[name])
            assert whole.shape == f[name].shape == shape
            again = t.read({"conv": "other"}.get(name, name))
            assert again.tobytes() == f.read(name).tobytes() == whole.astype("f4").tobytes()
            for key in (1, slice(2, 5), (1, 0), [3, 1, 3]):
                np.testing.assert_array_equal(np.asarray(f[name][key]), whole[key])
            with pool.hold(name, 1) as held:
                np.testing.assert_array_equal(np.asarray(held), whole[1])
            ((_, part),) = wm.plan(f, {name: slice(1, 3)}).run()
            np.testing.assert_array_equal(np.asarray(part), whole[1:3])
