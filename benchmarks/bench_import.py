"""The time of `import weightmap` in fresh interpreters, and of whole processes that do little."""

import os
import subprocess
import sys
import time

from timing import each_contender, need, ours, rival

# Prints the seconds of a statement in an interpreter that has imported numpy.
BEYOND_NUMPY = "import time, numpy; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
# An editable installation compiles modules at the first import, if it may; pip has compiled the rivals'.
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Import:
    """The clock of a statement in a child process."""

    def __init__(self, statement):
        self.code, self.info = BEYOND_NUMPY.format(statement), {}
        self(1)  # compiles

    def __call__(self, calls):
        command = [sys.executable, "-c", self.code]
        return sum(
            float(subprocess.run(command, env=ENV, check=True, capture_output=True, text=True).stdout)
            for _ in range(calls)
        )


class Process:
    """The clock of a whole interpreter with these arguments."""

    alike, turns = True, 25

    def __init__(self, *arguments):
        self.command, self.info = [sys.executable, *arguments], {}
        self(1)  # compiles

    def __call__(self, calls):
        begin = time.perf_counter()
        for _ in range(calls):
            subprocess.run(self.command, env=ENV, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begin


def library(name):
    """Return the import of a rival."""

    def prepare():
        need(name)
        return Import(f"import {name}")

    return rival(prepare)


def one_tensor(path):
    """Return a process that takes a tensor by safetensors."""
    need("safetensors")
    opened = f"from safetensors import safe_open; safe_open({path!r}, 'numpy').__enter__()"
    return Process("-c", f"import safetensors.numpy; {opened}.get_tensor({ONE!r})")


CONTENDERS = ours(lambda: Import("import weightmap")) | {
    "safetensors": library("safetensors.numpy"),
    "bintensors": library("bintensors.numpy"),
    "gguf-py": library("gguf"),
}


GROUPS = {"import/beyond numpy": CONTENDERS}
NUMPY = {"numpy alone": rival(lambda _: Process("-c", "import numpy"))}
ONE = "embeddings.LayerNorm.weight"
PROCESSES = {
    "process/one tensor": ours(lambda path: Process("-c", f"import weightmap as wm; wm.open({path!r})[{ONE!r}]"))
    | {"safetensors": rival(one_tensor)}
    | NUMPY,
    "process/inspect MiniLM": ours(lambda path: Process("-m", "weightmap", "inspect", path)) | NUMPY,
}


@each_contender(GROUPS)
def test_import(compare, group, who):
    """Import after numpy, which all contenders need."""
    compare(GROUPS)


@each_contender(PROCESSES)
def test_process(compare, model, group, who):
    """Start, import, take one tensor of MiniLM or show them all, and end."""
    compare(PROCESSES, model("MiniLM", "safetensors"))
