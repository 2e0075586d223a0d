"""BinTensors, converted: layouts, metadata, and files of both versions written again."""

import pytest
from tests.builders import bintensors as bt
from tests.builders import noise, normal
from tests.core.formats.bintensors.test_bintensors import TRUTH, every_layout, our_bytes

import weightmap as wm


@pytest.mark.parametrize("name", ["all_dtypes", "scalars", "zero_dims", "unicode_names", "empty", "spec_example"])
def test_what_0_2_0_wrote_is_written_again(name, tmp_path):
    path, again = TRUTH / "v0.2.0" / f"{name}.bt", tmp_path / "again.bt"
    wm.convert(path, again, output=wm.Output("current"))
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["all_dtypes", "mixed_order", "metadata_some_empty", "empty", "count_252"])
def test_what_0_0_5_wrote_is_written_again(name, tmp_path):
    data = (TRUTH / "v0.0.5" / f"{name}.bt").read_bytes()
    wm.convert(TRUTH / "v0.0.5" / f"{name}.bt", tmp_path / "again.bt")
    again = (tmp_path / "again.bt").read_bytes()
    old, new = bt.dissect(data, "spec"), bt.dissect(again, "spec")
    assert new.index == sorted(old.index, key=lambda pair: pair[0].encode())
    assert (new.metadata, new.rows, new.data, len(again)) == (old.metadata, old.rows, old.data, len(data))
    bt.parse(again, "spec")


@every_layout
def test_none_and_nothing_differ_and_stay(layout, tmp_path):
    value = {"a": normal((2,))}
    for metadata, tag in ((None, b"\0\1"), ({}, b"\1\0")):
        data = our_bytes(tmp_path / "m.bt", value, metadata, layout)
        assert data[8:10] == tag
        assert dict(wm.open(memoryview(data)).metadata) == {}
        for target in bt.LAYOUTS:
            wm.convert(tmp_path / "m.bt", tmp_path / "n.bt", output=wm.Output(target))
            assert (tmp_path / "n.bt").read_bytes() == bt.build(value, metadata, target)


def test_no_file_is_converted_into_one_that_cannot_be_read(put, tmp_path):
    """An empty tensor whose shape is too large for elements of 8 bytes is an EncodeError with its name."""
    path = put(bt.build({"vast": noise("float16", (2**60, 0)), "a": noise("float16", (2,))}), "m.bt")
    wm.convert(path, tmp_path / "out.bt", dtype="float32")
    with wm.open(tmp_path / "out.bt") as f:
        assert f["vast"].shape == (2**60, 0)
    for name in ("other.bt", "other.safetensors"):
        with pytest.raises(wm.EncodeError, match=r"'vast' \(1152921504606846976, 0\)"):
            wm.convert(path, tmp_path / name, dtype="float64")
        assert not (tmp_path / name).exists()
