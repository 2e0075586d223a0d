"""safetensors and `compat` on the same files."""

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from tests.builders import safetensors as st

import weightmap as wm
from weightmap import compat


@pytest.mark.parametrize("padding", [b"", b"\n", b" \n", b"\r\n\t "])
def test_what_writers_add_to_a_header_changes_nothing(tmp_path, padding):
    """mlx writes null for no metadata, others pad with newlines; either is a file without metadata."""
    entry = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    data = np.array([1, 2.5], "<f4").tobytes()
    for header in (
        b'{"__metadata__":null,' + entry + b"}",
        b"{" + entry + b', "__metadata__" : null }',
        b"{" + entry + b"}",
    ):
        file = st.raw(header + padding, data)
        with wm.open(file, limits=wm.Limits(max_header_bytes=len(header + padding))) as f:
            assert (f["a"].tolist(), f.metadata, f.verify().warnings) == ([1, 2.5], {}, ())
        path = tmp_path / "m.safetensors"
        path.write_bytes(file)
        with safetensors.safe_open(path, "np") as reference, compat.safe_open(path, "np") as again:
            assert reference.metadata() is again.metadata() is None
            assert reference.get_tensor("a").tolist() == [1, 2.5]
