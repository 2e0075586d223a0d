"""Files that the ranks of torch.distributed.checkpoint save: each holds parts of tensors, not a model."""

import json

import pytest
from tests.builders import normal
from tests.builders import safetensors as st
from tests.builders import torch as files

import weightmap as wm

PART = {"w": normal((3, 4), 1), "b": normal((3,), 2)}
FIRST, SECOND = "shard-00001-model-00001-of-00001.safetensors", "shard-00002-model-00001-of-00001.safetensors"
DISTCP = "to make one checkpoint of their folder, which weightmap opens, run python -m torch.distributed.checkpoint."
CONSOLIDATE = "to make one model of their folder, call consolidate_safetensors_files("


def archive(wide=True):
    """A lone tensor as torch.save writes it; a .distcp file has such an archive for each tensor."""
    found, storages = files.stored({"w": PART["w"]})
    return files.zipped(files.dump(found["w"]), storages, wide=wide)


def shard(offsets, name="DCP_SHARDING_INFO"):
    info = offsets if isinstance(offsets, str) else json.dumps({n: {"saved_offsets": o} for n, o in offsets.items()})
    return st.build(PART, {"format": "pt", "DCP_VERSION": "1.0", name: info})


# The beginning of the pickle of a Metadata.
METADATA = b"\x80\4\x95\x19\5\0\0\0\0\0\0\x8c$torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata\x94\x93\x94)."
REFUSED = {
    "__0_0.distcp": (archive() * 3, f"this file holds parts of tensors, as a rank of torch.distributed.c.*{DISTCP}"),
    "__0_1.distcp": (archive(wide=False), DISTCP),
    "renamed.pt": (archive() * 2, f"{DISTCP}.*dcp_to_torch FOLDER FILE.pt"),
    ".metadata": (METADATA, f"lists the tensors whose parts are in the .distcp files beside it: {DISTCP}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_of_ranks_are_refused_with_the_command_that_joins_them(name, tmp_path):
    """A file with an archive for each part, one of a single part, and the pickle with their places."""
    data, message = REFUSED[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(wm.FormatError, match=message):
        wm.open(tmp_path / name)
    if not name.startswith("__0_1"):  # by its name only: torch.save writes a tensor alike
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
    for use in (wm.open, wm.load):
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
