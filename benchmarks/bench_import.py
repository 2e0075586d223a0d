"""The time of `import weightmap` in fresh interpreters."""

import os
import subprocess
import sys

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


def library(name):
    """Return the import of a rival."""

    def prepare():
        need(name)
        return Import(f"import {name}")

    return rival(prepare)


CONTENDERS = ours(lambda: Import("import weightmap")) | {
    "safetensors": library("safetensors.numpy"),
    "bintensors": library("bintensors.numpy"),
    "gguf-py": library("gguf"),
}


GROUPS = {"import/beyond numpy": CONTENDERS}


@each_contender(GROUPS)
def test_import(compare, group, who):
    """Import after numpy, which all contenders need."""
    compare(GROUPS)
