"""Opening a model: of the size of MiniLM, of 1,000, 10,000 and 100,000 tensors.

Ours is opened validated, as it is by default, and with ``verify="none"``. The limit is what every reader that maps has
to do: open, fstat, map, unmap, close.
"""

import mmap
import os
from functools import partial

import numpy as np
import pytest
from race import AVX2, Timed, limit, need, ours, rival

import weightmap as wm

SIZES = ["minilm", "small", "middle", "large"]


def weightmap(model, size, suffix, verify="header"):
    """Open and close with ours."""
    return Timed(lambda path=path_of(model, size, suffix): wm.open(path, verify=verify).close())


def path_of(model, size, suffix):
    """Return the file, or skip where the rival that writes it is not installed."""
    for ending, library in {"pt": "torch", "bt": "bintensors"}.items():
        if suffix == ending:
            need(library)
    return model(size, suffix)


def safe_open(library, suffix, framework):
    """Open and close as safetensors and bintensors do it; they read all of the index at once."""

    def prepare(model, size):
        path = path_of(model, size, suffix)
        function = need(library).safe_open
        if framework == "pt":
            need("torch")

        def call():
            with function(path, framework=framework):
                pass

        return Timed(call)

    return rival(prepare)


def gguf_py(model, size):
    """Open with gguf-py."""
    return Timed(partial(need("gguf").GGUFReader, model(size, "gguf")))


def torch_load(model, size):
    """Load a checkpoint of torch that is mapped."""
    torch = need("torch")
    return Timed(partial(torch.load, path_of(model, size, "pt"), mmap=True, weights_only=True))


def np_memmap(model, size):
    """Map the whole file as one array."""
    return Timed(partial(np.memmap, model(size, "weights"), mode="r"))


def map_only(model, size):
    """What no reader that maps can do without."""
    path = model(size, "weights")

    def call():
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ).close()
        finally:
            os.close(descriptor)

    return Timed(call)


CONTENDERS = (
    ours(partial(weightmap, suffix="weights"), "weightmap, EMBD", isas=AVX2)
    | ours(partial(weightmap, suffix="weights", verify="none"), "weightmap, EMBD, lazy", isas=AVX2)
    | ours(partial(weightmap, suffix="safetensors"), "weightmap, safetensors", isas=AVX2)
    | ours(partial(weightmap, suffix="bt"), "weightmap, BinTensors", isas=AVX2)
    | ours(partial(weightmap, suffix="spec.bt"), "weightmap, BinTensors of the specification", isas=AVX2)
    | {
        "safetensors, numpy": safe_open("safetensors", "safetensors", "numpy"),
        "safetensors, torch": safe_open("safetensors", "safetensors", "pt"),
        "bintensors": safe_open("bintensors", "bt", "numpy"),
        "gguf-py": rival(gguf_py),
        "torch.load(mmap)": rival(torch_load),
        "np.memmap": rival(np_memmap),
        "limit: open, fstat, mmap": limit(map_only),
    }
)


@pytest.mark.parametrize("who", CONTENDERS)
@pytest.mark.parametrize("size", SIZES)
def test_open(race, model, sizes, size, who):
    """Open a file, ready for look-ups by name, and close it."""
    label, shapes = sizes[size]
    race(f"open/{label}", CONTENDERS, model, size, items=len(shapes))


def our_names(model, size, suffix):
    """Open with ours and list the names."""
    path = path_of(model, size, suffix)

    def call():
        with wm.open(path) as f:
            return list(f)

    return Timed(call)


def their_names(library, suffix):
    """Open and list the names as safetensors and bintensors do it."""

    def prepare(model, size):
        function, path = need(library).safe_open, path_of(model, size, suffix)

        def call():
            with function(path, framework="numpy") as f:
                return list(f.keys())

        return Timed(call)

    return rival(prepare)


NAMES = (
    ours(partial(our_names, suffix="weights"), "weightmap, EMBD")
    | ours(partial(our_names, suffix="safetensors"), "weightmap, safetensors")
    | ours(partial(our_names, suffix="bt"), "weightmap, BinTensors")
    | {"safetensors, numpy": their_names("safetensors", "safetensors"), "bintensors": their_names("bintensors", "bt")}
)


@pytest.mark.parametrize("who", NAMES)
@pytest.mark.parametrize("size", ["minilm", "large"])
def test_open_and_list_names(race, model, sizes, size, who):
    """Open a file and make the list of its names, Python strings."""
    label, shapes = sizes[size]
    race(f"open and list names/{label}", NAMES, model, size, items=len(shapes))
