"""The C module under the address and undefined-behaviour sanitisers, in a process of its own."""

import os
import subprocess
import sys

import pytest
from tests import sanitised
from tests.attacks import cases
from tests.attacks.__main__ import OUTCOMES, write_all
from tests.places import ROOT
from tests.support import HANG

pytestmark = pytest.mark.slow


def build(folder):
    command = [sys.executable, "setup.py", "-q", "build", f"--build-base={folder}", f"--build-lib={folder / 'lib'}"]
    env = {**os.environ, "WEIGHTMAP_SANITIZE": "address,undefined", "CC": "gcc"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(once):
    if sanitised.library() is None:
        pytest.skip("needs gcc with the address sanitiser")
    return str(once("sanitised", build) / "lib")


@pytest.fixture(scope="module")
def environment(built):
    """Return the environment in which Python finds the sanitised package, and the smallest object is watched over."""
    return sanitised.environment(sanitised.library() or "", built)


def python(environment, *args):
    command = [sys.executable, *args]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=4 * HANG
    )


def test_the_sanitisers_are_at_work(environment):
    """A read one byte past a buffer is reported, and it is the sanitised module that did it."""
    code = "from weightmap._kernels import ffi, lib; p = ffi.new('uint32_t[8]')\n"
    code += "lib.wm_fnv1a32(ffi.cast('uint8_t *', p), 33)"
    done = python(environment, "-c", code)
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "wm_fnv1a32" in done.stderr


def test_attacks_on_the_sanitised_module(environment, tmp_path):
    assert write_all(tmp_path, [case for case in cases() if case.size is None]) > 1000
    done = python(environment, "-W", "ignore::UserWarning", "-c", OUTCOMES, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize("part", range(sanitised.PARTS))
def test_no_access_out_of_bounds_and_no_undefined_behaviour(built, part):
    environment = sanitised.environment(sanitised.library() or "", built, small=False) | {"WEIGHTMAP_FUZZ": "1000"}
    options = ("-q", "--capture=sys", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = python(environment, "-m", "pytest", *options, *sanitised.selection(part))
    assert done.returncode == 0, (done.stderr + done.stdout)[-8000:]
    assert "passed" in done.stdout
    assert "runtime error" not in done.stderr
