"""EMBD, converted: keys of metadata that a saved file lacks, and special ids."""

import numpy as np
import pytest

import weightmap as wm
from weightmap import words


@pytest.mark.parametrize("metadata", [None, {}, {"k": "v"}, {"model_name": "x"}])
def test_a_file_that_was_saved_lacks_keys_where_it_has_one_of_them(tmp_path, metadata):
    wm.save(tmp_path / "m.weights", {"a": np.zeros(3, np.float32)}, metadata=metadata)
    report = wm.verify(tmp_path / "m.weights")
    lacking = metadata is not None and "model_name" in metadata
    assert ["lacks keys" in warning for warning in report.warnings] == [True] * lacking
    assert ("metadata" if lacking else "metadata: none of the keys of cpp_embedder's models") in report.checks


def test_special_ids_are_not_lost_silently(tmp_path):
    """`convert` names special ids that the target cannot hold; `save` takes a file vocabulary's ids or refuses."""
    matrix = np.ones((2, 3), np.float32)
    path, ids = tmp_path / "v.weights", {"pad": 0, "unk": 1}
    wm.save(path, {"embeddings": matrix}, vocab=["a", "b"], special_ids=ids)
    for target, title, layout in (("s.weights", "EMBD", "simple"), ("s.fifu", "finalfusion", None)):
        report = wm.convert(path, tmp_path / target, output=wm.Output(layout))
        assert report.warnings == (f"{title} has no place for the special ids pad, unk: left behind",)
        with pytest.raises(wm.EncodeError, match=r"no place for special_ids: list\(vocab\) leaves them behind"):
            wm.save(tmp_path / target, {"embeddings": matrix}, vocab=wm.open(path).vocab, output=wm.Output(layout))
        wm.save(tmp_path / target, {"embeddings": matrix}, vocab=list(wm.open(path).vocab), output=wm.Output(layout))
    assert words.convert(path, tmp_path / "w.fifu").warnings == ("words have no special ids: pad, unk left behind",)
    assert len(wm.convert(path, tmp_path / "g.gguf").warnings) == 1  # of llama.cpp's key
    assert wm.convert(tmp_path / "g.gguf", tmp_path / "g.fifu").warnings == ()  # they are metadata
    for source, target in ((path, "t.gguf"), (tmp_path / "g.gguf", "t.weights")):
        wm.save(tmp_path / target, {"embeddings": matrix}, vocab=wm.open(source).vocab)
        assert wm.open(tmp_path / target).vocab.special_ids == ids
    wm.save(tmp_path / "t.weights", {"embeddings": matrix}, vocab=wm.open(path).vocab, special_ids={})
    assert wm.open(tmp_path / "t.weights").vocab.special_ids == {}
