"""Rules of every function: `threads` below 1 is a ValueError, fewer are enough, an empty `include` selects nothing."""

import hashlib
import inspect
import threading

import numpy as np
import pytest

import weightmap as wm
from weightmap import kernels

VALUES = np.linspace(-1, 1, 64, dtype=np.float32)
BLOCKS = {
    "int4": kernels.quantize_int4(VALUES, 32),
    "int5": kernels.quantize_int5(VALUES, 32),
    "adaptive": wm.quantize(VALUES, "adaptive").payload,
}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.amb"
    wm.save(path, {"w": VALUES, "q": wm.quantize(VALUES, "int4_block")})
    return path


def words(path):
    wm.save(path.with_suffix(".fifu"), {"embeddings": np.ones((2, 8), np.float32)}, vocab=["a", "b"])
    return wm.open(path.with_suffix(".fifu")).embeddings


FUNCTIONS = {
    "convert": lambda path, **how: wm.convert(path, path.with_suffix(".gguf"), **how),
    "verify": wm.verify,
    "quantize": lambda _, **how: wm.quantize(VALUES, "int4_block", **how),
    "quantize q4_0": lambda _, **how: wm.quantize(VALUES, "q4_0", **how),
    "f.read": lambda path, **how: wm.open(path).read("w", **how),
    "f.read quantised": lambda path, **how: wm.open(path).read("q", **how),
    "f.verify": lambda path, **how: wm.open(path).verify(**how),
    "f.pool": lambda path, **how: wm.open(path).pool(1 << 20, **how),
    "f.weights.read": lambda path, **how: wm.open(path).weights.read("q", **how),
    "dequantize": lambda path, **how: wm.open(path)["q"].dequantize(**how),
    "plan.warm": lambda path, **how: wm.plan(path).warm(**how),
    "publish": lambda path, **how: wm.deltas.publish(path, path, path.parent / "versions", version=1, **how),
    "apply": lambda path, **how: wm.deltas.apply(path, path.parent / "versions", **how),
    "pull": lambda path, **how: wm.deltas.pull(path.parent / "local", path.parent / "versions", base=path, **how),
    "words.convert": lambda path, **how: wm.words.convert(path, path.with_suffix(".fifu"), **how),
    "batch": lambda path, **how: words(path).batch(["a"], **how),
    "Staging": lambda _, **how: wm.device.Staging(**how).checked(),
    "crc32": lambda _, **how: kernels.crc32(b"abc", 0, **how),
    "f16_to_f32": lambda _, **how: kernels.f16_to_f32(VALUES.astype(np.float16), **how),
    "bf16_to_f32": lambda _, **how: kernels.bf16_to_f32(VALUES.view(np.uint16), **how),
    "dequantize_int4": lambda _, **how: kernels.dequantize_int4(BLOCKS["int4"], 64, 32, **how),
    "dequantize_int5": lambda _, **how: kernels.dequantize_int5(BLOCKS["int5"], 64, 32, **how),
    "quantize_int4": lambda _, **how: kernels.quantize_int4(VALUES, 32, **how),
    "quantize_int5": lambda _, **how: kernels.quantize_int5(VALUES, 32, **how),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("threads", [0, -1, -(2**70)])
def test_threads_below_1(name, threads, model):
    with pytest.raises(ValueError, match=rf"threads is {threads}, expected (1 or more|at least 1)"):
        FUNCTIONS[name](model, threads=threads)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_process_that_gets_no_more_threads(tmp_path, monkeypatch, left):
    """Those that there are do the work, and the caller the rest: reading, opening and verifying against digests."""
    tensors = {name: np.arange(3 << 20, dtype=np.float32) + ord(name) for name in "abcd"}
    wm.save(f"{tmp_path}/", tensors, format="safetensors", max_shard_size="12MB")
    trust = {path.name: f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in tmp_path.iterdir()}
    start, started = threading.Thread.start, []

    def refuse(thread):
        if len(started) == left:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with wm.open(tmp_path, trust=trust) as f:
        assert (len(started), len(f.shards)) == (left, 4)
        for name, expected in tensors.items():
            started.clear()
            np.testing.assert_array_equal(f.read(name, threads=3), expected)
            assert len(started) == left
        started.clear()
        assert "SHA-256 of 5 files as given" in wm.verify(f, threads=3).scope


def test_every_kernel_with_threads_is_listed():
    taking = [name for name in kernels.__all__ if "threads" in inspect.signature(getattr(kernels, name)).parameters]
    assert set(taking) <= FUNCTIONS.keys()


def test_an_empty_include_selects_nothing(model, tmp_path):
    for options in ({"include": []}, {"quantize": wm.Quantize("q4_0", include=[])}):
        with pytest.raises(wm.EncodeError):
            wm.convert(model, tmp_path / "out.gguf", **options)
    assert not (tmp_path / "out.gguf").exists()
    assert wm.words.Pq(include=[]).include == ()
    assert list(wm.plan(model, []).run()) == []
