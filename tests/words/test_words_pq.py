"""Product quantisation: trained quantisers decode near the given rows, the same each time, in flat memory."""

import importlib.util
import os

import numpy as np
import pytest
from tests import word_files as wb

import weightmap as wm
from weightmap import words

needs_scipy = pytest.mark.skipif(
    importlib.util.find_spec("scipy") is None and "CI" not in os.environ, reason="needs scipy"
)


@needs_scipy
@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("norms", [False, True])
def test_few_different_rows_come_back(projection, norms):
    """No more different rows than centroids are kept up to rounding, in any combination of parts."""
    rows = np.repeat(wb.matrix(7, 12), 3, axis=0)
    q = words.train_pq(rows[::3], n_subquantizers=4, projection=projection, norms=norms)
    assert (q.shape, q.codes.shape, q.codebooks.shape) == ((7, 12), (7, 4), (4, 7, 3))
    assert (q.projection is not None, q.norms is not None) == (projection, norms)
    np.testing.assert_allclose(q.dequantize(), rows[::3], atol=2e-6)


@needs_scipy
def test_training_helps():
    """The error is well below the initial random rows', and more bits make it smaller."""
    rows = wb.matrix(2000, 8, 2)
    errors = []
    for bits in (2, 4, 6):
        q = words.train_pq(rows, n_subquantizers=4, n_bits=bits, norms=False)
        errors.append(float(np.sqrt(np.square(q.dequantize() - rows).mean())))
    started = words.train_pq(rows, n_subquantizers=4, n_bits=4, norms=False, iterations=1)
    assert errors[1] < np.sqrt(np.square(started.dequantize() - rows).mean())
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2]


WRONG = [
    (np.ones((4, 6)), {"n_subquantizers": 4}, "n_subquantizers is 4, expected a divisor of 6"),
    (np.ones((4, 6)), {"n_subquantizers": 0}, "n_subquantizers is 0"),
    (np.ones((4, 6)), {"n_bits": 9}, "n_bits is 9, expected 1 to 8"),
    (np.ones((4, 6)), {"sample": 0}, "sample is 0"),
    (np.ones(6), {}, "number of dimensions of the matrix is 1"),
    (np.ones((0, 6)), {}, "shape of the matrix"),
    (np.full((4, 6), np.nan), {}, "an element of the matrix is NaN or infinite"),
    (np.full((4, 6), 1e30), {}, "an element of the matrix is 1"),
]


@needs_scipy
@pytest.mark.parametrize(("matrix", "options", "message"), WRONG)
def test_what_does_not_fit(matrix, options, message):
    with pytest.raises(wm.QuantError, match=message):
        words.train_pq(matrix, **options)


@needs_scipy
def test_the_tokens_of_a_gguf_model_are_quantised(tmp_path):
    wm.save(tmp_path / "a.gguf", {"w": wb.matrix(5, 4)}, metadata={"tokenizer.ggml.tokens": wb.WORDS, "list": [1, 2]})
    wm.convert(tmp_path / "a.gguf", tmp_path / "b.fifu", quantize="pq")
    with wm.open(tmp_path / "b.fifu") as f:
        assert (f["embeddings"].scheme, list(f.vocab)) == ("pq", wb.WORDS)


@needs_scipy
@pytest.mark.parametrize("projection", [False, True])
def test_files_are_quantised(projection, put, tmp_path):
    """The file decodes to rows as far from the old ones as the report says, and norms stay exact."""
    rows, names = wb.matrix(900, 6, 7), [f"w{i}" for i in range(900)]
    source = put(wb.word2vec(names, rows), "w.bin")
    pq = words.Pq(3, n_bits=5, projection=projection)
    report = words.convert(source, tmp_path / "q.fifu", pq=pq)
    (info,) = report.quantized
    with wm.open(tmp_path / "q.fifu") as f:
        f.verify()
        assert list(f.vocab) == names
        assert (info.name, info.scheme, info.shape) == ("embeddings", "pq", (900, 6))
        assert info.nbytes == f["embeddings"].nbytes
        np.testing.assert_allclose(f["norms"], np.linalg.norm(rows, axis=1), rtol=1e-6)
        unit = rows / np.linalg.norm(rows, axis=1)[:, None]
        error = np.sqrt(np.square(f["embeddings"].dequantize() - unit).mean())
        np.testing.assert_allclose(info.rmse, error, rtol=1e-4)
        np.testing.assert_allclose(info.relative_error, error / np.sqrt(np.square(unit).mean()), rtol=1e-4)
        assert 0 < info.relative_error < 0.5
    words.convert(source, tmp_path / "again.fifu", pq=pq)
    assert (tmp_path / "again.fifu").read_bytes() == (tmp_path / "q.fifu").read_bytes()


@needs_scipy
def test_quantize_knows_the_scheme():
    rows = wb.matrix(50, 6)
    q = wm.quantize(rows, "pq")
    assert q.scheme == "pq"
    assert q.codes.tobytes() == words.train_pq(rows).codes.tobytes()
    with pytest.raises(TypeError, match=r"argument 'seed': use weightmap\.words\.train_pq"):
        wm.quantize(rows, "pq", seed=3)
