"""Conversions into files of bounded size, beside what lies there already."""

import numpy as np
import pytest
from tests.core.model.test_sharding import folder_of_failed_runs, stop_at
from tests.core.model.test_splitting import TENSORS
from tests.support import listing as listed

import weightmap as wm
from weightmap import cli, compat


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
        with pytest.raises(wm.TargetError, match="this belongs to the source, and would be replaced"):
            wm.convert(source, tmp_path / name, format="bintensors", max_shard_size=size)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("options", [{}, {"format": "bintensors"}, {"max_shard_size": 600}])
def test_a_directory_is_not_converted_into_itself(tmp_path, options):
    """Whatever its files are called, and by whatever path: a second model beside them would be opened instead."""
    wm.save(tmp_path / "in" / "m.safetensors", TENSORS, max_shard_size=600)
    (tmp_path / "link").symlink_to("in")
    before = listed(tmp_path / "in")
    for source in (tmp_path / "in", wm.open(tmp_path / "link"), wm.open(tmp_path / "in").weights):
        for target in ("in", "link/"):
            message = "this belongs to the source, and would be replaced: choose another target"
            with pytest.raises(wm.TargetError, match=message):
                wm.convert(source, f"{tmp_path}/{target}", **options)
    assert listed(tmp_path / "in") == before


def test_a_file_in_whose_place_shards_would_lie_stays(tmp_path):
    """Two models of one name would be ambiguous: an error, and nothing changes."""
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
    """A directory opens as its index, which would hide the new file: the same error as for shards."""
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
    """As safetensors does: so transformers writes a smaller model over an older one."""
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


def test_convert_splits(tmp_path):
    """Shards of bounded size, counted in the target; each larger shard of a source is split again."""
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


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_a_run_that_fails_leaves_no_shard_of_its_own(tmp_path, suffix):
    """One shard alone would open as a whole model. Older shards stay, and so do all with a manifest."""
    source, shards = tmp_path / "source.bt", [f"m-0000{i}-of-00003{suffix}" for i in (1, 2, 3)]
    wm.save(source, {name: np.ones(3, np.float32) for name in "abc"})

    def write(folder, **options):
        wm.convert(source, folder / f"m{suffix}", max_shard_size=1, **options)

    folder = folder_of_failed_runs(tmp_path, shards, write)
    write(folder)
    (folder / f"m{suffix}.index.json").unlink()  # GGUF needs none
    with pytest.raises(wm.TargetError, match=r"this model exists already, and a sharded model is not replaced"):
        write(folder)
    folder = tmp_path / "resumed"
    folder.mkdir()
    index, run = folder / f"m{suffix}.index.json", wm.Run(manifest=tmp_path / "done.json")
    with pytest.raises(KeyboardInterrupt):
        wm.convert(source, index, max_shard_size=1, run=run, progress=stop_at(folder / shards[1]))
    assert sorted(path.name for path in folder.iterdir()) == shards[:2]
    assert wm.convert(source, index, max_shard_size=1, run=run).skipped
    assert wm.load(index).keys() == {"a", "b", "c"}
