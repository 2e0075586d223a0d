"""Hugging Face directories with PyTorch checkpoints: `pytorch_model.bin`, and its shards behind an index."""

import json

import numpy as np
import pytest
from tests.builders import normal
from tests.builders import torch as files
from tests.support import same

import weightmap as wm

ONE, TWO = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
INDEX = "pytorch_model.bin.index.json"
FIRST = {"embeddings.weight": normal((2, 3), 1), "a.bias": normal((4,), 2)}
SECOND = {"b.weight": normal((5, 2), 3), "half": normal((3,), 4, "bfloat16")}


def checkpoint(tensors):
    found, storages = files.stored(tensors, {})
    return files.zipped(files.dump(found), storages)


@pytest.fixture
def folder(tmp_path):
    """A directory with a configuration, a vocabulary and, as training leaves them, other checkpoints."""
    found = tmp_path / "model"
    found.mkdir()
    (found / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 3, "vocab_size": 2}))
    (found / "vocab.txt").write_text("[PAD]\nword\n")
    (found / "optimizer.pt").write_bytes(files.zipped(files.dump({}), {}))
    return found


def test_a_directory_with_one_checkpoint(folder, tmp_path):
    (folder / "pytorch_model.bin").write_bytes(checkpoint(FIRST | SECOND))
    with wm.open(folder) as f:
        assert f.format == "torch"
        assert all(same(f[name], value) for name, value in (FIRST | SECOND).items())
    (folder / "LICENSE").touch()
    for suffix in (".weights", ".amb", ".safetensors", ".gguf", ".bt"):
        target = tmp_path / f"target{suffix}"
        there = "'LICENSE'" if suffix in (".weights", ".amb", ".gguf") else "'config.json', 'vocab.txt', 'LICENSE'"
        assert f"only a directory gets copies of {there}" in wm.convert(folder, target).warnings
        assert wm.diff(folder, target, tensors_only=True).equal
    with wm.open(tmp_path / "target.weights") as f:
        assert f.vocab is not None
        assert list(f.vocab) == ["[PAD]", "word"]
        assert f.metadata["hidden_size"] == "3"


def test_safetensors_come_before_checkpoints(folder):
    (folder / "pytorch_model.bin").write_bytes(checkpoint(SECOND))
    wm.save(folder / "model.safetensors", {"w": np.ones(2, np.float32)})
    with wm.open(folder) as f:
        assert list(f) == ["w"]


def test_shards_behind_an_index(folder, tmp_path):
    """All tensors under one handle, also tied ones and those that are not row-major."""
    whole = files.Stored("0", "float32", 6, 0, (2, 3), (3, 1))
    tied = {"embeddings.weight": whole, "head.weight": whole, "t": whole._replace(shape=(3, 2), strides=(1, 3))}
    storage = FIRST["embeddings.weight"].data
    (folder / ONE).write_bytes(files.zipped(files.dump(tied), {"0": storage}))
    (folder / TWO).write_bytes(checkpoint(SECOND))
    where = dict.fromkeys(tied, ONE) | dict.fromkeys(SECOND, TWO)
    size = len(storage) + sum(len(tensor.data) for tensor in SECOND.values())  # as transformers counts
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": where}))
    want = np.frombuffer(storage, "<f4").reshape(2, 3)
    for source in (folder, folder / INDEX):
        with wm.open(source) as f:
            assert f.format == "torch"
            assert set(f) == set(where)
            assert np.shares_memory(f["embeddings.weight"], f["head.weight"])
            np.testing.assert_array_equal(f["t"], want.T)
            np.testing.assert_array_equal(f.read("t"), want.T)
            assert [array.shape for array in f.values()] == [info.shape for info in f.infos()]
            assert all(same(f[name], value) for name, value in SECOND.items())
            f.prefetch()
            warnings = f.verify().warnings
            assert any("total_size" in warning for warning in warnings)
    target = tmp_path / "target.safetensors"
    wm.convert(folder, target)
    np.testing.assert_array_equal(wm.load(target)["t"], want.T)
    assert wm.diff(folder, target, tensors_only=True).equal
