"""CNN v2, converted: between its versions, and through other formats."""

import pytest
from tests.builders import cnn_v2 as cnn
from tests.builders import safetensors as st

import weightmap as wm


def test_from_version_1_to_2_and_back(put, tmp_path):
    old = put(cnn.build(cnn.ODD, version=1), "old.bin")
    report = wm.convert(old, tmp_path / "new.bin", output=wm.Output("v2"))
    assert (report.format, report.layout, report.warnings) == ("cnn_v2", "v2", ())
    assert (tmp_path / "new.bin").read_bytes() == cnn.build(cnn.ODD, 0, 2)
    wm.convert(tmp_path / "new.bin", tmp_path / "back.bin", output=wm.Output("v1"))
    assert (tmp_path / "back.bin").read_bytes() == old.read_bytes()
    assert wm.convert(old, tmp_path / "same.bin").layout == "v1"
    assert (tmp_path / "same.bin").read_bytes() == old.read_bytes()
    wm.convert(put(cnn.build(cnn.ODD, 1, pad=False)), tmp_path / "padded.bin")
    assert (tmp_path / "padded.bin").read_bytes() == cnn.build(cnn.ODD, 1)


@pytest.mark.parametrize("version", [1, 2])
def test_through_safetensors_and_back(put, tmp_path, version):
    first = put(cnn.build(cnn.ODD, 3 * (version - 1), version), "first.bin")
    middle, last = tmp_path / "middle.safetensors", tmp_path / "last.bin"
    assert wm.convert(first, middle).warnings == ()
    tensors, metadata = st.parse(middle.read_bytes())
    assert tensors == cnn.names(cnn.ODD)
    types = {"weightmap.types": '{"mip_level": "JSON", "version": "JSON"}'}
    assert metadata == {"version": str(version), "mip_level": str(3 * (version - 1))} | types
    assert wm.convert(middle, last).warnings == ()
    assert last.read_bytes() == first.read_bytes()


def test_metadata_without_a_place_stays_behind_with_a_warning(put, tmp_path):
    others = {f"key{number}": "value" for number in range(7)}
    source = put(st.build(cnn.names(cnn.ODD), {"mip_level": "2", **others}), "in.safetensors")
    report = wm.convert(source, tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == cnn.build(cnn.ODD, 2)
    [warning] = report.warnings
    assert f"7 metadata entries ({', '.join(map(repr, others))})" in warning
    assert "left behind" in warning


def test_a_foreign_version_needs_a_layout(put, tmp_path):
    """A `version` that means something else is refused with a hint, and layout= is the way out."""
    source, out = put(st.build(cnn.names(cnn.ODD), {"version": "4.30.2"}), "in.safetensors"), tmp_path / "out.bin"
    with pytest.raises(wm.EncodeError, match="layout=") as caught:
        wm.convert(source, out)
    assert caught.value.path == str(out)
    wm.convert(source, out, output=wm.Output("v2"))
    assert out.read_bytes() == cnn.build(cnn.ODD)
