"""Reading a float16 tensor of a file as a float32 copy."""

from functools import partial

import numpy as np
import pytest

import limits
import weightmap as wm
from timing import AVX2, EVERY_ISA, Timed, each_contender, need, ours, rival

NAME = "w"


@pytest.fixture(scope="session")
def half_file(smoke, tmp_path_factory):
    """Return the path of a file with one float16 tensor of 64 MiB, smaller in a smoke test."""
    rows = 64 if smoke else 8192
    path = tmp_path_factory.mktemp("half") / "half.safetensors"
    wm.save(path, {NAME: np.random.default_rng(1).standard_normal((rows, 4096)).astype(np.float16)})
    return str(path)


def weightmap(path, out, threads=1):
    """Open, read and convert."""

    def call():
        with wm.open(path) as f:
            return f.read(NAME, out=out, threads=threads)

    return Timed(call)


def view_by_numpy(path, out):
    """Open, and convert the mapped view with numpy."""

    def call():
        with wm.open(path) as f:
            np.copyto(out, f[NAME])

    return Timed(call)


def safetensors(path, out):
    """Read with safetensors, and convert with numpy."""
    function = need("safetensors").safe_open

    def call():
        with function(path, framework="numpy") as f:
            np.copyto(out, f.get_tensor(NAME))

    return Timed(call)


CONTENDERS = (
    ours(weightmap, isas=EVERY_ISA)
    | ours(partial(weightmap, threads=2), "weightmap, 2 threads", isas=AVX2, threads=2)
    | {"view of weightmap, numpy": rival(view_by_numpy), "safetensors, numpy": rival(safetensors)}
    | limits.of(limits.WRITE, lambda path, out: out, (1, 2))
)


GROUPS = {"read f16 as f32/64 MiB": CONTENDERS}


@each_contender(GROUPS)
def test_read_as_float32(compare, half_file, group, who):
    """Read into the same array each time."""
    with wm.open(half_file) as f:
        shape = f.info(NAME).shape
    out = limits.memory(4 * int(np.prod(shape))).view(np.float32).reshape(shape)
    compare(GROUPS, half_file, out, nbytes=out.nbytes)
