"""``align=``: tensors that begin at multiples of a power of two, in the formats that have room for it."""

import ml_dtypes
import numpy as np
import pytest
from tests import builders

import weightmap as wm
from weightmap.core.formats import by_name

RNG = np.random.default_rng(3)
TENSORS = {
    "big": RNG.standard_normal((32, 16)).astype(np.float32),
    "half": RNG.standard_normal((8, 8)).astype(ml_dtypes.bfloat16),
    "odd": np.arange(5, dtype=np.int32),
    "odder": np.arange(3, dtype=np.int8),
    "wide": RNG.standard_normal(64),
}
ALIGNING = [name for name in builders.known() if by_name(name).aligns]


@pytest.fixture
def source(tmp_path):
    """A safetensors file whose data does not begin at a multiple of 16."""
    path = tmp_path / "source.safetensors"
    for length in range(64):
        wm.save(path, TENSORS, metadata={"k": "v" * length, "general.architecture": "llama"})
        if wm.open(path).infos()[0].offset % 16:
            return path
    raise AssertionError


@pytest.mark.parametrize("format_", ALIGNING)
@pytest.mark.parametrize("align", [8, 16, 32, 64])
def test_tensors_begin_where_they_are_asked_to(tmp_path, source, format_, align):
    found = by_name(format_)
    dtypes = found.dtypes[found.layouts[0]]
    include = [name for name, array in TENSORS.items() if array.dtype.name in dtypes]
    target = tmp_path / f"target{found.suffixes[0]}"
    report = wm.convert(source, target, include=include, output=wm.Output(align=align))
    with wm.open(target, verify="full") as file:
        assert set(file) == set(include)
        for name in include:
            assert file[name].tobytes() == TENSORS[name].tobytes()
        offsets = {info.name: info.offset for info in file.infos()}
        assert file.metadata["k"] == wm.open(source).metadata["k"]
    for name, offset in offsets.items():
        assert offset % align == 0 or name.startswith("odd")
    off = sum(offset % align > 0 for offset in offsets.values())
    assert report.warnings == (
        (f"{off} tensor of {len(include)} could not be aligned to {align} bytes",) if off else ()
    )
    wm.save(
        tmp_path / f"saved{found.suffixes[0]}", {name: TENSORS[name] for name in include}, output=wm.Output(align=align)
    )
    with wm.open(tmp_path / f"saved{found.suffixes[0]}") as file:
        assert all(file.info(name).offset % align == 0 for name in include if not name.startswith("odd"))


def test_only_one_tensor_is_off_where_nothing_may_lie_between(tmp_path, source):
    """safetensors and BinTensors: whole multiples first, and the first of the others still begins well."""
    for suffix in (".safetensors", ".bt"):
        report = wm.convert(source, tmp_path / f"t{suffix}", output=wm.Output(align=64))
        offsets = [info.offset % 64 for info in wm.open(tmp_path / f"t{suffix}").infos()]
        assert offsets[:4] == [0] * 4
        assert offsets[4] > 0
        assert report.warnings == ("1 tensor of 5 could not be aligned to 64 bytes",)


def test_other_libraries_read_what_is_aligned(tmp_path, source):
    theirs = pytest.importorskip("safetensors.numpy")
    wm.convert(source, tmp_path / "t.safetensors", output=wm.Output(align=4096))
    assert wm.open(tmp_path / "t.safetensors").infos()[0].offset == 4096
    loaded = theirs.load_file(tmp_path / "t.safetensors")
    assert loaded["big"].tobytes() == TENSORS["big"].tobytes()
    bintensors = pytest.importorskip("bintensors.numpy")
    plain = [name for name in TENSORS if name != "half"]  # its numpy side lacks bfloat16
    wm.convert(source, tmp_path / "t.bt", include=plain, output=wm.Output("current", align=64))
    loaded = bintensors.load_file(tmp_path / "t.bt")
    assert {name: array.tobytes() for name, array in loaded.items()} == {
        name: TENSORS[name].tobytes() for name in plain
    }
    gguf = pytest.importorskip("gguf")
    wm.convert(source, tmp_path / "t.gguf", output=wm.Output(align=64))
    reader = gguf.GGUFReader(tmp_path / "t.gguf")
    assert reader.alignment == 64
    assert {t.name: t.data.tobytes() for t in reader.tensors}["big"] == TENSORS["big"].tobytes()


def test_an_alignment_that_a_file_has_is_kept(tmp_path):
    """GGUF: a larger alignment in the metadata satisfies a smaller request."""
    arrays = {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}
    wm.save(tmp_path / "a.gguf", arrays, metadata={"general.alignment": 128})
    wm.convert(tmp_path / "a.gguf", tmp_path / "b.gguf", output=wm.Output(align=64))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    wm.convert(tmp_path / "a.gguf", tmp_path / "c.gguf", output=wm.Output(align=256))
    with wm.open(tmp_path / "c.gguf") as file:
        assert file.metadata["general.alignment"] == 256
        assert all(info.offset % 256 == 0 for info in file.infos())


@pytest.mark.parametrize("align", [0, 1, 4, 12, 65, 8192, -8])
def test_no_other_numbers_are_alignments(tmp_path, source, align):
    for call in (
        lambda: wm.save(tmp_path / "t.weights", TENSORS, output=wm.Output(align=align)),
        lambda: wm.convert(source, tmp_path / "t.weights", output=wm.Output(align=align)),
    ):
        with pytest.raises(ValueError, match=f"align is {align}, expected a power of two"):
            call()
    assert not (tmp_path / "t.weights").exists()


def test_formats_without_room_refuse(tmp_path, source):
    cases = [
        (".amb", 8, "layout amb, cannot align tensors$"),
        (".weights", 128, "more than 64 bytes"),
        (".bt", 128, "more than 64 bytes"),
    ]
    for suffix, align, words in cases:
        with pytest.raises(wm.EncodeError, match=words):
            wm.convert(source, tmp_path / f"t{suffix}", include="big", output=wm.Output(align=align))
        assert not (tmp_path / f"t{suffix}").exists()
    with pytest.raises(ValueError, match="align="):
        wm.convert(source, tmp_path / "t.vec", format="text", output=wm.Output(align=64))


@pytest.mark.parametrize("layout", ["spec", "current"])
def test_headers_of_bintensors_are_aligned_by_wide_integers(tmp_path, layout):
    """Any header of three tensors or more; a header of one tensor if its integers suffice, else the report says so."""
    aligned = 0
    for count in (1, 2, 3, 7, 40):
        for length in range(0, 64, 3):
            tensors = {f"{'n' * length}{i}": np.full((16, 4), i, np.float32) for i in range(count)}
            wm.save(tmp_path / "t.bt", tensors, output=wm.Output(layout=layout, align=64))
            with wm.open(tmp_path / "t.bt") as file:
                off = {info.offset % 64 for info in file.infos()}
                assert off == {0} or count < 3
                assert len(off) == 1
                aligned += off == {0}
                assert all(file[name].tobytes() == array.tobytes() for name, array in tensors.items())
    assert aligned > 100


@pytest.mark.parametrize("count", [250, 251, 252])
def test_bintensors_widens_no_count_of_several_bytes(tmp_path, count):
    """A number of tensors of more than one byte stays as it is when a header grows for the alignment."""
    arrays = {f"w{i}": np.full((16,), i, np.float32) for i in range(count)}
    for more in range(8):
        path = tmp_path / f"{more}.bt"
        wm.save(path, {**arrays, "x" * (more + 1): np.zeros(16, np.float32)}, output=wm.Output(align=64))
        with wm.open(path) as f:
            assert len(f) == count + 1
            assert all(f[name][0] == i for i, name in enumerate(arrays))
