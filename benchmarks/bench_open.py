"""Opening a model: of the size of MiniLM, of 1,000, 10,000 and 100,000 tensors.

Ours is opened validated, as it is by default, and with ``verify="none"``. The limit is what every reader that maps has
to do: open, fstat, map, unmap, close.
"""

import gc
import mmap
import os
import tracemalloc
from functools import partial

import numpy as np

import weightmap as wm
from timing import AVX2, Timed, everyone, limit, need, ours, rival

SIZES = ["MiniLM", "1,000 tensors", "10,000 tensors", "100,000 tensors"]


def weightmap(model, size, suffix, verify="header"):
    """Open and close with ours."""
    path = path_of(model, size, suffix)
    return Timed(lambda: wm.open(path, verify=verify).close())


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
    """Map the whole file as one array; numpy has no index to read."""
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
        "limit: np.memmap": limit(np_memmap),
        "limit: open, fstat, mmap": limit(map_only),
    }
)


OPEN = {f"open/{size}": CONTENDERS for size in SIZES}


@everyone(OPEN)
def test_open(race, model, shapes, group, who):
    """Open a file, ready for look-ups by name, and close it."""
    size = group.partition("/")[2]
    race(OPEN, model, size, items=len(shapes[size]))


def heap(path):
    """Return how many bytes of Python's heap an open file takes, numpy's arrays among them, the least of some times."""
    taken = []
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(5):  # the first makes and imports what is made once
            before, _ = tracemalloc.get_traced_memory()
            f = wm.open(path)
            after, _ = tracemalloc.get_traced_memory()
            taken.append(after - before)
            f.close()
            del f
    finally:
        tracemalloc.stop()
    return min(taken)


def weightmap_heap(model, suffix):
    """Open the largest file, and tell how much more memory that takes than a file of a thousandth of the tensors."""
    few, many = (path_of(model, size, suffix) for size in ("100 tensors", "100,000 tensors"))
    small, large = heap(few), heap(many)
    info = {"heap KiB": large / 1024, "heap KiB, few tensors": small / 1024, "times the heap": large / small}
    return Timed(lambda: wm.open(many).close(), **info)


HEAP = {
    "heap/100,000 tensors": ours(partial(weightmap_heap, suffix="weights"), "weightmap, EMBD")
    | ours(partial(weightmap_heap, suffix="safetensors"), "weightmap, safetensors")
}


@everyone(HEAP)
def test_heap(race, model, group, who):
    """Memory that grows with the number of tensors, where a format has an index of fixed-size records, need not be."""
    race(HEAP, model)


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


LISTING = (
    ours(partial(our_names, suffix="weights"), "weightmap, EMBD")
    | ours(partial(our_names, suffix="safetensors"), "weightmap, safetensors")
    | ours(partial(our_names, suffix="bt"), "weightmap, BinTensors")
    | {"safetensors, numpy": their_names("safetensors", "safetensors"), "bintensors": their_names("bintensors", "bt")}
)


NAMES = {f"open and list names/{size}": LISTING for size in ("MiniLM", "100,000 tensors")}
GROUPS = OPEN | HEAP | NAMES


@everyone(NAMES)
def test_open_and_list_names(race, model, shapes, group, who):
    """Open a file and make the list of its names, Python strings."""
    size = group.partition("/")[2]
    race(NAMES, model, size, items=len(shapes[size]))
