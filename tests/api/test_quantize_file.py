"""Quantising from file to file, by threads that read, quantise and write: one file and one report, however many."""

import errno
import math
import os

import numpy as np
import pytest
from tests.builders import normal, tensor
from tests.builders import safetensors as st

import weightmap as wm
from weightmap.core.bytes import sink
from weightmap.core.native import quantised
from weightmap.core.native.access import Failed
from weightmap.core.native.quantised import BlockEncoder, Unwritten

DTYPES = ["float16", "bfloat16", "float32", "float64"]
STAGE = 1 << 14


@pytest.fixture(autouse=True)
def _small_stages(monkeypatch):
    monkeypatch.setattr(sink, "STAGE", STAGE)


def make(size, dtype):
    if dtype == "float64":
        return tensor(np.random.default_rng(size).standard_normal(size).reshape(1, -1))
    return normal((1, size), size, dtype)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("block_size", [24, 32, 4096, 16384])
def test_every_dtype_and_number_of_threads(put, tmp_path, block_size, threads):
    """Blocks that end within a stage, across its end and beyond: the bytes and errors are those of `quantize`."""
    model = {f"{dtype} {size}": make(size, dtype) for dtype in DTYPES for size in (1, 33, 40_001, 170_000)}
    source = put(st.build(model), "m.safetensors")
    report = wm.convert(
        source, tmp_path / "q.amb", quantize=wm.Quantize("int5_block", block_size=block_size), threads=threads
    )
    for info in report.quantized:
        values = np.asarray(model[info.name].array, np.float32)
        expected = wm.quantize(values, "int5_block", block_size=block_size)
        with wm.open(tmp_path / "q.amb") as file:
            assert file[info.name].payload.tobytes() == expected.payload.tobytes(), info.name
        error = expected.dequantize(np.float64) - values
        assert info.rmse == pytest.approx(math.sqrt(np.square(error).mean()), rel=1e-6)


def test_a_tensor_that_is_not_row_major(tmp_path):
    value = np.asfortranarray(np.random.default_rng(1).standard_normal((300, 400)).astype(np.float16))
    np.save(tmp_path / "a.npy", value)
    wm.convert(tmp_path / "a.npy", tmp_path / "q.amb", quantize="int4_block", threads=2)
    with wm.open(tmp_path / "q.amb") as file:
        [name] = file
        expected = wm.quantize(np.ascontiguousarray(value), "int4_block").payload.tobytes()
        assert file[name].payload.tobytes() == expected


def test_errors_of_reading_and_writing(tmp_path):
    """The encoder says what failed, where, and with which error of the system; the lowest of several."""
    data = np.random.default_rng(1).standard_normal(200_000).astype(np.float32)
    (tmp_path / "numbers").write_bytes(data.tobytes())
    (tmp_path / "closed").write_bytes(b"")
    encoder, out = BlockEncoder(-1, threads=2), memoryview(bytearray(200_000 // 32 * 18))
    reader, writer = os.open(tmp_path / "numbers", os.O_RDONLY), os.open(tmp_path / "closed", os.O_RDONLY)
    whole = BlockEncoder(-1)
    try:
        whole(reader, 0, "float32", len(data), out)
        assert bytes(out) == quantised.encode_blocks(data, bits=4, block_size=32).tobytes()
        with pytest.raises(Failed) as caught:
            encoder(reader, 400_004, "float32", len(data), out)
        assert (caught.value.what, caught.value.at, caught.value.error) == ("read", 800_000, 0)
        with pytest.raises(Failed) as caught:
            encoder(writer + 100, 0, "float32", len(data), out)
        assert (caught.value.what, caught.value.at, caught.value.error) == ("read", 0, errno.EBADF)
        with pytest.raises(Failed) as caught:
            encoder(reader, 0, "float32", len(data), out, Unwritten(writer, memoryview(b"x"), 0, flush=True))
        assert (caught.value.what, caught.value.error) == ("write", errno.EBADF)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_full_disk_is_an_error_of_the_target(put, tmp_path, monkeypatch):
    source = put(st.build({"w": normal((64, 10_000), 1)}), "m.safetensors")
    (tmp_path / "q.amb").write_bytes(b"before")

    def fail(*_):
        raise Failed("write", 0, errno.ENOSPC)

    monkeypatch.setattr(BlockEncoder, "__call__", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        wm.convert(source, tmp_path / "q.amb", quantize="int4_block")
    assert caught.value.filename == str(tmp_path / "q.amb")
    assert (tmp_path / "q.amb").read_bytes() == b"before"
