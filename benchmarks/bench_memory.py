"""Loading a whole model in a new process: time and memory.

Each library loads MiniLM from a file of its own format: ours from an EMBD file that weightmap wrote, and from the
safetensors file that the rivals read; and EMBD and safetensors files of 4 GiB in 300 tensors. The files lie in the page
cache. Only one large file exists at a time, since it takes 4 GiB of disk and of page cache.
"""

import os
import shutil
from functools import partial

import numpy as np
import pytest

import files
import weightmap as wm
from processes import Loading
from timing import need, ours, rival

SPARE = 10 << 30  # free bytes of disk that a file of 4 GiB asks for
TENSORS, SHAPE = 300, (1748, 2048)  # 4.0 GiB of float32


def loading(who, model, suffix):
    """Write the file, and return the clock of a process that loads it."""
    return Loading(who, model(suffix))


def often(contender):
    """Return a contender with more turns: page tables of 4 GiB take twice as long now and then."""

    def prepare(model):
        clock = contender.prepare(model)
        clock.turns = 7
        return clock

    return contender._replace(prepare=prepare)


def by(who, suffix):
    """Return a loading of a file with this suffix."""
    return partial(loading, who, suffix=suffix)


# By the suffix of the file that they read.
BY_SUFFIX = {
    "weights": ours(by("weightmap", "weights"), "weightmap, EMBD"),
    "safetensors": ours(by("weightmap", "safetensors"), "weightmap, safetensors")
    | {
        "safetensors, numpy": rival(by("safetensors, numpy", "safetensors")),
        "safetensors, torch": rival(by("safetensors, torch", "safetensors")),
    },
    "bt": ours(by("weightmap", "bt"), "weightmap, BinTensors") | {"bintensors": rival(by("bintensors", "bt"))},
    "pt": {"torch.load(mmap)": rival(by("torch.load(mmap)", "pt"))},
    "gguf": {"gguf-py": rival(by("gguf-py", "gguf"))},
    "npz": {"np.load": rival(by("np.load", "npz"))},
}
LOADERS = {who: contender for contenders in BY_SUFFIX.values() for who, contender in contenders.items()}
LARGE = ("weights", "safetensors")
GROUPS = {
    "memory/MiniLM": LOADERS,
    "memory/4 GiB": {
        who: LOADERS[who] if who == "safetensors, numpy" else often(LOADERS[who])  # it copies, for seconds
        for suffix in LARGE
        for who in BY_SUFFIX[suffix]
    },
}
WRITERS = {"pt": "torch", "bt": "bintensors"}  # libraries that write these files


@pytest.mark.parametrize(("group", "who"), [("memory/MiniLM", who) for who in LOADERS])
def test_minilm(compare, model, group, who):
    """Load the shapes of all-MiniLM-L6-v2."""

    def write(suffix):
        need(WRITERS.get(suffix, "numpy"))
        return model("MiniLM", suffix)

    compare(GROUPS, write, nbytes=sum(4 * int(np.prod(shape)) for shape in files.minilm_shapes().values()))


@pytest.fixture(scope="module")
def large(smoke, tmp_path_factory):
    """Return large(suffix) -> path of the model of 4 GiB, which replaces the one before."""
    folder = tmp_path_factory.mktemp("large")
    shape = (4, 2048) if smoke else SHAPE
    shapes = {f"model.layers.{i:03}.mlp.weight": shape for i in range(TENSORS)}

    def write(suffix):
        path = folder / f"model.{suffix}"
        if path.exists():
            return str(path)
        for other in folder.iterdir():
            other.unlink()
        if not smoke and shutil.disk_usage(folder).free < SPARE:
            pytest.skip(f"needs {SPARE >> 30} GiB of disk in {folder}")
        if suffix == "weights":
            wm.save(path, dict.fromkeys(shapes, np.zeros(shape, np.float32)), output=wm.Output(checksums=False))
        else:
            files.WRITERS[suffix](path, shapes)
        os.sync()
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
        return str(path)

    yield write
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("group", "suffix", "who"),
    [("memory/4 GiB", suffix, who) for suffix in LARGE for who in BY_SUFFIX[suffix]],
)
def test_large(compare, large, group, suffix, who):
    """Load 4 GiB; contenders that read the same file are timed together."""
    compare(GROUPS, large, nbytes=TENSORS * 4 * int(np.prod(SHAPE)))
