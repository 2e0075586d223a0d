"""Opening a model: MiniLM, and 1,000, 10,000 and 100,000 tensors.

weightmap opens with validation, its default, and with ``verify="none"``. The limit is the work of every reader that
maps: open, fstat, map, unmap, close.
"""

import gc
import mmap
import os
import tracemalloc
from functools import partial

import numpy as np

import weightmap as wm
from timing import AVX2, Timed, each_contender, limit, need, ours, rival

SIZES = ["MiniLM", "1,000 tensors", "10,000 tensors", "100,000 tensors"]


def weightmap(model, size, suffix, verify="header"):
    """Open and close with weightmap."""
    path = path_of(model, size, suffix)
    return Timed(lambda: wm.open(path, verify=verify).close())


def path_of(model, size, suffix):
    """Return the file, or skip where the library that writes it is missing."""
    for ending, library in {"pt": "torch", "bt": "bintensors"}.items():
        if suffix == ending:
            need(library)
    return model(size, suffix)


def safe_open(library, suffix, framework):
    """Open and close with safetensors or bintensors, which read the whole index."""

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
    """Load a torch checkpoint by mapping."""
    torch = need("torch")
    return Timed(partial(torch.load, path_of(model, size, "pt"), mmap=True, weights_only=True))


def np_memmap(model, size):
    """Map the whole file as one array, without an index."""
    return Timed(partial(np.memmap, model(size, "weights"), mode="r"))


def map_only(model, size):
    """Make the system calls that every reader that maps needs."""
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
    | ours(partial(weightmap, suffix="pt"), "weightmap, PyTorch", isas=AVX2)
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


@each_contender(OPEN)
def test_open(compare, model, shapes, group, who):
    """Open a file, ready for look-ups by name, and close it."""
    size = group.partition("/")[2]
    compare(OPEN, model, size, items=len(shapes[size]))


def heap(path):
    """Return how many bytes of Python's heap an open file takes, numpy arrays included: the least of five openings."""
    taken = []
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(5):  # the first fills caches
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
    """Open the largest file, and record how many times the heap of a file with a thousandth of the tensors it takes."""
    few, many = (path_of(model, size, suffix) for size in ("100 tensors", "100,000 tensors"))
    small, large = heap(few), heap(many)
    info = {"heap KiB": large / 1024, "heap KiB, few tensors": small / 1024, "times the heap": large / small}
    return Timed(lambda: wm.open(many).close(), **info)


HEAP = {
    "heap/100,000 tensors": ours(partial(weightmap_heap, suffix="weights"), "weightmap, EMBD")
    | ours(partial(weightmap_heap, suffix="safetensors"), "weightmap, safetensors")
}


@each_contender(HEAP)
def test_heap(compare, model, group, who):
    """An index of fixed-size records takes no heap that grows with the number of tensors."""
    compare(HEAP, model)


def our_names(model, size, suffix):
    """Open with weightmap and list the names."""
    path = path_of(model, size, suffix)

    def call():
        with wm.open(path) as f:
            return list(f)

    return Timed(call)


def their_names(library, suffix):
    """Open with safetensors or bintensors and list the names."""

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


@each_contender(NAMES)
def test_open_and_list_names(compare, model, shapes, group, who):
    """Open a file and list its names as Python strings."""
    size = group.partition("/")[2]
    compare(NAMES, model, size, items=len(shapes[size]))
