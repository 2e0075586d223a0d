"""What the ranks of torch.distributed.checkpoint save: each file holds parts of tensors, which is no model."""

import json

import pytest
from tests.builders import normal
from tests.builders import safetensors as st
from tests.builders import torch as files

import weightmap as wm
from weightmap import cli
from weightmap.vllm import model_files

PART = {"w": normal((3, 4), 1), "b": normal((3,), 2)}
FIRST, SECOND = "shard-00001-model-00001-of-00001.safetensors", "shard-00002-model-00001-of-00001.safetensors"
DISTCP = "to make one checkpoint of their folder, which weightmap opens, run python -m torch.distributed.checkpoint."
CONSOLIDATE = "to make one model of their folder, call consolidate_safetensors_files("


def archive(wide=True):
    """A lone tensor as torch.save writes it, for each of which a .distcp file has one."""
    found, storages = files.stored({"w": PART["w"]})
    return files.zipped(files.dump(found["w"]), storages, wide=wide)


def shard(offsets, name="DCP_SHARDING_INFO"):
    info = offsets if isinstance(offsets, str) else json.dumps({n: {"saved_offsets": o} for n, o in offsets.items()})
    return st.build(PART, {"format": "pt", "DCP_VERSION": "1.0", name: info})


# The pickle of a Metadata begins so.
METADATA = b"\x80\4\x95\x19\5\0\0\0\0\0\0\x8c$torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata\x94\x93\x94)."
REFUSED = {
    "__0_0.distcp": (archive() * 3, f"this file holds parts of tensors, as a rank of torch.distributed.c.*{DISTCP}"),
    "__0_1.distcp": (archive(wide=False), DISTCP),
    "renamed.pt": (archive() * 2, f"{DISTCP}.*dcp_to_torch FOLDER FILE.pt"),
    ".metadata": (METADATA, f"says which tensors the .distcp files beside it hold parts of: {DISTCP}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_of_ranks_are_refused_with_the_command_that_joins_them(name, tmp_path):
    """A file with an archive for each part, one of a single part, and the pickle that says where they lie."""
    data, message = REFUSED[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(wm.FormatError, match=message):
        wm.open(tmp_path / name)
    if not name.startswith("__0_1"):  # by its name only: it is what torch.save writes of a tensor
        with pytest.raises(wm.FormatError, match=message):
            wm.open(data)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((".metadata", "__0_0.distcp"), DISTCP),
        ((".metadata", "__0_0.distcp", "__1_0.distcp"), DISTCP),
        ((FIRST, SECOND), CONSOLIDATE),
    ],
)
def test_folders_of_ranks_are_refused_with_what_joins_them(names, message, tmp_path):
    for name in names:
        (tmp_path / name).write_bytes(shard({"w": [0, 0]}))
    for use in (wm.open, wm.load, model_files)[: 3 if FIRST in names else 2]:
        with pytest.raises(wm.UnsupportedError) as caught:
            use(str(tmp_path))
        assert str(caught.value).startswith(f"{tmp_path}: the ")
        assert f"of this directory hold parts of tensors, as ranks saved them: {message}" in str(caught.value)


def test_a_folder_with_a_model_beside_parts_opens(tmp_path):
    for name in (FIRST, SECOND):
        (tmp_path / name).write_bytes(shard({"w": [0, 0]}))
    (tmp_path / "__0_0.distcp").write_bytes(archive())
    (tmp_path / "other.safetensors").write_bytes(st.build(PART))
    with pytest.raises(wm.UnknownFormatError, match="several model files"):
        wm.open(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(st.build(PART))
    assert list(wm.load(tmp_path)) == list(PART)


# The name of a file, what it says, and the beginning of the warning.
SAID = {
    "a part that is not the first": (
        "a.safetensors",
        shard({"b": [0], "w": [3, 0]}),
        "shapes are those of parts of tensors ('w' begins at [3, 0] of its tensor)",
    ),
    "a first part": (FIRST, shard({"b": [0], "w": [0, 0]}), "shapes may be those of parts of tensors: "),
    "a first part of another name": ("a.safetensors", shard({"w": [0, 0]}), "shapes may be"),
    "all of it, saved by one rank": ("model-00001-of-00001.safetensors", shard({"w": [0, 0]}), ""),
    "another key": ("a.safetensors", shard({"w": [3, 0]}, "SHARDING_INFO"), ""),
    "no JSON": ("a.safetensors", shard("{"), "shapes may be"),
    "other JSON": ("a.safetensors", shard('{"w": 1, "x": {"saved_offsets": 3}, "y": {"saved_offsets": ["1"]}}'), "may"),
}


@pytest.mark.parametrize("case", SAID)
def test_one_file_of_a_rank_says_that_its_shapes_are_parts(case, tmp_path, capsys):
    name, data, message = SAID[case]
    path = tmp_path / name
    path.write_bytes(data)
    with wm.open(path) as f:
        assert list(f) == list(PART)
        warnings = f.verify().warnings
    assert len(warnings) == bool(message)
    assert cli.main(["inspect", str(path)]) == 0
    assert ("\nwarning: a rank of torch.distributed.checkpoint saved" in capsys.readouterr().out) == bool(message)
    assert cli.main(["inspect", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == list(warnings)
    for warning in warnings:
        assert message in warning
        assert CONSOLIDATE in warning
