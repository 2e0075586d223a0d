"""Comparison of two files of any formats: tensors by value, metadata, vocabulary."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from tests import builders
from tests.builders import Tensor, cnn_v2, embd, noise, normal, npy
from tests.builders import bintensors as bt
from tests.builders import safetensors as st

import weightmap as wm
from weightmap.core.formats import FORMATS

every_suffix = pytest.mark.parametrize(
    "suffix", [builder.suffix for builder in builders.known().values() if builder.names_tensors and builder.metadata]
)
TENSORS = {"a": normal((2, 3), 1), "b": noise("int8", (5,), 2), "c": normal((4,), 3)}


def spec(tensors, metadata=None, vocab=None):
    return embd.Draft(tensors.items(), metadata or {}, vocab).seal()


def test_numbers_and_their_decimal_strings_are_the_same_metadata(put):
    """A CNN v2 file with integers as metadata equals the same model in a format of strings."""
    layers = cnn_v2.names(cnn_v2.ODD)
    a = put(cnn_v2.build(cnn_v2.ODD, mip_level=2), "a.bin")
    b = put(bt.build(bt.ordered(layers), {"version": "2", "mip_level": "2"}), "b.bt")
    assert wm.diff(a, b).equal
    assert wm.diff(b, a).equal
    other = put(bt.build(bt.ordered(layers), {"version": "2", "mip_level": "02"}), "c.bt")
    assert wm.diff(a, other).metadata == (("mip_level", 2, "02"),)


@pytest.mark.parametrize(
    "other",
    [normal((2, 3), 9), normal((3, 2), 1), noise("int32", (2, 3), 1), Tensor("int8", (24,), normal((2, 3), 1).data)],
    ids=["values", "shape", "dtype", "both"],
)
def test_changed_tensors(put, other):
    report = wm.diff(put(spec(TENSORS), "a"), put(spec(TENSORS | {"a": other}), "b"))
    assert not report.equal
    assert len(report.changed) == 1
    assert "'a'" in repr(report.changed)
    assert not report.only_in_a
    assert not report.only_in_b


@pytest.mark.parametrize("example", builders.examples(), ids=lambda example: f"{example.format}-{example.name}")
def test_a_file_and_what_convert_made_of_it_are_equal(example, put):
    """A file differs from its conversion only in entries of the conversion's report.

    Entries that a format states in every file are notes, not differences.
    """
    source = put(example.data, f"source{example.suffix}")
    for format_ in (found for found in FORMATS.values() if found.plan is not None):
        target = source.with_name(f"target{format_.suffixes[0]}")
        try:
            report = wm.convert(source, target)
        except wm.EncodeError:
            continue
        assert not report.dropped
        left = any("left behind" in warning for warning in report.warnings)
        for found in (wm.diff(source, target), wm.diff(target, source)):
            assert found.equal or left, (format_.name, found)
            assert all("states it" in note for note in found.notes)
        assert wm.diff(source, target, tensors_only=True) == found._replace(
            a=str(source), b=str(target), metadata=(), vocab=None, notes=()
        )


@pytest.fixture
def directory(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    positions = Tensor("int64", (1, 4), struct.pack("<4q", *range(4)))
    tensors = {"w": normal((2, 3), 1), "embeddings.position_ids": positions}
    (folder / "model.safetensors").write_bytes(st.build(tensors, {"format": "pt"}))
    config = {"_name_or_path": "owner/kind", "hidden_size": 3, "vocab_size": 2, "model_type": "bert"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("[PAD]\nword\n")
    return folder


@every_suffix
def test_a_model_directory_and_what_convert_made_of_it_are_equal(directory, suffix):
    target = directory.parent / f"target{suffix}"
    report = wm.convert(directory, target)
    found = wm.diff(directory, target)
    assert found.equal, found
    assert [note.partition(" is in A only: ")[2] for note in found.notes] == [why for _, why in report.dropped]
    assert wm.diff(target, directory).equal
    (directory / "config.json").write_text('{"_name_or_path": "owner/other", "hidden_size": 3}')
    found = wm.diff(directory, target)
    assert found.metadata
    assert ("other", "kind") in [(a, b) for _, a, b in found.metadata]
    assert "hidden_size" not in [key for key, _, _ in found.metadata]
    assert wm.diff(directory, target, tensors_only=True).equal


def test_another_vocabulary_of_a_model_directory_is_a_difference(directory):
    target = directory.parent / "target.weights"
    wm.convert(directory, target)
    (directory / "vocab.txt").write_text("[PAD]\nworld\n")
    assert wm.diff(directory, target).vocab == "token 1 is 'world' and 'word'"
    assert wm.diff(directory / "model.safetensors", target).vocab == "only B has one"


@every_suffix
def test_a_model_in_shards_and_what_convert_made_of_it_are_equal(tmp_path, suffix):
    index = st.shard(tmp_path, {"one.safetensors": {"a": normal((2,), 1)}, "two.safetensors": {"b": normal((3,), 2)}})
    content = json.loads(index.read_text())
    content["metadata"] |= {"total_parameters": 5}
    index.write_text(json.dumps(content))
    target = tmp_path / "folder" / f"target{suffix}"
    target.parent.mkdir()
    wm.convert(index, target)
    assert wm.diff(index, target) == wm.diff(index, target)._replace(metadata=(), notes=())
    assert wm.diff(index, target).equal
    assert wm.diff(target, tmp_path).equal


def saved(tmp_path, **tensors):
    """Save one tensor "t" a file; give the function that finds their paths."""

    def path(name):
        return tmp_path / f"{name}.{'amb' if isinstance(tensors[name], wm.QuantizedTensor) else 'safetensors'}"

    for name, array in tensors.items():
        wm.save(path(name), {"t": array})
    return path


@pytest.mark.parametrize("dtype", ["float32", "int32", "complex128"])
def test_byte_orders_do_not_differ(put, dtype):
    """Neither do arrays of the other byte order; both are larger than one piece."""
    array = np.arange(300_000).astype(dtype)
    a = put(npy.build(npy.header_of(builders.tensor(array)), array.tobytes()), "a.npy")
    big = array.astype(array.dtype.newbyteorder(">"))
    header = npy.header_of(builders.tensor(array)).replace("<", ">")
    b = put(npy.build(header, big.tobytes()), "b.npy")
    assert wm.diff(a, b).equal
    assert wm.diff(b, a).equal
    big[-1] += 1
    (changed,) = wm.diff(a, put(npy.build(header, big.tobytes()), "c.npy")).changed
    assert (changed.n_different, changed.max_abs) == (1, 1)


@pytest.mark.parametrize(
    ("dtype", "value", "step"),
    [("complex64", 1, 2j), ("complex128", 1, 2j), ("int64", 2**60, 2), ("uint64", 2**63, 2), ("bool", 0, 1)],
)
def test_the_distance_of_values_is_exact(tmp_path, dtype, value, step):
    """Imaginary parts count, and integers past 2**53 keep their lowest bits."""
    array = np.array([value, 0], dtype)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", array + np.array([step, 0], dtype))
    (changed,) = wm.diff(tmp_path / "a.npy", tmp_path / "b.npy").changed
    assert (changed.n_different, changed.max_abs) == (1, abs(step))


def test_types_that_store_the_same_values_differ_unless_asked_by_value(tmp_path):
    values = np.arange(-32, 32, dtype=np.float32).reshape(2, 32)
    quantised = wm.quantize(values, "int4_block")
    narrow = values.astype(ml_dtypes.bfloat16)
    path = saved(tmp_path, wide=values, narrow=narrow, codes=quantised, decoded=quantised.dequantize())
    for a, b in (("wide", "narrow"), ("codes", "decoded")):
        for one, other in ((a, b), (b, a)):
            files = path(one), path(other)
            assert [change.what for change in wm.diff(*files).changed] == ["dtype"]
            assert wm.diff(*files, by_value=True).equal
    [change] = wm.diff(path("wide"), path("codes"), by_value=True).changed
    apart = np.abs(values - quantised.dequantize())
    assert change[:6] == ("t", "values", "float32 [2, 32]", "int4_block [2, 32]", int((apart > 0).sum()), apart.max())
    assert change.rms == pytest.approx(np.sqrt(np.square(apart.astype(np.float64)).mean()))


@pytest.mark.parametrize(
    ("a", "b", "options", "different"),
    [
        ([1.0, 2.0], [1.25, 2.0], {"by_value": True}, 1),
        ([1.0, 2.0], [1.25, 2.0], {"atol": 0.25}, 0),
        ([1.0, 2.0], [1.25, 2.5], {"atol": 0.25}, 1),
        ([1.25, 2.5], [1.0, 2.0], {"rtol": 0.25}, 0),
        ([1.25, 2.5], [1.0, -2.0], {"rtol": 0.25}, 1),
        ([1.5, 2.5], [1.0, 2.0], {"rtol": 0.25, "atol": 0.25}, 0),
        ([np.nan, np.inf, 0.0], [np.nan, np.inf, -0.0], {"atol": 0.0}, 0),
        ([np.nan, 1.0, np.inf, -np.inf], [1.0, np.inf, 1.0, np.inf], {"rtol": 1.0, "atol": 1e300}, 4),
    ],
)
def test_tolerances_are_those_of_numpy(tmp_path, a, b, options, different):
    """numpy.isclose decides; either tolerance asks for a comparison by value."""
    path = saved(tmp_path, a=np.array(a), b=np.array(b))
    report = wm.diff(path("a"), path("b"), **options)
    assert sum(change.n_different or 0 for change in report.changed) == different
    close = np.isclose(a, b, options.get("rtol", 0), options.get("atol", 0), equal_nan=True)
    assert int((~close).sum()) == different


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (np.array([2**53]), np.array([2**53 + 1]), 1),
        (np.array([-(2**63)]), np.array([2**63 - 1]), 2.0**64),
        (np.array([2**64 - 1], np.uint64), np.array([2**64 - 3], np.uint64), 2),
        (np.array([200], np.uint8), np.array([-56], np.int8), 256),
        (np.array([2**63], np.uint64), np.array([-1]), 2.0**63),
    ],
)
def test_integers_by_value_are_exact(tmp_path, a, b, distance):
    path = saved(tmp_path, a=a, b=b, same=a.astype(np.float64) if distance > 2 else a)
    [change] = wm.diff(path("a"), path("b"), by_value=True).changed
    assert (change.n_different, change.max_abs) == (1, distance)
    assert wm.diff(path("a"), path("b"), atol=distance).equal
    assert wm.diff(path("a"), path("same"), by_value=True).equal


@pytest.mark.parametrize("options", [{"rtol": -1}, {"atol": np.inf}, {"atol": np.nan}])
def test_a_tolerance_is_a_number(put, options):
    with pytest.raises(ValueError, match="expected a finite number of at least 0"):
        wm.diff("absent", "absent", **options)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_the_root_of_the_mean_square_is_over_all_elements(tmp_path, dtype):
    """Equal elements count as differences of 0; one that is not finite makes the root NaN."""
    a = np.zeros((10, 10), dtype)
    b = a.copy()
    b[3, :4] = [3, -4, 3, 4]
    path = saved(tmp_path, a=a, b=b, c=np.zeros((10, 10), np.float32))
    [change] = wm.diff(path("a"), path("b")).changed
    assert (change.n_different, change.max_abs, change.rms) == (4, 4, np.sqrt(0.5))
    assert [other.rms for other in wm.diff(path("b"), path("c"), by_value=True).changed] == [np.sqrt(0.5)]
    if dtype != "int32":
        b[0, 0] = np.nan
        path = saved(tmp_path, a=a, nan=b)
        assert np.isnan(wm.diff(path("a"), path("nan")).changed[0].rms)
