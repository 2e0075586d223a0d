"""EMBD, converted: keys of metadata that a saved file lacks."""

import numpy as np
import pytest

import weightmap as wm


@pytest.mark.parametrize("metadata", [None, {}, {"k": "v"}, {"model_name": "x"}])
def test_a_file_that_was_saved_lacks_keys_where_it_has_one_of_them(tmp_path, metadata):
    wm.save(tmp_path / "m.weights", {"a": np.zeros(3, np.float32)}, metadata=metadata)
    report = wm.verify(tmp_path / "m.weights")
    lacking = metadata is not None and "model_name" in metadata
    assert ["lacks keys" in warning for warning in report.warnings] == [True] * lacking
    assert ("metadata" if lacking else "metadata: none of the keys of cpp_embedder's models") in report.checks
