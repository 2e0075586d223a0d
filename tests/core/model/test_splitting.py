"""Models in files of bounded size: `max_shard_size=`."""

import json

import numpy as np
import pytest
from tests.support import listing as listed

import weightmap as wm
from weightmap.core.model.sharding import bytes_of_size

TENSORS = {f"l.{i}.w": np.full((8, 8), i, np.float32) for i in range(7)}  # 256 bytes each


@pytest.mark.parametrize("suffix", [".safetensors", ".weights", ".bt", ".amb", ".gguf"])
def test_shards_have_at_most_so_many_bytes_of_tensors(tmp_path, suffix):
    told = []
    more = {"metadata": {"k": "v"}, "progress": lambda *step: told.append(step)}
    wm.save(tmp_path / f"m{suffix}", TENSORS, max_shard_size=600, **more)
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    names = [f"m-0000{i}-of-00004{suffix}" for i in range(1, 5)]
    assert listed(tmp_path) == sorted([*names, f"m{suffix}.index.json"])
    with wm.open(tmp_path) as f:
        assert {name: array.tolist() for name, array in f.items()} == {n: t.tolist() for n, t in TENSORS.items()}
        assert [len(shard) for shard in f.shards.values()] == [2, 2, 2, 1]
        assert f.metadata["k"] == "v"
        assert not f.verify().warnings or suffix == ".weights"
    index = json.loads((tmp_path / f"m{suffix}.index.json").read_text())
    assert index["metadata"]["total_size"] == 7 * 256
    assert index["weight_map"]["l.2.w"] == names[1]


def test_a_larger_tensor_gets_a_file_for_itself(tmp_path):
    """A tensor beyond the bound stands alone; its neighbours share files among themselves."""
    tensors = {"a": np.zeros(10), "b": np.zeros(10), "big": np.zeros(1000), "c": np.zeros(10), "d": np.zeros(10)}
    wm.save(tmp_path / "m.safetensors", tensors, max_shard_size=160)
    with wm.open(tmp_path) as f:
        assert [set(shard) for shard in f.shards.values()] == [{"a", "b"}, {"big"}, {"c", "d"}]


def test_a_model_that_fits_is_one_file(tmp_path):
    """Only an index or directory as target gets an index and a shard; a file equals a plain `save`'s."""
    wm.save(tmp_path / "m.safetensors", TENSORS, max_shard_size="1MB")
    wm.save(tmp_path / "n.safetensors", TENSORS)
    assert listed(tmp_path) == ["m.safetensors", "n.safetensors"]
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "n.safetensors").read_bytes()
    wm.save(tmp_path / "i.amb.index.json", TENSORS, max_shard_size="1MB")
    assert (tmp_path / "i-00001-of-00001.amb").exists()
    wm.save(f"{tmp_path}/new/", TENSORS, format="gguf", max_shard_size="1MB")
    assert listed(tmp_path / "new") == ["model-00001-of-00001.gguf", "model.gguf.index.json"]


def test_each_shard_has_the_metadata_and_the_first_the_vocabulary(tmp_path):
    wm.save(tmp_path / "m.weights", TENSORS, max_shard_size=600, metadata={"model_name": "tiny"}, vocab=["a", "b"])
    with wm.open(tmp_path) as f:
        assert f.metadata["model_name"] == "tiny"
        assert f.vocab is not None
        assert list(f.vocab) == ["a", "b"]
        assert [shard.vocab is not None for shard in f.shards.values()] == [True, False, False, False]


def test_a_file_is_no_directory_for_shards(tmp_path):
    """The error names what the caller gave, not the lock in it."""
    (tmp_path / "o").touch()
    for target in (f"{tmp_path}/o/", tmp_path / "o" / "m.safetensors.index.json"):
        with pytest.raises(NotADirectoryError) as caught:
            wm.save(target, TENSORS, format="safetensors", max_shard_size=600)
        assert caught.value.filename.rstrip("/") == f"{tmp_path}/o"
    assert listed(tmp_path) == ["o"]


def test_nothing_is_written_where_it_cannot_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(wm.EncodeError):
        wm.save(tmp_path / "m.fifu", TENSORS, max_shard_size=300)
    with pytest.raises(FileNotFoundError):
        wm.save("", TENSORS, format="safetensors", max_shard_size=300)
    assert not listed(tmp_path)


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (7, 7),
        (np.int64(7), 7),
        (5e9, 5 * 10**9),
        ("7", 7),
        ("5GB", 5 * 10**9),
        ("5gb", 5 * 10**9),
        ("1.5 GiB", 3 << 29),
        ("2kib", 2048),
    ],
)
def test_sizes(size, nbytes):
    assert bytes_of_size(size) == nbytes


_NO_SIZES = [0, -1, True, 2.5, float("nan"), float("inf"), [7], "", "2.5", "0MB", "5XB", "-1", "GB", "1e400GB", "nan"]


@pytest.mark.parametrize("size", _NO_SIZES)
def test_sizes_that_are_none(tmp_path, size):
    for tensors in (TENSORS, {}):
        with pytest.raises(ValueError, match="max_shard_size is"):
            wm.save(tmp_path / "m.amb", tensors, max_shard_size=size)
    assert not listed(tmp_path)
