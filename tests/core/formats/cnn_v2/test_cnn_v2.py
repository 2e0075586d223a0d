"""CNN v2: the specification's example and its checks, one lie at a time; writing, and what it cannot hold."""

import hashlib
import json

import numpy as np
import pytest
from tests.attacks.cnn_v2 import lie
from tests.builders import cnn_v2 as cnn
from tests.builders import noise
from tests.support import DATA, listing, save_with

import weightmap as wm
from weightmap.core.native import access, scans

TRUTH = DATA / "cnn_v2" / "ourreading" / "spec_example_v2.bin"


def test_the_specifications_example_has_its_recorded_values():
    recorded = json.loads(TRUTH.with_name(TRUTH.name + ".json").read_text(encoding="utf-8"))
    arrays = np.load(TRUTH.with_name(TRUTH.name + ".npz"))
    data = TRUTH.read_bytes()
    assert hashlib.sha256(data).hexdigest() == recorded["sha256"]
    with wm.open(TRUTH, verify="full") as f:
        assert (f.format, f.layout, f.nbytes) == ("cnn_v2", "v2", recorded["file_size"])
        assert dict(f.metadata) == {"version": recorded["version"], "mip_level": recorded["mip_level"]}
        assert len(f) == len(recorded["layers"])
        for number, layer in enumerate(recorded["layers"]):
            name = f"layer.{number}.weight"
            k = layer["kernel_size"]
            assert f.info(name).shape == (layer["out_channels"], layer["in_channels"], k, k)
            assert f.info(name).offset == recorded["weights_file_offset"] + 2 * layer["weight_offset"]
            assert f.info(name).nbytes == 2 * layer["weight_count"]
            np.testing.assert_array_equal(f[name].view(np.uint16), arrays[f"layer{number}"].view(np.uint16))


def test_saving_the_specifications_example_again_gives_its_bytes(tmp_path):
    path = tmp_path / "again.bin"
    with wm.open(TRUTH) as f:
        wm.save(path, f, metadata=f.metadata)
    assert path.read_bytes() == TRUTH.read_bytes()


def element(packed, number):
    """The bits of one weight, by the C snippet of the specification."""
    word = int(packed[number // 2])
    return word & 0xFFFF if number % 2 == 0 else word >> 16


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("pad", [True, False])
def test_every_element_is_the_half_that_the_specification_takes(version, *, pad):
    layers = [cnn.layer(1, 1, 3), cnn.layer(3, 2, 3, 1), cnn.layer(1, 3, 1, 2), cnn.layer(2, 3, 5, 3)]
    data = cnn.build(layers, version=version, pad=pad)
    base = {1: 16, 2: 20}[version] + 20 * len(layers)
    body = data[base:] + (b"" if pad else bytes(2))
    packed = np.frombuffer(body[: len(body) // 4 * 4], "<u4")
    starts = []
    with wm.open(memoryview(data)) as f:
        for number in range(len(layers)):
            view, info = f[f"layer.{number}.weight"], f.info(f"layer.{number}.weight")
            _, inputs, k, _ = view.shape
            first = (info.offset - base) // 2
            starts.append(first)
            for o, i, y, x in np.ndindex(view.shape):
                weight = o * (inputs * k**2) + i * k**2 + (y * k + x)
                assert view[o, i, y, x].view(np.uint16) == element(packed, first + weight)
    assert {first % 2 for first in starts} == {0, 1}


U32 = 2**32 - 1


def test_the_largest_layer_that_can_be(tmp_path):
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.write(cnn.header(1, U32) + cnn.record(1, 65537, 65535, 0))
        file.seek(40 + 2 * (U32 - 1))
        file.write(np.float16(1.5).tobytes())
    if path.stat().st_blocks > 2**16:
        pytest.skip("this file system keeps no sparse files")
    with wm.open(path) as f:
        array = f["layer.0.weight"]
        assert array.shape == (65535, 65537, 1, 1)
        assert array[-1, -1, 0, 0] == 1.5
        assert array[0, 0, 0, 0] == 0


def test_verify_warns_of_odd_legal_content():
    layers = [cnn.layer(9, 1, 1), cnn.layer(8, 1, 3), cnn.layer(1, 1, 2), cnn.layer(12, 2, 4)]
    with wm.open(memoryview(cnn.build(layers, 4))) as f:
        warnings = f.verify().warnings
    assert len(warnings) == 3
    assert "mip_level is 4" in warnings[0]
    assert "2 layers with more than 8 out_channels: 0, 3" in warnings[1]
    assert "2 layers with an even kernel_size: 2, 3" in warnings[2]
    with wm.open(memoryview(cnn.build([cnn.layer(8, 1, 3)], 3))) as f:
        assert not f.verify().warnings


def test_records_that_change_under_a_handle_are_noticed():
    data = bytearray(lie())
    with wm.open(data) as f:
        data[20] = 5
        with pytest.raises(wm.LayoutError, match="changed"):
            f.verify()
        assert f["layer.0.weight"].shape == (4, 12, 3, 3)


def test_swapped_bytes_get_a_hint():
    """A big-endian writer's file is refused, and the message says what it looks like."""
    swapped = np.frombuffer(lie(), "<u4").astype(">u4").tobytes()
    with pytest.raises(wm.UnknownFormatError, match="CNN v2 with swapped bytes"):
        wm.open(memoryview(swapped))


def arrays(layers):
    return {name: value.array for name, value in cnn.names(layers).items()}


@pytest.mark.parametrize("version", [1, 2])
def test_the_writers_bytes_are_those_of_the_specification(tmp_path, version):
    path = tmp_path / "out.bin"
    eleven = [noise("float16", (1, 2, 1, 1), seed) for seed in range(11)]
    for layers in ([cnn.layer(4, 12, 3, seed) for seed in range(3)], cnn.ODD, cnn.ODD[:1], [], eleven):
        mip_level = 0 if version == 1 else 2
        for given in (arrays(layers), dict(sorted(arrays(layers).items())), dict(reversed(arrays(layers).items()))):
            wm.save(path, given, metadata={"mip_level": mip_level}, output=wm.Output(layout=f"v{version}"))
            assert path.read_bytes() == cnn.build(layers, mip_level, version)
    with pytest.raises(ValueError, match="v2, v1"):
        wm.save(path, {}, output=wm.Output(layout="v3"))


def test_the_layout_follows_the_metadata_unless_it_is_given(tmp_path):
    path = tmp_path / "out.bin"
    for options, expected in (
        ({}, 2),
        ({"metadata": {}}, 2),
        ({"metadata": {"version": 1}}, 1),
        ({"metadata": {"version": "1", "mip_level": "0"}}, 1),
        ({"metadata": {"version": np.int64(2)}}, 2),
        ({"metadata": {"version": 1}, "layout": "v2"}, 2),
        ({"metadata": {"version": "4.30"}, "layout": "v1"}, 1),
    ):
        save_with(path, arrays(cnn.ODD), **options)
        assert path.read_bytes()[4] == expected, options


HALF = np.zeros((1, 1, 1, 1), np.float16)
REFUSED = {
    "dtypes": (
        {"layer.0.weight": HALF.astype(np.float32), "layer.1.weight": HALF, "layer.2.weight": HALF.astype(np.int16)},
        {},
        ["layer.0.weight", "float32 (expected float16)", "layer.2.weight", "int16 (expected float16)"],
    ),
    "other names": (
        {"conv.weight": HALF, "layer.0.weight": HALF, "layer.00.weight": HALF},
        {},
        ["'conv.weight'", "'layer.00.weight'", "from 0 to 2"],
    ),
    "a gap": ({"layer.0.weight": HALF, "layer.2.weight": HALF}, {}, ["'layer.2.weight'", "from 0 to 1"]),
    "counting from 1": ({"layer.1.weight": HALF}, {}, ["'layer.1.weight'", "not layer.0.weight"]),
    "other digits": ({"layer.\u0660.weight": HALF}, {}, ["a name that is not layer.0.weight"]),
    "dimensions": (
        {"layer.0.weight": HALF[0], "layer.1.weight": np.float16(3)},
        {},
        ["layer.0.weight", "3 dimensions", "layer.1.weight", "0 dimensions"],
    ),
    "no square": ({"layer.0.weight": np.zeros((1, 1, 3, 5), np.float16)}, {}, ["layer.0.weight", "square"]),
    "empty": ({"layer.0.weight": np.zeros((0, 1, 3, 3), np.float16)}, {}, ["layer.0.weight", "no dimension is 0"]),
    "other metadata": ({"layer.0.weight": HALF}, {"metadata": {"author": "me", "mip_level": 0}}, ["'author'"]),
    "a version of its own": ({"layer.0.weight": HALF}, {"metadata": {"version": 3}}, ["version", "'3'"]),
    "a version that is text": ({"layer.0.weight": HALF}, {"metadata": {"version": "new"}}, ["version", "'new'"]),
    "a version that is true": ({"layer.0.weight": HALF}, {"metadata": {"version": True}}, ["version"]),
    "a vocabulary": ({"layer.0.weight": HALF}, {"vocab": ["a"]}, ["vocab"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_expressed_is_refused(case, tmp_path):
    """Saving content that the format cannot hold names every reason, and creates no file."""
    tensors, options, words = REFUSED[case]
    with pytest.raises(wm.EncodeError) as caught:
        save_with(tmp_path / "out.bin", tensors, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.path == str(tmp_path / "out.bin")
    assert listing(tmp_path) == []


def test_more_layers_than_names_can_be_counted_are_refused(monkeypatch):
    """The scan's fault for 134,217,728 layers, whose records take 2.7 GB, becomes a LimitError."""
    most = U32 // 32
    fault = access.Fault(access.faults()["CAPACITY"], most + 1, 0, most + 1, most)
    monkeypatch.setattr(scans, "scan_layers", lambda _: fault)
    with pytest.raises(wm.LimitError, match=f"num_layers is {most + 1}, expected at most {most}") as caught:
        wm.open(TRUTH)
    assert (caught.value.field, caught.value.offset) == ("num_layers", 8)
