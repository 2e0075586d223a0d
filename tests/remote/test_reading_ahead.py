"""Whole models from stores: every call that knows what comes next has several requests under way."""

import contextlib
import itertools
import threading
import time

import numpy as np
import pytest
from tests.checkpoints.checkpoints import awq
from tests.remote.servers import Objects, Server
from tests.support import HANG

import weightmap as wm
from weightmap import compat
from weightmap.conversion import tensors as conversions
from weightmap.core.bytes.open_source import open_source, path_of
from weightmap.core.model import internals as parts
from weightmap.remote import ahead
from weightmap.remote.remote import RemoteSource

KIB = 1 << 10
FLOATS = {f"layer.{i}.w": np.arange(64 * 256, dtype=np.float32).reshape(64, 256) + i for i in range(24)}
NBYTES = sum(array.nbytes for array in FLOATS.values())


@pytest.fixture
def objects(tmp_path, monkeypatch):
    """A store of one model, whose tensors are larger than a request."""
    monkeypatch.setattr(ahead, "REQUEST_BYTES", 48 * KIB)
    wm.save(tmp_path / "model.safetensors", FLOATS)
    return Objects({"m": (tmp_path / "model.safetensors").read_bytes()})


@pytest.fixture
def url(objects):
    with Server(objects) as server:
        yield server.url + "m"


def valued(url, _):
    """Iterate over the arrays alone."""
    with wm.open(url) as file:
        return dict(zip(file, file.values(), strict=True))


def converted(url, tmp, **options):
    """Convert to a format that orders tensors by other rules."""
    wm.convert(url, tmp / "new.bt", **options)
    return wm.load(tmp / "new.bt")


def compared(url, tmp):
    """Compare with a model that has the same tensors."""
    assert wm.diff(url, tmp / "model.safetensors").equal
    return FLOATS


def verified(url, _):
    wm.verify(url)
    return FLOATS


def prefetched(pool, wanted):
    """Prefetch, and wait until every read has begun: an earlier hold would read alone, and others again."""
    pool.prefetch(wanted)
    while any(entry.queued for entry in list(pool._entries.values())):
        time.sleep(1e-3)


def pooled(url, _):
    """Prefetch into a pool, and hold: entries of a tensor and the whole of it share bytes."""
    with wm.open(url) as file, file.pool(4 * NBYTES) as pool:
        prefetched(pool, [*file, ("layer.3.w", 5), ("layer.3.w", -1)])
        found = {}
        for name in reversed(list(file)):
            with pool.hold(name) as array, pool.hold("layer.3.w", 5) as row:
                found[name] = array.copy()
                np.testing.assert_array_equal(row, FLOATS["layer.3.w"][5])
        assert pool.stats.misses == 0
        return found


def pooled_weights(url, _):
    """Prefetch parameters into a pool, and hold them."""
    with wm.open(url) as file, file.pool(1 << 30) as pool:
        prefetched(pool, list(file.weights))
        found = []
        for name in file.weights:
            with pool.hold(name) as w:
                found.append((name, w.dequantize()))
        assert pool.stats.misses == 0
        return found


def into_torch(url, _):
    pytest.importorskip("torch")
    return {name: tensor.numpy() for name, tensor in wm.torch.load_file(url).items()}


def into_jax(url, _):
    """Load arrays of jax, one of them by a sharding."""
    jax = pytest.importorskip("jax")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    return {name: np.asarray(array) for name, array in wm.jax.load_file(url, {"layer.3.w": sharding}).items()}


CALLS = {
    "load": lambda url, _: wm.load(url),
    "items": lambda url, _: dict(wm.open(url).items()),
    "values": valued,
    "plan": lambda url, _: dict(wm.plan(url).run()),
    "pool": pooled,
    "compat.load_file": lambda url, _: compat.load_file(url),
    "compat.load_file, pread": lambda url, _: compat.load_file(url, backend="pread"),
    "convert": converted,
    "convert, renamed": lambda url, tmp: {
        name.replace("z", "layer"): array
        for name, array in converted(url, tmp, rename=lambda name: name.replace("layer", "z")).items()
    },
    "torch.load_file": into_torch,
    "jax.load_file": into_jax,
    "diff": compared,
    "verify": verified,
}


@contextlib.contextmanager
def together(count, objects, *, first):
    """Let this many requests after the first ones wait for each other: they fail if a caller has fewer."""
    barrier, numbers = threading.Barrier(count), itertools.count()

    def enter():
        if first <= next(numbers) < first + count:
            barrier.wait(HANG)

    objects.entered = enter
    yield
    assert next(numbers) >= first + count
    assert not barrier.broken


@pytest.mark.parametrize("call", CALLS)
def test_several_requests_are_under_way(call, objects, url, tmp_path):
    """Behind the first request, which opens the model, three wait for each other; each byte is asked for once."""
    with together(3, objects, first=1):
        found = CALLS[call](url, tmp_path)
    assert found.keys() == FLOATS.keys()
    assert all(np.array_equal(found[name], array) for name, array in FLOATS.items())
    assert objects.nbytes <= NBYTES + 40 * KIB
    assert len(objects.requests) <= 2 + NBYTES / (48 * KIB)


QUANTISED = {
    "items": lambda url, _: [(name, w.dequantize()) for name, w in wm.open(url).weights.items()],
    "values": lambda url, _: [w.dequantize() for w in wm.open(url).weights.values()],
    "plan": lambda url, _: list(wm.plan(wm.open(url).weights).run()),
    "convert": lambda url, tmp: converted(wm.open(url).weights, tmp).items(),
    "pool": pooled_weights,
    "diff": lambda url, tmp: wm.diff(wm.open(url).weights, wm.open(tmp / "model.safetensors").weights).equal,
}


@pytest.mark.parametrize("call", QUANTISED)
def test_the_pieces_of_parameters_are_requested_ahead(call, tmp_path, monkeypatch):
    """Pieces of a parameter lie apart; those of several parameters are under way at once, and each byte comes once."""
    monkeypatch.setattr(ahead, "REQUEST_BYTES", 48 * KIB)
    monkeypatch.setattr(parts, "BETWEEN", 0)
    monkeypatch.setattr(conversions, "BETWEEN", 0)
    checkpoint = awq(columns=4096)
    tensors = {
        f"layers.{i}.{name}": array + np.array(i, array.dtype)
        for name, array in checkpoint.tensors.items()
        for i in range(12)
    }
    checkpoint.tensors = tensors
    path = checkpoint.write(tmp_path)
    objects = Objects({"m": path.read_bytes(), "config.json": (tmp_path / "config.json").read_bytes()})
    with Server(objects) as server, together(3, objects, first=3):
        found = QUANTISED[call](server.url + "m", tmp_path)
    if call != "diff":
        with wm.open(path) as file:
            values = {name: w.dequantize().tobytes() for name, w in file.weights.items()}
        if call == "values":
            assert [w.tobytes() for w in found] == list(values.values())
        else:
            assert {name: np.asarray(w).tobytes() for name, w in found} == values
    assert found
    assert objects.nbytes <= len(objects.objects["m"]) + 60 * KIB


@pytest.mark.parametrize(
    ("order", "again"),
    [([0, 1, 2, 3], 0), ([0, 3], 0), ([2, 0], 1), ([1, 1, 2], 1)],
    ids=["in order", "some are left out", "one before", "one twice"],
)
def test_ranges_are_read_in_any_order(order, again, objects, url):
    """Skipped ranges are given up, and late ones are requested again: every order gives the right bytes."""
    ranges = [(begin, begin + 20 * KIB) for begin in range(100 * KIB, 500 * KIB, 100 * KIB)]
    data = objects.objects["m"]
    source = open_source(url, path_of(url), "mmap").ahead(ranges)
    for number in order:
        begin, end = ranges[number]
        assert source.pread(begin, end - begin) == data[begin:end]
    assert len(objects.requests) <= 1 + len(ranges) + again


@pytest.mark.parametrize("call", ["load", "items", "plan", "compat.load_file"])
def test_arrays_are_received_in_their_own_memory(call, objects, url, tmp_path, monkeypatch):
    """Bytes go from the connection to the arrays: only those that came with the header are copied."""
    copied, fill = list[int](), RemoteSource.fill

    def filled(self, begin, target):
        copied.append(len(target))
        fill(self, begin, target)

    monkeypatch.setattr(RemoteSource, "fill", filled)
    found = CALLS[call](url, tmp_path)
    assert all(np.array_equal(found[name], array) for name, array in FLOATS.items())
    assert sum(copied) <= 64 * KIB
    assert all(array.ctypes.data % 64 == 0 for array in found.values() if array.base is not None)


@pytest.mark.parametrize("suffix", [".amb", ".npz"])
def test_headers_are_asked_for_at_once(suffix, objects, url, tmp_path):
    """A format with a header before every tensor opens in four rounds: the last has the headers of all others."""
    tensors = {f"layer.{i}.w": np.full(40 * KIB, i, np.float32) for i in range(24)}
    if suffix == ".npz":
        np.savez(tmp_path / "model.npz", **tensors)
    else:
        wm.save(tmp_path / "model.amb", tensors)
    objects.objects["m"] = (tmp_path / f"model{suffix}").read_bytes()
    with together(20, objects, first=3):  # the tail of an .npz is two requests of 48 KiB at most
        assert wm.open(url).keys() == tensors.keys()
    assert len(objects.requests) <= 5 + len(tensors)
    assert objects.nbytes <= len(tensors) * 17 * KIB + 3 * 64 * KIB


def test_headers_of_unequal_tensors_are_read_by_windows(objects, url, tmp_path):
    """Behind small tensors the next headers come with the same 64 KiB; behind a large one, by another request."""
    tensors = {f"layer.{i}.{n}": np.zeros(n * KIB, np.int8) for i in range(12) for n in (1, 100 + i, 2, 3, 5)}
    wm.save(tmp_path / "model.amb", tensors)
    objects.objects["m"] = (tmp_path / "model.amb").read_bytes()
    assert wm.open(url).keys() == tensors.keys()
    assert len(objects.requests) <= 1 + 2 * 12
    assert objects.nbytes <= 2 * 12 * 64 * KIB


def in_a_folder(shards, objects, tmp_path):
    """Put the model into a folder of the store too, in this many files."""
    if shards > 1:
        each = -(-NBYTES // shards) + 4 * KIB
        wm.convert(tmp_path / "model.safetensors", f"{tmp_path}/several/", max_shard_size=each)
        objects.objects |= {f"folder/{path.name}": path.read_bytes() for path in (tmp_path / "several").iterdir()}
    else:
        objects.objects["folder/model.safetensors"] = objects.objects["m"]


@pytest.mark.parametrize("shards", [1, 3])
def test_the_loader_of_vllm_takes_addresses(shards, objects, url, tmp_path):
    """A folder on a server that lists nothing: its index is found, and its files are read by plans."""
    pytest.importorskip("torch")
    from weightmap import vllm

    in_a_folder(shards, objects, tmp_path)
    files, _ = vllm.model_files(url.removesuffix("m") + "folder/")
    assert len(files) == shards
    objects.requests.clear()
    found = dict(vllm.tensors(files, vllm.ExtraConfig(), shared=False))
    assert all(np.array_equal(found[name].numpy(), array) for name, array in FLOATS.items())
    assert len(objects.requests) <= NBYTES / (48 * KIB) + 4 * shards
    assert sum(request.end - request.begin for request in objects.requests) <= NBYTES + shards * 40 * KIB
