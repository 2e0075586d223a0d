"""GGUF models in several files: the first part opens all of them."""

import shutil

import numpy as np
import pytest
from tests.builders import gguf, normal
from tests.support import DATA

import weightmap as wm

KV = gguf.KeyValue
FOLDER = DATA / "gguf"


def place(i, count, tensors):
    return [KV("split.no", "u16", i), KV("split.count", "u16", count), KV("split.tensors.count", "i32", tensors)]


def write(folder, count=3, *, vocab=True, lies=None):
    for i in range(count):
        values = [KV("general.name", "str", "m"), KV("n", "u32", 5), *place(i, count, count)]
        values = (lies or {}).get(i, values) + (list(gguf.VOCAB) if vocab and i == 0 else [])
        data = gguf.build({f"blk.{i}.w": normal((2, 3), i)}, values)
        (folder / f"m-{i + 1:05}-of-{count:05}.gguf").write_bytes(data)
    return folder / f"m-00001-of-{count:05}.gguf"


def test_the_first_part_opens_all():
    path = FOLDER / "split-00001-of-00003.gguf"
    with wm.open(path, verify="full") as f:
        assert list(f) == [f"blk.{i}.w" for i in range(9)]
        assert (f.format, f.layout) == ("gguf", "sharded")
        assert list(f.shards) == [f"split-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
        for i in (1, 2, 3):
            values = np.load(FOLDER / f"split-0000{i}-of-00003.npz")
            for k in range(3):
                np.testing.assert_array_equal(f[f"blk.{3 * (i - 1) + k}.w"], values[f"t{k}"])
        assert dict(f.metadata) == {"general.architecture": "llama"}
        assert not f.verify().warnings
    for i in (2, 3):
        told = rf"this is part {i} of 3 of a model, .* left out \(3 of 9 tensors\): open the first part"
        with pytest.warns(wm.ModelWarning, match=told):
            f = wm.open(FOLDER / f"split-0000{i}-of-00003.gguf")
        with f:
            assert len(f) == 3
            assert f.metadata["split.no"] == i - 1


def test_a_model_in_two_parts(tmp_path):
    with wm.open(write(tmp_path, 2)) as f:
        assert (list(f), f.layout) == (["blk.0.w", "blk.1.w"], "sharded")
    with wm.open(write(tmp_path, 1)) as f:
        assert (list(f), f.layout) == (["blk.0.w"], "gguf")


def test_the_numbers_of_parts_decide_not_their_names(tmp_path):
    """Parts with exchanged names open as the model, from either beginning, with a warning."""
    path = write(tmp_path)
    names = [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name, other in ((0, 1), (1, 2)):
        (tmp_path / names[name]).rename(tmp_path / "aside")
        (tmp_path / names[other]).rename(tmp_path / names[name])
        (tmp_path / "aside").rename(tmp_path / names[other])
    for opened in (path, tmp_path / names[2]):
        with pytest.warns(wm.ModelWarning, match=r"by its metadata, 'm-00001-of-00003.gguf' is part 2 of 3, expected"):
            f = wm.open(opened)
        with f:
            assert list(f) == ["blk.0.w", "blk.1.w", "blk.2.w"]
            np.testing.assert_array_equal(f["blk.2.w"], normal((2, 3), 2).array)
            assert f.metadata == {"general.name": "m", "n": 5} | {k: v for k, v in f.metadata.items() if "tok" in k}


def test_parts_that_are_missing_or_others(tmp_path):
    path = write(tmp_path, lies={1: [KV("split.no", "u16", 2), KV("split.count", "u16", 3)]})
    with pytest.raises(wm.LayoutError, match="is part 3 of 3, expected part 2 of 3"):
        wm.open(path)
    path = write(tmp_path, lies={1: [KV("k", "u8", 2)]})
    with pytest.raises(wm.LayoutError, match="is not a part of a model, expected part"):
        wm.open(path)
    path = write(tmp_path)
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(wm.LayoutError, match="of this model is missing"):
        wm.open(path)
    (tmp_path / "alone").mkdir()
    shutil.copy(path, tmp_path / "alone")
    with pytest.raises(wm.LayoutError, match=r"'m-00002-of-00003\.gguf' of this model is missing"):
        wm.open(tmp_path / "alone")
    with pytest.warns(wm.ModelWarning, match="part 3 of 3 of this model is missing"):
        f = wm.open(path, strict=False)
    with f:
        assert list(f) == ["blk.0.w", "blk.1.w"]
        assert any("m-00003-of-00003.gguf" in line for line in f.verify().warnings)
    values = [KV("split.no", "u16", 2), KV("split.count", "u16", 3)]
    (tmp_path / "m-00003-of-00003.gguf").write_bytes(gguf.build({"blk.0.w": normal((2, 2))}, values))
    with pytest.raises(wm.LayoutError, match="is in two parts"):
        wm.open(path)
    with pytest.warns(
        wm.ModelWarning, match="'blk.0.w' is in several parts: the one in 'm-00003-of-00003.gguf' is left"
    ):
        f = wm.open(path, strict=False)
    with f:
        assert sorted(f) == ["blk.0.w", "blk.1.w"]
        np.testing.assert_array_equal(f["blk.0.w"], normal((2, 3), 0).array)


def test_a_count_of_tensors_that_is_wrong(tmp_path):
    path = write(tmp_path, lies={0: place(0, 3, 4)})
    with pytest.raises(wm.LayoutError, match="number of tensors in all parts is 3, expected 4"):
        wm.open(path)
    with pytest.warns(wm.ModelWarning, match="number of tensors in all parts is 3, expected 4"):
        f = wm.open(path, strict=False)
    with f:
        assert any("number of tensors" in warning for warning in f.verify().warnings)
