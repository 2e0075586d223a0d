"""Valid BinTensors files: ground truth, the reference implementation, both layouts, writing."""

import ast
import hashlib
import importlib.util
import json
import os

import numpy as np
import pytest
from tests.attacks import bintensors as lies
from tests.attacks.bintensors import BODY, make
from tests.builders import bintensors as bt
from tests.builders import noise, normal
from tests.support import DATA, same

import weightmap as wm

TRUTH = DATA / "bintensors"
VERDICTS = DATA / "malformed" / "bintensors"
RECORDED = [
    *(("v0.0.5", name) for name in ("all_dtypes", "mixed_order", "metadata_some_empty", "empty")),
    *(("v0.2.0", name) for name in ("all_dtypes", "scalars", "zero_dims", "unicode_names", "empty")),
    *(("v0.2.0", name) for name in ("spec_example", "upstream_doc_example")),
]

every_layout = pytest.mark.parametrize("layout", bt.LAYOUTS)


def reference():
    """The reference implementation. A test run that claims to be complete (CI is set) must not go without."""
    if importlib.util.find_spec("bintensors") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs bintensors")
    import bintensors

    return bintensors


def their_bytes(tensors, metadata=None):
    items = {name: {"dtype": value.dtype, "shape": value.shape, "data": value.data} for name, value in tensors.items()}
    return bytes(reference().serialize(items, metadata))


def our_bytes(path, tensors, metadata=None, layout=None):
    arrays = {name: value.array for name, value in tensors.items()}
    wm.save(path, arrays, format="bintensors", metadata=metadata, output=wm.Output(layout=layout))
    return path.read_bytes()


@pytest.mark.parametrize(("version", "name"), RECORDED)
def test_ground_truth(version, name):
    path = TRUTH / version / f"{name}.bt"
    truth = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    arrays = np.load(path.with_suffix(".npz"))
    with wm.open(path) as f:
        assert (f.format, f.layout) == ("bintensors", "spec" if version == "v0.0.5" else "current")
        assert f.nbytes == truth["file_size"]
        assert list(f) == [item["name"] for item in truth["tensors_in_buffer_order"]]
        assert dict(f.metadata) == (truth["metadata"] or {})
        for number, item in enumerate(truth["tensors_in_buffer_order"]):
            info, array = f.info(item["name"]), f[item["name"]]
            begin, end = item["data_offsets"]
            assert bt.THEIRS[info.dtype] == item["dtype"]
            assert (list(info.shape), info.offset, info.nbytes) == (item["shape"], item["file_offset"], end - begin)
            assert array.tobytes().hex() == item["hex"]
            assert hashlib.sha256(array.tobytes()).hexdigest() == item["sha256"]
            if f"arr_{number}" in arrays:
                expected = arrays[f"arr_{number}"]
                assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
                assert array.tobytes() == expected.tobytes()
        f.verify()


# Attacks that the reference accepts and strict mode refuses: why, and whether strict=False lets them pass.
STRICTER = {
    "spec/pad_zero_bytes.bt": ("the header is padded with zeros, not spaces", True),
    "current/shape_zero_then_huge.bt": ("numpy has no array of shape (0, 2**40, 2**40)", False),
}
# Files that the reader of one layout refuses, and that are valid in the other.
OTHER_LAYOUT = {"current/layout_spec_given_to_current_reader.bt", "spec/layout_current_given_to_spec_reader.bt"}


def verdicts():
    """Files, each with the verdict of its layout's reference implementation."""
    found = []
    for layout in bt.LAYOUTS:
        for row in (VERDICTS / layout / "_results.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            name, verdict = row.split("\t")[:2]
            found.append((f"{layout}/{name}", verdict))
    return found


@pytest.mark.parametrize(("name", "verdict"), verdicts())
def test_recorded_verdicts(name, verdict):
    path, layout = VERDICTS / name, name.partition("/")[0]
    if name in OTHER_LAYOUT:
        with wm.open(path) as f:
            assert f.layout != layout
            assert f["a"].tobytes() + f["b"].tobytes() == bytes(range(16))
        return
    refused = verdict.startswith("REJECT")
    if refused or name in STRICTER:
        with pytest.raises(wm.FormatError) as caught:
            wm.open(path, format="bintensors")
        assert path.name in str(caught.value)
        assert caught.value.format == "bintensors"
        with pytest.raises(wm.FormatError):
            wm.open(path)
        if refused or not STRICTER[name][1]:
            return
    with wm.open(path, strict=name not in STRICTER) as f:
        assert f.layout == layout
        for tensor, (dtype, shape, data) in ast.literal_eval(verdict.removeprefix("ACCEPT ")).items():
            info = f.info(tensor)
            assert (bt.THEIRS[info.dtype], list(info.shape), f[tensor].tobytes().hex()) == (dtype, shape, data)
        assert bool(f.verify().warnings) == (name in STRICTER or name in ODD)


ODD = {"current/header_not_multiple_of_8.bt", "spec/ndim_nonminimal_varint.bt"}


def test_the_example_of_the_specification():
    with wm.open(memoryview(bt.SPECIFICATION_BYTES)) as f:
        assert (f.format, f.layout) == ("bintensors", "spec")
        assert {info.name: (info.dtype, info.shape, info.offset, info.nbytes) for info in f.infos()} == {
            "test": ("int32", (1, 4), 24, 16)
        }
        assert f["test"].tolist() == [[0, 0, 0, 0]]
        assert f.metadata == {}
        assert list(f.verify().warnings) == []


def test_the_writer_reproduces_the_example_of_the_specification(tmp_path):
    """By default, for this one tensor, weightmap writes the very bytes that the specification prints."""
    wm.save(tmp_path / "m.bt", {"test": np.zeros((1, 4), np.int32)})
    assert (tmp_path / "m.bt").read_bytes() == bt.SPECIFICATION_BYTES


DISORDER = {
    "b": noise("uint8", (3,)),
    "é": normal((2,), 1),
    "z": noise("float64", (1, 1)),
    "Z": normal((1,), 2),
    "e\u0301": normal((3,), 3),
    "": noise("bfloat16", ()),
    "a": noise("uint8", (2,)),
    "aa": noise("bool", (2,)),
    "\U0001f30e": normal((), 4),
    "\uffff": normal((), 5),
}
METADATA = {
    "none": None,
    "empty": {},
    "entries": {"z": "1", "a": "", "": "no key", "Z": "x" * 300, "é": "ключ", "\U0001f30e": "\0", "\uffff": "\n"},
}


CONTENT = {"every dtype": bt.EVERY, "ranks": bt.RANKS, "names": DISORDER, "nothing": {}}


@every_layout
@pytest.mark.parametrize("metadata", METADATA)
@pytest.mark.parametrize("content", CONTENT)
def test_order_and_padding(layout, content, metadata, tmp_path):
    """Tensors by falling code of their dtype, then by the bytes of their name; keys sorted; spaces to eight bytes."""
    given = CONTENT[content]
    data = our_bytes(tmp_path / "m.bt", dict(reversed(given.items())), METADATA[metadata], layout)
    assert data == bt.build(bt.ordered(given), METADATA[metadata], layout)
    with wm.open(data, format="bintensors") as f:
        assert f.layout == layout
        assert all(same(array, value) for array, value in zip(f.values(), bt.ordered(given).values(), strict=True))


def test_what_the_format_cannot_say_is_refused_before_a_file(tmp_path):
    """complex64 and a name that is not Unicode are named in one EncodeError, and nothing is created."""
    arrays = {"good": np.ones(2), "c": np.ones(2, np.complex64), "\ud800": np.ones(2)}
    with pytest.raises(wm.EncodeError) as caught:
        wm.save(tmp_path / "m.bt", arrays)
    assert "'c'" in str(caught.value)
    assert r"\ud800" in str(caught.value)
    assert "'good'" not in str(caught.value)
    with pytest.raises(wm.EncodeError):
        wm.save(tmp_path / "m.bt", {"a": np.ones(2)}, metadata={"k": 5})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("metadata", METADATA)
@pytest.mark.parametrize("content", CONTENT)
def test_the_current_layout_is_written_as_0_2_0_does(content, metadata, tmp_path):
    ours = our_bytes(tmp_path / "m.bt", CONTENT[content], METADATA[metadata], "current")
    assert ours == their_bytes(CONTENT[content], METADATA[metadata])


@pytest.mark.parametrize("metadata", METADATA)
def test_files_of_0_2_0_are_read(metadata, tmp_path):
    values = {**bt.EVERY, **bt.RANKS}
    path = tmp_path / "m.bt"
    path.write_bytes(their_bytes(values, METADATA[metadata]))
    for source in (path, path.read_bytes()):
        with wm.open(source) as f:
            assert f.layout == "current"
            assert list(f) == list(bt.ordered(values))
            assert all(same(f[name], value) for name, value in values.items())
            assert dict(f.metadata) == (METADATA[metadata] or {})


def test_a_file_that_is_valid_in_both_layouts_is_the_specification_s():
    assert bt.valid(bt.BOTH, "spec")
    assert bt.valid(bt.BOTH, "current")
    for strict in (True, False):
        with wm.open(memoryview(bt.BOTH), strict=strict) as f:
            assert f.layout == "spec"
            assert [(info.name, info.dtype, info.shape) for info in f.infos()] == [("x\x0b\1\0\0", "float16", (0,))]


@every_layout
def test_unaligned_data_is_served_where_it_lies(layout, put):
    """A float64 at an odd address, after a header of odd length and small tensors, is a view."""
    values = {"b": noise("uint8", (3,)), "d": normal((2, 2), 1, "float64"), "h": noise("bfloat16", (3,))}
    data = bt.build(values, {"": "x"}, layout, pad=False)
    if len(data) % 2 == 0:
        data = bt.build(values, {"": "xy"}, layout, pad=False)
    with wm.open(put(data, "m.bt")) as f:
        assert list(f) == list(values)
        assert (f.info("d").offset % 8, f.info("h").offset % 2) != (0, 0)
        assert not f["d"].flags.aligned
        assert all(same(f[name], value) for name, value in values.items())
        np.testing.assert_array_equal(f.read("h"), values["h"].array.astype(np.float32))


def test_what_is_odd_but_legal_is_a_warning():
    value = {"a": noise("uint8", (3,))}
    long = bt.header([bt.Row("a", 1, (bt.varint(3, 253),), 0, 3)])
    cases = {
        "plain": (bt.build(value), False),
        "odd length": (bt.build(value, pad=False), True),
        "long form": (bt.raw(bt.padded(long), value["a"].data), True),
        "empty name": (bt.build({"": value["a"]}), True),
    }
    assert len(bt.header(bt.rows_of(value))) % 8
    for case, (data, odd) in cases.items():
        with wm.open(memoryview(data)) as f:
            assert same(next(iter(f.values())), value["a"])
            assert bool(f.verify().warnings) == odd, case


def test_what_would_be_read_as_the_other_layout_is_not_written(tmp_path):
    tensors = {"\x01\0\0\0\x01\x05x": np.zeros(0, np.float32)}
    with pytest.raises(wm.EncodeError, match="specification"):
        wm.save(tmp_path / "m.bt", tensors, output=wm.Output(layout="current"))
    assert not list(tmp_path.iterdir())
    wm.save(tmp_path / "m.bt", tensors)
    with wm.open(tmp_path / "m.bt") as f:
        assert list(f) == list(tensors)


# Attacks that leave both tensors unchanged.
MORE = "a tensor more than counted"
PASSED = [
    case
    for case in lies.cases()
    if case.row in {"B1", "B2", "B4", "B9", "C2"}
    and (case.odd or not case.error)
    and case.name != MORE
    and case.data.endswith(BODY)
]


def test_the_index_map_gives_the_names():
    """A map in any order that names each tensor once is valid, and decides the names."""
    with wm.open(memoryview(make("spec", index=[("z", 1), ("a", 0)]))) as f:
        assert [(info.name, info.shape) for info in f.infos()] == [("a", (2,)), ("z", (3,))]
    with wm.open(memoryview(make("spec", index=[("a", 1), ("b", 0)]))) as f:
        assert [(info.name, info.shape) for info in f.infos()] == [("b", (2,)), ("a", (3,))]


@pytest.mark.parametrize("case", PASSED, ids=[case.id for case in PASSED])
def test_what_is_let_pass_is_read_right(case):
    """An odd but legal file, or one that only strict=False accepts, reads as it was written."""
    for format in (None, "bintensors"):
        with wm.open(memoryview(case.data), format=format, strict=not case.error) as f:
            assert case.kind == f"bintensors-{f.layout}"
            assert {name: f[name].tobytes() for name in f} == {"a": BODY[:8], "b": BODY[8:]}
