"""Sharded models as sources: what opening tolerates, `verify` and `convert` say."""

import contextlib
import errno
import gc
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.builders import normal
from tests.builders import safetensors as st
from tests.core.model import test_sharded
from tests.core.model.test_sharded import ALL, FIRST, ONE, SECOND, TWO
from tests.support import same

import weightmap as wm
from weightmap import cli, compat

index = test_sharded.index


@pytest.fixture
def snapshot(index, tmp_path):
    """The same model as the cache of Hugging Face has it: every file a relative link to a blob without a suffix."""
    (index.parent / "config.json").write_text('{"model_type": "none", "vocab_size": 3}')
    cache = tmp_path / "models--org--name"
    (cache / "blobs").mkdir(parents=True)
    folder = cache / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    for number, path in enumerate(sorted(index.parent.iterdir())):
        shutil.move(path, cache / "blobs" / f"{number:040x}")
        (folder / path.name).symlink_to(f"../../blobs/{number:040x}")
    return folder


@pytest.mark.parametrize("by", ["directory", "index", "link to the directory", "working directory"])
def test_a_model_in_the_cache_of_hugging_face(snapshot, tmp_path, monkeypatch, by):
    path = {"index": snapshot / "model.safetensors.index.json", "link to the directory": tmp_path / "main"}.get(
        by, snapshot
    )
    (tmp_path / "main").symlink_to(snapshot)
    if by == "working directory":
        monkeypatch.chdir(snapshot)
        path = Path()
    with wm.open(path) as f:
        assert all(same(f[name], value) for name, value in ALL.items())
        assert all(np.array_equal(f.read(name, "f4"), f[name].astype("f4")) for name in f)
        assert f.verify().checks
        with pickle.loads(pickle.dumps(f)) as g:
            assert all(same(g[name], value) for name, value in ALL.items())
    wm.convert(path, tmp_path / "one.weights")
    with wm.open(tmp_path / "one.weights") as f:
        assert all(same(f[name], value) for name, value in ALL.items())
        # config.json is a link too; given only the index, nothing beside it is read.
        assert f.metadata.get("vocab_size") == (None if by == "index" else "3")


WHERE = dict.fromkeys(FIRST, ONE) | dict.fromkeys(SECOND, TWO)


def lists(index, where):
    """Replace the map of an index, which then has no total size."""
    index.write_text(json.dumps({"weight_map": where}))


def said_of(path, target, others=(), **options):
    """Open a model; return its lines in the warning, `verify` and `convert`; `convert` also has `others`."""
    with pytest.warns(wm.ModelWarning) as caught:
        f = wm.open(path, **options)
    with f:
        report = f.verify()
        tensors = {name: np.array(f[name]) for name in f}
        assert wm.verify(f).warnings == report.warnings
    (warning,) = (str(one.message) for one in caught)
    for one in (target / "one.safetensors", f"{target}/new/"):
        with pytest.warns(wm.ModelWarning):
            f = wm.open(path, **options)
        assert wm.verify(f).warnings == report.warnings
        done = wm.convert(f, one)
        f.close()
        assert done.warnings == (*(f"tolerated in the source: {line}" for line in report.warnings), *others)
        assert done.tensors == len(tensors)
        copied = wm.load(f"{one}model.safetensors.index.json" if one != target / "one.safetensors" else one)
        assert {name: array.tobytes() for name, array in copied.items()} == {
            name: array.tobytes() for name, array in tensors.items()
        }
    assert all(line in warning for line in report.warnings)
    return report.warnings, tensors


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_there_is_loaded(index, tmp_path, strict):
    """Tensors that the index does not list or places elsewhere are views like others, in either mode."""
    lists(index, {"a.weight": TWO, "a.bias": ONE, "half": TWO})
    lines, tensors = said_of(index, tmp_path, strict=strict)
    assert lines == (
        f"tensor 'a.weight' is in shard {ONE!r}, but the index places it in {TWO!r}",
        f"tensor 'b.weight' is in shard {TWO!r} but not in the index",
    )
    assert set(tensors) == set(ALL)


def test_files_of_weights_that_no_index_names(index, tmp_path):
    """They are left out by name; `convert` names other indexes. Files of programs do not count as weights."""
    folder = index.parent
    for name in ("model-mtp.safetensors", "optimizer.safetensors", "model.fp16-00001-of-00001.safetensors"):
        (folder / name).write_bytes(st.build({"x": normal((2,), 5)}))
    (folder / "model.safetensors.index.fp16.json").write_text(
        json.dumps({"weight_map": {"x": "model.fp16-00001-of-00001.safetensors"}})
    )
    lines = ("file 'model-mtp.safetensors' lies beside this model, and the index does not name it: it is left out",)
    variant = "file 'model.safetensors.index.fp16.json' lies beside this model, and is left out"
    assert said_of(folder, tmp_path, (variant,))[0] == lines
    with wm.open(index) as f:  # beside which there may be other models: no warning
        assert f.verify().warnings == lines
    assert wm.convert(index, tmp_path / "two.safetensors").warnings == (f"tolerated in the source: {lines[0]}",)


def test_what_is_missing_is_refused_unless_asked_for(index, tmp_path):
    """By default; `strict=False` opens the rest and names the missing tensors, files and invalid names."""
    (index.parent / "damaged.safetensors").write_bytes(st.build({"d": normal((4,), 6)})[:-1])
    more = {"gone": TWO, "far": "no.safetensors", "d": "damaged.safetensors", "up": "../x.safetensors"}
    for name, shard in more.items():
        lists(index, WHERE | {name: shard})
        with pytest.raises(wm.FormatError):
            wm.open(index)
    lists(index, WHERE | more)
    with pytest.raises(wm.FormatError):
        wm.convert(index, tmp_path / "one.safetensors")
    lines, tensors = said_of(index, tmp_path, strict=False)
    assert set(tensors) == set(ALL)
    for name, shard in more.items():
        assert f"tensor {name!r} is not in shard {shard!r}, where the index places it" in lines
    for said in (
        "shard 'damaged.safetensors' is left out: ",
        "shard 'no.safetensors' is left out: file 'no.safetensors' of this model is missing",
        "name of a shard is '../x.safetensors', expected a relative path",
    ):
        assert sum(line.startswith(said) for line in lines) == 1
    assert len(lines) == len(more) + 3


def test_the_command_line_counts_the_tensors_of_a_lost_shard(index, capsys):
    lists(index, WHERE | {f"lost.{i}": "no.safetensors" for i in range(9)})
    for command in ("inspect", "verify"):
        assert cli.main([command, str(index), "--lenient"]) == 0
        out = capsys.readouterr().out
        assert "shard 'no.safetensors' lacks 9 tensors of the index: 'lost.0', 'lost.1', 'lost.2', ...\n" in out
        assert out.count("lost.") == 3


def test_a_tensor_in_two_shards(index, tmp_path):
    """That is refused; `strict=False` takes the one in the shard that the index names, in every copy too."""
    shards = {ONE: FIRST | {"half": normal((3,), 9, "bfloat16")}, TWO: SECOND | {"a.bias": normal((4,), 8)}}
    for name, tensors in shards.items():
        (index.parent / name).write_bytes(st.build(tensors))
    lists(index, WHERE)
    with pytest.raises(wm.LayoutError, match=f"'half' is in two shards, {ONE!r} and {TWO!r}"):
        wm.open(index)
    lines, tensors = said_of(index, tmp_path, strict=False)
    assert lines == (
        f"tensor 'half' is in several shards: the one in {ONE!r} is left out",
        f"tensor 'a.bias' is in several shards: the one in {TWO!r} is left out",
    )
    assert all(same(tensors[name], value) for name, value in ALL.items())


def test_a_model_without_one_format_converts(index, tmp_path):
    """A model whose shards are all left out, and one with shards of several formats."""
    folder = index.parent
    wm.convert(folder / TWO, tmp_path / "two.gguf")
    shutil.copy(tmp_path / "two.gguf", folder / TWO)
    with wm.open(index) as f:
        assert f.format == "mixed"
        names = set(f)
    wm.convert(index, tmp_path / "mixed.safetensors")
    assert set(wm.load(tmp_path / "mixed.safetensors")) == names
    for name in (ONE, TWO):
        (folder / name).unlink()
    with pytest.warns(wm.ModelWarning), wm.open(index, strict=False) as f:
        assert wm.convert(f, tmp_path / "none.safetensors").tensors == 0


def test_a_file_of_a_directory_and_others_beside_it(tmp_path):
    """The user named no single file, so `convert` and `verify` name the others; opening does not warn of them."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "mtp.safetensors"):
        wm.save(folder / name, {"w": np.ones(2, np.float32)})
    told = "file 'mtp.safetensors' lies beside this model, and is left out"
    with wm.open(folder) as f:
        assert f.verify().warnings == (told,)
    assert wm.verify(folder).warnings == (told,)
    (folder / "pytorch_model.bin.index.json").touch()
    (folder / "optimizer.pt").touch()
    (folder / "onnx").mkdir()
    for name in ("old.gguf", "onnx/model.onnx", "LICENSE"):
        (folder / name).touch()
    others = [
        f"file {name!r} lies beside this model, and is left out"
        for name in ("old.gguf", "pytorch_model.bin.index.json")
    ]
    others += ["folder 'onnx' has a model, which is left out"]
    for suffix in ("safetensors", "gguf", "npz.amb", "safetensors.index.json"):
        report = wm.convert(folder, tmp_path / f"one.{suffix}", names="keep")
        assert report.warnings[:4] == (f"tolerated in the source: {told}", *others)
        assert report.warnings[4] == "only a directory gets copies of 'LICENSE'"
    assert wm.convert(folder, f"{tmp_path}/copy/").warnings == (f"tolerated in the source: {told}", *others)
    with wm.open(folder / "model.safetensors") as f:
        assert not f.verify().warnings


def _shards_that_say(folder, *said, index=None):
    where = {}
    for number, metadata in enumerate(said):
        name, tensor = f"model-{number}.safetensors", f"w{number}"
        wm.save(folder / name, {tensor: np.full(2, number, np.float32)}, metadata=metadata)
        where[tensor] = name
    content = {"weight_map": where} | ({} if index is None else {"metadata": index})
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def test_metadata_of_shards_are_those_of_the_model(tmp_path):
    """The model has metadata on which shards agree, or that one shard has; the index's goes before it."""
    _shards_that_say(
        tmp_path,
        {"format": "pt", "author": "shard"},
        {"format": "pt", "note": "second"},
        None,
        index={"total_size": 24, "author": "index"},
    )
    expected = {"format": "pt", "note": "second", "total_size": 24, "author": "index"}
    with wm.open(tmp_path) as f:
        assert f.metadata == expected
        assert not f.verify().warnings
    target = tmp_path / "copy" / "one.safetensors"
    target.parent.mkdir()
    report = wm.convert(tmp_path, target)
    assert not report.warnings
    with wm.open(target) as f:
        assert f.metadata == {"format": "pt", "note": "second", "author": "index"}
    with compat.safe_open(tmp_path, "np") as f:
        assert f.metadata()["format"] == "pt"


def test_shards_that_disagree_on_metadata(tmp_path):
    """An entry with two values is left out of the model's metadata, and verify and convert say so; others stay."""
    _shards_that_say(tmp_path, {"format": "pt", "a": "1"}, {"format": "tf", "a": "1"}, {"format": "np"})
    told = "the shards disagree on the metadata entry 'format': 'pt' in 'model-0.safetensors' and 'tf' in "
    told += "'model-1.safetensors'"
    with wm.open(tmp_path) as f:
        assert f.metadata == {"a": "1"}
        assert f.verify().warnings == (told,)
    report = wm.convert(tmp_path, tmp_path / "one.safetensors")
    assert report.warnings == (f"{told}: left behind",)
    with wm.open(tmp_path / "one.safetensors") as f:
        assert f.metadata == {"a": "1"}


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize("keep_going", [False, True])
def test_an_error_holds_no_files(tmp_path, monkeypatch, keep_going):
    """Once it is handled, the files of the model are closed: no cycle keeps them for the collector."""
    wm.save(f"{tmp_path}/model/", {"a": np.ones(9, "f4"), "b": np.ones(9, "f4")}, format="embd", max_shard_size=40)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def attempt():
        with contextlib.suppress(OSError, wm.ShardsError):
            wm.convert(tmp_path / "model", f"{tmp_path}/out/", run=wm.Run(keep_going=keep_going))
            pytest.fail("no error")

    monkeypatch.setattr(os, "preadv", fail)
    _check_holds_no_files(attempt)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize("format_", ["amb", "embd"])
def test_an_error_of_several_shards_holds_no_files(tmp_path, format_):
    wm.save(f"{tmp_path}/model/", {"a": np.ones(9, "f4"), "b": np.ones(9, "f4")}, format=format_, max_shard_size=40)
    for path in (tmp_path / "model").glob("*-of-*"):
        path.write_bytes(path.read_bytes()[:-1])

    def attempt():
        with contextlib.suppress(wm.ShardsError):
            wm.verify(tmp_path / "model", run=wm.Run(keep_going=True))
            pytest.fail("no error")

    _check_holds_no_files(attempt)


def _check_holds_no_files(attempt):
    attempt()
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    gc.disable()
    try:
        attempt()
        assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    finally:
        gc.enable()
