"""Loading to a GPU: results, leftovers and failures. Skipped, visibly, without a GPU."""

import gc
import os
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU: make device-test", allow_module_level=True)

import weightmap as wm  # noqa: E402 - nothing here makes sense without torch
from weightmap import compat  # noqa: E402
from weightmap.core.quant.ggml import quantize_ggml  # noqa: E402
from weightmap.device import Staging, release_slots  # noqa: E402
from weightmap.torch import TorchBackend, load_file, load_into, to_device, to_torch  # noqa: E402
from weightmap.torch._device import load_plan  # noqa: E402

RNG = np.random.default_rng(3)
DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "uint32", "int32", "float32", "uint64", "int64",
    "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
SCHEMES = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive")
GGML = ("q4_0", "q8_0", "q4_k", "q6_k", "q5_0", "q2_k")
SMALL = Staging(2, 1 << 16)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A file of every dtype, and files of quantised tensors."""
    folder = tmp_path_factory.mktemp("gpu")
    base = RNG.integers(0, 2, (300, 77)).astype(np.float32)
    dense = {name: base.astype(getattr(ml_dtypes, name, name)) for name in DTYPES}
    wm.save(folder / "a.safetensors", dense)
    values = RNG.standard_normal((640, 512)).astype(np.float32)
    wm.save(folder / "a.amb", {scheme: wm.quantize(values, scheme) for scheme in SCHEMES})
    wm.save(folder / "a.gguf", {scheme: quantize_ggml(values, scheme) for scheme in GGML if scheme != "q2_k"})
    return [folder / f"a.{suffix}" for suffix in ("safetensors", "amb", "gguf")]


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).cpu()


@pytest.mark.parametrize("staging", [SMALL, None])
def test_every_dtype_and_scheme_is_that_of_the_cpu(models, staging):
    for path in models:
        with wm.open(path) as file:
            for index in (..., np.s_[3:200:7], np.s_[::-1, 5:9]):
                with wm.plan(file, dict.fromkeys(file, index)) as plan:
                    for name, got in load_plan(plan, "cuda", staging=staging):
                        value = file[name]
                        value = value if isinstance(value, np.ndarray) else value.dequantize()
                        assert got.device.type == "cuda"
                        assert torch.equal(bits(got), bits(to_torch(value[index], copy=True))), (name, index)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_are_changed_on_the_device(models, dtype):
    for path in models:
        here, there = load_file(path, dtype=dtype), load_file(path, "cuda", dtype=dtype)
        assert list(here) == list(there)
        for name, tensor in here.items():
            assert there[name].dtype == tensor.dtype
            assert torch.equal(bits(there[name]), bits(tensor)), name


def test_tensors_of_a_file_share_their_memory_and_nothing_else_is_kept(models):
    """The device has the tensors and the padding between them; the host, the pool."""
    load_file(models[0], "cuda")
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    tensors = load_file(models[0], "cuda")
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 1
    taken = torch.cuda.memory_allocated() - before
    assert taken <= sum(tensor.nbytes + 512 for tensor in tensors.values())
    del tensors
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_a_hundred_loads_leak_nothing(models):
    load_file(models[1], "cuda")
    gc.collect()
    before = torch.cuda.memory_allocated(), len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    for _ in range(100):
        load_file(models[1], "cuda")
    gc.collect()
    torch.cuda.synchronize()
    assert (
        torch.cuda.memory_allocated(),
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
    ) == before


class _Truncating(TorchBackend):
    """A backend that does something to the file before its second copy."""

    what = None
    copies = 0

    def copy(self, memory, buffer, at):
        type(self).copies += 1
        if self.copies == 2:
            self.what()
        super().copy(memory, buffer, at)


@pytest.mark.parametrize("error", [wm.TruncatedError, KeyboardInterrupt])
def test_a_load_that_ends_early_leaves_nothing(tmp_path, error):
    path = tmp_path / "a.safetensors"
    wm.save(path, {"w": np.zeros((1 << 20,), np.float32)})

    def interrupt(_):
        raise KeyboardInterrupt

    def truncate(_):
        os.truncate(path, 1000)

    backend = type("Backend", (_Truncating,), {"what": truncate if error is wm.TruncatedError else interrupt})("cuda")
    gc.collect()
    before = torch.cuda.memory_allocated()
    from weightmap.device import load

    with wm.plan(path) as plan, pytest.raises(error):
        list(load(plan, backend, staging=SMALL))
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert torch.equal(torch.ones(3, device="cuda").cpu(), torch.ones(3))  # the context lives


def test_no_memory_on_the_device_is_its_error_with_a_note(models, monkeypatch):
    monkeypatch.setattr(
        TorchBackend, "allocate", lambda self, _: torch.empty(1 << 50, dtype=torch.uint8, device=self.device)
    )
    with pytest.raises(torch.OutOfMemoryError) as caught:
        load_file(models[0], "cuda")
    assert "a.safetensors" in caught.value.__notes__[0]


def test_a_damaged_byte_is_found_before_a_tensor_is_handed_out(tmp_path):
    path = tmp_path / "a.weights"
    wm.save(path, {"w": np.zeros(100_000, np.float32)})
    data = bytearray(path.read_bytes())
    data[200_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(wm.ChecksumError):
        load_file(path, "cuda", verify=True)
    assert load_file(path, "cuda")["w"].any()


def test_ranks_get_their_slices(models):
    with wm.open(models[0]) as file:
        for dim in (0, 1):
            parts = []
            for rank in range(4):
                with wm.plan(file, {"float32": wm.shard("float32", dim, rank, 4)}) as plan:
                    parts.append(load_file(models[0], "cuda", plan=plan)["float32"])
            assert torch.equal(torch.cat(parts, dim).cpu(), to_torch(file["float32"]))


def test_modules_and_safe_open(models, tmp_path):
    path = tmp_path / "a.safetensors"
    values = {"weight": RNG.standard_normal((512, 700)).astype(np.float32), "bias": np.ones(512, np.float32)}
    wm.save(path, values)
    for layer in (torch.nn.Linear(700, 512, device="cuda"), torch.nn.Linear(700, 512, device="cuda").half()):
        load_into(layer, path)
        assert torch.equal(layer.weight.cpu(), torch.from_numpy(values["weight"]).to(layer.weight.dtype))
    load_into(layer := torch.nn.Linear(700, 512, device="cuda"), path, assign=True)
    assert torch.equal(layer.weight.cpu(), torch.from_numpy(values["weight"]))
    with compat.safe_open(path, "pt", device="cuda:0") as file:
        part = file.get_slice("weight")[5:9, ::-2]
        assert torch.equal(part.cpu(), torch.from_numpy(values["weight"][5:9, ::-2].copy()))
        assert torch.equal(file.get_tensors()["bias"].cpu(), torch.ones(512))
    assert torch.equal(to_device(values["weight"].T, "cuda").cpu(), torch.from_numpy(values["weight"].T.copy()))


def test_copies_come_after_what_the_user_asked_for(tmp_path):
    path = tmp_path / "a.safetensors"
    wm.save(path, {"weight": np.full((2048, 2048), 2, np.float32)})
    layer = torch.nn.Linear(2048, 2048, bias=False, device="cuda")
    with torch.no_grad():
        layer.weight.fill_(1)
        for _ in range(5):
            torch.cuda._sleep(50_000_000)
            before = layer.weight.sum()
            load_into(layer, path)
            after = layer.weight.sum()
            assert (before.item(), after.item()) == (2048 * 2048, 2 * 2048 * 2048)
            layer.weight.fill_(1)


def test_slots_are_pinned_once():
    release_slots()
    assert TorchBackend("cuda").pinned
    load = [to_device(np.arange(10), "cuda") for _ in range(3)]
    assert [tensor.tolist() for tensor in load] == [list(range(10))] * 3
    release_slots()
