"""Suggestions for a missing name: the right ones, with bounded work for any names."""

import json
from itertools import count

import numpy as np
import pytest

import weightmap as wm
from weightmap.core.arguments import similar
from weightmap.core.model import internals as parts

LAYERS = [
    f"model.layers.{i}.{part}.weight"
    for i in range(32)
    for part in ("self_attn.q_proj", "mlp.up_proj", "mlp.gate_proj")
] + ["lm_head.weight", "model.norm.weight"]
MISTAKES = {
    "layers.7.mlp.up_proj.weight": "model.layers.7.mlp.up_proj.weight",
    "model.layers.7.mlp.up_prj.weight": "model.layers.7.mlp.up_proj.weight",
    "model.layer.31.selfattn.q_proj.weight": "model.layers.31.self_attn.q_proj.weight",
    "lmhead.weight": "lm_head.weight",
    "LM_head.weight": "lm_head.weight",
    "model.norm.wieght": "model.norm.weight",
}


@pytest.mark.parametrize("wanted", MISTAKES)
def test_the_likest_name_comes_first(wanted):
    """A name with missing, exchanged or wrong letters leads to the right name."""
    assert similar(wanted, LAYERS)[0] == MISTAKES[wanted]


@pytest.mark.parametrize("wanted", ["", "foo", "embeddings", "w" * 101, "\udc80", "日本語"])
def test_what_is_like_nothing_gets_nothing(wanted):
    """No name is better than a wrong one."""
    assert similar(wanted, [*LAYERS, "w" * 101]) == []


def test_the_work_is_bounded():
    """Only the first thousand names count, and of these the short ones."""
    numbers = count()
    assert similar("ba" * 50, ("ab" * (next(numbers) + 40) for _ in count())) == ["ab" * 50, "ab" * 49, "ab" * 48]
    assert next(numbers) == 1_000


def test_get_looks_for_no_names(tmp_path, monkeypatch):
    """A miss without an error costs no search, in one file and in several; an error suggests names."""
    shards = tmp_path / "model"
    shards.mkdir()
    for name in ("a", "b"):
        wm.save(shards / f"{name}.safetensors", {f"{name}.weight": np.ones(2, np.float32)})
    index = {"weight_map": {f"{name}.weight": f"{name}.safetensors" for name in "ab"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for source in (shards, shards / "a.safetensors"):
        with wm.open(source) as f:
            with pytest.raises(wm.TensorNotFoundError, match=r"similar names: 'a\.weight'"):
                f["a.wieght"]
            with monkeypatch.context() as patch:
                patch.setattr(parts, "similar", None)
                assert f.get("a.wieght") is None
                assert f.get("a.wieght", 3) == 3
                assert f.get([]) is None
                assert "a.wieght" not in f


@pytest.mark.parametrize(
    ("names", "wanted", "end"),
    [
        (["bias", "weight"], "x", "among 2 tensors; the names are 'bias', 'weight'"),
        (["bias", "weight"], "wieght", "among 2 tensors; similar names: 'weight'"),
        (["a\x1bb"], "x", "among 1 tensor; its name is 'a\\x1bb'"),
        (["a" * 150, "b" * 51], "x", "among 2 tensors"),
        (["a", "b", "c", "d", "e"], "xyz", "among 5 tensors; the names are 'a', 'b', 'c', 'd', 'e'"),
        (["a", "b", "c", "d", "e", "f"], "xyz", "among 6 tensors"),
        ([], "x", "among 0 tensors"),
        (["bias"], 5, "among 1 tensor; names are strings (str)"),
    ],
)
def test_a_missing_name_is_answered_with_names(tmp_path, names, wanted, end):
    path = tmp_path / "m.safetensors"
    wm.save(path, {name: np.ones(2, np.float32) for name in names})
    with wm.open(path) as f:
        for look in (f.__getitem__, f.info, f.read):
            with pytest.raises(wm.TensorNotFoundError) as caught:
                look(wanted)
            assert str(caught.value) == f"{path}: no tensor is called {wanted!r} {end}"
