"""Arrays of jax on their way into files. Skipped where jax is not installed."""

import ml_dtypes
import numpy as np
import pytest

jnp = pytest.importorskip("jax.numpy")

import weightmap as wm  # noqa: E402 - nothing here makes sense without jax


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "int8", "bool", "float8_e4m3fn"])
def test_save_takes_arrays_of_jax(tmp_path, name):
    """They are written as what they are, bfloat16 and float8 too."""
    expected = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name, name))
    wm.save(tmp_path / "m.safetensors", {"w": jnp.asarray(expected), "t": jnp.asarray(expected).T})
    with wm.open(tmp_path / "m.safetensors") as file:
        assert file["w"].dtype == expected.dtype
        assert file["w"].tobytes() == expected.tobytes()
        assert file["t"].tobytes() == expected.T.tobytes()
