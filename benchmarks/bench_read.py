"""Reading a float16 tensor of a file as float32, a copy of its own: what converts a model to compute with it."""

import numpy as np
import pytest

import weightmap as wm

NAME = "w"


@pytest.fixture(scope="session")
def half_file(request, tmp_path_factory):
    """Return label and path of a file with one float16 tensor: 64 MiB, or little in a smoke test."""
    rows = 64 if request.config.option.benchmark_disable else 8192
    path = tmp_path_factory.mktemp("half") / "half.safetensors"
    wm.save(path, {NAME: np.random.default_rng(1).standard_normal((rows, 4096)).astype(np.float16)})
    return f"{rows * 8192 >> 20} MiB", str(path)


def ours(path, out, threads):
    """Open, read and convert."""
    with wm.open(path) as f:
        return f.read(NAME, out=out, threads=threads)


def by_view(path, out, threads):
    """Open, and let numpy convert the mapped view."""
    del threads
    with wm.open(path) as f:
        out[...] = f[NAME]
        return out


def rival(path, out, threads):
    """Read with safetensors, and let numpy convert."""
    del threads
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as f:
        out[...] = f.get_tensor(NAME)
        return out


WHO = {
    "weightmap": ("ours", ours, 1),
    "weightmap_two_threads": ("ours", ours, 2),
    "weightmap_view_by_numpy": ("rival", by_view, 1),
    "safetensors_by_numpy": ("rival", rival, 1),
}


@pytest.mark.parametrize("who", WHO)
def test_read_as_float32(run, half_file, who):
    """Into an array that is there already."""
    role, function, threads = WHO[who]
    pytest.importorskip("safetensors")
    label, path = half_file
    with wm.open(path) as f:
        out = np.empty(f.info(NAME).shape, np.float32)
    run(f"read float16 as float32/{label}", role, function, path, out, threads)
