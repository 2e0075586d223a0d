"""safetensors and `compat` on the same files."""

import contextlib
import tempfile

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from tests.builders import safetensors as st

import weightmap as wm
from weightmap import compat


@pytest.mark.parametrize("padding", [b"", b"\n", b" \n", b"\r\n\t "])
def test_what_writers_add_to_a_header_changes_nothing(padding):
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
        with safetensors_of(file) as reference:
            assert reference.metadata() is None
            assert reference.get_tensor("a").tolist() == [1, 2.5]
        with safetensors_of(file, compat.safe_open) as again:
            assert again.metadata() is None


@contextlib.contextmanager
def safetensors_of(data, safe_open=safetensors.safe_open):
    """A file with this content, as `safe_open` opens it."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        with safe_open(file.name, "np") as f:
            yield f
