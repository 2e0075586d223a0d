"""Models written in several files: numbered shards, an index that comes last, and one run at a time."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from weightmap.core.bytes import atomic
from weightmap.core.formats import Request, Tensors, by_name
from weightmap.core.model import sharding
from weightmap.core.model.saving import from_arrays, plan_request

SHARDS = [{"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), np.int32)}, {"c": np.zeros((3, 1), np.float16)}]


def there(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def target_of(path, format_=None):
    target = sharding.sharded_target(str(path), None if format_ is None else by_name(format_))
    assert target is not None
    return target


def write(target, shards=SHARDS, format_="safetensors", **options):
    found = by_name(format_)
    plans = [
        (plan_request("x", found, Request(Tensors(from_arrays(some)), found.layouts[0])), list(some)) for some in shards
    ]
    return sharding.write_shards(target, plans, **options)


def stop_at(path):
    """Return a `progress` that interrupts a run once a file is there."""

    def stop(done, total):
        if path.exists():
            raise KeyboardInterrupt

    return stop


def folder_of_failed_runs(tmp_path, shards, write):
    """Interrupt runs at the second of three shards: only older files stay. Return the last run's folder."""
    for before in ([], [shards[0]], [shards[2], "other.txt"]):
        folder = tmp_path / f"{len(before)}{before[:1]}"
        folder.mkdir()
        for name in before:
            (folder / name).touch()
        with pytest.raises(KeyboardInterrupt):
            write(folder, progress=stop_at(folder / shards[1]))
        assert there(folder) == sorted(before)
    return folder


def test_names_come_from_the_index(tmp_path):
    path = tmp_path / "bert.v2.safetensors.index.json"
    assert target_of(path).names(2) == ["bert.v2-00001-of-00002.safetensors", "bert.v2-00002-of-00002.safetensors"]
    assert target_of(path).path == str(path)
    assert target_of(tmp_path / "x.index.json", "embd").names(1) == ["x-00001-of-00001.weights"]
    assert target_of(tmp_path / ".AMB.index.json").names(1) == ["model-00001-of-00001.AMB"]
    assert target_of(tmp_path, "gguf").path == str(tmp_path / "model.gguf.index.json")
    assert sharding.sharded_target(str(tmp_path / "x.safetensors"), None) is None
    for path, said in (
        (tmp_path, "no writable format is known for the shards in this directory; give format="),
        (tmp_path / "model.index.json", "this index must name the format of its shards, as .*; give format="),
    ):
        with pytest.raises(wm.EncodeError, match=said):
            sharding.sharded_target(str(path), None)


def test_two_runs_do_not_write_one_model(tmp_path):
    """A second run, in this process or another, is refused before it writes; ranks share the lock."""
    target = target_of(tmp_path / "new" / "x.safetensors.index.json")
    with sharding.holding(target):
        with pytest.raises(wm.TargetError, match="another run is writing this model"):
            write(target)
        code = f"""
import weightmap as wm
from weightmap.core.model import sharding
try:
    with sharding.holding(sharding.ShardTarget(*{tuple(target)!r})): print("in")
except wm.TargetError: print("out")
"""
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert child.stdout == "out\n"
        assert there(target.folder) == [".x.safetensors.index.json.lock"]
        with pytest.raises(wm.TargetError), sharding.holding(target, 3):
            pass
    assert not Path(target.folder).exists()
    with sharding.holding(target, 0), sharding.holding(target, 1):
        for part in (0, 1, None):
            with pytest.raises(wm.TargetError), sharding.holding(target, part):
                pass
    assert not Path(target.folder).exists()


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="opens links")
def test_a_lock_is_no_link(tmp_path):
    """It would make an empty file elsewhere."""
    target = target_of(tmp_path / "x.safetensors.index.json")
    lock = tmp_path / ".x.safetensors.index.json.lock"
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(wm.TargetError, match="this is a link, and would be written through: remove it"):
        write(target)
    assert there(tmp_path) == [lock.name]


def test_an_error_about_the_lock_names_the_index(tmp_path, monkeypatch):
    def refused(_, path, *args):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(sharding, "take_ownership", refused)
    with pytest.raises(PermissionError) as caught:
        write(target_of(tmp_path / "x.safetensors.index.json"))
    assert caught.value.filename == str(tmp_path / "x.safetensors.index.json")


def test_a_lock_that_was_removed_is_made_again(tmp_path, monkeypatch):
    """A run that opened an ending run's lock does not hold a file that nobody else can find."""
    target, opened = target_of(tmp_path, "embd"), []
    open_lock = sharding._open_lock

    def removed_meanwhile(path, *flags):
        file = open_lock(path, *flags)
        if not opened:
            Path(path).unlink()
        opened.append(path)
        return file

    monkeypatch.setattr(sharding, "_open_lock", removed_meanwhile)
    with sharding.holding(target):
        assert len(opened) == 2
        assert there(tmp_path) == [".model.weights.index.json.lock"]
    assert not there(tmp_path)


def test_files_of_killed_writers_go(tmp_path):
    """Hidden files of a killed writer of these shards are removed; hidden files of others stay."""
    target = target_of(tmp_path, "safetensors")
    ours = [".model-00001-of-00002.safetensors.0123456789ab.tmp", ".model.safetensors.index.json.0123456789ab.tmp"]
    others = [".other.safetensors.0123456789ab.tmp", ".model-00001-of-00002.safetensors.0123.tmp"]
    for name in (*ours, *others):
        (tmp_path / name).touch()
    write(target)
    assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(others)
    long = ["n" * 46 + ".bt", "é" * 40, "n" * 250]
    assert all(atomic._HIDDEN.fullmatch(atomic._hidden(name))[1] == atomic._beginning(name) for name in long)


def test_an_index_that_opening_refuses_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(sharding, "_MAX_INDEX_NBYTES", 100)
    with pytest.raises(wm.EncodeError, match=r"size of the index is \d+, expected at most 100 bytes"):
        write(target_of(f"{tmp_path}/x/", "safetensors"))
    assert not there(tmp_path)


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_a_run_that_fails_leaves_no_shard_of_its_own(tmp_path, suffix):
    """One shard alone would open as a whole model. Shards that were there before stay, whoever wrote them."""
    shards = [f"m-0000{i}-of-00003{suffix}" for i in (1, 2, 3)]
    tensors = {name: np.ones(3, np.float32) for name in "abc"}

    def write(folder, **options):
        wm.save(folder / f"m{suffix}", tensors, max_shard_size=1, **options)

    folder = folder_of_failed_runs(tmp_path, shards, write)
    write(folder)
    assert wm.load(folder / f"m{suffix}.index.json").keys() == tensors.keys()
    assert {*there(folder)} == {*shards, f"m{suffix}.index.json", "other.txt"}
    (folder / f"m{suffix}.index.json").unlink()  # GGUF needs none
    with pytest.raises(
        wm.TargetError, match=r"this model exists already, and a sharded model is not replaced"
    ) as caught:
        write(folder)
    assert caught.value.path == str(folder / shards[0])


def test_shards_that_an_index_joins_stay(tmp_path, monkeypatch):
    """For example if the index is in place, and then flushing the folder fails."""

    def fail(*_):
        raise OSError

    target = target_of(tmp_path, "safetensors")
    monkeypatch.setattr(atomic, "_flush_folder", fail)
    names = target.names(2)
    with pytest.raises(OSError), sharding.removing_new(target, names):  # noqa: PT011 - that of `fail`
        write(target)
    monkeypatch.undo()
    assert not there(tmp_path)
    write_index = sharding.write_index
    monkeypatch.setattr(sharding, "write_index", lambda *args, **kwargs: (write_index(*args, **kwargs), fail()))
    with pytest.raises(OSError):  # noqa: PT011
        write(target)
    assert wm.load(tmp_path).keys() == {"a", "b", "c"}
