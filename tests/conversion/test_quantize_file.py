"""Quantising from file to file, by threads that read, quantise and write: one file and one report, however many."""

import errno
import math
import os

import numpy as np
import pytest
from tests.builders import normal, tensor
from tests.builders import safetensors as st

import weightmap as wm
from weightmap.core.bytes import memory, sink
from weightmap.core.native.access import Failed
from weightmap.core.native.quantised import BlockEncoder

DTYPES = ["float16", "bfloat16", "float32", "float64"]
STAGE = 1 << 14


@pytest.fixture(autouse=True)
def _small_stages(monkeypatch):
    monkeypatch.setattr(sink, "STAGE", STAGE)


def make(size, dtype):
    if dtype == "float64":
        return tensor(np.random.default_rng(size).standard_normal(size).reshape(1, -1))
    return normal((1, size), size, dtype)


def check(report, model, scheme, **options):
    """Compare bytes and errors of all tensors of a file with `quantize`'s."""
    for info in report.quantized:
        values = np.asarray(model[info.name].array, np.float32)
        expected = wm.quantize(values, scheme, **options)
        with wm.open(report.dst) as file:
            assert file[info.name].payload.tobytes() == expected.payload.tobytes(), info.name
        if values.size:
            error = expected.dequantize(np.float64) - values
            assert info.rmse == pytest.approx(math.sqrt(np.square(error).mean()), rel=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("block_size", [24, 32, 4096, 16384])
def test_every_dtype_and_number_of_threads(put, tmp_path, block_size, threads):
    """Blocks that end within a stage, across its end and beyond: bytes and errors equal `quantize`'s."""
    model = {f"{dtype} {size}": make(size, dtype) for dtype in DTYPES for size in (1, 33, 40_001, 170_000)}
    source = put(st.build(model), "m.safetensors")
    report = wm.convert(
        source, tmp_path / "q.amb", quantize=wm.Quantize("int5_block", block_size=block_size), threads=threads
    )
    check(report, model, "int5_block", block_size=block_size)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("scheme", ["int8", "int4", "int5"])
def test_one_scale_from_windows_of_a_file(put, tmp_path, scheme):
    """One scale for a tensor of any size: bytes and errors equal the whole array's."""
    sizes = (0, 1, 255, 257, 40_001, 65_536, 65_537, 300_000)
    model = {f"{dtype} {size}": make(size, dtype) for dtype in DTYPES for size in sizes}
    source = put(st.build(model), "m.safetensors")
    check(wm.convert(source, tmp_path / "q.amb", quantize=scheme), model, scheme)


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fails", [False, True], ids=["", "no room for a temporary file"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_adaptive_in_a_temporary_file(put, tmp_path, monkeypatch, dtype, fails):
    monkeypatch.setattr(memory, "_MAX_ANONYMOUS", 1000)
    if fails:
        monkeypatch.setattr(memory, "_temporary_file", no_room)
    model = {str(size): make(size, dtype) for size in (0, 1, 40_001, 300_000)}
    wm.convert(put(st.build(model), "m.safetensors"), tmp_path / "q.amb", quantize="adaptive")
    with wm.open(tmp_path / "q.amb") as file:
        for name, value in model.items():
            expected = wm.quantize(np.asarray(value.array, np.float32), "adaptive")
            assert file[name].payload.tobytes() == expected.payload.tobytes()


@pytest.mark.parametrize("at", [0, 65_536, 150_000, 299_998])
@pytest.mark.parametrize("scheme", ["adaptive", "int5"])
def test_the_first_number_that_is_not_finite(put, tmp_path, scheme, at):
    values = np.zeros((1, 300_000), np.float32)
    values[0, [at, 299_999]] = np.nan, np.inf
    source = put(st.build({"w": tensor(values)}), "m.safetensors")
    with pytest.raises(wm.QuantError, match=rf"'w'.*element {at} .*nan"):
        wm.convert(source, tmp_path / "q.amb", quantize=scheme)


@pytest.mark.parametrize("method", ["search_scale", "__call__"])
def test_one_scale_of_a_file_that_is_cut_off(put, tmp_path, monkeypatch, method):
    """Both if the search and if the writing of codes meets the new end of the file."""
    source = put(st.build({"w": normal((1, 300_000), 1)}), "m.safetensors")
    how, before = wm.Quantize("int8"), getattr(BlockEncoder, method)

    def cut(*arguments):
        os.truncate(source, 500_000)
        return before(*arguments)

    monkeypatch.setattr(BlockEncoder, method, cut)
    with pytest.raises(wm.TruncatedError, match="500000"):
        wm.convert(source, tmp_path / "q.amb", quantize=how)


def test_a_full_disk_is_an_error_of_the_target(put, tmp_path, monkeypatch):
    source = put(st.build({"w": normal((64, 10_000), 1)}), "m.safetensors")
    (tmp_path / "q.amb").write_bytes(b"before")

    def fail(*_):
        raise Failed("write", 0, errno.ENOSPC)

    how = wm.Quantize("int4_block")
    monkeypatch.setattr(BlockEncoder, "__call__", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        wm.convert(source, tmp_path / "q.amb", quantize=how)
    assert caught.value.filename == str(tmp_path / "q.amb")
    assert (tmp_path / "q.amb").read_bytes() == b"before"
