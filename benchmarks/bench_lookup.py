"""From a name to an array, and all arrays of a file."""

from functools import partial

import numpy as np
import pytest

import weightmap as wm
from timing import AVX2, Timed, each_contender, limit, need, ours, rival

LARGEST = "100,000 tensors"


class Case:
    """The largest file in each format, and a name from its middle."""

    def __init__(self, model, shapes):
        self.model, names = model, list(shapes)
        self.name = names[len(names) // 2]

    def path(self, suffix):
        """Return the file of a format, or skip where the library that writes it is missing."""
        if suffix == "bt":
            need("bintensors")
        return self.model(LARGEST, suffix)


@pytest.fixture
def case(model, shapes):
    """Return the files and the name."""
    return Case(model, shapes[LARGEST])


def our_opener(case, suffix):
    """Return a function that opens a file, and one that returns the look-up of a handle."""
    path = case.path(suffix)
    return partial(wm.open, path), lambda handle: handle.__getitem__


def their_opener(case, library, suffix):
    """Return the same for a rival, whose handles close at their deletion."""
    function, path = need(library).safe_open, case.path(suffix)
    return lambda: function(path, framework="numpy").__enter__(), lambda handle: handle.get_tensor


def contenders_for(prepare):
    """Return the contenders whose clock `prepare(opener, getter, case)` makes."""

    def contender(opener, **options):
        return lambda case: prepare(*opener(case, **options), case)

    return (
        ours(contender(our_opener, suffix="weights"), "weightmap, EMBD", isas=AVX2)
        | ours(contender(our_opener, suffix="safetensors"), "weightmap, safetensors", isas=AVX2)
        | {
            "safetensors, numpy": rival(contender(their_opener, library="safetensors", suffix="safetensors")),
            "bintensors": rival(contender(their_opener, library="bintensors", suffix="bt")),
        }
    )


def first(opener, getter, case):
    """Time the first look-up in a fresh handle."""
    name = case.name
    assert getter(opener())(name).shape == (16,)
    return Timed(lambda get: get(name), setup=lambda: getter(opener()))


def later(opener, getter, case):
    """Time a look-up in a used handle."""
    get = getter(opener())
    for _ in range(3):
        assert get(case.name).shape == (16,)
    return Timed(partial(get, case.name))


def every(opener, getter, _case):
    """Time all arrays: views for ours, copies for the rivals."""

    def call():
        handle = opener()
        if isinstance(handle, wm.TensorFile):
            return list(handle.values())
        get = getter(handle)
        return [get(name) for name in handle.keys()]  # noqa: SIM118 - not a mapping

    assert all(isinstance(array, np.ndarray) for array in call())
    return Timed(call)


def memmap(case):
    """Time np.memmap of one tensor, whose place the caller knows."""
    path = case.path("weights")
    with wm.open(path) as f:
        info = f.info(case.name)
    return Timed(partial(np.memmap, path, info.dtype, mode="r", offset=info.offset, shape=info.shape))


def bare_view(case):
    """Time an array over a mapped buffer, the least that a view costs."""
    buffer = np.memmap(case.path("weights"), np.uint8, mode="r").data
    return Timed(partial(np.ndarray, (16,), np.float32, buffer, 64))


GROUPS = {
    # The time of opening does not count.
    f"look-up/first, {LARGEST}": contenders_for(first),
    f"look-up/later, {LARGEST}": contenders_for(later)
    | {"np.memmap": rival(memmap), "limit: np.ndarray": limit(bare_view)},
    f"all views/{LARGEST}": contenders_for(every),
}


@each_contender(GROUPS)
def test_lookup(compare, case, group, who):
    """Look one tensor up, or all."""
    compare(GROUPS, case)
