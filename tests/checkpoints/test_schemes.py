"""Every scheme of quantised checkpoints: values equal to the bit, of ground truth and of files made here."""

import json
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.checkpoints.checkpoints import EXAMPLES
from tests.support import in_one_item

import weightmap as wm
from weightmap.core.quant.blocks import decode_range

TRUTH = Path(__file__).parent / "groundtruth"
MODELS = sorted(path.parent.name for path in TRUTH.glob("*/expected.json"))
DAMAGED = sorted(path.parent.name for path in TRUTH.glob("malformed/*/verdict.json"))


def bits(array):
    """The bits of an array, for comparison: NaN and the sign of zero count."""
    return array.view(f"u{array.dtype.itemsize}")


def same(a, b):
    assert a.shape == b.shape
    np.testing.assert_array_equal(bits(np.ascontiguousarray(a)), bits(np.ascontiguousarray(b)))


@pytest.mark.parametrize("model", MODELS)
def test_ground_truth(model):
    """Names, types, pieces and values equal those of the scheme's own library."""
    expected = json.loads((TRUTH / model / "expected.json").read_text(encoding="utf-8"))
    with wm.open(TRUTH / model) as f, np.load(TRUTH / model / "expected.npz") as values:
        assert set(f.weights) == {*expected["unquantised"], *(about["name"] for about in expected["weights"])}
        for name in expected["unquantised"]:
            assert f.weights[name].dtype == f[name].dtype
            assert np.shares_memory(f.weights[name], f[name])
        for about in expected["weights"]:
            w = f.weights[about["name"]]
            assert isinstance(w, wm.QuantizedTensor)
            assert (list(w.shape), w.dtype.name, sorted(w.pieces)) == (about["shape"], about["dtype"], about["pieces"])
            assert all(np.shares_memory(w.pieces[name], f[name]) for name in about["pieces"] if f[name].size)
            wanted = values[about["values"]].view(w.dtype)
            same(w.dequantize(), wanted)
            same(np.asarray(w), wanted)
            for rows in (slice(0, 1), slice(1, 7), slice(3, None), 2, [5 % len(w), 1]):
                same(w[rows], wanted[rows])
            same(w.dequantize("float32").astype(w.dtype), wanted)


@pytest.mark.parametrize("model", DAMAGED)
def test_ground_truth_refused(model):
    """Damaged models are refused by name, and their stored tensors stay readable."""
    verdict = json.loads((TRUTH / "malformed" / model / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["verdict"] == "reject"
    with wm.open(TRUTH / "malformed" / model) as f:
        with pytest.raises(wm.FormatError) as raised:
            dict(f.weights)
        assert all(name in str(raised.value) for name in verdict["names"])
        assert len(dict(f)) == len(f)


@in_one_item("name", EXAMPLES)
def test_examples(tmp_path, name):
    """Values, rows, types and copies of every example follow its formula, in float32."""
    example = EXAMPLES[name]()
    with wm.open(example.write(tmp_path / name)) as f:
        assert list(f.weights) == [example.name]
        w = f.weights[example.name]
    wanted = example.values
    assert w.dtype.name == ("float16" if example.dtype == "auto" else example.dtype)
    assert w.shape == wanted.shape
    assert set(w.pieces) == set(example.tensors)
    assert w.nbytes == sum(array.nbytes for array in example.tensors.values())
    same(w.dequantize("float32"), wanted)
    with np.errstate(over="ignore"):
        for dtype in (np.float16, ml_dtypes.bfloat16):
            same(w.dequantize(dtype), wanted.astype(dtype))
        own = wanted.astype(w.dtype)
    for rows in (slice(0, 1), slice(1, 3), slice(2, None, 2), slice(5, 2), -1, [2, 0, 2], (slice(1, 3), 5)):
        same(w[rows], own[rows])
    for out in (np.empty(wanted.shape, w.dtype), np.empty(wanted.shape[::-1], w.dtype).T):
        assert w.dequantize(out=out, threads=2) is out
        same(out, own)
    assert name != "gpt-oss" or w.dequantize().swapaxes(1, 2).flags.c_contiguous  # as it is stored
    same(decode_range(w, 3, 17), wanted.reshape(-1)[3:17])
    same(pickle.loads(pickle.dumps(w)).dequantize(), own)


def test_special_scales(tmp_path):
    """Exponent 255 is NaN, exponent 0 a subnormal number; -0 stays -0."""
    example = EXAMPLES["mxfp4"]()
    scales = next(array for name, array in example.tensors.items() if name.endswith("scale"))
    codes = next(array for name, array in example.tensors.items() if name.endswith("packed"))
    scales[0], codes[0, 0], scales[1, 0] = 0, 0x81, 255
    with wm.open(example.write(tmp_path)) as f:
        w = f.weights[example.name].dequantize("float32")
    assert w[0, 0] == 2.0**-128
    assert w[0, 1] == 0
    assert np.signbit(w[0, 1])
    assert np.isnan(w[1, :32]).all()
    assert not np.isnan(w[1, 32:]).any()


def test_blocks_hold_their_scales(tmp_path):
    """As a tensor of GGUF has them: a view, one for each block; strict=True refuses NaN among them."""
    example = EXAMPLES["modelopt Q8_0"]()
    path = example.write(tmp_path / "model")
    (blocks,) = example.tensors.values()
    with wm.open(path) as f:
        w = f.weights[example.name]
        assert (w.scale_type, w.n_blocks, w.block_size) == ("float16", 12, 32)
        assert w.scales.tobytes() == blocks[..., :2].tobytes()
        assert np.shares_memory(w.scales, w.codes)
        w.dequantize(strict=True)
    blocks[5, 1, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    example.write(tmp_path / "model")
    with wm.open(path) as f, pytest.raises(wm.QuantError, match="scale 11 is nan, expected a finite number"):
        f.weights[example.name].dequantize(strict=True)


def test_strict_refuses_scales_that_are_not_finite(tmp_path):
    """With strict=True, NaN among the scales is a QuantError; without, it passes through."""
    example = EXAMPLES["fp8 f32"]()
    scales = next(array for name, array in example.tensors.items() if name.endswith("scale_inv"))
    scales[0, 0] = np.nan
    with wm.open(example.write(tmp_path)) as f:
        w = f.weights[example.name]
        assert np.isnan(w.dequantize()[:16, :24].astype(np.float32)).all()
        with pytest.raises(wm.QuantError):
            w.dequantize(strict=True)
