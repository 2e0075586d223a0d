"""Vectors by word of EMBD files."""

import numpy as np
import pytest
from tests.builders import embd, normal
from tests.builders import safetensors as st

import weightmap as wm

MATRIX = normal((len(embd.TOKENS), 4), 5)


WITH_MATRIX = {
    "spec": embd.Draft([("words", MATRIX)], vocab=embd.TOKENS).seal(),
    "simple": embd.simple([("words", MATRIX)], embd.TOKENS),
}


@pytest.mark.parametrize("layout", WITH_MATRIX)
def test_a_vocabulary_and_one_matrix_are_embeddings(layout):
    """A file with one matrix, a row for each token, offers word → vector; an unknown word is a KeyError."""
    with wm.open(memoryview(WITH_MATRIX[layout])) as f:
        e = f.embeddings
        assert e.dims == 4
        assert e.vocab[5] == "##ing"
        for number, token in enumerate(embd.TOKENS):
            assert token in e
            np.testing.assert_array_equal(e[token], MATRIX.array[number])
            np.testing.assert_array_equal(e.get(token), MATRIX.array[number])
            np.testing.assert_array_equal(e.embedding(token), MATRIX.array[number])
        out = np.zeros(4, np.float32)
        assert e.embedding("日本", out=out) is out
        np.testing.assert_array_equal(out, MATRIX.array[6])
        assert "absent" not in e
        assert e.get("absent") is None
        assert e.get("absent", 5) == 5
        with pytest.raises(KeyError):
            e["absent"]
        vector, norm = e.embedding_with_norm("日本")
        np.testing.assert_array_equal(vector, MATRIX.array[6])
        assert norm == pytest.approx(sum(float(x) ** 2 for x in MATRIX.array[6]) ** 0.5, rel=1e-6)
        assert e.embedding_with_norm("absent") is None
        assert e.vocab.ngram_indices("日本") == [], "this vocabulary has no subwords"


def test_shards_of_several_formats_have_embeddings(tmp_path):
    """The shard with the vocabulary and the matrix is EMBD, the other one safetensors."""
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    for name, data in st.sharded({"words": MATRIX.array, "bias": np.zeros(3, np.float32)}, 2).items():
        (tmp_path / name).write_bytes(data)
    with wm.open(tmp_path) as f:
        assert f.embeddings is None
    (tmp_path / one).write_bytes(WITH_MATRIX["spec"])
    with wm.open(tmp_path) as f:
        assert f.format == "mixed"
        assert f.shards[two].format == "safetensors"
        np.testing.assert_array_equal(f.embeddings["日本"], MATRIX.array[6])


def test_without_vocabulary_or_fitting_matrix_there_are_no_embeddings():
    for tensors, vocab in (
        ([("words", MATRIX)], None),
        ([], embd.TOKENS),
        ([("words", normal((3, 4)))], embd.TOKENS),
        ([("words", normal((len(embd.TOKENS),)))], embd.TOKENS),
    ):
        with wm.open(memoryview(embd.Draft(tensors, vocab=vocab).seal())) as f:
            assert f.embeddings is None
