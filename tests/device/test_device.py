"""Loading to a simulated device that works as late as it may: the results, the bytes read, and the ends."""

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from tests.checkpoints.checkpoints import awq
from tests.device_support import DECODED, FakeDevice, LateError, Ranks

import weightmap as wm
from weightmap.core.native import files
from weightmap.core.quant.ggml import quantize_ggml
from weightmap.device import Staging, _slots, load, release_slots

RNG = np.random.default_rng(20)
INTEGERS = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive")
BLOCKS = ("q4_0", "q8_0", "q4_k", "q6_k", "q5_0")
# Slots of a few pages, which divide tensors or hold several, and the default slots.
STAGINGS = [Staging(2, 1 << 14, 2), Staging(3, 1 << 16), None]


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


DENSE = {
    "matrix": numbers(300, 70),
    "half": numbers(33, 5).astype(np.float16),
    "brain": numbers(1001).astype(ml_dtypes.bfloat16),
    "codes": np.arange(7, dtype=np.int8),
    "wide": np.arange(5, dtype=np.int64),
    "none": np.zeros((0, 3), np.float32),
}
QUANTISED = {scheme: wm.quantize(numbers(64, 320), scheme) for scheme in INTEGERS}
# A partial last block, and a single scale for codes that do not fill whole bytes.
QUANTISED |= {f"odd {scheme}": wm.quantize(numbers(37, 43), scheme) for scheme in INTEGERS}
GGML = {scheme: quantize_ggml(numbers(8, 1024), scheme) for scheme in BLOCKS}
MODELS = {
    "a.safetensors": DENSE,
    "a.weights": {name: array for name, array in DENSE.items() if name != "wide"},
    "a.amb": {name: array for name, array in DENSE.items() if name not in {"wide", "none"}} | QUANTISED,
    "a.gguf": {"dense": DENSE["matrix"]} | GGML,
}


@pytest.fixture(autouse=True)
def _no_slots():
    release_slots()
    yield
    release_slots()
    _slots._lost.clear()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("device")
    for name, tensors in MODELS.items():
        wm.save(folder / name, tensors)
    return {name: folder / name for name in MODELS}


def as_on_the_host(value, dtype):
    array = value if isinstance(value, np.ndarray) else value.dequantize()
    floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(getattr(ml_dtypes, dtype, dtype)) if dtype and floating else array


def assert_same(got, expected):
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("staging", STAGINGS, ids=["16K", "64K", "default"])
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_arrives_as_it_is_on_the_host(models, name, dtype, staging):
    """Every type and scheme, in the type of the file and in others, through slots of any size; a buffer a file."""
    device = FakeDevice()
    with wm.open(models[name]) as file:
        got = dict(load(wm.plan(file), device, dtype=dtype, staging=staging, verify=True))
        assert tuple(got) == wm.plan(file).names
        for tensor in file:
            assert_same(got[tensor], as_on_the_host(file[tensor], dtype))
    assert device.idle
    assert device.count("allocate") == (2 if device.count("change") else 1)  # with one for changed tensors


@pytest.mark.parametrize("decodes", [DECODED, ()], ids=["there", "here"])
@pytest.mark.parametrize("name", ["a.amb", "a.gguf"])
def test_a_device_that_decodes_nothing_gets_decoded_tensors(models, name, decodes):
    """Quantised tensors go over packed if the device decodes them, otherwise as float32."""
    device = FakeDevice(decodes=decodes)
    with wm.plan(models[name]) as plan:
        got = dict(load(plan, device, staging=Staging(2, 1 << 16)))
        for tensor, value in plan.file.items():
            assert_same(got[tensor], as_on_the_host(value, None))
        schemes = {plan.file.info(tensor).dtype for tensor in plan.file}
    assert {entry[1] for entry in device.log if entry[0] == "change"} == schemes & set(decodes)


INDICES = [
    np.s_[3], np.s_[2:30:3], np.s_[::-1], np.s_[:, 5:9], np.s_[4:9, ::-7], np.s_[-1, 3], np.s_[..., 2], np.s_[5:5],
    np.s_[16:32], np.s_[1:3, 1:5],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_a_part_of_a_tensor_is_what_numpy_gives(models, index, dtype):
    """Slices, steps of either direction and integers, of dense and of quantised tensors, whole blocks or not."""
    wanted = {"a.amb": ["matrix", "half", *QUANTISED], "a.gguf": list(GGML)}
    for name, tensors in wanted.items():
        with wm.plan(models[name], dict.fromkeys(tensors, index)) as plan:
            got = dict(load(plan, FakeDevice(), dtype=dtype, staging=Staging(2, 1 << 14)))
            for tensor, value in got.items():
                key = index if isinstance(index, tuple) and ... in index else (*np.index_exp[index], ...)
                assert_same(value, as_on_the_host(np.asarray(plan.file[tensor])[key], dtype))


def test_a_model_of_several_files_has_a_buffer_for_each(tmp_path):
    """Shards come one after another, each in its own memory."""
    (tmp_path / "model").mkdir()
    wm.convert(
        _saved(tmp_path / "a.safetensors", DENSE), tmp_path / "model", format="safetensors", max_shard_size=60_000
    )
    device = FakeDevice()
    with wm.plan(tmp_path / "model") as plan:
        got = dict(load(plan, device))
        assert len(plan.file.shards) > 1
        assert device.count("allocate") == len(plan.file.shards)
    for name, value in got.items():
        assert_same(value, DENSE[name])


def _saved(path, tensors):
    wm.save(path, tensors)
    return path


def test_a_type_that_the_device_lacks_is_an_error_before_anything_is_read(tmp_path):
    """And names the file."""
    path = _saved(tmp_path / "a.safetensors", {"x": np.zeros(3)})
    device = FakeDevice()
    with wm.plan(path) as plan, pytest.raises(wm.UnsupportedError, match=r"a\.safetensors.*float64"):
        dict(load(plan, device))
    assert not device.count("allocate")


@pytest.fixture
def staged(monkeypatch):
    counted = []
    real = files.stage

    def stage(source, pieces, *args, **named):
        counted.append(int(pieces[2].sum()))
        return real(source, pieces, *args, **named)

    monkeypatch.setattr(files, "stage", stage)
    return counted


@pytest.mark.parametrize("dim", [0, 1])
def test_each_rank_gets_its_slices_and_reads_no_other_byte(tmp_path, staged, dim):
    tensors = {f"w{i}": numbers(64, 96) for i in range(3)}
    path = _saved(tmp_path / "a.safetensors", tensors)
    found = []
    for rank in range(4):
        with wm.plan(path, {name: wm.shard(name, dim, rank, 4) for name in tensors}) as plan:
            device = FakeDevice()
            found.append(dict(load(plan, device)))
            assert sum(size for what, size in _sized(device, "allocate")) == plan.wanted_nbytes
    assert sum(staged) == sum(array.nbytes for array in tensors.values())
    for name, array in tensors.items():
        assert_same(np.concatenate([part[name] for part in found], dim), array)


def _sized(device, what):
    return [entry for entry in device.log if entry[0] == what]


def on_ranks(path, ranks, devices, wants=None, **options):
    """The result of each rank, run in its own thread: a dict, or its error."""

    def one(exchange, device):
        with wm.plan(path, wants) as plan:
            try:
                return dict(load(plan, device, exchange=exchange, **options))
            except (RuntimeError, wm.TensorFileError) as error:
                return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks, devices))


@pytest.mark.parametrize("group", [None, 20_000])
@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_read_a_part_each_and_exchange_them(models, staged, name, count, group):
    """Together they read and send what one does alone, and each gets all. Quantised tensors are not divided."""
    devices, staging = [FakeDevice(f"fake:{rank}") for rank in range(count + 1)], Staging(2, 1 << 14)
    with wm.plan(models[name]) as plan:
        expected = dict(load(plan, devices[-1], group=group, staging=staging))
        largest = max(plan.file.info(tensor).nbytes for tensor in plan.names)
    alone = sum(staged)
    staged.clear()
    for found in on_ranks(models[name], Ranks.of(count), devices[:-1], group=group, staging=staging):
        assert list(found) == list(expected)
        for tensor, value in expected.items():
            assert_same(found[tensor], value)
    assert sum(staged) == alone
    sent = [sum(size for _, size in _sized(device, "copy")) for device in devices]
    assert abs(sum(sent[:-1]) - sent[-1]) <= 256 * 30
    assert max(sent[:-1]) <= sent[-1] / count + 2 * largest


@pytest.mark.parametrize("what", ["allocate", "copy", "event", "begin"])
@pytest.mark.parametrize("after", [0, 1])
def test_an_error_of_one_rank_is_one_of_all(models, what, after):
    """Nobody waits in vain, and nothing is left."""
    devices = [FakeDevice(f"fake:{rank}", **({what: after} if rank == 1 else {})) for rank in range(3)]
    found = on_ranks(models["a.safetensors"], Ranks.of(3), devices, group=30_000, staging=Staging(2, 1 << 14))
    if what == "begin" and after:
        return  # it is called once
    assert f"failed: {what}" in str(found[1])
    for other in (found[0], found[2]):
        assert isinstance(other, wm.PlanError)
        assert f"rank 1 could not read its part: RuntimeError('the device failed: {what}')" in str(other)
    del other, found
    gc.collect()
    assert [(device.idle, device.alive) for device in devices] == [(True, 0)] * 3


def test_groups_bound_the_memory_of_a_device(tmp_path):
    """The group in use, the next one, and the one that a loop's variable still holds."""
    path = _saved(tmp_path / "a.safetensors", {f"w{i}": numbers(1000 + 500 * (i == 2)) for i in range(7)})
    device = FakeDevice()
    with wm.plan(path) as plan:
        for _, tensor in load(plan, device, group=8192):
            assert tensor.nbytes
            assert device.alive <= 2
    sizes = [size for _, size in _sized(device, "allocate")]
    assert (len(sizes), max(sizes)) == (4, 8192)
    assert 2 * 8192 < device.peak <= 3 * 8192


@pytest.fixture
def parameters(tmp_path):
    """A quantised checkpoint: path, and the names and values of its parameters in the file's order."""
    checkpoint = awq()
    tensors = {
        f"layers.{i}.{name.rpartition('.')[2]}": array for i in range(4) for name, array in checkpoint.tensors.items()
    }
    checkpoint.tensors = tensors | {"norm.weight": numbers(50)}
    path = checkpoint.write(tmp_path)
    with wm.open(path) as file:
        weights = {name: np.array(as_on_the_host(weight, None)) for name, weight in file.weights.items()}
    return path, weights


@pytest.mark.parametrize(("together", "pieces"), [(None, 5), (2, 3), (9, 1)])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_parameters_arrive_decoded(parameters, together, pieces, dtype):
    """By default each has its own memory."""
    path, weights = parameters
    largest = max(weight.size for weight in weights.values()) * (4 if dtype else 2)
    group = None if together is None else together * largest
    device = FakeDevice()
    with wm.plan(wm.open(path).weights) as plan:
        found = dict(load(plan, device, dtype=dtype, group=group, staging=Staging(2, 1 << 14)))
    assert list(found) == list(weights)
    for name, weight in weights.items():
        assert_same(found[name], as_on_the_host(weight, dtype))
    assert device.count("allocate") == pieces + (device.count("change") > 0)


def test_a_slot_waits_for_the_copies_out_of_it(tmp_path, monkeypatch):
    """Refilling a slot before its event corrupts copies under way: the fake device sees it."""
    path = _saved(tmp_path / "a.safetensors", {"w": numbers(100_000)})
    with wm.plan(path) as plan:
        dict(load(plan, FakeDevice(), staging=Staging(2, 1 << 14)))
        monkeypatch.setattr("tests.device_support.Point.wait", lambda _: None)
        device = FakeDevice("other")
        with pytest.raises(LateError, match="before the copy from it was done"):
            dict(load(plan, device, staging=Staging(2, 1 << 14)))
        device.forget()


CALLS = ("allocate", "copy", "change", "event", "begin", "synchronize")


def ending(what):
    try:
        what()
    except (RuntimeError, KeyboardInterrupt) as error:
        return error
    return None


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("name", ["a.safetensors", "a.amb"])
def test_an_error_of_the_device_frees_everything(models, name, what, after):
    device = FakeDevice(**{what: after})
    staging = Staging(2, 1 << 14)
    handed = []
    with wm.plan(models[name]) as plan:
        error = ending(lambda: handed.extend(load(plan, device, staging=staging)))
        if error is None:
            assert device.fails[what] >= 0  # it was not called so often
        else:
            assert f"the device failed: {what}" in str(error)
            notes = " ".join(getattr(error, "__notes__", []))
            if what in {"copy", "change", "event"}:
                assert "tensor" in notes
                assert device.key in notes
            if what == "allocate" and not after:
                assert "bytes for" in notes
            assert not handed or what == "synchronize"  # when everything was there
        del error
        device.fails.clear()
        device.work()
        handed.clear()
        gc.collect()
        assert device.alive == 0
        assert dict(load(plan, device, staging=staging)).keys() == set(plan.names)
        gc.collect()
        assert len(device.pins) <= 2 + len(_slots._lost)
    release_slots()
    gc.collect()
    assert len(device.pins) == len(_slots._lost)


@pytest.mark.parametrize("what", ["allocate", "copy", "event", "change", "synchronize"])
@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("group", [None, 1])
def test_an_interrupted_load_leaves_nothing_under_way(models, what, after, group):
    device = FakeDevice()
    threads = threading.active_count()
    left = [after]

    def interrupt(called):
        if called == what:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt

    device.before = interrupt
    with wm.plan(models["a.amb"]) as plan:
        error = ending(lambda: dict(load(plan, device, group=group, staging=Staging(2, 1 << 14))))
    assert isinstance(error, KeyboardInterrupt) == (left[0] < 0)
    del error
    gc.collect()
    assert device.idle
    assert device.alive == 0
    assert threading.active_count() == threads
    assert sum(map(len, _slots._idle.values())) == len(device.pins) <= 2


@pytest.mark.parametrize("left", [0.0, 0.4, 0.9])
def test_a_file_that_is_truncated_meanwhile_is_an_error(tmp_path, left):
    path = _saved(tmp_path / "a.safetensors", {"w": numbers(200_000), "v": numbers(3)})
    device = FakeDevice()
    device.before = lambda what: os.truncate(path, int(left * path.stat().st_size)) if what == "copy" else None
    wrong = pytest.raises(wm.TruncatedError, match=r"a\.safetensors.*became shorter while tensor 'w'")
    with wm.plan(path) as plan, wrong:
        dict(load(plan, device, staging=Staging(2, 1 << 14)))
    gc.collect()
    assert device.idle
    assert device.alive == 0


def test_a_file_that_is_written_to_meanwhile_is_an_error(tmp_path):
    """Old and new bytes are never handed out together."""
    path = _saved(tmp_path / "a.safetensors", {"w": numbers(200_000)})
    device = FakeDevice()

    def write(what):
        if what == "event":
            with path.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"x")
            os.utime(path, ns=(1, 1))

    device.before = write
    with wm.plan(path) as plan, pytest.raises(wm.FileChangedError):
        dict(load(plan, device, staging=Staging(2, 1 << 14)))
    assert device.alive == 0


def _damaged(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


SUMMED = {"w": numbers(3000), "odd": np.arange(13, dtype=np.int8), "x": numbers(40, 50)}


@pytest.mark.parametrize("staging", STAGINGS, ids=["16K", "64K", "default"])
@pytest.mark.parametrize(("verify", "group"), [(True, None), (True, 1), ("last", 1)])
@pytest.mark.parametrize("where", ["w", "odd", "x"])
@pytest.mark.parametrize("name", ["a.weights", "a.npz"])
def test_a_damaged_byte_is_found_before_its_tensor_or_the_last(tmp_path, name, where, verify, group, staging):
    path = tmp_path / name
    np.savez(path, **SUMMED) if name == "a.npz" else wm.save(path, SUMMED)
    with wm.open(path) as file:
        info, names = file.info(where), list(file)
    with wm.plan(path) as plan:
        got = dict(load(plan, FakeDevice(), verify=verify, group=group, staging=staging))
        assert_same(got["x"], SUMMED["x"])
    _damaged(path, info.offset + info.nbytes // 2)
    device, handed = FakeDevice(), []
    with wm.plan(path) as plan, pytest.raises(wm.ChecksumError):
        handed.extend(name for name, _ in load(plan, device, verify=verify, group=group, staging=staging))
    last = 2 if verify == "last" else 0
    before = names.index(where) if name == "a.npz" and group else last  # an entry has its own checksum
    assert handed == names[:before]
    gc.collect()
    assert device.alive == 0
    with wm.plan(path) as plan:
        assert len(dict(load(plan, device))) == 3  # nobody asked
        with pytest.raises(ValueError, match="verify is 'full', expected True, False or 'last'"):
            dict(load(plan, device, verify="full"))
