"""Tensors of PyTorch over the mapped file. Skipped where torch is not installed."""

import json
import os
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.places import ROOT
from tests.support import run_child

torch = pytest.importorskip("torch")

import weightmap as wm  # noqa: E402 - nothing here makes sense without torch
from weightmap import compat  # noqa: E402
from weightmap.device import Staging, _loader  # noqa: E402
from weightmap.torch import _files, from_torch, to_device, to_torch  # noqa: E402
from weightmap.torch._device import load_plan  # noqa: E402

theirs = pytest.importorskip("safetensors")
theirs_torch = pytest.importorskip("safetensors.torch")

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "uint32", "int32", "float32", "uint64", "int64",
    "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def model(tmp_path):
    tensors = {name: torch.arange(12.0).reshape(3, 4).to(getattr(torch, name)) for name in DTYPES}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    path = tmp_path / "model.safetensors"
    theirs_torch.save_file(tensors, path, metadata={"k": "v"})
    return path, tensors


def test_tensors_agree_with_safetensors(model):
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
    """If WEIGHTMAP_MODE is a mode in which no file can fault, tensors have it, and are writable."""
    monkeypatch.setenv("WEIGHTMAP_MODE", mode)
    path, tensors = model
    with compat.safe_open(path, "pt") as file:
        tensor = file.get_tensor("float32")
        if stable:
            path.write_bytes(bytes(path.stat().st_size))
        assert torch.equal(tensor, tensors["float32"])
        tensor += 1


@pytest.mark.parametrize("weights", [False, True])
def test_load_file_past_the_page_cache(tmp_path, weights):
    """Tensors are writable and in their own memory; only the file's head is cached beyond the earlier state."""
    path = tmp_path / "m.safetensors"
    tensors = {f"w{number}": torch.full((1024, 8192), number, dtype=torch.bfloat16) for number in range(8)}
    wm.save(path, tensors)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def cached():
        with wm.open(path) as file:
            return sum(found.resident for found in file.residency().values())

    before = cached()
    found = wm.torch.load_file(wm.open(path, mode="direct").weights if weights else wm.open(path, mode="direct"))
    assert cached() - before < 1 << 20
    assert list(found) == list(tensors)
    path.write_bytes(b"")
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        found[name] += 1


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


@pytest.mark.parametrize("mode", ["mmap", "sealed"])
def test_read_only_arrays_are_copied_or_refused(model, mode):
    """Over a read-only map to_torch copies; with copy=False it refuses, and names the mode that allows sharing."""
    with wm.open(model[0], mode=mode) as file:
        array = file["float32"]
        tensor = to_torch(array)
        tensor[0, 0] = 5
        assert array[0, 0] == 0
        for part in (array, array[1:], array[::-1], array.reshape(-1)[:0]):
            with pytest.raises(ValueError, match=r'read-only.*mode="cow"'):
                to_torch(part, copy=False)
    with wm.open(model[0], mode="cow") as file:
        array = file["float32"]
        to_torch(array, copy=False)[0, 0] = 5
        assert array[0, 0] == 5
        row = array[1:0:-1]  # one element with a negative stride
        np.testing.assert_array_equal(to_torch(row).numpy(), row)


# Writes into every tensor that a function of ours makes of the files named, in every mode.
_WRITE = """
import os, sys, weightmap as wm
from weightmap import compat
from weightmap.torch import to_device, to_torch
made = []
for path in sys.argv[1:]:
    data, file = open(path, "rb").read(), open(path, "rb")
    for mode in ("mmap", "cow", "copy", "sealed"):
        os.environ["WEIGHTMAP_MODE"] = mode
        for value in wm.load(path).values():
            made += [to_torch(value), to_torch(value, copy=True), to_device(value, "cpu")]
        for source in (path, data, memoryview(data), file, file.fileno()):
            for backend in ("mmap", "pread"):
                made += compat.load_file(source, framework="pt", backend=backend).values()
                with compat.safe_open(source, "pt", backend=backend) as handle:
                    slices = [handle.get_slice(name) for name in handle.keys()]
                    made += [part[...] for part in slices] + [part[:1] for part in slices if part.get_shape()]
for tensor in made:
    tensor.zero_()
print(len(made))
"""


def test_every_tensor_of_ours_can_be_written_to(model, tmp_path):
    values = np.ones((4, 64), np.float32)
    quantised = tmp_path / "m.amb"
    wm.save(quantised, {"q": wm.quantize(values, "int4_block"), "a": wm.quantize(values, "adaptive"), "d": values})
    paths = (model[0], quantised)
    before = [path.read_bytes() for path in paths]
    assert int(run_child(_WRITE, *paths).stdout) > 1000
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize("scheme", ["int4_block", "int8", "adaptive"])
def test_a_quantised_tensor_is_decoded(tmp_path, scheme):
    q = wm.quantize(np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32), scheme)
    for tensor in (to_torch(q), to_torch(q, copy=True), to_device(q, "cpu")):
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), np.asarray(q))
    with pytest.raises(ValueError, match="decoded into a new array"):
        to_torch(q, copy=False)


def permissions(path):
    """How this process has `path` mapped: such as "r--s" for a read-only, shared mapping."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    return {parts[1] for parts in lines if len(parts) == 6 and parts[5] == os.path.realpath(path)}


class _Copies(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the bytes of every copy that torch makes, and of every tensor that it makes on the CPU."""

    def __init__(self):
        super().__init__()
        self.copied, self.made = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            self.copied.append(args[1].nbytes)
        elif isinstance(result, torch.Tensor) and result.device.type == "cpu" and not result._is_view():
            self.made.append(result.nbytes)
        return result


def test_an_expanded_tensor_is_shared_and_copied_on_request(tmp_path):
    """A number that stands for 4 TiB is a view; a copy of another type or on a device is a LimitError."""
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(1).expand(1 << 20, 1 << 20)}, path)
    assert compat.load_file(path, "cpu", framework="pt")["w"].stride() == (0, 0)
    for copy in (
        lambda: _files.load_file(path, dtype=torch.float16),
        lambda: _files.load_file(path, plan=wm.plan(path), dtype=torch.float64),
        lambda: _files.load_file(path, "meta"),
        lambda: compat.safe_open(path, "pt", device="meta").get_slice("w")[2:],
    ):
        with pytest.raises(wm.LimitError, match="size of tensor 'w'"):
            copy()


@pytest.mark.parametrize("slot", [1024, 1 << 20])
def test_a_plan_loads_by_torch_as_it_is_in_the_file(model, monkeypatch, slot):
    """Through the backend of a device without streams: every type, slices in either direction, and other types."""
    monkeypatch.setattr(_loader, "UNPINNED", Staging(2, slot))
    path, tensors = model
    with wm.plan(path) as plan:
        found = dict(load_plan(plan, "cpu"))
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert bits(found[name]) == bits(tensor)
        halves = dict(load_plan(plan, "cpu", dtype=torch.float16))
        assert {name for name, tensor in halves.items() if tensor.dtype == torch.float16} == {
            "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "scalar", "empty"
        }  # fmt: skip
        assert torch.equal(halves["float32"], tensors["float32"].half())
    with wm.plan(path, dict.fromkeys(DTYPES, np.s_[::-2, 1:3])) as plan:
        for name, tensor in load_plan(plan, "cpu"):
            whole = tensors[name].view(
                getattr(torch, {1: "int8", 2: "int16", 4: "int32"}.get(tensor.itemsize, "int64"))
            )
            assert bits(tensor) == bits(whole.flip(0)[::2, 1:3])


def test_save_takes_tensors_as_they_are(tmp_path, model):
    _, tensors = model
    tensors = tensors | {
        "parameter": torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).to(torch.bfloat16)),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "tied": tensors["float32"],
        "conjugate": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj(),
        "negative": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj().imag,
        "module": torch.nn.Linear(3, 2).weight,
    }
    wm.save(tmp_path / "ours.safetensors", tensors)
    read = theirs_torch.load_file(tmp_path / "ours.safetensors")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        plain = tensor.detach().resolve_conj().resolve_neg()
        assert (read[name].dtype, read[name].shape) == (plain.dtype, plain.shape)
        assert bits(read[name]) == bits(plain)
    wm.save(tmp_path / "ours.weights", {"w": tensors["parameter"], "i": torch.arange(3, dtype=torch.int32)[::2]})
    with wm.open(tmp_path / "ours.weights") as file:
        assert file["w"].dtype == ml_dtypes.bfloat16
        assert file["i"].tolist() == [0, 2]


def test_tensors_that_cannot_be_written_are_named_together(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both are experimental, and say so
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        half = torch.zeros(2, dtype=torch.complex32)
    bad = {
        "sparse": torch.eye(2).to_sparse(),
        "nested": nested,
        "meta": torch.zeros(2, device="meta"),
        "raw": torch.nn.parameter.UninitializedParameter(),
        "half": half,
    }
    with pytest.raises(wm.EncodeError) as caught:
        wm.save(tmp_path / "m.safetensors", bad | {"good": torch.ones(2)})
    for name in bad:
        assert f"tensor '{name}':" in str(caught.value)
    assert "good" not in str(caught.value)
    assert not list(tmp_path.glob("m*"))


@pytest.mark.parametrize("name", DTYPES)
def test_from_torch_undoes_to_torch(name):
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name, name))
    back = from_torch(to_torch(array, copy=False))
    assert back.dtype == array.dtype
    assert np.shares_memory(back, array)
    assert back.tobytes() == array.tobytes()


def test_what_cannot_cross_is_an_error():
    with pytest.raises(wm.errors.UnsupportedError, match="datetime64"):
        to_torch(np.zeros(2, "M8[s]"))
    with pytest.raises(wm.errors.EncodeError, match="sparse"):
        from_torch(torch.eye(2).to_sparse())


def test_a_device_that_is_not_here_is_an_error_of_ours(model):
    device = "mps" if torch.cuda.is_available() else "cuda:0"
    for load in (_files.load_file, lambda path, where: compat.load_file(path, where, framework="pt")):
        with pytest.raises(wm.UnsupportedError, match=f"^device is '{device}' .*, expected one that torch") as caught:
            load(model[0], device)
        assert isinstance(caught.value, RuntimeError)  # as safetensors raises


CHECKPOINTS = ROOT / "tests" / "checkpoints" / "groundtruth"


class _Holding(torch.nn.Module):
    """A module with these parameters, under names with dots."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            at = self
            *inner, last = name.split(".")
            for part in inner:
                if not hasattr(at, part):
                    at.add_module(part, torch.nn.Module())
                at = getattr(at, part)
            at.register_parameter(last, torch.nn.Parameter(torch.zeros_like(tensor), requires_grad=False))


@pytest.mark.parametrize("name", sorted(path.name for path in CHECKPOINTS.iterdir() if path.name != "malformed"))
def test_parameters_of_a_quantised_checkpoint_are_tensors_of_its_own_type(name):
    about = json.loads((CHECKPOINTS / name / "expected.json").read_text(encoding="utf-8"))
    with np.load(CHECKPOINTS / name / "expected.npz") as values:
        wanted = {one["name"]: (one, values[one["values"]]) for one in about["weights"]}
    expected = {
        key: torch.from_numpy(value.view(np.int16)).view(getattr(torch, one["dtype"])).reshape(one["shape"])
        for key, (one, value) in wanted.items()
    }
    for verify in (False, True):
        found = wm.torch.load_file(wm.open(CHECKPOINTS / name).weights, verify=verify)
        assert expected.keys() <= found.keys()
        for key, tensor in expected.items():
            assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape), key
            assert bits(found[key]) == bits(tensor), key
    module = _Holding(found)
    wm.torch.load_into(module, wm.open(CHECKPOINTS / name).weights)
    assert {key: bits(value) for key, value in module.state_dict().items()} == {k: bits(v) for k, v in found.items()}
    shapes = {key: (value.dtype, value.shape) for key, value in found.items()}
    with wm.plan(wm.open(CHECKPOINTS / name).weights) as plan:
        assert sorted(dict(load_plan(plan, "meta"))) == sorted(plan.names)
    elsewhere = wm.torch.load_file(wm.open(CHECKPOINTS / name).weights, "meta")
    assert {key: (value.dtype, value.shape) for key, value in elsewhere.items()} == shapes


def test_handles_stay_open(model):
    """A handle of any mode: what is read-only is copied."""
    path, expected = model
    for mode in ("mmap", "cow", "copy"):
        with wm.open(path, mode=mode) as file:
            for handle in (file, file.weights):
                tensors = wm.torch.load_file(handle)
                assert tensors.keys() == expected.keys()
                for name, tensor in tensors.items():
                    assert tensor.dtype == expected[name].dtype
                tensors["float32"][0, 0] = 5
            module = torch.nn.Linear(4, 3)
            wm.torch.load_into(module, file, include="float32", rename={"float32": "weight"}, strict=False)
            assert module.weight[0, 1] == 1
            assert file["float32"].shape == (3, 4)
    with pytest.raises(wm.ClosedError):
        wm.torch.load_file(file)


def test_experts_are_served_from_parameters_and_not_from_codes(tmp_path):
    """A pool of the file has float8 codes under a parameter's name; a pool of its weights has the parameter."""
    name = "mlp.experts.0.gate_proj.weight"
    codes = np.ones((128, 128), ml_dtypes.float8_e4m3fn)
    wm.save(tmp_path / "model.safetensors", {name: codes, f"{name}_scale_inv": np.full((1, 1), 0.25, np.float32)})
    config = {"torch_dtype": "float32", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def model():
        expert = torch.nn.ModuleDict({"gate_proj": torch.nn.Linear(128, 128, bias=False)})
        return torch.nn.ModuleDict({"mlp": torch.nn.ModuleDict({"experts": torch.nn.ModuleList([expert])})})

    with wm.open(tmp_path) as file:
        with file.pool(1 << 20) as pool, pytest.raises(wm.UnsupportedError, match=r"1 tensor such as .* f\.weights"):
            wm.torch.serve_experts(model(), pool)
        with file.weights.pool(1 << 20) as pool:
            served = model()
            wm.torch.serve_experts(served, pool)
            with torch.no_grad():
                assert (served.mlp.experts[0].gate_proj(torch.ones(1, 128)) == 32).all()


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64"])
def test_values_of_parameters_are_rounded_once(kind, verify):
    """To the requested type, not to the model's first; by `load_file` and into a module."""
    weights = wm.open(CHECKPOINTS / "awq_gemm").weights
    expected = {name: torch.from_numpy(weights.read(name, np.float32)).to(getattr(torch, kind)) for name in weights}
    found = wm.torch.load_file(weights, dtype=getattr(torch, kind), verify=verify)
    module = _Holding(expected)
    wm.torch.load_into(module, weights)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
        assert torch.equal(module.state_dict()[name], tensor), name
