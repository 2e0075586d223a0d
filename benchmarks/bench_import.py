"""What `import weightmap` costs a program, measured in fresh interpreters."""

import os
import subprocess
import sys

from timing import everyone, need, ours, rival

# Prints the seconds that a statement takes in an interpreter that has imported numpy already.
BEYOND_NUMPY = "import time, numpy; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
# What pip compiles when it installs a rival, an editable installation compiles at the first import, if it may.
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Import:
    """The clock of a statement: the child reads it."""

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
    """Import a rival, where it is installed."""

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


@everyone(GROUPS)
def test_import(race, group, who):
    """Import on top of numpy, which everybody needs."""
    race(GROUPS)
