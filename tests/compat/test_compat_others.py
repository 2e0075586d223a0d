"""``weightmap.compat`` for TensorFlow, MLX and jax, beside safetensors. Missing libraries are skipped."""

import importlib

import ml_dtypes
import numpy as np
import pytest

import weightmap as wm
from weightmap import compat

LIBRARIES = {
    "tensorflow": ("tensorflow", ("tf", "tensorflow"), "convert_to_tensor"),
    "mlx": ("mlx.core", ("mlx",), "array"),
    "flax": ("jax.numpy", ("jax", "flax"), "asarray"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_tensors_go_there_and_back(tmp_path, name, backend):
    module, frameworks, make = LIBRARIES[name]
    make = getattr(pytest.importorskip(module), make)
    ours = importlib.import_module(f"weightmap.compat.{name}")
    theirs = pytest.importorskip(f"safetensors.{name}")
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "i": np.arange(3, dtype=np.int32),
        "e": np.zeros((2, 0)),
    }
    arrays["e"] = arrays["e"].astype(np.float32)
    if name != "mlx":
        arrays["b"] = np.arange(4).astype(ml_dtypes.bfloat16)
    tensors = {key: make(array) for key, array in arrays.items()}
    path = tmp_path / "m.safetensors"
    ours.save_file(tensors, path, {"k": "v"})
    assert path.read_bytes() == ours.save(tensors, {"k": "v"}) == theirs.save(dict(tensors), {"k": "v"})
    for loaded in (ours.load_file(path, backend=backend), ours.load(path.read_bytes())):
        assert set(loaded) == set(arrays)
        for key, array in arrays.items():
            assert type(loaded[key]) is type(tensors[key])
            assert np.asarray(loaded[key]).tobytes() == array.tobytes()
    for framework in frameworks:
        with compat.safe_open(path, framework, backend=backend) as file:
            part = file.get_slice("a")[:, ::-2]
            assert type(part) is type(tensors["a"])
            assert np.asarray(part).tolist() == arrays["a"][:, ::-2].tolist()
        with pytest.raises(compat.SafetensorError):
            compat.safe_open(path, framework, device="no such device")


def test_mlx_reads_bfloat16(tmp_path):
    """safetensors fails on it."""
    mlx = pytest.importorskip("mlx.core")
    values = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    compat.save_file({"b": values}, tmp_path / "m")
    loaded = compat.mlx.load_file(tmp_path / "m")["b"]
    assert loaded.dtype == mlx.bfloat16
    assert loaded.astype(mlx.float32).tolist() == values.astype(np.float32).tolist()


@pytest.mark.parametrize(("framework", "module"), [("mlx", "mlx.core"), ("tf", "tensorflow")])
def test_types_that_a_library_lacks_are_named(tmp_path, framework, module):
    pytest.importorskip(module)
    compat.save_file({"b": np.ones(3, ml_dtypes.float8_e4m3fnuz)}, tmp_path / "m")
    file, match = compat.safe_open(tmp_path / "m", framework), "data type is float8_e4m3fnuz, expected one that"
    with pytest.raises(wm.UnsupportedError, match=match):
        file.get_tensor("b")
