"""GGUF models in several files, converted into one and split again."""

import re
import shutil

import numpy as np
import pytest
from tests.builders import gguf, normal
from tests.core.formats.gguf.test_gguf_split import KV, place, write

import weightmap as wm


def test_a_part_that_is_no_path_opens_alone(tmp_path):
    """Bytes, descriptors, and a first part under another name cannot find the others; every report says so."""
    path = write(tmp_path)
    told = r"this is part 1 of 3 of a model, and the others are left out \(1 of 3 tensors\): "
    renamed = tmp_path / "renamed.gguf"
    shutil.copy(path, renamed)
    named = told + r"its path leads to them if it is called 'renamed-00001-of-00003\.gguf'"
    with path.open("rb") as file:
        for source, line in ((path.read_bytes(), f"{told}open it by its path"), (file, told), (renamed, named)):
            with pytest.warns(wm.ModelWarning, match=line) as caught:
                f = wm.open(source)
            assert caught[0].filename == __file__
            with f:
                assert len(f) == 1
                assert f.metadata["split.count"] == 3
                assert any(re.search(line, warning) for warning in f.verify().warnings)
    for lines in (
        wm.verify(renamed).warnings,
        wm.convert(renamed, tmp_path / "one.safetensors").warnings,
        wm.convert(renamed, f"{tmp_path}/new/", format="safetensors").warnings,
    ):
        assert any(re.search(named, line) for line in lines)


def test_the_whole_model_is_one_file_again(tmp_path):
    """Converted, the parts are one file with the key-values of the first, their types, and no keys of parts."""
    target = tmp_path / "whole.gguf"
    path = write(tmp_path)
    with wm.open(path) as f:
        assert list(f.vocab) == list(gguf.TOKENS)
        assert f.vocab.special_ids == gguf.IDS
    report = wm.convert(path, target)
    assert not report.warnings
    tensors, values = gguf.parse(target.read_bytes())
    assert list(tensors) == [f"blk.{i}.w" for i in range(3)]
    assert values == [
        KV("general.name", "str", "m"),
        KV("n", "u32", 5),
        *(KV(k, t, list(v) if isinstance(t, list) else v) for k, t, v in gguf.VOCAB),
    ]
    assert wm.diff(path, target).equal


SIX = {f"blk.{i}.w": normal((2, 16), i).array for i in range(6)}  # 128 bytes each


def _checked_parts(folder, count):
    theirs = pytest.importorskip("gguf")
    names = [f"m-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    for i, name in enumerate(names):
        tensors, values = gguf.parse((folder / name).read_bytes())
        assert values[-3:] == place(i, count, 6)
        assert [tensor.name for tensor in theirs.GGUFReader(folder / name).tensors] == list(tensors)
    for path in (folder / names[0], folder / "m.gguf.index.json"):
        with wm.open(path, verify="full") as f:
            assert list(f) == list(SIX)
            assert list(f.shards) == names
            assert {key: value for key, value in f.metadata.items() if key != "total_size"} == {"n": 5}
            for name, array in SIX.items():
                np.testing.assert_array_equal(f[name], array)


def test_names_in_capitals(tmp_path):
    """The names of the other parts follow the spelling of the first."""
    values = {"general.architecture": "llama"}
    wm.save(tmp_path / "m.gguf", {"a": np.ones(8), "b": np.ones(8)}, metadata=values, max_shard_size=64)
    for path in tmp_path.glob("m-*.gguf"):
        path.rename(tmp_path / path.name.upper())
    assert list(wm.open(tmp_path / "M-00001-OF-00002.GGUF")) == ["a", "b"]


def test_what_we_split_opens_by_its_first_part(tmp_path):
    wm.save(tmp_path / "m.gguf", SIX, metadata={"n": np.uint32(5)}, max_shard_size=300)
    _checked_parts(tmp_path, 3)
    whole = tmp_path / "whole.gguf"
    for source in ("m-00001-of-00003.gguf", "m.gguf.index.json"):
        wm.convert(tmp_path / source, whole)
        tensors, values = gguf.parse(whole.read_bytes())
        assert (list(tensors), values) == (list(SIX), [KV("n", "u32", 5)])
    for source, size, count in ((whole, 300, 3), (tmp_path / "m.gguf.index.json", 128, 6)):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        wm.convert(source, folder / "m.gguf", max_shard_size=size)
        _checked_parts(folder, count)
