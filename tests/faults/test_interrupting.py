"""Exceptions at any moment, as from signal handlers, leave nothing behind.

`interrupting.py` raises one before each opcode of operations that open, read and write. By default that is some of the
opcodes; WEIGHTMAP_INTERRUPTIONS=all is all of them, which takes half an hour.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.places import ROOT
from tests.support import SOURCES

HERE = Path(__file__).parent
HOW = os.environ.get("WEIGHTMAP_INTERRUPTIONS", "some")
OPERATIONS = {
    "save": ("save embd", "save safetensors", "save named", "save unlinked", "save passing"),
    "open": ("open embd", "open cow", "open copy", "open sealed", "open shards", "open large"),
    "read": ("read", "read quantised", "verify"),
    "convert": ("convert", "convert named", "convert shards", "convert quantised", "convert from text"),
    "command": ("command convert",),
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left behind is counted in /proc")


@pytest.mark.parametrize(
    "kind", ["save", "open", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("read", "convert", "command"))]
)
def test_an_exception_at_any_opcode_leaves_nothing_behind(memory, kind):
    """No descriptor, no mapping, no file beside the target; the target is the old file or the new one."""
    command = [sys.executable, str(HERE / "interrupting.py"), str(memory()), HOW, *OPERATIONS[kind]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((SOURCES, str(ROOT)))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)  # noqa: T201 - the counts, for runs of all with pytest -s
    assert list(found) == list(OPERATIONS[kind])
    for name, seen in found.items():
        assert seen.pop("interrupted") > 40, name
        assert not any(seen.values()), (name, seen)
