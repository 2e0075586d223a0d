"""Parameters of MLX beside MLX itself: ``make quantised-test``."""

import json

import numpy as np
import pytest

import weightmap as wm

mx = pytest.importorskip("mlx.core", reason="needs MLX: make quantised-test")


def of_mlx(folder, tensors, **said):
    mx.save_safetensors(str(folder / "model.safetensors"), {f"l.{name}": value for name, value in tensors.items()})
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "float32", "quantization": said}), encoding="utf-8")
    with wm.open(folder / "model.safetensors") as f:
        return f.weights["l.weight"].dequantize()


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("shape", [(24, 256), (3, 8, 256)])
def test_affine(tmp_path, bits, shape):
    """In float32 every value has MLX's bits; experts have one more dimension."""
    mx.set_default_device(mx.cpu)
    whole = mx.array(np.random.default_rng(bits).normal(0, 0.1, shape).astype(np.float32))
    for size in (32, 64, 128):
        q, s, b = mx.quantize(whole, group_size=size, bits=bits)
        theirs = np.array(mx.dequantize(q, s, b, group_size=size, bits=bits))
        ours = of_mlx(tmp_path, {"weight": q, "scales": s, "biases": b}, group_size=size, bits=bits)
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize(("mode", "size", "bits"), [("mxfp4", 32, 4), ("nvfp4", 16, 4), ("mxfp8", 32, 8)])
@pytest.mark.parametrize("shape", [(24, 256), (3, 8, 256)])
def test_floats(tmp_path, mode, size, bits, shape):
    """Every value has MLX's bits, whether the configuration states size and bits or not."""
    mx.set_default_device(mx.cpu)
    whole = mx.array(np.random.default_rng(1).normal(0, 0.1, shape).astype(np.float32))
    said = {"group_size": size, "bits": bits, "mode": mode}
    q, s = mx.quantize(whole, **said)
    theirs = np.array(mx.dequantize(q, s, **said, dtype=mx.float32))
    for stated in (said, {"mode": mode}):
        ours = of_mlx(tmp_path, {"weight": q, "scales": s}, **stated)
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
