"""The shim that makes system calls fail, compiled once for the whole run."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FLAGS = ["-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE"]


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """The compiled `shim.c`."""
    if sys.platform != "linux":
        pytest.skip("the shim stands in for functions of Linux's C library")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        pytest.skip("there is no C compiler to compile the shim with")
    target = tmp_path_factory.mktemp("shim") / "shim.so"
    command = [*compiler, *FLAGS, "-o", str(target), str(HERE / "shim.c"), "-ldl"]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return target


@pytest.fixture(scope="module")
def memory():
    """Make folders on a file system in memory, where there is one: a sweep flushes thousands of files to the disk."""
    there = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sweeps", dir=there) as folder:
        yield lambda: Path(tempfile.mkdtemp(prefix="sweep", dir=folder))
