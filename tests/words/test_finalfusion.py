"""Vectors by word of finalfusion files, those of their projects, and damaged codes."""

import json

import numpy as np
import pytest
from tests.attacks import finalfusion as lies
from tests.core.formats.finalfusion.test_finalfusion import ATTACKS
from tests.fifu_support import reconstruct
from tests.places import GROUNDTRUTH

import weightmap as wm

# Test data of the finalfusion projects, which is theirs: used where it lies, if it does.
UPSTREAM = GROUNDTRUTH / "upstream"


OF_UPSTREAM = [
    f"{folder}/{name}"
    for folder, names in {
        "finalfusion-python": ("embeddings", "ff_buckets", "pq", "pq-check", "similarity", "simple_vocab"),
        "finalfusion-rust": ("quantized", "similarity"),
    }.items()
    for name in names
]


def matrix_of(f):
    return reconstruct(f["embeddings"]) if f.info("embeddings").dtype == "pq" else f["embeddings"]


@pytest.mark.skipif(not UPSTREAM.is_dir(), reason="the test data of the finalfusion projects is not here")
@pytest.mark.parametrize("name", OF_UPSTREAM)
def test_files_of_the_finalfusion_projects_have_the_recorded_content(name):
    path = UPSTREAM / f"{name}.fifu"
    known = json.loads(path.with_name(f"{path.name}.expected.json").read_text(encoding="utf-8"))
    arrays = np.load(path.with_name(f"{path.name}.expected.npz"))
    with wm.open(path, verify="full") as f:
        assert list(f.vocab) == known["words"]
        assert dict(f.metadata) == (known["metadata"] or {})
        np.testing.assert_allclose(matrix_of(f), arrays["full"], rtol=1e-5, atol=1e-5)
        if "norms" in arrays and "norms" in f:
            np.testing.assert_array_equal(f["norms"], arrays["norms"])
        listed = any("header lists" in line for line in f.verify().warnings)
        assert listed == (("norms" in f) and 6 not in known["chunk_ids"])


def test_a_bad_code_is_located_when_it_is_read(tmp_path):
    """An invalid code, met while rows are decoded, is an error with its file and its place there."""
    case = ATTACKS["code 5 of 2 centroids"]
    path = case.write(tmp_path)
    row = lies.N - 1
    with wm.open(path) as f:
        matrix, embeddings = f["embeddings"], f.embeddings
        word = f.vocab[row]
        for read in (
            lambda: matrix[row],
            matrix.dequantize,
            lambda: f.read("embeddings"),
            lambda: embeddings[word],
            lambda: embeddings.batch([word]),
            lambda: embeddings.most_similar(np.ones(embeddings.dims)),
        ):
            with pytest.raises(wm.QuantError, match=f"code 1 of row {row}") as caught:
                read()
            error = caught.value
            assert (error.path, error.format) == (str(path), "finalfusion")
            assert (error.field, error.offset) == (case.field, case.offset)
