"""`TensorFile.read`: every stored dtype as every wanted one, into arrays of any layout, in any number of threads."""

import os
import warnings

import ml_dtypes
import numpy as np
import pytest
from tests.builders import Tensor, noise
from tests.builders import bintensors as bt
from tests.builders import cnn_v2 as cnn
from tests.builders import safetensors as st
from tests.support import in_one_item

import weightmap as wm
from weightmap import kernels
from weightmap.core.bytes.source import Source

STORED = {name: noise(name, (4, 6), seed) for seed, name in enumerate(bt.NAMES)}
# float16 and float32, the targets of kernels, in both byte orders; one dtype of each other kind.
WANTED = [
    *(np.dtype(code) for code in ("<f4", ">f4", "<f2", "f8", "i1", ">i4", "u8", "?", "c8")),
    *(np.dtype(kind) for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)),
]
# The elements of a tensor for several threads, with a remainder: four parts of at least 4 MiB.
LARGE = 2**23 + 2**21 + 77


@pytest.fixture
def every_dtype():
    with wm.open(memoryview(bt.build(bt.ordered(STORED)))) as f, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of NaN that become integers
        yield f


def layouts(shape, dtype):
    rows, columns = shape
    return {
        "C order": np.zeros(shape, dtype),
        "Fortran order": np.zeros(shape, dtype, order="F"),
        "every second": np.zeros((rows, 2 * columns), dtype)[:, ::2],
        "backwards": np.zeros(shape, dtype)[::-1, ::-1],
        "odd address": np.ndarray(shape, dtype, bytearray(rows * columns * dtype.itemsize + 1), 1),
    }


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("kind", "default"), [("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("c8", "c8"), ("i8", "f4")])
def test_the_default_keeps_what_float32_cannot_hold(order, kind, default, tmp_path):
    values = np.array([1 / 3, -5], order + kind)
    np.save(tmp_path / "a.npy", values)
    with wm.open(tmp_path / "a.npy") as f:
        for got in (f.read(""), f.read("", None)):
            assert got.dtype.str == np.dtype(default).str
            assert got.tolist() == values.astype(default).tolist()


@pytest.mark.parametrize("stored", STORED)
@in_one_item("wanted", WANTED)
def test_every_dtype_as_every_other(stored, wanted, every_dtype):
    """The result of read, as a new array or into `out` in any layout, equals numpy's astype bit by bit.

    Except for NaN, which the kernels' contract makes quiet for every target.
    """
    expected = every_dtype[stored].astype(wanted)
    if stored == "float16" and wanted == np.float32:
        expected = kernels.f16_to_f32(every_dtype[stored])
    got = every_dtype.read(stored, wanted)
    assert (got.dtype, got.shape) == (wanted, expected.shape)
    assert got.tobytes() == expected.tobytes()
    for layout, out in layouts(expected.shape, wanted).items():
        assert every_dtype.read(stored, np.int8, out=out) is out, layout
        assert out.tobytes() == expected.tobytes(), layout


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_of_every_format_are_widened_by_the_kernels(dtype, put):
    """Every format that holds halves gives the bits of the kernels' contract, signalling NaN included."""
    convert = {"float16": kernels.f16_to_f32, "bfloat16": kernels.bf16_to_f32}[dtype]
    value = Tensor(dtype, (4, 4, 64, 64), np.arange(2**16, dtype="<u2").tobytes())
    files = [bt.build({"layer.0.weight": value}), st.build({"layer.0.weight": value})]
    files += [cnn.build([value])] * (dtype == "float16")
    for data in files:
        for source in (memoryview(data), put(data, "halves")):
            with wm.open(source) as f:
                got = f.read("layer.0.weight")
                assert got.tobytes() == convert(f["layer.0.weight"]).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16"])
def test_threads_share_a_large_tensor(dtype, put):
    bits = np.resize(np.arange(2**16, dtype="<u2") * 40503, LARGE)
    bits &= 0x3FFF  # no NaN
    tensors = {"codes": noise("float8_e5m2", (300,)), "large": Tensor(dtype, (LARGE,), bits.tobytes())}
    path = put(bt.build(tensors), "large.bt")
    with wm.open(path) as f:
        out, codes = f.read("large"), f.read("codes")
        assert np.array_equal(codes, f["codes"].astype(np.float32), equal_nan=True)
        assert np.array_equal(codes, f.read("codes"), equal_nan=True)
        expected = f["large"].astype(np.float32)
        assert np.array_equal(out, expected)
        for threads in (None, 1, 2, 3, 100, 2**40):
            out.fill(-1)
            assert f.read("large", out=out, threads=threads) is out
            assert np.array_equal(out, expected)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_became_shorter_is_an_error_in_any_thread(mapped, put, monkeypatch):
    """A file cut off after the first check of its size is an error from read, with threads too, not a crash."""
    path, checks, check = put(bt.build({"large": noise("float16", (LARGE,))}), "large.bt"), [], Source.check_unchanged
    with wm.open(path) as f:
        view = f["large"] if mapped else None
        monkeypatch.setattr(Source, "check_unchanged", lambda s: checks.append(check(s) if view is not None else s))
        f.read("large")
        assert len(checks) == (4 if mapped else 1)
        os.truncate(path, 2**22)
        for threads in (1, 4):
            with pytest.raises(wm.FileChangedError if mapped else wm.TruncatedError) as caught:
                f.read("large", threads=threads)
            assert caught.value.path == str(path)


def test_the_limit_is_on_allocated_bytes(every_dtype):
    """max_copy_bytes bounds the resulting array, which may be larger than the tensor in the file."""
    data = bt.build({"a": noise("uint8", (1000,))})
    with wm.open(memoryview(data), limits=wm.Limits(max_copy_bytes=1000)) as f:
        assert f.read("a", np.uint8).nbytes == 1000
        with pytest.raises(wm.LimitError, match="4000, expected at most 1000"):
            f.read("a")
        out = np.empty(1000, np.float32)
        assert f.read("a", out=out) is out
