"""Hugging Face sharded models: an index or a directory opens as one file would."""

import gc
import io
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.builders import embd, normal
from tests.builders import safetensors as st
from tests.support import mappings, same

import weightmap as wm
from weightmap.core.arguments import Limits, Options
from weightmap.core.bytes.open_source import from_buffer
from weightmap.core.model import sharded
from weightmap.core.model.internals import check_unchanged
from weightmap.core.model.listing import read_listing

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
FIRST = {"a.weight": normal((3, 4), 1), "a.bias": normal((4,), 2)}
SECOND = {"b.weight": normal((5, 2), 3), "half": normal((3,), 4, "bfloat16")}
ALL = FIRST | SECOND


@pytest.fixture(params=[64, 0], ids=["descriptors", "no descriptors"], autouse=True)
def kept(request, monkeypatch):
    """Run every test with few files and with many: the largest number of files that keep descriptors."""
    monkeypatch.setattr(sharded.open_source, "MAX_OPEN", request.param)
    return int(request.param)


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    return st.shard(folder, {ONE: FIRST, TWO: SECOND})


def test_the_limit_of_copies_is_of_all_files(index):
    """Each of these is smaller."""
    total = sum((index.parent / name).stat().st_size for name in (ONE, TWO))
    for mode in ("copy", "sealed"):
        with wm.open(index, mode=mode, limits=Limits(max_copy_bytes=total)) as f:
            assert all(same(f[name], value) for name, value in ALL.items())
        with pytest.raises(wm.LimitError, match=f"bytes of all files to copy is {total}, expected at most {total - 1}"):
            wm.open(index, mode=mode, limits=Limits(max_copy_bytes=total - 1))
    wm.open(index, limits=Limits(max_copy_bytes=0)).close()


def test_an_index_opens_as_one(index):
    with wm.open(index) as f:
        assert set(f) == set(ALL)
        assert len(f) == len(ALL)
        assert all(same(f[name], value) for name, value in ALL.items())
        assert not f["a.weight"].flags.owndata
        assert mappings(index.parent / ONE)
        assert mappings(index.parent / TWO)
        assert {info.name: (info.shape, info.dtype) for info in f.infos()} == {
            n: (v.shape, v.dtype) for n, v in ALL.items()
        }
        assert f.verify().checks
        assert f.get("absent") is None
        with pytest.raises(wm.TensorNotFoundError, match=r"b\.weight"):
            f["b.wieght"]


def test_verify_says_of_how_many_shards_it_could_check_the_structure_only(index):
    with wm.open(index) as f:
        assert f.verify().structure_only == "safetensors has no checksums"
    (index.parent / TWO).write_bytes(embd.Draft(SECOND.items()).seal())
    with wm.open(index) as f:
        assert f.format == "mixed"
        assert f.verify().structure_only == "safetensors has no checksums (1 of 2 shards)"
    (index.parent / ONE).write_bytes(embd.Draft(FIRST.items()).seal())
    with wm.open(index) as f:
        assert f.verify().scope == "structure and checksums"


def test_a_directory_with_one_file(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(st.build(ALL))
    (tmp_path / "config.json").write_text("{}")
    with wm.open(tmp_path) as f:
        assert set(f) == set(ALL)
        assert all(same(f[name], value) for name, value in ALL.items())


def test_a_directory_with_one_model_in_two_formats(index):
    """Neither index is preferred, not even by the usual name; an index under another name is not read."""
    shutil.copy(index, index.parent / "tf_model.h5.index.json")
    shutil.copy(index, index.parent / "pytorch_model.bin.index.json")
    shutil.copy(index, index.parent / "consolidated.safetensors.index.json")
    assert list(wm.load(index.parent)) == list(ALL)
    wm.save(index.parent / "model.gguf", {"a": np.ones(3), "b": np.ones(3)}, max_shard_size=1)
    several = "has several model files; open one of them: 'model.gguf.index.json', 'model.safetensors.index.json'"
    with pytest.raises(wm.UnknownFormatError, match=several):
        wm.load(index.parent)
    index.unlink()
    with wm.open(index.parent) as f:  # torch's has a usual name too
        assert f.path == str(index.parent / "pytorch_model.bin.index.json")


def test_a_directory_without_its_index(index):
    index.unlink()
    (index.parent / "training_args.bin").write_bytes(b"")
    with pytest.raises(wm.UnknownFormatError, match=r"their index is missing: 'model\.safetensors\.index\.json'"):
        wm.open(index.parent)
    (index.parent / "training_args.bin").unlink()
    (index.parent / TWO).unlink()
    with pytest.raises(wm.UnknownFormatError, match=r"their index is missing: 'model\.safetensors\.index\.json'"):
        wm.open(index.parent)
    with pytest.warns(
        wm.ModelWarning, match="this directory has shards of a model, and their index is missing"
    ) as said:
        f = wm.open(index.parent, strict=False)
    assert list(f) == list(FIRST)
    assert any(str(said[0].message).endswith(line) for line in f.verify().warnings)
    assert list(wm.open(index.parent / ONE)) == list(FIRST)
    (index.parent / ONE).rename(index.parent / "model-00001-of-00001.safetensors")
    assert list(wm.open(index.parent)) == list(FIRST)
    (index.parent / "model-00001-of-00001.safetensors").unlink()
    wm.save(index.parent / "x.gguf", {"a": np.ones(3), "b": np.ones(3)}, max_shard_size=1)
    (index.parent / "x.gguf.index.json").unlink()
    with pytest.raises(wm.UnknownFormatError, match=r"several model files; .*'x-00001-of-00002\.gguf'"):
        wm.open(index.parent)  # these need no index


@pytest.mark.parametrize("name", [ONE, TWO, "model.safetensors.index.json"])
@pytest.mark.parametrize("content", [b"", b"no model at all", st.build(SECOND)], ids=["empty", "junk", "sound"])
def test_unpickling_notices_another_file(index, name, content):
    with wm.open(index) as f:
        blob = pickle.dumps(f)
    (index.parent / name).write_bytes(content)
    with pytest.raises(wm.FileChangedError, match=re.escape(name)):
        pickle.loads(blob)


def test_links_that_lead_nowhere_or_to_no_file(index):
    shard = index.parent / TWO
    shard.unlink()
    os.mkfifo(index.parent / "fifo")
    for target, expected in (
        ("nothing", wm.LayoutError),
        ("fifo", wm.NotRegularFileError),
        (".", wm.LayoutError),
        (TWO, wm.NotRegularFileError),
    ):
        shard.symlink_to(target)
        with pytest.raises(expected, match=TWO):
            wm.open(index)
        shard.unlink()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["x.gguf", "model.safetensors", "model.safetensors.index.json"])
def test_a_directory_whose_model_file_is_no_file(tmp_path, name, strict):
    """A loop of links, or a directory: one error that names it."""
    path = tmp_path / name
    path.symlink_to(name)
    for opened in tmp_path, path:
        with pytest.raises(wm.NotRegularFileError, match=rf"{name}: this path is a loop of symbolic links"):
            wm.open(opened, strict=strict)
    path.unlink()
    path.mkdir()
    with pytest.raises(wm.NotRegularFileError, match=rf"{name}: the model file of this directory is a directory"):
        wm.open(tmp_path, strict=strict)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_a_file_that_describes_a_model_is_opened(index, name):
    """The error names its directory, as long as that holds one model."""
    path = index.with_name(name)
    path.write_text('{"model_type": "llama"}')
    with pytest.raises(wm.UnknownFormatError, match=f"{name}: .*: open its directory, {str(path.parent)!r}$"):
        wm.open(path)
    index.with_name(f"x.{index.name}").write_bytes(index.read_bytes())
    index.unlink()
    index.with_name(f"y.{index.name}").write_text("{}")
    with pytest.raises(wm.UnknownFormatError, match=f"{name}: this is JSON text"):
        wm.open(path)


def test_names_of_shards_that_say_nothing_more(index):
    """Writers name a shard "./model-00001-of-00002.safetensors"; with and without "./" it is one shard."""
    content = json.loads(index.read_text())
    plain = {name: list(wm.open(index)[name].flat) for name in content["weight_map"]}
    content["weight_map"] = {
        name: shard if i == 0 else f"./x/../{shard}" for i, (name, shard) in enumerate(content["weight_map"].items())
    }
    index.write_text(json.dumps(content))
    with wm.open(index) as f:
        assert {name: list(f[name].flat) for name in f} == plain


def test_a_total_size_that_lies(index):
    content = json.loads(index.read_text())
    content["metadata"]["total_size"] += 1
    index.write_text(json.dumps(content))
    with pytest.warns(wm.ModelWarning, match="total_size of the index of shards is"), wm.open(index) as f:
        assert set(f) == set(ALL)
    del content["metadata"]
    index.write_text(json.dumps(content))
    with wm.open(index) as f:
        assert set(f) == set(ALL)


def test_a_directory_whose_folders_hold_models(tmp_path):
    """A pipeline of diffusers: the error names them."""
    for name in ("unet", "vae", "scheduler"):
        (tmp_path / name).mkdir()
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "scheduler" / "config.json").write_text("{}")
    wm.save(tmp_path / "unet" / "diffusion_pytorch_model.safetensors", {"w": np.ones(2, np.float32)})
    (tmp_path / "vae" / "diffusion_pytorch_model.safetensors.index.fp16.json").write_text("{}")
    with pytest.raises(wm.NotRegularFileError, match=r"its folders hold models, open one of them: 'unet', 'vae'$"):
        wm.open(tmp_path)


def test_limits_count_all_shards(index):
    with wm.open(index, limits=wm.Limits(max_tensors=4)) as f:
        assert len(f) == 4
    with pytest.raises(wm.LimitError):
        wm.open(index, limits=wm.Limits(max_tensors=3))


def test_limits_count_shards(index, tmp_path):
    """max_shards bounds the files of a model before any is opened: a process has a limited number of mappings."""
    with wm.open(index, limits=wm.Limits(max_shards=2)) as f:
        assert len(f.shards) == 2
    with pytest.raises(wm.LimitError, match="number of shards is 2, expected at most 1"):
        wm.open(index, limits=wm.Limits(max_shards=1))
    many = tmp_path / "many.index.json"
    for count, message in ((32_768, "missing"), (32_769, "number of shards is 32769, expected at most 32768")):
        many.write_text(json.dumps({"weight_map": {f"t{i}": f"{i}.safetensors" for i in range(count)}}))
        for open_it in (wm.open, wm.load):
            with pytest.raises(wm.FormatError, match=message):
                open_it(many)


@pytest.mark.parametrize("names", [["model.index.json"], ["a.index.json", "model.index.json"], ["folder"]])
def test_an_index_or_a_directory_is_no_shard(tmp_path, names):
    (tmp_path / "folder").mkdir()
    for path, shard in zip(["model.index.json", *names], names, strict=False):
        (tmp_path / path).write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(wm.LayoutError, match="is an index or a directory"):
        wm.open(tmp_path / "model.index.json")


@pytest.mark.parametrize("mode", ["mmap", "cow", "copy"])
def test_a_model_of_many_files_keeps_no_descriptors(index, kept, mode):
    """Shards of a small model keep their descriptors, except in mode "copy"; shards of a large one never do."""
    gc.collect()  # objects that other tests left in cycles would be closed meanwhile
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())

    def more():
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) - before

    with wm.open(index, mode=mode) as f:
        expected = 2 if kept and mode != "copy" else 0
        assert more() == expected
        dict(f), [f.read(name) for name in f], f.verify(), check_unchanged(f)
        assert more() == expected
    assert more() == 0


def test_a_handle_that_nobody_closed_keeps_no_descriptors(index, kept):
    """No cycle holds it until the next collection: one that is dropped, or that an interrupt left behind."""
    gc.collect()
    gc.disable()
    try:
        before = set(Path("/proc/self/fd").iterdir())
        f = wm.open(index)
        dict(f), f.metadata, f.verify()
        assert len(set(Path("/proc/self/fd").iterdir()) - before) == min(kept, 2)
        del f
        assert set(Path("/proc/self/fd").iterdir()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("change", ["truncated", "grown", "touched"])
def test_a_changed_shard_is_noticed_by_its_own_tensors(index, change):
    path = index.parent / TWO
    with wm.open(index) as f:
        if change == "touched":
            os.utime(path, ns=(1, 1))
        else:
            os.truncate(path, 10 if change == "truncated" else path.stat().st_size + 1)
        for use in (
            lambda: f["b.weight"],
            lambda: f.read("b.weight"),
            f.verify,
            lambda: check_unchanged(f),
            lambda: dict(f),
        ):
            with pytest.raises(wm.FileChangedError, match=TWO):
                use()
        assert same(f["a.weight"], FIRST["a.weight"])


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_shard_that_is_gone_from_its_path(index, kept, change):
    """A shard that is replaced by rename or deleted stays unchanged in arrays; only its descriptor can still read it.

    Without one, reading and verifying raise FileChangedError, or FileNotFoundError, and never read the other file.
    """
    path = index.parent / TWO
    with wm.open(index) as f:
        if change == "replaced":
            other = path.with_name("other")
            other.write_bytes(st.build({name: normal(value.shape, 9, value.dtype) for name, value in SECOND.items()}))
            other.replace(path)
        else:
            path.unlink()
        check_unchanged(f)
        assert all(same(f[name], value) for name, value in ALL.items())
        if kept:
            assert same(f.read("b.weight"), SECOND["b.weight"])
            f.verify()
            return
        expected = wm.FileChangedError if change == "replaced" else FileNotFoundError
        for use in (lambda: f.read("b.weight"), f.verify):
            with pytest.raises(expected, match=TWO):
                use()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory that can be sealed")
def test_sealed_shards(index, kept):
    """In mode "sealed" a model is stable; each of few files has a descriptor to share, the model itself has none."""
    with wm.open(index, mode="sealed") as f:
        for name in (ONE, TWO):
            os.truncate(index.parent / name, 0)
        assert f.is_stable
        assert all(same(f[name], value) for name, value in ALL.items())
        assert f.verify().checks
        with pytest.raises(io.UnsupportedOperation):
            f.fileno()
        if kept:
            with wm.open(f.shards[TWO].fileno(), mode="sealed") as g:
                assert same(g["b.weight"], SECOND["b.weight"])
        else:
            with pytest.raises(io.UnsupportedOperation):
                f.shards[TWO].fileno()


texts = some.text('ab,:{}" é\n', max_size=6)


@given(some.dictionaries(texts, some.sampled_from(["a.x", "b,c.x", "{}.x", "é.x"]), max_size=30), some.data())
def test_an_index_is_read_as_it_was_written(where, draw):
    """Whatever names have in them, and however it is laid out."""
    layout = draw.draw(some.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}]))
    order = draw.draw(some.permutations([("weight_map", where), ("metadata", {"k": "v"}), ("more", [1, {"x": "}"}])]))
    raw = json.dumps(dict(order), **layout).encode()
    found = read_listing(from_buffer(raw, "mmap"), Options(Limits()))
    assert list(found.pairs()) == list(where.items())
    assert found.metadata == {"k": "v"}
