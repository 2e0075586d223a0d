"""Models in files of bounded size: `max_shard_size=`."""

import json

import numpy as np
import pytest
from tests.support import listing as listed

import weightmap as wm
from weightmap import cli, compat
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
    """One beyond the bound stands alone; those around it share files among themselves."""
    tensors = {"a": np.zeros(10), "b": np.zeros(10), "big": np.zeros(1000), "c": np.zeros(10), "d": np.zeros(10)}
    wm.save(tmp_path / "m.safetensors", tensors, max_shard_size=160)
    with wm.open(tmp_path) as f:
        assert [set(shard) for shard in f.shards.values()] == [{"a", "b"}, {"big"}, {"c", "d"}]


def test_a_model_that_fits_is_one_file(tmp_path):
    """Without need no index is written, and the file is that of a plain `save`; an index or directory gets a shard."""
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


def test_nothing_is_written_where_it_cannot_be(tmp_path):
    with pytest.raises(wm.EncodeError):
        wm.save(tmp_path / "m.fifu", TENSORS, max_shard_size=300)
    assert not listed(tmp_path)


@pytest.mark.parametrize("size", [None, 600])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocab.txt", "link"])
def test_files_beside_a_model_stay(tmp_path, name, size):
    """A conversion does not replace what programs need beside its source, by whatever path."""
    wm.save(tmp_path / "model.safetensors", TENSORS)
    for beside in ("config.json", "tokenizer.json", "vocab.txt"):
        (tmp_path / beside).write_text("{}")
    (tmp_path / "link").symlink_to("config.json")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for source in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(wm.TargetError, match="this file belongs to the source, and would be replaced"):
            wm.convert(source, tmp_path / name, format="bintensors", max_shard_size=size)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_in_whose_place_shards_would_lie_stays(tmp_path):
    """Beside an older model of that name nobody would know which of the two to open: an error, and nothing changes."""
    wm.save(tmp_path / "m.safetensors", {"old": TENSORS[next(iter(TENSORS))]})
    wm.save(tmp_path / "a.weights", TENSORS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(wm.TargetError, match="this file exists, and the new model takes several"):
        wm.save(tmp_path / "m.safetensors", TENSORS, max_shard_size=600)
    with pytest.raises(wm.TargetError, match="this file exists"):
        wm.convert(tmp_path / "a.weights", tmp_path / "m.safetensors", max_shard_size=600)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
@pytest.mark.parametrize("size", [None, "1MB", 300])
def test_shards_in_whose_place_a_file_would_lie_stay(tmp_path, suffix, size):
    """A directory opens as its index, and the new file would be hidden: the same error as for shards."""
    wm.save(tmp_path / f"m{suffix}", TENSORS, max_shard_size=600)
    wm.save(tmp_path / "a.weights", {"new": np.ones((64, 64), np.float32)})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    message = rf"m{suffix}\.index\.json: this model exists already, and a sharded model is not replaced: remove it"
    with pytest.raises(wm.TargetError, match=message):
        wm.save(tmp_path / f"m{suffix}", {"new": np.ones(3)}, max_shard_size=size)
    for options in ({}, {"quantize": "q8_0"}):
        with pytest.raises(wm.TargetError, match=message):
            wm.convert(tmp_path / "a.weights", tmp_path / f"m{suffix}", max_shard_size=size, **options)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_replaces_safetensors_writes_beside_an_index(tmp_path):
    """As safetensors does: transformers writes a smaller model over an older one so."""
    wm.save(tmp_path / "model.safetensors", TENSORS, max_shard_size=600)
    compat.numpy.save_file({"new": np.ones(3)}, tmp_path / "model.safetensors")
    assert list(wm.load(tmp_path / "model.safetensors")) == ["new"]


def test_a_file_that_became_shards_is_missed_with_a_hint(tmp_path, capsys):
    wm.save(tmp_path / "m.safetensors", TENSORS, max_shard_size=600)
    hint = f"this model is in several files: open {str(tmp_path / 'm.safetensors.index.json')!r}"
    for path in (tmp_path / "m.safetensors", str(tmp_path / "m.safetensors")):
        with pytest.raises(FileNotFoundError) as caught:
            wm.open(path)
        assert caught.value.__notes__ == [hint]
    assert cli.main(["inspect", str(tmp_path / "m.safetensors")]) != 0
    assert hint in capsys.readouterr().err
    with pytest.raises(FileNotFoundError) as caught:
        wm.open(tmp_path / "n.safetensors")
    assert not hasattr(caught.value, "__notes__")


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


def test_convert_splits(tmp_path):
    """Shards of bounded size, of the bytes in the target; each larger shard of a source is split again."""
    wm.save(tmp_path / "m.safetensors", TENSORS)
    (tmp_path / "halves").mkdir()
    report = wm.convert(tmp_path / "m.safetensors", f"{tmp_path}/halves/n.amb", dtype="float16", max_shard_size=300)
    assert (report.shards, report.tensors, report.dst) == (4, 7, f"{tmp_path}/halves/n.amb.index.json")
    names = [f"n-0000{i}-of-00004.amb" for i in range(1, 5)]
    assert listed(tmp_path / "halves") == [*names, "n.amb.index.json"]
    assert wm.diff(tmp_path / "m.safetensors", tmp_path / "halves", by_value=True).equal
    again = wm.convert(tmp_path / "halves", f"{tmp_path}/again/", format="gguf", max_shard_size=128)
    assert again.shards == 7
    assert wm.diff(tmp_path / "m.safetensors", tmp_path / "again", by_value=True, tensors_only=True).equal
