"""The test files of the finalfusion projects, used in place: results agree with those projects.

``WEIGHTMAP_GROUNDTRUTH`` names the folder that has them in ``upstream/``; by default it is looked for beside the
checkout.
"""

import numpy as np
import pytest
from tests.places import GROUNDTRUTH

import weightmap as wm
from weightmap.words import convert as convert_words

UPSTREAM = GROUNDTRUTH / "upstream"
RUST, PYTHON = UPSTREAM / "finalfusion-rust", UPSTREAM / "finalfusion-python"

pytestmark = pytest.mark.skipif(not UPSTREAM.is_dir(), reason="needs the test files of finalfusion")


@pytest.mark.parametrize("name", ["similarity.bin", "similarity.txt", "similarity.nodims"])
def test_the_rust_projects_files(name, tmp_path):
    convert_words(RUST / name, tmp_path / "a.fifu", normalize=False)
    with wm.open(tmp_path / "a.fifu") as f, wm.open(RUST / "similarity.fifu") as expected:
        assert list(f.vocab) == list(expected.vocab)
        assert f["embeddings"].tobytes() == expected["embeddings"].tobytes()
    wm.convert(RUST / name, tmp_path / "b", format="word2vec")
    assert (tmp_path / "b").read_bytes() == (RUST / "similarity.bin").read_bytes()


@pytest.mark.parametrize("name", ["embeddings.w2v", "embeddings.txt", "embeddings.dims.txt"])
def test_the_python_projects_files(name, tmp_path):
    wm.convert(PYTHON / name, tmp_path / "a.fifu")
    with wm.open(tmp_path / "a.fifu") as f, wm.open(PYTHON / "embeddings.fifu") as expected:
        assert list(f.vocab) == list(expected.vocab)
        np.testing.assert_allclose(f["embeddings"], expected["embeddings"], rtol=0, atol=1e-7)
        np.testing.assert_allclose(f["norms"], 1 if name.endswith("w2v") else expected["norms"], rtol=1e-6)


def test_the_fasttext_model(tmp_path):
    """Nearest neighbours of a known and of an unknown word agree with finalfusion-rust's own tests."""
    wm.convert(RUST / "fasttext.bin", tmp_path / "a.fifu")
    known = [("auf", 0.568513), ("vor", 0.551551), ("durch", 0.547349)]
    unknown = [("einer", 0.691177), ("und", 0.576449), ("des", 0.570398)]
    with wm.open(tmp_path / "a.fifu") as f:
        f.verify()
        for word, expected in (("über", known), ("unknown", unknown)):
            found = f.embeddings.most_similar(word, 3)
            assert [name for name, _ in found] == [name for name, _ in expected]
            np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], atol=1e-6)
        wm.convert(tmp_path / "a.fifu", tmp_path / "b.bin", format="fasttext")
        wm.convert(tmp_path / "b.bin", tmp_path / "c.fifu")
        with wm.open(tmp_path / "c.fifu") as again:
            np.testing.assert_allclose(again["embeddings"], f["embeddings"], atol=1e-6)
