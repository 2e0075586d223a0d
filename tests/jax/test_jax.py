"""Arrays of jax over files and on their way into them. Skipped where jax is not installed."""

import ml_dtypes
import numpy as np
import pytest
from tests.builders import safetensors as safe
from tests.builders import torch as files
from tests.support import address, run_child

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

import weightmap as wm  # noqa: E402 - nothing here makes sense without jax
from weightmap import compat  # noqa: E402
from weightmap.jax import load_file, to_jax  # noqa: E402

NAMES = ["bfloat16", "float16", "float32", "int8", "bool", "float8_e4m3fn"]


def typed(name, count=64):
    return (np.arange(count) % 2 if name == "bool" else np.arange(count)).astype(getattr(ml_dtypes, name, name))


@pytest.mark.parametrize("name", NAMES)
def test_save_takes_arrays_of_jax(tmp_path, name):
    expected = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name, name))
    wm.save(tmp_path / "m.safetensors", {"w": jnp.asarray(expected), "t": jnp.asarray(expected).T})
    with wm.open(tmp_path / "m.safetensors") as file:
        assert file["w"].dtype == expected.dtype
        assert file["w"].tobytes() == expected.tobytes()
        assert file["t"].tobytes() == expected.T.tobytes()


@pytest.mark.parametrize("mode", ["mmap", "cow", "copy"])
@pytest.mark.parametrize("name", [*NAMES, "uint16", "complex64", "float8_e5m2", "float8_e8m0fnu"])
def test_aligned_tensors_are_shared(tmp_path, name, mode):
    """On the CPU an array of jax is the memory of the file, in every mode, and outlives the handle."""
    expected = typed(name)
    wm.save(tmp_path / "m.weights", {"pad": np.zeros(3, np.int8), "w": expected.view(np.uint8)})
    with wm.open(tmp_path / "m.weights", mode=mode) as file:
        array = file["w"].view(expected.dtype)
        shared = to_jax(array)
    assert address(array) % 64 == 0
    assert shared.unsafe_buffer_pointer() == address(array)
    del array, file
    assert shared.dtype == expected.dtype
    assert np.asarray(shared).tobytes() == expected.tobytes()


def test_other_tensors_are_copied(tmp_path):
    base = np.arange(200, dtype=np.uint8)
    q = wm.quantize(np.ones((2, 32), np.float32), "int8")
    for array in (base[1:129].view(np.float32), base[::-2], np.arange(6, dtype=">i4"), np.array(3.5, np.float32)):
        assert np.asarray(to_jax(array)).tolist() == array.tolist()
    np.testing.assert_array_equal(np.asarray(to_jax(q)), np.asarray(q))


def test_files_are_loaded_whole(tmp_path):
    q = wm.quantize(np.ones((2, 32), np.float32), "int8")
    wm.save(tmp_path / "m.amb", {"d": np.arange(6, dtype=np.float32).reshape(2, 3), "q": q})
    tensors = load_file(tmp_path / "m.amb")
    assert list(tensors) == ["d", "q"]
    assert tensors["d"].tolist() == [[0, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(np.asarray(tensors["q"]), np.asarray(q))


def test_an_expanded_tensor_is_not_copied(tmp_path):
    """A number that stands for 4 TiB is a LimitError, of load_file and of compat."""
    shape = (1 << 20, 1 << 20)
    stored = files.Stored("0", "float32", 1, 0, shape, (0, 0))
    path = tmp_path / "a.pt"
    path.write_bytes(files.zipped(files.dump({"w": stored}), {"0": np.float32(1).tobytes()}))
    on_all = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for load in (load_file, lambda path: load_file(path, on_all), compat.flax.load_file):
        with pytest.raises(wm.LimitError, match="size of tensor 'w'"):
            load(path)


def test_packed_elements_of_a_store_are_their_bytes(monkeypatch):
    """As in a file: in both, indices of elements do not fit the array."""
    data = safe.raw(b'{"w":{"dtype":"F4","shape":[4,8],"data_offsets":[0,16]}}', bytes(range(16)))
    on_all = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with wm.open(data) as file:
        for remote in (False, True):
            monkeypatch.setattr("weightmap.jax.is_remote", lambda _, remote=remote: remote)
            assert load_file(file, on_all)["w"].tolist() == [*range(16)]


def test_a_misspelt_name_of_shardings_is_an_error(tmp_path):
    """Its tensor would silently go to jax's default place."""
    wm.save(tmp_path / "m.safetensors", {"weight": np.ones(2, np.float32), "bias": np.ones(2, np.float32)})
    on_all = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(wm.TensorNotFoundError, match=r"no tensor is called 'wieght' .*similar names: 'weight'"):
        load_file(tmp_path / "m.safetensors", {"bias": on_all, "wieght": on_all})
    assert [*load_file(tmp_path / "m.safetensors", {"bias": on_all})] == ["bias", "weight"]


# Eight devices need a new process, which gets the setting before it imports jax.
_SHARDED = """
import sys, json, numpy as np, jax, ml_dtypes
import weightmap as wm
from weightmap.jax import load_file, read_sharded
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 8
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
expected = {name: np.asarray(value) for name, value in wm.load(sys.argv[1]).items()}
asked = []
class Watched(np.ndarray):
    def __getitem__(self, index):
        part = super().__getitem__(index)
        asked.append(part.nbytes)
        return np.asarray(part)
class File:
    def __init__(self, file): self.file = file
    def __getitem__(self, name):
        value = self.file[name]
        return value.view(Watched) if isinstance(value, np.ndarray) else value
report = {}
with wm.open(sys.argv[1]) as file:
    for spec in (P(), P("x"), P(None, "y"), P("x", "y"), P(("x", "y")), P("y", None)):
        sharding = NamedSharding(mesh, spec)
        for name, values in expected.items():
            asked.clear()
            array = read_sharded(File(file), name, sharding)
            assert array.sharding == sharding and array.dtype == values.dtype
            assert np.asarray(array).tobytes() == values.tobytes()
            for shard in array.addressable_shards:
                assert np.asarray(shard.data).tobytes() == values[shard.index].tobytes()
            if asked:
                parts = [shard.data.nbytes for shard in array.addressable_shards]
                assert max(asked) == max(parts), (spec, asked)
                assert values.nbytes <= sum(asked) <= sum(parts)
one = NamedSharding(mesh, P("x"))
for given in (one, {"w": one}, lambda name: one if name == "w" else None):
    tensors = load_file(sys.argv[1], given)
    assert list(tensors) == list(expected)
    assert tensors["w"].sharding == one
    assert (tensors["b"].sharding == one) == (given is one)
print("done")
"""


def test_each_device_gets_its_slice_and_no_more_is_read(tmp_path):
    """Each of eight devices has the right part of an array, and the file is read for these parts alone."""
    wm.save(
        tmp_path / "m.amb",
        {
            "w": np.arange(64 * 32, dtype=np.float32).reshape(64, 32),
            "b": np.arange(16 * 8).reshape(16, 8).astype(np.float16),
            "q": wm.quantize(np.random.default_rng(1).standard_normal((16, 64)).astype(np.float32), "int8"),
        },
    )
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    assert run_child(_SHARDED, tmp_path / "m.amb", env=env).stdout == "done\n"


@pytest.mark.parametrize("wrong", [None, 5, "w", [1.0]])
def test_anything_but_an_array_is_named(wrong):
    with pytest.raises(
        TypeError, match=f"^array must be a numpy array or a QuantizedTensor, not {type(wrong).__name__}$"
    ):
        to_jax(wrong)
