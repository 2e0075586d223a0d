"""Tensors of PyTorch over the mapped file. Skipped where torch is not installed."""

import warnings

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import weightmap as wm  # noqa: E402 - nothing here makes sense without torch
from weightmap import compat  # noqa: E402
from weightmap.torch import from_torch, to_torch  # noqa: E402

theirs = pytest.importorskip("safetensors")
theirs_torch = pytest.importorskip("safetensors.torch")

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "uint32", "int32", "float32", "uint64", "int64",
    "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip


def bits(tensor):
    """The memory of a tensor as bytes, whatever its type."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def model(tmp_path):
    """A file written by safetensors.torch with a tensor of every type; gives its path and the tensors."""
    tensors = {
        name: torch.arange(12).reshape(3, 4).to(torch.float32).to(getattr(torch, name))
        if name.startswith(("float8", "bfloat"))
        else torch.arange(12).reshape(3, 4).to(getattr(torch, name))
        for name in DTYPES
    }
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    path = tmp_path / "model.safetensors"
    theirs_torch.save_file(tensors, path, metadata={"k": "v"})
    return path, tensors


def test_tensors_agree_with_safetensors(model):
    """Every type arrives with the same torch dtype, shape, bits and type string as through safetensors."""
    path, _ = model
    with compat.safe_open(path, framework="pt") as ours, theirs.safe_open(path, framework="pt") as other:
        assert ours.keys() == other.keys()
        assert ours.metadata() == other.metadata()
        for name in other.keys():  # noqa: SIM118 - a method here, not a mapping
            got, expected = ours.get_tensor(name), other.get_tensor(name)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            assert bits(got) == bits(expected)
            assert ours.get_slice(name).get_dtype() == other.get_slice(name).get_dtype()


def test_tensors_share_memory_and_writing_leaves_the_file_alone(model):
    """Two tensors of one handle share their pages; a write is seen by both, by no other handle, and not by the file."""
    path, tensors = model
    before = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with compat.safe_open(path, "pt") as file:
            a, b = file.get_tensor("float32"), file.get_tensor("float32")
    assert a.data_ptr() == b.data_ptr()
    a[0, 0] = 99
    assert b[0, 0] == 99
    assert torch.equal(compat.load_file(path, framework="pt")["float32"], tensors["float32"])
    assert path.read_bytes() == before


@pytest.mark.parametrize(("mode", "stable"), [("mmap", False), ("copy", True), ("sealed", True)])
def test_the_environment_asks_for_copies(model, monkeypatch, mode, stable):
    """Where WEIGHTMAP_MODE asks for a mode in which no file can fault, tensors have it, and can be written to."""
    monkeypatch.setenv("WEIGHTMAP_MODE", mode)
    path, tensors = model
    with compat.safe_open(path, "pt") as file:
        tensor = file.get_tensor("float32")
        if stable:
            path.write_bytes(bytes(path.stat().st_size))
        assert torch.equal(tensor, tensors["float32"])
        tensor += 1


@pytest.mark.parametrize("index", [np.s_[1], np.s_[1:, ::2], np.s_[-2:], np.s_[::-1, ::-2], np.s_[1, 2]], ids=repr)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_slices_follow_numpy(model, name, index):
    """Negative steps and bounds work, in types that numpy lacks too."""
    path, tensors = model
    expected = tensors[name].to(torch.float32).numpy()[index]
    with compat.safe_open(path, "pt") as file:
        got = file.get_slice(name)[index]
    assert got.dtype == tensors[name].dtype
    np.testing.assert_array_equal(got.to(torch.float32).numpy(), expected)


def test_save_file_writes_tensors(tmp_path, model):
    """Tensors of every type, transposed and with gradient, arrive in safetensors as they were."""
    _, tensors = model
    tensors = {**tensors, "transposed": torch.arange(6.0).reshape(2, 3).T, "grad": torch.ones(2, requires_grad=True)}
    path = tmp_path / "ours.safetensors"
    compat.save_file(tensors, path, {"k": "v"})
    read = theirs_torch.load_file(path)
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert bits(read[name]) == bits(tensor.detach())


def test_read_only_arrays_are_copied_or_refused(model):
    """Over a read-only map to_torch copies, unless told not to."""
    with wm.open(model[0], mode="mmap") as file:
        array = file["float32"]
        tensor = to_torch(array)
        tensor[0, 0] = 5
        assert array[0, 0] == 0
        with pytest.raises(ValueError, match="read-only"):
            to_torch(array, copy=False)


@pytest.mark.parametrize("name", DTYPES)
def test_from_torch_undoes_to_torch(name):
    """Array to tensor to array shares one memory and changes neither type nor value."""
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name, name))
    back = from_torch(to_torch(array, copy=False))
    assert back.dtype == array.dtype
    assert np.shares_memory(back, array)
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4"),
        np.arange(6)[::-1],
        np.arange(25, dtype=np.uint8)[1:].view(np.float32),
        np.array(3, ">f8"),
    ],
    ids=["byte-swapped", "reversed", "misaligned", "scalar"],
)
def test_arrays_that_torch_cannot_share_are_copied(array):
    """Their values arrive all the same, in their shape."""
    tensor = to_torch(array)
    assert tensor.shape == array.shape
    assert tensor.numpy().tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


def test_what_cannot_cross_is_an_error():
    """Dates have no torch type, sparse tensors no array, and a device must exist."""
    with pytest.raises(wm.errors.UnsupportedError, match="datetime64"):
        to_torch(np.zeros(2, "M8[s]"))
    with pytest.raises(wm.errors.EncodeError, match="sparse"):
        from_torch(torch.eye(2).to_sparse())


def test_an_unknown_device_is_an_error(model):
    """A device that torch does not know is told when the file is opened."""
    with pytest.raises(compat.SafetensorError, match="device"):
        compat.safe_open(model[0], "pt", device="abacus")
