"""The core stands alone: in a copy of the package without any part, its tests pass."""

import os
import shutil
import subprocess
import sys

import pytest
from tests.integration.test_imports import PACKAGE, PARTS
from tests.places import ROOT

NAMES = """
import sys, weightmap
for name in weightmap.__all__:
    try:
        getattr(weightmap, name)
    except weightmap.MissingDependencyError as error:
        purpose, missing = str(error).removesuffix(", which is not there").split(" needs weightmap.")
        assert purpose == f"weightmap.{name}" and missing in sys.argv, error
    else:
        print(name)
f = weightmap.open(bytes([2, *bytes(7)]) + b"{}")
for name, call in {
    "f.prefetch": f.prefetch,
    "f.residency": f.residency,
    "f.release": f.release,
    "f.pool": lambda: f.pool(4096),
    "f.weights": lambda: f.weights,
    "f.embeddings": lambda: f.embeddings,
    "scheme pq": lambda: weightmap.quantize([[1.0]], "pq"),
    "opening an address": lambda: weightmap.open("https://localhost/m.safetensors"),
}.items():
    try:
        call()
    except weightmap.MissingDependencyError as error:
        assert f"{name} needs weightmap." in str(error), error
    else:
        raise AssertionError(name)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A function that runs Python with the copy; its tests are those of this checkout."""
    copy = tmp_path_factory.mktemp("core") / "weightmap"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for part in (*PARTS, "__main__"):
        path = copy / part
        shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink()
    environment = os.environ | {"PYTHONPATH": str(copy.parent)}

    def run(*args):
        return subprocess.run(
            [sys.executable, *args], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_public_names_of_the_core_are_there(python):
    done = python("-c", NAMES, *PARTS)
    assert done.returncode == 0, done.stderr
    assert {"open", "load", "save", "quantize", "formats", "kernels", "TensorFile"} <= {*done.stdout.split()}


@pytest.mark.slow
def test_the_tests_of_the_core_pass_without_parts(python):
    done = python("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", "tests/core")
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout
