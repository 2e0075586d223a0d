"""Vectors by word: known ones, unknown ones by their n-grams, one by one and many at once."""

import json

import ml_dtypes
import numpy as np
import pytest
from tests.places import GROUNDTRUTH
from tests.support import DATA
from tests.word_files import ngrams
from tests.word_support import WORDS, listed, unit_sum, vocabulary

import weightmap as wm
from weightmap.core.quant.product import ProductQuantized
from weightmap.core.table.vocabulary import Subwords
from weightmap.words import embeddings as module
from weightmap.words import embeddings as rows_module
from weightmap.words.embeddings import Embeddings

OF_PYTHON = sorted(path.with_suffix(".fifu") for path in (DATA / "finalfusion").glob("*.json"))
# Test data of the finalfusion projects, which is theirs: used where it lies, if it does.
OF_UPSTREAM = sorted((GROUNDTRUTH / "upstream").glob("*/*.fifu"))
UNKNOWN = ["unknown", "q", "Daniëlle", "日本", "🌎", "x" * 60, "\ud800", "\x00\x00"]


def near(found, recorded):
    """Whether vectors agree up to eight roundings of the largest element, as for sums in another order."""
    return np.abs(found - recorded).max() <= 8 * 2**-24 * np.abs(recorded).max()


@pytest.mark.parametrize("path", OF_PYTHON, ids=lambda path: path.stem)
def test_words_have_the_vectors_that_finalfusion_python_gives_them(path):
    known = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    recorded = np.load(path.with_suffix(".npz"))
    with wm.open(path) as f:
        e = f.embeddings
        assert e.dims == known["shape"][1]
        assert (e.norms is not None) == known["has_norms"]
        for i, query in enumerate(known["queries"]):
            word = query["word"]
            assert f.vocab.ngram_indices(word) == [row for _, row in query.get("ngrams", [])]
            assert (word in e) == isinstance(query["idx"], int)
            vector = e.get(word)
            assert (vector is not None) == query["found"]
            if vector is None:
                with pytest.raises(KeyError):
                    e[word]
                continue
            assert near(vector, recorded[f"q{i}"])
            assert np.array_equal(e[word], vector)
            if query.get("norm") is not None:
                assert e.embedding_with_norm(word)[1] == pytest.approx(query["norm"], rel=1e-6)
        check_batch(e, [query["word"] for query in known["queries"]])


@pytest.mark.skipif(not OF_UPSTREAM, reason="the test data of finalfusion is not here")
@pytest.mark.parametrize("path", OF_UPSTREAM, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_words_of_upstream_files(path):
    known = json.loads(path.with_suffix(".fifu.expected.json").read_text(encoding="utf-8"))
    recorded = np.load(path.with_suffix(".fifu.expected.npz"))
    with wm.open(path) as f:
        for i, query in enumerate(known["queries"]):
            vector = f.embeddings.get(query["word"])
            assert (vector is not None) == query["found"]
            assert vector is None or near(vector, recorded[f"q{i}"])
        check_batch(f.embeddings, [query["word"] for query in known["queries"]])


def check_batch(e, words):
    matrix, found = e.batch(words)
    assert matrix.shape == (len(words), e.dims)
    for word, vector, there in zip(words, matrix, found.tolist(), strict=True):
        alone = e.get(word)
        assert there == (alone is not None)
        assert np.array_equal(vector, np.zeros(e.dims) if alone is None else alone.astype(vector.dtype))


def explicit():
    """Return subwords of which half of the n-grams are listed, two to an index."""
    every = dict.fromkeys(n for word in (*WORDS, *UNKNOWN[:4]) for n in ngrams(word, 2, 4))
    return Subwords("explicit", len(WORDS), 2, 4, 20, listed({n: i % 20 for i, n in enumerate(list(every)[::2])}))


SUBWORDS = {
    "none": lambda: None,
    "bucket": lambda: Subwords("bucket", len(WORDS), 3, 6, 64),
    "fasttext": lambda: Subwords("fasttext", len(WORDS), 3, 6, 37),
    "explicit": explicit,
}


def noise(rows, dims=24, dtype=np.float32):
    return (np.random.default_rng(rows).standard_normal((rows, dims)) * 8).astype(dtype)


def codes(rows):
    rng = np.random.default_rng(3)
    books = rng.standard_normal((6, 11, 4), dtype=np.float32)
    return ProductQuantized(rng.integers(0, 11, (rows, 6), dtype=np.uint8), books)


MATRICES = {
    "float32": noise,
    "float64": lambda rows: noise(rows, dtype=np.float64),
    "float16": lambda rows: noise(rows, dtype=np.float16),
    "bfloat16": lambda rows: noise(rows, dtype=ml_dtypes.bfloat16),
    "int8": lambda rows: noise(rows, dtype=np.int8),
    "strided": lambda rows: np.repeat(noise(rows), 2, axis=1)[:, ::2],
    "askew": lambda rows: np.frombuffer(b"x" + noise(rows).tobytes(), np.float32, rows * 24, 1).reshape(rows, 24),
    "one dimension": lambda rows: noise(rows, 1),
    "int4_block": lambda rows: wm.quantize(noise(rows), "int4_block", block_size=8),
    "pq": codes,
}


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("subwords", SUBWORDS)
def test_every_word_has_the_vector_of_the_definition(subwords, matrix, monkeypatch):
    """Known words have their rows; unknown ones the unit sum of their n-grams' rows, to the bit; in batches too."""
    monkeypatch.setattr(module, "_WORDS_AT_ONCE", 3)
    monkeypatch.setattr(rows_module, "_ROWS_AT_ONCE", 50)
    parts = SUBWORDS[subwords]()
    rows = MATRICES[matrix](len(WORDS) + (parts.size if parts else 0))
    e = Embeddings(vocabulary(WORDS, parts), rows)
    for i, word in enumerate(WORDS):
        assert np.array_equal(e[word], rows[i])
        assert word in e
    for word in UNKNOWN:
        assert word not in e
        places = parts.indices(word) if parts else []
        if not places:
            assert e.get(word) is None
            assert e.embedding_with_norm(word) is None
            continue
        vector, norm = unit_sum(np.asarray(rows)[places].astype(np.float32))
        assert np.array_equal(e[word], vector)
        assert e.embedding_with_norm(word)[1] == norm
        assert np.array_equal(e.embedding(word, out=np.empty(e.dims, np.float32)), vector)
    for words in (WORDS, [*UNKNOWN, *WORDS, *UNKNOWN], UNKNOWN[:1], []):
        check_batch(e, words)
    several = [*WORDS, *UNKNOWN] * 50
    for one, other in zip(e.batch(several), e.batch(several, threads=3), strict=True):
        assert np.array_equal(one, other)


def test_a_known_word_is_a_view():
    rows = noise(len(WORDS))
    assert np.shares_memory(Embeddings(vocabulary(WORDS), rows)["a"], rows)


def test_what_is_no_word_has_no_vector():
    e = Embeddings(vocabulary(WORDS, SUBWORDS["bucket"]()), noise(len(WORDS) + 64))
    assert e.get(5) is None
    assert 5 not in e
    with pytest.raises(TypeError, match=r"^words must be a sequence of words, not str$"):
        e.batch("words")
    with pytest.raises(TypeError):
        e.batch([5])
    assert e.batch(word for word in WORDS)[1].all()


def test_a_row_that_the_matrix_lacks_is_an_error():
    for rows in (noise(3), noise(3, dtype=np.float64)):
        e = Embeddings(vocabulary(["a"], Subwords("explicit", 1, 1, 1, 2, listed({"b": 1, "<": 2}))), rows)
        for look in (lambda e=e: e["b"], lambda e=e: e.batch(["a", "b"])):
            with pytest.raises(wm.LayoutError, match="row of an n-gram is 3, expected less than 3"):
                look()


@pytest.mark.parametrize("kind", ["float32", "quantised"])
def test_embeddings_have_a_length_and_items(kind, monkeypatch):
    monkeypatch.setattr(module, "_ELEMENTS_AT_ONCE", 50)
    rows = noise(len(WORDS) + 8)
    rows = wm.quantize(rows, "int4_block", block_size=8) if kind == "quantised" else rows
    e = Embeddings(vocabulary(WORDS, Subwords("bucket", len(WORDS), 3, 6, 8)), rows)
    assert len(e) == len(WORDS)
    assert list(e) == list(WORDS)
    items = list(e.items())
    assert [word for word, _ in items] == list(WORDS)
    assert all(np.array_equal(vector, e[word]) for word, vector in items)
    empty = Embeddings(vocabulary([]), np.empty((0, 3), np.float32))
    assert (len(empty), list(empty), list(empty.items())) == (0, [], [])


def test_a_default_stands_for_a_missing_vector():
    """As in finalfusion: returned, or copied into `out`; known words keep their vectors."""
    e = Embeddings(vocabulary(["a"]), np.array([[1, 2]], np.float32))
    default, out = np.zeros(2), np.full(2, 9.0)
    assert e.embedding("b", default=default) is default
    assert e.embedding("b") is None
    assert e.embedding("b", out=out) is None
    assert out.tolist() == [9, 9]
    assert e.embedding("b", out=out, default=7) is out
    assert out.tolist() == [7, 7]
    assert e.embedding("a", out=out, default=7).tolist() == [1, 2]
