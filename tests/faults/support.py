"""Starts a driver of faults under the shim."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT
from tests.support import HANG, SOURCES, preloaded

HERE = Path(__file__).parent


def drive(driver, shim, folder, *arguments):
    """Run a driver in a new process; return its parsed output, and fail if it complained."""
    # LANGUAGE: the command line would look for translations in a hundred places.
    path = os.pathsep.join((SOURCES, str(ROOT)))
    environment = {**os.environ, "LD_PRELOAD": preloaded(shim), "PYTHONPATH": path, "LANGUAGE": "C"}
    command = [sys.executable, str(HERE / driver), str(shim), str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stderr
    # Files that cannot be mapped are read, which is logged; anything else on that stream is an error nobody caught.
    odd = [line for line in done.stderr.splitlines() if line and "cannot be mapped" not in line]
    assert not odd, done.stderr
    return json.loads(done.stdout)
