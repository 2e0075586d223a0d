"""Sessions of onnxruntime over the mapping of a file, beside those that read the model."""

import gc

import ml_dtypes
import numpy as np
import pytest

import weightmap as wm

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402 - once it is known to be there

N = 64
MATRIX = np.random.default_rng(0).normal(size=(N, N)).astype(np.float32)
# Each optimiser would change or fold an initialiser: MatMul of a transpose, and Add between two transposes.
NODES = [
    *(helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]), helper.make_node("MatMul", ["x", "wt"], ["p"])),
    *(helper.make_node("Transpose", ["p"], ["pt"], perm=[1, 0]), helper.make_node("Add", ["pt", "b"], ["q"])),
    *(helper.make_node("Relu", ["q"], ["r"]), helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0])),
    helper.make_node("Reshape", ["t", "shape"], ["y"]),
]
TENSORS = {"w": MATRIX, "b": MATRIX[::-1] + 1, "shape": np.array([-1, 2, N // 2])}


def write(path, tensors, nodes=NODES, kind=1, more=(), **options):
    """A model of x and y with these initialisers."""
    ends = [helper.make_tensor_value_info(name, kind, None) for name in "xy"]
    initialisers = [*(numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in tensors.items()), *more]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    onnx.save(model, path, **options)
    return path


def run(path, options=None, x=MATRIX):
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    del options
    gc.collect()
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("external", [False, True])
def test_a_session_computes_what_it_computes_of_the_model(tmp_path, external):
    """With the model itself, another file or a handle; with other values, like a model that has those."""
    options = {"save_as_external_data": True, "location": "m.data", "size_threshold": 1024} if external else {}
    model = write(tmp_path / "m.onnx", TENSORS, **options)
    expected = run(model)
    wm.save(tmp_path / "same.safetensors", {"w": TENSORS["w"], "b": TENSORS["b"]})
    np.savez(tmp_path / "other.npz", w=np.asfortranarray(2 * MATRIX).astype(">f4"), more=MATRIX)
    other = run(write(tmp_path / "other.onnx", TENSORS | {"w": 2 * MATRIX}))
    with wm.open(tmp_path / "same.safetensors") as f:
        for weights in (None, tmp_path / "same.safetensors", f):
            np.testing.assert_allclose(run(model, wm.onnxruntime.session_options(model, weights)), expected, rtol=1e-5)
        assert f["w"].shape == (N, N)
    found = run(model, wm.onnxruntime.session_options(str(model), weights=tmp_path / "other.npz"))
    np.testing.assert_allclose(found, other, rtol=1e-5)
    if external:
        options = wm.onnxruntime.session_options(model)
        with wm.open(model) as f:
            offsets = [f.info(name).offset % 4096 for name in "wb"]
        assert [value.data_ptr() % 4096 for value in options.mapped[:2]] == offsets


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64", "int8", "uint8", "int64", "bool", "float8_e4m3fn"])
def test_every_type(tmp_path, name):
    kind = np.dtype(getattr(ml_dtypes, name, name))
    values = np.arange(6).reshape(2, 3).astype(kind)
    nodes = [helper.make_node("Cast", ["w"], ["c"], to=1), helper.make_node("Add", ["x", "c"], ["y"])]
    model = write(tmp_path / "m.onnx", {"w": values}, nodes)
    options = wm.onnxruntime.session_options(model)
    assert len(options.mapped) == 1
    np.testing.assert_array_equal(run(model, options, np.zeros((2, 3), np.float32)), values.astype(np.float32))


def test_tensors_that_do_not_fit(tmp_path):
    """onnxruntime would compute with any bytes under the name."""
    model = write(tmp_path / "m.onnx", TENSORS)
    for tensors, error, text in (
        ({"w": MATRIX.astype(np.float16)}, wm.LayoutError, r"'w' is float16 \[64, 64\], expected float32 \[64, 64\]"),
        ({"b": MATRIX[:63]}, wm.LayoutError, "'b' is float32"),
        ({"v": MATRIX}, wm.TensorNotFoundError, "no tensor has the name of an initialiser"),
    ):
        wm.save(tmp_path / "w.safetensors", tensors)
        with pytest.raises(error, match=text) as caught:
            wm.onnxruntime.session_options(model, weights=tmp_path / "w.safetensors")
        assert caught.value.path == str(tmp_path / "w.safetensors")
    with pytest.raises(wm.FormatError):
        wm.onnxruntime.session_options(tmp_path / "w.safetensors")
    with pytest.raises(TypeError):
        wm.onnxruntime.session_options(5)


def test_strings_stay_the_models_own(tmp_path):
    """No array has them; the other initialisers are mapped."""
    texts = numpy_helper.from_array(np.array(["a", "b"], object), "s")
    nodes = [*NODES[:-1], helper.make_node("Shape", ["s"], ["n"]), helper.make_node("Mul", ["n", "minus"], ["m"])]
    nodes += [helper.make_node("Concat", ["m", "rest"], ["z"], axis=0), helper.make_node("Reshape", ["t", "z"], ["y"])]
    tensors = {"w": MATRIX, "b": TENSORS["b"], "minus": np.array([16]), "rest": np.array([2, N])}
    model = write(tmp_path / "m.onnx", tensors, nodes, more=[texts])
    options = wm.onnxruntime.session_options(model)
    assert len(options.mapped) == 4
    np.testing.assert_allclose(run(model, options), run(model), rtol=1e-5)


def test_blocks_of_int8_are_no_int8(tmp_path):
    """A scheme of AMB has the name of a type."""
    nodes = [helper.make_node("Cast", ["w"], ["c"], to=1), helper.make_node("Add", ["x", "c"], ["y"])]
    model = write(tmp_path / "m.onnx", {"w": np.ones((2, 3), np.int8)}, nodes)
    wm.save(tmp_path / "w.amb", {"w": wm.quantize(np.ones((2, 3), np.float32), "int8")})
    with pytest.raises(wm.LayoutError, match=r"'w' is blocks of int8 \[2, 3\], expected int8 \[2, 3\]"):
        wm.onnxruntime.session_options(model, weights=tmp_path / "w.amb")


def test_names_that_graphs_share_stay_the_models_own(tmp_path):
    """Both branches have a "w", of different shapes: a session gets values by name alone."""
    value = helper.make_tensor_value_info("y", 1, None)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])], name, [], [value], [numpy_helper.from_array(array, "w")]
        )
        for name, array in (("then", MATRIX), ("else", MATRIX[:1] + 5))
    }
    nodes = [helper.make_node("If", ["c"], ["y"], **branches)]
    for flag in (True, False):
        model = write(tmp_path / "m.onnx", {"c": np.array(flag)}, nodes)
        options = wm.onnxruntime.session_options(model)
        assert len(options.mapped) == 1
        np.testing.assert_array_equal(run(model, options), run(model))


def test_constants_of_functions_stay_the_models_own(tmp_path):
    """Their names hold within a function, and a session takes none of them."""
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(MATRIX, "k"))
    body, opset = [constant, helper.make_node("Add", ["i", "k"], ["o"])], helper.make_opsetid("", 19)
    function = helper.make_function("local", "F", ["i"], ["o"], body, [opset])
    nodes = [helper.make_node("F", ["x"], ["z"], domain="local"), helper.make_node("Add", ["z", "w"], ["y"])]
    path = write(tmp_path / "m.onnx", {"w": MATRIX}, nodes)
    model = onnx.load(path)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    onnx.save(model, path)
    assert list(wm.open(path)) == ["w", "k"]
    wm.save(tmp_path / "w.safetensors", {"w": MATRIX + 1, "k": MATRIX + 9})
    options = wm.onnxruntime.session_options(path, tmp_path / "w.safetensors")
    assert len(options.mapped) == 1
    np.testing.assert_array_equal(run(path, options), (MATRIX + MATRIX) + (MATRIX + 1))
    wm.save(tmp_path / "w.safetensors", {"k": MATRIX})
    with pytest.raises(wm.TensorNotFoundError, match="no tensor has the name"):
        wm.onnxruntime.session_options(path, tmp_path / "w.safetensors")
