"""Opening a model: of the size of MiniLM, of 10,000 and of 100,000 tensors."""

import mmap
import os

import numpy as np
import pytest

import weightmap as wm

SIZES = ["minilm", "middle", "large"]


def open_ours(path, verify):
    """Open and close."""
    wm.open(path, verify=verify).close()


def names_ours(path, verify):
    """Open and list the names."""
    with wm.open(path, verify=verify) as f:
        return list(f)


def open_safetensors(path):
    """Open and close; safetensors opens at once."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy"):
        pass


def names_safetensors(path):
    """Open and list the names."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as f:
        return list(f.keys())


def open_bintensors(path):
    """Open and close."""
    from bintensors import safe_open

    with safe_open(path, framework="numpy"):
        pass


def names_bintensors(path):
    """Open and list the names."""
    from bintensors import safe_open

    with safe_open(path, framework="numpy") as f:
        return list(f.keys())


def map_only(path):
    """Open, fstat, map, unmap: what every reader that maps has to do."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ).close()
    finally:
        os.close(descriptor)


OPEN = {
    "embd_validated": ("weights", "ours", lambda path: open_ours(path, "header")),
    "embd_lazy": ("weights", "ours", lambda path: open_ours(path, "none")),
    "safetensors_by_weightmap": ("safetensors", "ours", lambda path: open_ours(path, "header")),
    "bintensors_by_weightmap": ("bt", "ours", lambda path: open_ours(path, "header")),
    "bintensors_spec_by_weightmap": ("spec.bt", "ours", lambda path: open_ours(path, "header")),
    "safetensors": ("safetensors", "rival", open_safetensors),
    "bintensors": ("bt", "rival", open_bintensors),
    "map_only": ("weights", "floor", map_only),
    "numpy_memmap": ("weights", "floor", lambda path: np.memmap(path, mode="r")),
}
NAMES = {
    "embd_validated": ("weights", "ours", lambda path: names_ours(path, "header")),
    "safetensors_by_weightmap": ("safetensors", "ours", lambda path: names_ours(path, "header")),
    "bintensors_by_weightmap": ("bt", "ours", lambda path: names_ours(path, "header")),
    "safetensors": ("safetensors", "rival", names_safetensors),
    "bintensors": ("bt", "rival", names_bintensors),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("who", OPEN)
def test_open(run, model, size, who):
    """Open a file, ready for look-ups by name, and close it."""
    suffix, role, function = OPEN[who]
    pytest.importorskip("bintensors" if suffix.endswith("bt") else "safetensors")
    label, path = model(size, suffix)
    run(f"open/{label}", role, function, path)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("who", NAMES)
def test_open_and_list_names(run, model, size, who):
    """Open a file and make the list of its names, Python strings."""
    suffix, role, function = NAMES[who]
    pytest.importorskip("bintensors" if suffix.endswith("bt") else "safetensors")
    label, path = model(size, suffix)
    names = run(f"open and list names/{label}", role, function, path)
    assert len(names) == len(set(names)) > 0
