"""safetensors, converted: limits and types, in errors that name the file."""

import pytest
from tests.builders import safetensors as st
from tests.core.formats.safetensors.test_safetensors import dumps

import weightmap as wm


def test_errors_of_copying_name_the_file(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(st.raw(dumps({"w": st.entry("F32", [2], 0, 8)}), bytes(8)))
    tight = wm.Limits(max_copy_bytes=7)
    for error, act in (
        (wm.LimitError, lambda: wm.open(path, limits=tight).read("w")),
        (wm.LimitError, lambda: wm.convert(wm.open(path, limits=tight), tmp_path / "n.safetensors")),
    ):
        with pytest.raises(error) as caught:
            act()
        assert caught.value.path == str(path)


def test_elements_that_fill_no_whole_bytes_are_refused(tmp_path):
    """safetensors does not read such a file; ONNX has such tensors."""
    model = st.raw(dumps({"a": st.entry("F4", [3], 0, 2)}), bytes(2))
    with pytest.raises(wm.EncodeError, match="tensor 'a': elements of 4 bits that fill no whole bytes"):
        wm.convert(model, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
