"""``weightmap.compat.torch`` beside ``safetensors.torch``. Skipped where torch is not installed."""

import copy
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
theirs = pytest.importorskip("safetensors.torch")


from tests.support import run_child  # noqa: E402

import weightmap as wm  # noqa: E402
from weightmap import compat  # noqa: E402
from weightmap.compat import torch as ours  # noqa: E402


class Tied(torch.nn.Module):
    """A module that has one layer under two names."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(10, 10)
        self.b = self.a


class Apart(torch.nn.Module):
    """A module of the same names that has two layers."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(10, 10)
        self.b = torch.nn.Linear(10, 10)


def assert_same_state(module, other):
    expected = other.state_dict()
    assert list(module.state_dict()) == list(expected)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)


def test_the_surface_is_that_of_safetensors_torch():
    import inspect

    for name in ("load", "load_file", "load_model", "save", "save_file", "save_model", "storage_ptr", "storage_size"):
        mine, other = inspect.signature(getattr(ours, name)), inspect.signature(getattr(theirs, name))
        assert list(mine.parameters) == list(other.parameters)
        assert [p.default for p in mine.parameters.values()] == [p.default for p in other.parameters.values()]
        assert [p.kind for p in mine.parameters.values()] == [p.kind for p in other.parameters.values()]


@pytest.mark.parametrize(
    "tensors",
    [
        {"test": torch.zeros((2, 2), dtype=torch.int32)},
        {"test": torch.tensor([[2.25, 1], [1, 1]], dtype=torch.bfloat16), "half": torch.ones(3, dtype=torch.float16)},
        {"test": torch.tensor([[0, 0], [0, complex(-1, 1)]], dtype=torch.complex64), "b": torch.tensor([True, False])},
        {"a": torch.zeros((2, 0)), "b": torch.zeros((2, 0))},
        {"a": torch.tensor(1.5)},
        {},
    ],
    ids=["int32", "bfloat16", "complex and bool", "empty", "scalar", "none"],
)
def test_bytes_are_those_of_safetensors(tmp_path, tensors):
    expected = theirs.save(tensors, {"k": "v"})
    assert ours.save(tensors, {"k": "v"}) == expected
    ours.save_file(tensors, tmp_path / "m.bin", {"k": "v"})
    assert (tmp_path / "m.bin").read_bytes() == expected
    for loaded in (
        ours.load(expected),
        ours.load_file(tmp_path / "m.bin"),
        ours.load_file(tmp_path / "m.bin", backend="pread"),
    ):
        assert set(loaded) == set(tensors)
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name], tensor)
            loaded[name].zero_()  # writable, wherever it comes from
    assert (tmp_path / "m.bin").read_bytes() == expected


def test_what_safetensors_refuses_is_refused_in_its_words(tmp_path):
    path = tmp_path / "m"
    sparse = "sparse tensors: `['test']` which this library does not support"
    cases = [
        ({"test": torch.eye(2).to_sparse()}, ValueError, sparse),
        (
            {"test": {"some": "thing"}},
            ValueError,
            "Key `test` is invalid, expected torch.Tensor but received <class 'dict'>",
        ),
        ({"a": np.ones(3)}, ValueError, "expected torch.Tensor"),
        ("notadict", ValueError, "Expected a dict of [str, torch.Tensor] but received <class 'str'>"),
        ({"test": torch.zeros((10, 10), device="meta")}, RuntimeError, "Cannot copy out of meta tensor"),
    ]
    for tensors, kind, words in cases:
        for call in (lambda given: ours.save_file(given, path), ours.save):
            with pytest.raises(kind) as caught:
                call(tensors)
            assert words in str(caught.value)
            assert isinstance(caught.value, compat.SafetensorError)
    assert not path.exists()


def test_tensors_that_share_memory_are_a_runtime_error(tmp_path):
    a = torch.arange(6.0).reshape(2, 3)
    path = tmp_path / "m"
    for given in ({"A": a, "B": a[:1]}, {"A": a, "B": a[1:]}, {"A": a, "B": a}, Tied().state_dict()):
        for save in (ours.save_file, compat.save_file, theirs.save_file):
            with pytest.raises(RuntimeError, match="share memory"):
                save(given, path)
        with pytest.raises(RuntimeError, match="share memory"):
            ours.save(given)
    assert not path.exists()
    ours.save_file({"A": a[1:], "B": a[:1]}, path)
    assert torch.equal(theirs.load_file(path)["A"], a[1:])


def test_tensors_that_are_not_contiguous_are_refused_but_in_models(tmp_path):
    """As safetensors has it; `weightmap.save` writes them row-major."""
    x = torch.arange(6.0).reshape(1, 2, 3)
    for module in (theirs, ours):
        for save in (module.save, lambda tensors, module=module: module.save_file(tensors, tmp_path / "m")):
            with pytest.raises(ValueError, match="contiguous"):
                save({"x": x[:, :, 1]})
    assert not (tmp_path / "m").exists()
    wm.save(tmp_path / "m.safetensors", {"x": x[:, :, 1]})
    assert torch.equal(theirs.load_file(tmp_path / "m.safetensors")["x"], x[:, :, 1])
    model = torch.nn.Linear(2, 3)
    model.weight.data = model.weight.data.T.contiguous().T
    for save in (ours.save_model, theirs.save_model):
        with pytest.raises(ValueError, match=r"use save_model\(..., force_contiguous=True\)"):
            save(model, tmp_path / "m", force_contiguous=False)
    ours.save_model(model, tmp_path / "m")
    assert torch.equal(theirs.load_file(tmp_path / "m")["weight"], model.weight)


@pytest.mark.parametrize("writer", [ours, theirs], ids=["ours", "theirs"])
@pytest.mark.parametrize("reader", [ours, theirs], ids=["ours", "theirs"])
def test_models_go_from_either_library_to_the_other(tmp_path, writer, reader):
    path = tmp_path / "m.safetensors"
    untied = Tied()
    untied.b = copy.deepcopy(untied.a)
    for model, other in ((Tied(), Tied()), (untied, copy.deepcopy(Apart()))):
        writer.save_model(model, path, {"k": "v"})
        assert reader.load_model(other, path) == (set(), [])
        assert_same_state(other, model)
    writer.save_model(Tied(), path, {"b.bias": "mine"})
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"b.bias": "mine", "b.weight": "a.weight"}
        assert list(file.keys()) == ["a.bias", "a.weight"]


def test_models_that_do_not_fit_are_a_runtime_error_and_stay_as_they_are(tmp_path):
    """Missing names, unexpected names and other shapes; safetensors changes the model first."""
    path = tmp_path / "m"
    for stored, model, words in (
        (Tied(), Apart(), r'Missing key.s. in state_dict: "b.bias", "b.weight"'),
        (Apart(), Tied(), r'Unexpected key.s. in state_dict: "b.bias", "b.weight"'),
        (torch.nn.Linear(2, 3), torch.nn.Linear(2, 2), f"^{re.escape(str(path))}: .*size mismatch for weight"),
    ):
        ours.save_model(stored, path)
        before = copy.deepcopy(model)
        with pytest.raises(RuntimeError, match=words) as caught:
            ours.load_model(model, path)
        assert isinstance(caught.value, compat.SafetensorError)
        assert_same_state(model, before)
    ours.save_model(Tied(), path)
    assert ours.load_model(Apart(), path, strict=False) == ({"b.weight", "b.bias"}, [])
    compat.save_file({"a": np.ones(3), "b": torch.ones(3)}, path)
    assert set(theirs.load_file(path)) == {"a", "b"}


def test_whole_tensors_import_no_types_of_numpy(tmp_path):
    """bfloat16 and float8 come by their bits, by every call; modules for models in several files stay out, too."""
    kinds = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn, "float32": torch.float32}
    tensors = {name: torch.arange(6).reshape(2, 3).to(kind) for name, kind in kinds.items()}
    theirs.save_file(tensors | {"one": torch.tensor(1.5).bfloat16()}, tmp_path / "m.safetensors")
    code = """
import sys, safetensors, torch
from weightmap import compat
with compat.patched(), safetensors.safe_open(sys.argv[1], "pt") as f:
    for name in f.keys():
        for tensor in (f.get_slice(name)[...], f.get_tensor(name)):
            same = torch.arange(6).reshape(2, 3) if name != "one" else torch.tensor(1.5)
            assert torch.equal(tensor, same.to(tensor.dtype)), name
            assert f.get_slice(name).get_shape() == list(same.shape)
            assert str(tensor.dtype) == "torch." + (name if name != "one" else "bfloat16")
assert not {"ml_dtypes", "weightmap.core.model.sharded"} & {*sys.modules}
"""
    run_child(code, tmp_path / "m.safetensors")
