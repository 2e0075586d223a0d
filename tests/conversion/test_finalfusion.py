"""finalfusion, converted: read and written again to the byte, and the missing package for metadata."""

import sys

import numpy as np
import pytest
from tests.builders import finalfusion as ff
from tests.core.formats.finalfusion.test_finalfusion import BASE, FINE, OF_PYTHON, TRUTH
from tests.support import listing

import weightmap as wm
from weightmap.core.table import StringTable
from weightmap.core.table.vocabulary import Subwords, Vocabulary

NGRAMS = StringTable.of(["<on", "two"], "n-gram"), np.arange(2, dtype=np.uint64)


@pytest.mark.parametrize("name", OF_PYTHON)
def test_what_is_read_is_written_again_to_the_byte(name, tmp_path):
    """Reading and writing, or `convert`, gives the same file, but for lengths that finalfusion-python gets wrong."""
    data = (TRUTH / f"{name}.fifu").read_bytes()
    with wm.open(data) as f:
        metadata = f.metadata if f.has_metadata else None
        wm.save(tmp_path / "again.fifu", dict(f), vocab=f.vocab, metadata=metadata)
    again = (tmp_path / "again.fifu").read_bytes()
    wm.convert(TRUTH / f"{name}.fifu", tmp_path / "converted.fifu")
    assert (tmp_path / "converted.fifu").read_bytes() == again
    if name.startswith("explicit"):
        at = [i for i in range(len(data)) if data[i] != again[i]]
        assert len(data) == len(again)
        assert 0 < len(at) <= 8
        assert at[-1] - at[0] < 8
    else:
        assert again == data


def test_new_metadata_without_tomli_w_names_the_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomli_w", None)
    with pytest.raises(wm.MissingDependencyError, match=r"pip install '\.\[fifu\]'"):
        wm.save(tmp_path / "t.fifu", {"embeddings": FINE}, vocab=["a", "b"], metadata={"a": 1})
    assert not listing(tmp_path)
    wm.save(tmp_path / "m.weights", {"word_embeddings": FINE}, vocab=["a", "b"], metadata={"model_name": "m"})
    with pytest.raises(wm.MissingDependencyError, match=r"pip install '\.\[fifu\]'"):
        wm.convert(tmp_path / "m.weights", tmp_path / "t.fifu", include="*word_embeddings*")
    assert listing(tmp_path) == ["m.weights"]
    with wm.open(ff.build([ff.metadata("a = 1 # one"), *BASE])) as f:
        wm.save(tmp_path / "t.fifu", dict(f), vocab=f.vocab, metadata=f.metadata)
    assert b"a = 1 # one" in (tmp_path / "t.fifu").read_bytes()


@pytest.mark.parametrize(
    "subwords",
    [
        Subwords("bucket", 2, 3, 3, 8),
        Subwords("fasttext", 2, 3, 6, 5),
        Subwords("explicit", 2, 3, 3, 2, lambda: NGRAMS),
    ],
    ids=lambda subwords: subwords.kind,
)
@pytest.mark.parametrize("target", ["t.weights", "t.gguf"])
def test_subwords_are_not_lost_silently(tmp_path, subwords, target):
    """They give unknown words vectors. `convert` names the loss, `save` refuses."""
    matrix = {"embeddings": np.ones((2 + subwords.size, 3), np.float32)}
    vocab = Vocabulary.of(["one", "two"], subwords=subwords)
    wm.save(tmp_path / "s.fifu", matrix, vocab=vocab)
    assert wm.convert(tmp_path / "s.fifu", tmp_path / "again.fifu").warnings == ()
    said = f"has no place for the {subwords.kind} subwords of {subwords.size} rows"
    assert said in wm.convert(tmp_path / "s.fifu", tmp_path / target).warnings[-1]
    assert list(wm.open(tmp_path / target).vocab) == ["one", "two"]
    for given in (vocab, wm.open(tmp_path / "s.fifu").vocab):
        with pytest.raises(wm.EncodeError, match=r"has no place for subwords: list\(vocab\) leaves them behind"):
            wm.save(tmp_path / target, matrix, vocab=given)
    wm.save(tmp_path / target, matrix, vocab=list(vocab))
