"""From a name to an array, and all arrays of a file."""

import numpy as np
import pytest

import weightmap as wm


def safe_open(library, path):
    """Open a file of one of the rivals, for good: their handles close when they are dropped."""
    return pytest.importorskip(library).safe_open(path, framework="numpy").__enter__()


OPENERS = {
    "embd": ("weights", "ours", wm.open),
    "safetensors_by_weightmap": ("safetensors", "ours", wm.open),
    "safetensors": ("safetensors", "rival", lambda path: safe_open("safetensors", path)),
    "bintensors": ("bt", "rival", lambda path: safe_open("bintensors", path)),
}


def getter(handle):
    """Return the function that looks a tensor up in this handle."""
    return handle.get_tensor if hasattr(handle, "get_tensor") else handle.__getitem__


@pytest.fixture
def opened(model, sizes):
    """Return opened(who) -> label, role, function that opens the largest file, a name from its middle."""

    def opened(who):
        suffix, role, opener = OPENERS[who]
        if suffix == "bt":
            pytest.importorskip("bintensors")
        label, path = model("large", suffix)
        names = list(sizes["large"][1])
        return label, role, lambda: opener(path), names[len(names) // 2]

    return opened


@pytest.mark.parametrize("who", OPENERS)
def test_first_lookup(run, opened, who):
    """The first look-up by name in a fresh handle; opening it is not counted."""
    label, role, opener, name = opened(who)

    def fresh():
        return (getter(opener()), name), {}

    array = run(f"first look-up/{label}", role, lambda get, name: get(name), setup=fresh, rounds=50)
    assert array.shape == (16,)


@pytest.mark.parametrize("who", OPENERS)
def test_later_lookup(run, opened, who):
    """Looking up one name after another in a handle that has been used before."""
    label, role, opener, name = opened(who)
    get = getter(opener())
    for _ in range(3):
        get(name)
    array = run(f"look-up/{label}", role, get, name)
    assert array.shape == (16,)


def test_later_lookup_by_memmap(run, model, sizes):
    """What numpy offers: one numpy.memmap for each tensor, by somebody who knows where it lies."""
    label, path = model("large", "weights")
    names = list(sizes["large"][1])
    with wm.open(path) as f:
        info = f.info(names[len(names) // 2])
    array = run(
        f"look-up/{label}",
        "rival",
        lambda: np.memmap(path, info.dtype, mode="r", offset=info.offset, shape=info.shape),
    )
    assert array.shape == (16,)


@pytest.mark.parametrize("who", OPENERS)
def test_all_arrays(run, opened, who):
    """Open a file and make an array of every tensor: views for ours, copies for the rivals."""
    label, role, opener, _ = opened(who)

    def every():
        handle = opener()
        if hasattr(handle, "get_tensor"):
            return [handle.get_tensor(name) for name in handle.keys()]  # noqa: SIM118 - not a mapping
        return list(handle.values())

    arrays = run(f"all arrays/{label}", role, every, rounds=7)
    assert all(isinstance(array, np.ndarray) for array in arrays)
