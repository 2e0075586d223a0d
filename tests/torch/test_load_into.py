"""`weightmap.torch.load_into` and `load_file`: modules filled from files. Skipped where torch is not installed."""

import copy
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.torch.test_torch import _Copies, permissions  # noqa: E402

import weightmap as wm  # noqa: E402 - nothing here makes sense without torch
from weightmap.torch import StateError, load_file, load_into  # noqa: E402


class Net(torch.nn.Module):
    """Two layers that share a weight, buffers of both kinds, a scalar."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.register_buffer("mask", torch.arange(4) % 2 == 0)
        self.register_buffer("cache", torch.zeros(3), persistent=False)


@pytest.fixture
def net(tmp_path):
    torch.manual_seed(1)
    module = Net()
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape) * 10)
    path = tmp_path / "net.safetensors"
    wm.save(path, {name: tensor for name, tensor in module.state_dict().items() if name != "head.weight"})
    return module, path


def assert_same(module, other):
    expected = other.state_dict()
    assert list(module.state_dict()) == list(expected)
    for name, tensor in module.state_dict().items():
        assert (tensor.dtype, tensor.shape) == (expected[name].dtype, expected[name].shape)
        assert torch.equal(tensor, expected[name]), name


def refused(module, path, words, **options):
    """load_into refuses the file in these words, and the module is as it was."""
    before = copy.deepcopy(module)
    with pytest.raises(StateError, match=words) as caught:
        load_into(module, path, **options)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, wm.errors.TensorFileError)
    assert str(path) in str(caught.value)
    if not any(tensor.is_meta for tensor in module.state_dict().values()):
        assert_same(module, before)


def test_values_are_copied(net):
    module, path = net
    other = Net()
    kept = {name: tensor.data_ptr() for name, tensor in other.state_dict().items()}
    result = load_into(other, path)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert_same(other, module)
    assert {name: tensor.data_ptr() for name, tensor in other.state_dict().items()} == kept
    assert other.head.weight is other.embed.weight
    assert not permissions(path)


def test_assigning_copies_nothing(net):
    module, path = net
    before = path.read_bytes()
    other = Net()
    with _Copies() as copies:
        load_into(other, path, assign=True)
    assert sum(copies.copied) == 0
    assert permissions(path) == {"rw-p"}
    assert_same(other, module)
    assert other.head.weight is other.embed.weight
    assert other.embed.weight.requires_grad
    assert not other.scale.requires_grad
    optimiser = torch.optim.SGD(other.parameters(), lr=0.1)
    other.head(other.norm(other.embed(torch.arange(8)))).sum().backward()
    optimiser.step()
    assert not torch.equal(other.embed.weight, module.embed.weight)
    assert path.read_bytes() == before


def test_a_model_on_the_processor_imports_neither_compiler_nor_conversion(tmp_path):
    """Importing torch's compiler takes a second, which filling a model does not need."""
    path, net = tmp_path / "net.safetensors", torch.nn.Linear(2, 2)
    wm.save(path, net.state_dict())
    program = """
import sys, torch, weightmap.torch
net = torch.nn.Linear(2, 2)
weightmap.torch.load_into(net, sys.argv[1])
print(*(name for name in ("torch._dynamo", "weightmap.conversion", "weightmap.llama") if name in sys.modules))
"""
    ended = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert not ended.stdout.strip()


def test_modules_without_memory_are_assigned_to(net):
    """A module of the device meta takes the tensors of the file with assign=True, and refuses them without."""
    module, path = net
    with torch.device("meta"):
        other = Net()
    refused(other, path, "assign=True")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_into(other, path, assign=True)
    assert_same(other, module)
    assert other.head.weight is other.embed.weight
    assert other.cache.is_meta  # not in the file, nor in the state of the module


@pytest.mark.parametrize("assign", [False, True])
def test_names_are_as_strict_as_in_torch(net, tmp_path, assign):
    """Missing and unexpected names are errors that name ten, and with strict=False all are returned."""
    tensors = {"extra": np.ones(2), "scale": np.array(3.0, np.float32)}
    wm.save(tmp_path / "few.safetensors", tensors)
    words = 'Missing key.*"mask".*"embed.weight"'
    refused(Net(), tmp_path / "few.safetensors", words, assign=assign)
    refused(Net(), tmp_path / "few.safetensors", 'Unexpected key.*"extra"', assign=assign)
    other = Net()
    result = load_into(other, tmp_path / "few.safetensors", strict=False, assign=assign)
    expected = Net().load_state_dict({name: torch.from_numpy(a) for name, a in tensors.items()}, strict=False)
    assert result == expected
    assert "norm.num_batches_tracked" not in result.missing_keys  # torch tolerates that
    assert other.scale == 3


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [False, True])
def test_shapes_and_types_are_checked_before_anything_is_changed(net, tmp_path, strict, assign):
    """If one tensor does not fit, even the last one, nothing is changed."""
    tensors = dict(wm.load(net[1]))
    options = {"strict": strict, "assign": assign}

    def case(words, name, array):
        wm.save(tmp_path / "case.safetensors", tensors | {name: array})
        refused(Net(), tmp_path / "case.safetensors", words, **options)

    case("size mismatch for embed.weight", "embed.weight", np.ones((8, 5), np.float32))
    case("size mismatch for mask", "mask", np.ones((4, 1), np.bool_))
    if assign:
        case("'embed.weight' is torch.int32", "embed.weight", np.ones((8, 4), np.int32))
    else:
        case("'norm.running_mean' is torch.complex64", "norm.running_mean", np.ones(4, np.complex64))
        case("'mask' is torch.float32", "mask", np.ones(4, np.float32))


def test_types_are_converted_as_torch_does_and_kept_with_assign(net, tmp_path):
    module, path = net
    half = {
        name: array.astype(np.float16) if array.dtype == np.float32 else array for name, array in wm.load(path).items()
    }
    wm.save(tmp_path / "half.safetensors", half)
    other = Net()
    load_into(other, tmp_path / "half.safetensors")
    assert other.embed.weight.dtype == torch.float32
    assert torch.equal(other.embed.weight.detach(), module.embed.weight.detach().half().float())
    load_into(other, tmp_path / "half.safetensors", assign=True)
    assert other.embed.weight.dtype == torch.float16


def test_tied_weights_that_differ_in_the_file_are_an_error(net, tmp_path):
    """A head of its own is not dropped silently. Equal ones are read; without strict the last one wins, as in torch."""
    module, path = net
    tensors = dict(wm.load(path))
    wm.save(tmp_path / "same.safetensors", tensors | {"head.weight": tensors["embed.weight"]})
    wm.save(tmp_path / "own.safetensors", tensors | {"head.weight": tensors["embed.weight"] + 1})
    for assign in (False, True):
        other = Net()
        load_into(other, tmp_path / "same.safetensors", assign=assign)
        assert_same(other, module)
        said = r"'embed.weight', 'head.weight' are one tensor .* in the file \(strict=False takes the last one\)"
        refused(Net(), tmp_path / "own.safetensors", f"{said}$", assign=assign)
        theirs = type("", (Net,), {"from_pretrained": None})()
        said += r"; `from_pretrained` within `weightmap\.compat\.patched\(\)` renames, .* unties tensors as the model's"
        refused(theirs, tmp_path / "own.safetensors", said, assign=assign)
        load_into(other, tmp_path / "own.safetensors", strict=False, assign=assign)
        assert torch.equal(other.embed.weight.detach(), module.embed.weight.detach() + 1)
        assert other.head.weight is other.embed.weight


def test_quantised_tensors_and_other_formats_fill_modules(tmp_path):
    q = wm.quantize(np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32), "int8")
    wm.save(tmp_path / "m.amb", {"weight": q, "bias": np.arange(4, dtype=np.float32)})
    for assign in (False, True):
        layer = torch.nn.Linear(32, 4)
        load_into(layer, tmp_path / "m.amb", assign=assign)
        np.testing.assert_array_equal(layer.weight.detach().numpy(), np.asarray(q))
        assert layer.bias.tolist() == [0, 1, 2, 3]


def test_load_file_gives_every_tensor(net):
    module, path = net
    tensors = load_file(path)
    assert list(tensors) == list(wm.open(path))
    for name, tensor in tensors.items():
        assert torch.equal(tensor, module.state_dict()[name])
        tensor.zero_()
    assert load_file(path, "meta")["mask"].is_meta

    for how in ("cpu", "meta"):
        planned = load_file(path, how, plan=wm.plan(path, {"mask": ..., "embed.weight": np.s_[2:4]}))
        assert sorted(planned) == ["embed.weight", "mask"]
        assert planned["embed.weight"].shape == (2, 4)
        planned["embed.weight"].zero_()
    assert torch.equal(load_file(path)["embed.weight"], module.embed.weight.detach())


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_float4_is_of_torchs_type_by_plan_too(tmp_path):
    """Whole tensors have it; parts are bytes, as plans count indices in bytes."""
    path, octets = tmp_path / "m.safetensors", torch.arange(16, dtype=torch.uint8).reshape(4, 4)
    wm.save(path, {"w": octets.view(torch.float4_e2m1fn_x2)})
    for tensors in (load_file(path), load_file(path, plan=wm.plan(path))):
        assert tensors["w"].dtype is torch.float4_e2m1fn_x2
        assert torch.equal(tensors["w"].view(torch.uint8), octets)
    part = load_file(path, plan=wm.plan(path, {"w": np.s_[4:8]}))["w"]
    assert (part.dtype, part.tolist()) == (torch.uint8, [4, 5, 6, 7])


def test_codes_are_no_values(tmp_path):
    """Stored codes are not converted without their scales: not by dtype=, nor into a module of another type."""
    weight = torch.randn(4, 8).to(torch.float8_e4m3fn)
    tensors = {"0.weight": weight, "0.weight_scale": torch.full((1,), 0.5)}
    path = tmp_path / "model.safetensors"
    wm.save(path, tensors)
    with pytest.raises(wm.UnsupportedError, match=r"f\.weights"):
        load_file(path, dtype=torch.bfloat16)
    with wm.plan(path) as plan, pytest.raises(wm.UnsupportedError, match=r"f\.weights"):
        load_file(path, plan=plan, dtype=torch.bfloat16)
    module = torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False))
    for options in ({"strict": False}, {"strict": False, "assign": True}, {"include": "0.weight", "assign": True}):
        with pytest.raises(wm.UnsupportedError, match=r"f\.weights"):
            load_into(module, path, **options)
    eight = torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False).to(torch.float8_e4m3fn))
    load_into(eight, path, include="0.weight", assign=True)  # a module that keeps codes
    config = {"dtype": "float32", "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    values = weight.float() * 0.5
    load_into(module, wm.open(path).weights)
    assert torch.equal(module[0].weight.detach(), values)
    assert torch.equal(load_file(wm.open(path).weights, dtype=torch.float32)["0.weight"], values)
    assert load_file(path)["0.weight"].dtype == torch.float8_e4m3fn


def test_the_remedy_comes_after_ten_of_a_thousand_names(tmp_path):
    module, path = torch.nn.ParameterList(list(torch.zeros(1000, 1))), tmp_path / "m.safetensors"
    wm.save(path, {f"model.{number}": np.ones(2, np.float32) for number in range(1000)})
    some = '"([^,]+, ){9}[^,]+" and 990 more'
    refused(module, path, rf"Missing [^:]+: {some}\. Unexpected [^:]+: {some}; the file has such names below")
    refused(module, path, "(size mismatch for [^:]+:[^:]+){10} and 990 more$", prefix="model.")


@pytest.fixture
def training(tmp_path):
    """A module, and a checkpoint with its state, its optimiser's, and numbers."""
    torch.manual_seed(2)
    module = Net()
    optimizer = torch.optim.Adam(module.parameters())
    module.embed(torch.arange(4)).sum().backward()
    optimizer.step()
    path = tmp_path / "train.pt"
    torch.save({"epoch": 3, "model": module.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return module, path


@pytest.mark.parametrize("assign", [False, True])
def test_a_prefix_is_taken_off(training, assign):
    module, path = training
    other = Net()
    result = load_into(other, path, prefix="model.", assign=assign)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert_same(other, module)
    refused(Net(), path, r"Missing key.*names below 'model\.': prefix='model\.' removes it")
    theirs = type("", (Net,), {"from_pretrained": None})
    refused(theirs(), path, r"Missing.*`from_pretrained` within `weightmap\.compat\.patched", include="model.norm.*")


@pytest.mark.parametrize("wrong", [{"extra": np.ones(2)}, {"norm.weight": np.ones(5)}])
def test_a_model_of_transformers_has_a_loader_that_fits_names_and_shapes(net, tmp_path, wrong):
    _, path = net
    wm.save(tmp_path / "wrong.safetensors", load_file(path) | wrong)
    theirs = type("", (Net,), {"from_pretrained": None})()
    words = r"`from_pretrained` within `weightmap\.compat\.patched\(\)` renames, joins, transposes and unties tensors"
    refused(theirs, tmp_path / "wrong.safetensors", f"(Unexpected key|size mismatch).*; {words}")


def test_names_are_chosen_and_changed(training):
    module, path = training
    head = torch.nn.Linear(4, 8, bias=False)
    for rename in ({"head.weight": "weight"}, {"head.*": "*"}, lambda name: name.removeprefix("head.")):
        torch.nn.init.zeros_(head.weight)
        load_into(head, path, prefix="model.", include=["model.head.*"], rename=rename)
        assert torch.equal(head.weight, module.head.weight)
    for words, options in {
        r"include is 'head\.\*', which matches none of \d+ tensors": {"include": "head.*"},
        r"rename has 'hat', the name of none of": {"rename": {"hat": "weight"}},
        r"rename has 'hat\*', the name of none of": {"rename": {"model.*": "*", "hat*": "*"}},
        r"tensors 'model\.embed\.weight' and 'model\.norm\.weight' are both called 'w'": {
            "include": ["model.embed.weight", "model.norm.weight"],
            "rename": lambda _: "w",
        },
    }.items():
        refused(head, path, words, **options)
    for wrong in ({"prefix": 1}, {"include": 1}, {"rename": 1}, {"rename": lambda _: 1}):
        with pytest.raises(TypeError):
            load_into(head, path, **wrong)


@pytest.mark.parametrize("include", [[], "model.norm.*"])
def test_what_is_not_read_is_missing(training, include):
    _, path = training
    result = load_into(Net(), path, prefix="" if include == [] else "model.", include=include, strict=False)
    assert "embed.weight" in result.missing_keys
    assert result.unexpected_keys == []
