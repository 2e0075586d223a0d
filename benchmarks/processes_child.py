"""Loads a file with one library, and prints the time and the memory: see `processes.py`.

    python processes_child.py WHO FILE [WORD]

Imports only WHO and numpy, which all of them need.
"""

import json
import sys
import time

import numpy as np

MIB = 1024  # KiB
PAGE = 4096


def memory():
    """Return the anonymous, file-backed and peak memory of this process in MiB."""
    found = {}
    for path in ("/proc/self/smaps_rollup", "/proc/self/status"):
        with open(path, encoding="ascii") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if value.endswith(" kB\n"):
                    found[name] = int(value[:-4]) / MIB
    return {
        "anonymous": found["Anonymous"],
        "file-backed": found["Rss"] - found["Anonymous"],
        "peak": found["VmHWM"],
    }


def loader(who):
    """Import a library, and return load(path) -> (object to keep alive, arrays)."""
    if who == "weightmap":
        import weightmap

        def load(path):
            with weightmap.open(path) as f:
                return f, list(f.values())

    elif who.startswith("safetensors"):
        import safetensors

        framework = "numpy" if who.endswith("numpy") else "pt"
        if framework == "pt":
            import torch

        def load(path):
            f = safetensors.safe_open(path, framework=framework)
            with f:
                return f, [f.get_tensor(name) for name in f.keys()]

    elif who == "bintensors":
        import bintensors

        def load(path):
            f = bintensors.safe_open(path, framework="numpy")
            with f:
                return f, [f.get_tensor(name) for name in f.keys()]

    elif who == "torch.load(mmap)":
        import torch

        def load(path):
            tensors = torch.load(path, mmap=True, weights_only=True)
            return tensors, list(tensors.values())

    elif who == "gguf-py":
        import gguf

        def load(path):
            reader = gguf.GGUFReader(path)
            return reader, [tensor.data for tensor in reader.tensors]

    else:

        def load(path):
            with np.load(path) as archive:
                return None, [archive[name] for name in archive.files]

    return load


def words_loader(who):
    """Import a library of word embeddings, and return its function that opens a file."""
    if who == "gensim":
        from gensim.models import KeyedVectors

        return lambda path: KeyedVectors.load(path, mmap="r")
    if who == "finalfusion":
        import finalfusion

        return lambda path: finalfusion.load_finalfusion(path, mmap=True)
    import weightmap

    return lambda path: weightmap.open(path).embeddings


def octets(array):
    """Return the bytes of an array or of a torch tensor."""
    if hasattr(array, "numpy"):
        array = array.numpy()
    return np.asarray(array).reshape(-1).view(np.uint8)


def main():
    """Load, use, and print the measurements."""
    who, path, *word = sys.argv[1:]
    load = words_loader(who) if word else loader(who)
    before = memory()
    begin = time.perf_counter()
    kept = load(path)
    opened = time.perf_counter() - begin
    after_opening = memory()
    begin = time.perf_counter()
    read = 0.0
    if word:
        assert len(kept[word[0]]) > 0
        used = time.perf_counter() - begin
    else:
        arrays = [octets(array) for array in kept[1]]
        sum(int(array[::PAGE].max(initial=0)) for array in arrays)
        used = time.perf_counter() - begin
        begin = time.perf_counter()
        sum(int(array[: array.size // 8 * 8].view(np.uint64).max(initial=0)) for array in arrays)
        read = time.perf_counter() - begin
    after_use = memory()
    found = {"seconds": opened + used, "seconds to read all bytes": opened + used + read, "seconds to open": opened}
    for kind in ("anonymous", "file-backed"):
        found[f"{kind} MiB after opening"] = after_opening[kind] - before[kind]
        found[f"{kind} MiB after use"] = after_use[kind] - before[kind]
    found["peak MiB"] = after_use["peak"] - before["peak"]
    print(json.dumps(found))


main()
