"""A guard against slower code that noise cannot trip: counts of calls and of objects, with bounds.

Times vary by a half from run to run; these counts hardly do. Each bound is a little above what was counted when it was
set. A change that trips one has made something do more work: find out why, and raise the bound only if that is worth
it. A change that stays far below a bound should lower it.
"""

import functools
import gc
import sys

import numpy as np
import pytest
from tests import builders

import weightmap as wm

# Numbers of tensors (of words, in finalfusion, which has one matrix). Bounds are the same for all of them: nothing that
# is counted here may grow with the number.
COUNTS = (10, 1_000, 10_000)


BOUNDS = {kind: bounds for builder in builders.known().values() for kind, bounds in builder.bounds.items()}
# Calls for each tensor when all are viewed: the two iterators, which are entered again for each.
VIEWING = 2.1
# Calls for each tensor that is converted: its payload is made twice, to lay out the file and to write it.
CONVERTING = {None: 71, "int4_block": 120}
every_kind = pytest.mark.parametrize("kind", BOUNDS)
every_count = pytest.mark.parametrize("count", COUNTS)
cpython = pytest.mark.skipif(
    sys.implementation.name != "cpython" or not hasattr(sys, "getallocatedblocks"), reason="counts what CPython does"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return model(kind, count): the path of a file of that many tensors, written when first asked for."""
    folder = tmp_path_factory.mktemp("guard")

    @functools.cache
    def write(kind, count):
        path = folder / f"{count}-{kind}"
        path.write_bytes(builders.format_of(kind).growing[kind](count))
        for verify in ("header", "none"):  # imports and objects of the first use
            with wm.open(path, verify=verify) as f:
                names = list(f)
                [f[name] for name in (names[-1], names[0], names[0], names[-1])]
                dict(f.items())
        return path

    return write


def calls(function):
    """How many functions are entered, and what the outermost returns."""
    count = 0

    def note(_, event, __):
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()  # a collection in between would call finalisers of other tests
    gc.disable()
    before = sys.getprofile()
    try:
        sys.setprofile(note)
        try:
            result = function()
        finally:
            sys.setprofile(before)
    finally:
        gc.enable()
    return count, result


@cpython
@every_kind
@every_count
@pytest.mark.parametrize("verify", ["header", "none"])
def test_calls_of_opening(model, kind, count, verify):
    path = str(model(kind, count))
    counted, f = calls(lambda: wm.open(path, verify=verify))
    f.close()
    assert counted <= (BOUNDS[kind].open_calls if verify == "header" else BOUNDS[kind].lazy_calls)


@cpython
@every_kind
@every_count
def test_calls_of_looking_up(model, kind, count):
    """The first look-up of a name, the second, which may build an index, and later ones: each has its bound."""
    with wm.open(str(model(kind, count))) as f:
        names = list(wm.open(model(kind, count)))
        bounds = BOUNDS[kind]
        for name, bound in (
            (names[-1], bounds.first_calls),
            (names[0], bounds.second_calls),
            (names[0], bounds.later_calls),
            (names[-1], bounds.later_calls),
        ):
            counted, _ = calls(lambda name=name: f[name])
            assert counted <= bound


@cpython
@pytest.mark.parametrize("kind", [kind for kind in BOUNDS if builders.format_of(kind).names_tensors])
def test_calls_of_viewing_all(model, kind):
    with wm.open(str(model(kind, COUNTS[-1]))) as f:
        counted, arrays = calls(lambda: dict(f.items()))
    assert len(arrays) == COUNTS[-1]
    assert counted <= VIEWING * len(arrays)


@cpython
@pytest.mark.parametrize("scheme", CONVERTING)
def test_calls_of_converting(tmp_path, scheme):
    counted = []
    for count in (10, 10, 210):  # the first makes lasting objects
        source, target = tmp_path / "source.safetensors", tmp_path / f"{len(counted)}.amb"
        wm.save(source, {f"{i}.weight": np.full((2, 32), i, np.float32) for i in range(count)})
        counted.append(calls(functools.partial(wm.convert, source, target, threads=1, quantize=scheme))[0])
    each = (counted[2] - counted[1]) / 200
    assert each <= CONVERTING[scheme]
