"""What this package writes, read by finalfusion-python 0.7.1: where an interpreter is named that has it.

It builds with Python 3.11, ``setuptools<70``, ``cython<3`` and ``numpy<2``, in an environment of its own, which
``make finalfusion-test`` makes; the variable ``WEIGHTMAP_FINALFUSION`` names its interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.builders import finalfusion as ff
from tests.builders import normal
from tests.fifu_support import Parts, Words, explicit

import weightmap as wm
from weightmap.pq import ProductQuantized

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OTHER = os.environ.get("WEIGHTMAP_FINALFUSION")
pytestmark = pytest.mark.skipif(OTHER is None, reason="WEIGHTMAP_FINALFUSION names no interpreter")

READ = """
import json, sys
import finalfusion
out = []
for path in sys.argv[1:]:
    e = finalfusion.load_finalfusion(path)
    indexer = getattr(e.vocab, "subword_indexer", None)
    out.append({
        "words": list(e.vocab.words),
        "rows": [[float(x) for x in e.storage[i]] for i in range(e.storage.shape[0])],
        "norms": None if e.norms is None else [float(x) for x in e.norms],
        "metadata": None if e.metadata is None else dict(e.metadata),
        "ngrams": sorted(indexer.ngram_index.items()) if hasattr(indexer, "ngram_index") else None,
        "found": [[float(x) for x in e.embedding(word, default=0)] for word in e.vocab.words],
    })
print(json.dumps(out))
"""


def read_elsewhere(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What finalfusion-python finds in these files."""
    done = subprocess.run([str(OTHER), "-c", READ, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


VOCABS = {
    "simple": (Words(ff.WORDS), 0),
    "bucket": (Words(ff.WORDS, Parts("bucket", 3, 6, 16)), 16),
    "fasttext": (Words(ff.WORDS, Parts("fasttext", 1, 2, 5)), 5),
    "explicit": (explicit(ff.WORDS, [("<on", 2), ("one", 0), ("ne>", 1), ("<tw", 0)], 2, 3), 3),
}


@pytest.mark.parametrize("kind", VOCABS)
def test_finalfusion_python_reads_what_is_written(kind: str, tmp_path: Path) -> None:
    """Words, rows, norms, metadata and n-grams are the same there, for every storage, with and without the rest."""
    vocab, more = VOCABS[kind]
    rows = len(ff.WORDS) + more
    codes, books, rotation, lengths = ff.quantised(rows, 3, 7, 2)
    matrices = [normal((rows, 4), 1).array]
    matrices += [ProductQuantized(codes, books, p, n) for p in (None, rotation) for n in (None, lengths)]
    norms = ff.lengths(len(ff.WORDS)).array
    paths, written = [], []
    for i, matrix in enumerate(matrices):
        for extras in (0, 1, 2, 3):
            tensors = {"embeddings": matrix} | ({"norms": norms} if extras & 1 else {})
            path = tmp_path / f"{i}-{extras}.fifu"
            wm.save(path, tensors, vocab=vocab, metadata=ff.PARSED if extras & 2 else None)
            paths.append(path)
            written.append((matrix, extras))
    for (matrix, extras), found in zip(written, read_elsewhere(paths), strict=True):
        assert found["words"] == list(ff.WORDS)
        expected = matrix.dequantize() if isinstance(matrix, ProductQuantized) else matrix
        np.testing.assert_allclose(found["rows"], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["found"], expected[: len(ff.WORDS)], rtol=1e-5, atol=1e-5)
        assert (found["norms"] is None) == (not extras & 1)
        if extras & 1:
            np.testing.assert_array_equal(np.array(found["norms"], np.float32), norms)
        assert found["metadata"] == (ff.PARSED if extras & 2 else None)
        if kind == "explicit":
            assert [tuple(pair) for pair in found["ngrams"]] == [("<on", 2), ("<tw", 0), ("ne>", 1), ("one", 0)]
