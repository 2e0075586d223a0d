"""ONNX models whose tensors are converted and planned, also from other files and inner graphs."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from tests.builders import noise, normal
from tests.builders.onnx import CODES, OPSET, field, model, numbers, tensor_proto
from tests.core.formats.onnx import test_onnx
from tests.core.formats.onnx.test_onnx import ARRAY, BITS, constant, containing, judged, octets, onnx, ours

import weightmap as wm

path = test_onnx.path


def every_type():
    raw = np.random.default_rng(5).integers(0, 256, 80, np.uint8)
    for name, code in onnx.TensorProto.DataType.items():
        if name in {"UNDEFINED", "STRING"}:
            continue
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
        values = raw[: 5 * dtype.itemsize] & (1 if name == "BOOL" else 255)
        if dtype.name in BITS:
            values = values & ((1 << BITS[dtype.name]) - 1)
            if dtype.name.startswith("int"):  # with a sign
                top = 1 << BITS[dtype.name] - 1
                values = ((values.astype(np.int8) ^ top) - top).view(np.uint8)
        yield code, np.ascontiguousarray(values.astype(np.uint8)).view(dtype)


@pytest.mark.parametrize("apart", ["inside", "one file", "a file for each", "large ones"])
def test_every_type_as_the_package_saves_it(tmp_path, apart):
    protos = []
    for code, array in every_type():
        protos.append(numpy_helper.from_array(array, f"raw.{code}"))
        assert protos[-1].data_type == code
        typed = onnx.TensorProto(name=f"numbers.{code}", data_type=code, dims=array.shape)
        where = CODES.get(array.dtype.name, (code, 5))[1]
        if where == 4:
            typed.float_data.extend(array.view(np.float32).tolist())
        elif where == 10:
            typed.double_data.extend(array.view(np.float64).tolist())
        elif where in {7, 11}:
            getattr(typed, "int64_data" if where == 7 else "uint64_data").extend(array.tolist())
        elif BITS.get(array.dtype.name, 8) < 6:
            typed.int32_data.extend(octets(array))
        else:
            kind = "i" if array.dtype.name.startswith("int") else "u"
            mask = 63 if array.dtype.name in BITS else -1
            typed.int32_data.extend(n & mask for n in array.view(f"{kind}{array.itemsize}").tolist())
        protos.append(typed)
    path = tmp_path / "m.onnx"
    saved = helper.make_model(helper.make_graph([], "g", [], [], protos), producer_name="p")
    how = {"inside": {}, "one file": {"location": "m.data"}, "a file for each": {"all_tensors_to_one_file": False}}
    how["large ones"] = {"size_threshold": 60}
    options = {"size_threshold": 0} | how[apart] if apart != "inside" else {}
    onnx.save_model(saved, path, save_as_external_data=apart != "inside", **options)
    expected = judged(path, path.read_bytes())
    assert expected is not None
    assert len(expected) == len(protos)
    assert ours(path) == expected
    assert (len(list(tmp_path.iterdir())) > 1) == (apart != "inside")
    with wm.open(path) as f:
        assert f.nbytes == sum(file.stat().st_size for file in tmp_path.iterdir())
        report = f.verify()
        assert report.nbytes == f.nbytes
        plan = wm.plan(f)
        assert {name: value.tobytes() for name, value in plan.run("read")} == {name: f[name].tobytes() for name in f}
    kept = {name: found for name, found in expected.items() if found[0] not in {*BITS, "complex128"}}
    wm.convert(path, tmp_path / "m.safetensors", include=[*kept])
    assert ours(tmp_path / "m.safetensors") == kept


def test_data_in_other_files(path):
    for mode in ("mmap", "cow", "copy"):  # arrays in other files, and computed ones, equal the model's
        with wm.open(path, mode=mode) as f:
            assert {f[name].flags.writeable for name in f} == {mode != "mmap"}
    with wm.open(path) as f:
        assert list(f) == ["a", "inner", "b", "c"]
        for name, factor in {"a": 1, "b": -1, "c": 2}.items():
            assert np.array_equal(f[name], factor * ARRAY)
        assert f.nbytes == path.stat().st_size + 4096 + 192 + 96
        assert f.verify().nbytes == f.nbytes
        plan = wm.plan(f, gap=0)
        assert plan.wanted_nbytes == 3 * 96 + len(numbers(noise("int16", (300,))))  # those of the file
        assert {Path(str(file)).name for file, _, _ in plan.reads} == {"m.onnx", "w.bin", "v.bin"}
        for how in ("map", "read"):
            assert np.array_equal(dict(plan.run(how))["b"], -ARRAY)
            assert np.array_equal(dict(wm.plan(f, {"inner": np.s_[7:30:3]}).run(how))["inner"], f["inner"][7:30:3])
        assert {name: found.nbytes for name, found in f.residency().items() if name != "inner"} == dict.fromkeys(
            "abc", 96
        )
        with pickle.loads(pickle.dumps(f)) as copy:
            assert np.array_equal(copy["c"], 2 * ARRAY)
    wm.convert(path, path.with_name("m.safetensors"))
    assert wm.diff(path, path.with_name("m.safetensors"), tensors_only=True).equal


def test_tensors_of_strings_and_sparse_ones(tmp_path):
    strings = field(1, 2) + field(2, 8) + field(8, b"s") + field(6, b"one") + field(6, b"two")
    data = model([strings, tensor_proto("w", normal((2,)))], field(15, b""))
    with pytest.raises(wm.UnsupportedError, match="'s' holds strings"):
        wm.open(data)
    with wm.open(data, strict=False) as f:
        assert list(f) == ["w"]
        assert f.info("w").offset == data.index(normal((2,)).data)
        warnings = f.verify().warnings
    assert len(warnings) == 2
    assert "1 sparse tensor left out" in warnings
    (tmp_path / "m.onnx").write_bytes(data)
    report = wm.convert(wm.open(tmp_path / "m.onnx", strict=False), tmp_path / "m.safetensors")
    assert sum("left out" in warning or "holds strings" in warning for warning in report.warnings) == 2


def test_constants_and_initialisers_of_inner_graphs_have_the_names_that_nodes_use(tmp_path):
    a, b, c, d, e = (tensor_proto(name, normal((3,), seed)) for seed, name in enumerate("abcde"))
    deeper = containing(constant(b"deep", d))
    others = [constant(b"x", a, op=b"Other"), constant(None, a), constant(b"", a), constant(b"s", field(2, 8))]
    numbers = field(1, field(2, b"n") + field(4, b"Constant") + field(5, field(1, b"value_ints") + field(8, 7) * 9))
    sparse = field(1, field(4, b"Constant") + field(5, field(1, b"sparse_value") + field(22, b"")))
    inside = containing(field(5, b) + deeper, field(5, e) + field(5, b) + constant(b"a", c))
    function = field(25, field(1, b"f") + field(7, constant(b"of.function", c)[2:]))
    data = model([a], constant(b"weight", c), inside, *others, numbers, sparse, tail=OPSET + function)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    wanted = {"a": 0, "weight": 2, "b": 1, "deep": 3, "e": 4, "of.function": 2}
    for source in (path, data):
        with wm.open(source) as f:
            assert {name: f[name].tobytes() for name in f} == {name: normal((3,), n).data for name, n in wanted.items()}
            warnings = f.verify().warnings
        assert warnings == (
            "1 sparse tensor left out",
            "1 constant, given as numbers or texts, left out",
            "6 tensors in nodes, functions or inner graphs, or without a name, left out",
        )
    report = wm.convert(path, tmp_path / "m.safetensors")
    assert report.tensors == len(wanted)
    assert [warning.removeprefix("tolerated in the source: ") for warning in report.warnings[:3]] == list(warnings)
    assert wm.diff(path, tmp_path / "m.safetensors", tensors_only=True).equal


@pytest.mark.parametrize("kind", [21, 22], ids=["uint4", "int4"])
def test_packed_integers_with_scales_are_codes(tmp_path, kind):
    """As onnxruntime writes DequantizeLinear: `weights` and casts refuse them; `read` returns the integers."""
    path = tmp_path / "m.onnx"
    codes = field(1, 4) + field(1, 32) + field(2, kind) + field(8, b"w_DQ_Q4") + field(9, bytes(64))
    path.write_bytes(model([codes, tensor_proto("w_DQ_scales", normal((1, 32)))]))
    with wm.open(path) as f:
        for use in (lambda: f.weights, lambda: wm.convert(f, tmp_path / "x.safetensors", dtype="float16")):
            with pytest.raises(wm.UnsupportedError, match="w_DQ_Q4"):
                use()
        assert f.read("w_DQ_Q4").shape == (4, 32)
    assert not (tmp_path / "x.safetensors").exists()
