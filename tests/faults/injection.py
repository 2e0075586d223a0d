"""Helpers for the drivers of faults: the functions of `shim.c`, files to work on, and a description of an error."""

import contextlib
import ctypes
import errno
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
from tests import builders
from tests.builders import normal, torch
from tests.support import save_with

import weightmap as wm
from weightmap import cli

SHORT, TRUNCATED, KILLED = -1, -2, -9
ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EDQUOT", "EINTR", "EACCES")}
# The calls that may do half of their work.
PARTIAL = ("read", "pread", "write", "pwrite", "copy_file_range", "sendfile")
NEVER = 0


class Shim:
    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        self._library.shim_name.restype = ctypes.c_char_p
        self._library.shim_disarm.restype = ctypes.c_long

    def arm(self, number=NEVER, fault=0, only=""):
        """Count calls, or only the function `only`; `fault` happens at this number of a call, or at each for -1."""
        self._library.shim_arm(only.encode(), ctypes.c_long(number), fault)

    def disarm(self):
        return int(self._library.shim_disarm())

    def victim(self, path, size):
        """Set the file to truncate, and its new size."""
        self._library.shim_victim(os.fsencode(path), ctypes.c_long(size))

    def name(self, number):
        return bytes(self._library.shim_name(ctypes.c_long(number))).decode()


class ExitStatusError(Exception):
    """A command ended with another status than 0."""

    def __init__(self, status, said):
        super().__init__(said)
        self.status = status


def command(*argv):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main([str(argument) for argument in argv])
    if status:
        raise ExitStatusError(status, err.getvalue() + out.getvalue())
    return out.getvalue()


def seen(error):
    return {
        "type": type(error).__name__,
        "own": isinstance(error, wm.TensorFileError),
        "system": isinstance(error, OSError),
        "errno": getattr(error, "errno", None),
        "status": getattr(error, "status", None),
        "text": str(error),
        "notes": getattr(error, "__notes__", []),
    }


def descriptors():
    """The open descriptors of this process, without the one that lists them."""
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}  # noqa: PTH110, PTH208


DATA = Path(__file__).parent.parent / "data"
RNG = np.random.default_rng(5)
MATRIX = RNG.standard_normal((40, 16)).astype(np.float32)
WORDS = [f"word{i}" for i in range(40)]


def prepare(folder):
    tensors = {"w": MATRIX, "half": MATRIX.astype(np.float16), "x": MATRIX.T}
    wm.save(folder / "a.weights", tensors, metadata={"model_name": "m"}, vocab=WORDS)
    wm.save(folder / "a.safetensors", tensors, metadata={"k": "v"})
    wm.save(folder / "a.bt", tensors, metadata={"k": "v"})
    wm.save(folder / "words.weights", {"e": MATRIX}, vocab=WORDS)
    for kind, (suffix, arguments) in builders.saved().items():
        save_with(folder / f"{kind}{suffix}", **arguments(MATRIX))
    np.savez(folder / "a.npz", w=MATRIX, x=MATRIX.T)
    np.savez_compressed(folder / "deflated.npz", w=MATRIX)
    found, storages = torch.stored({"w": normal((40, 16))}, {"epoch": 3})
    (folder / "a.pt").write_bytes(torch.zipped(torch.dump(found), storages))
    (folder / "legacy.pt").write_bytes(torch.legacy(torch.dump(found), {"0": torch.Item(storages["0"], 4)}))
    schemes = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive")
    wm.save(
        folder / "q.amb",
        {"w": MATRIX} | {scheme: wm.quantize(MATRIX, scheme) for scheme in schemes},
        config={"n": 1},
        tokenizer={"type": 0, "special_ids": {}, "payload": b"tokens"},
    )
    wm.save(folder / "words.fifu", {"embeddings": MATRIX, "norms": np.ones(40, np.float32)}, vocab=WORDS)
    shutil.copy(DATA / "finalfusion" / "bucket_1_2__pq_norms__meta.fifu", folder / "pq.fifu")
    lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(WORDS, MATRIX.tolist(), strict=True))
    (folder / "words.txt").write_text("".join(lines), encoding="utf-8")
    shards = folder / "sharded"
    shards.mkdir()
    index = {"weight_map": {}}
    for name in ("one", "two"):
        wm.save(shards / f"{name}.safetensors", {name: MATRIX})
        index["weight_map"][name] = f"{name}.safetensors"
    (shards / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def attempt(shim, number, fault, run):
    shim.arm(number, fault)
    try:
        result = run()
    except BaseException as error:  # noqa: BLE001 - any error at all is to be told
        shim.disarm()
        return seen(error), None
    shim.disarm()
    return None, result
