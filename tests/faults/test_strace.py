"""What the operating system may do at any moment: fail a call, shrink a file, run out of descriptors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.builders import Tensor, embd, normal
from tests.builders import safetensors as st
from tests.support import SOURCES, listing, run_child

import weightmap as wm

if TYPE_CHECKING:
    from pathlib import Path

SAVE = """
import sys, numpy as np, weightmap as wm
try:
    wm.save(sys.argv[1], {"new": np.ones(1000, "f4")}, format=sys.argv[2])
except OSError as error:
    sys.exit(4 if isinstance(error, wm.TensorFileError) else 3)  # printing would be one more write to fail
"""
WRITES = "pwrite64,pwritev,pwritev2,writev,write,copy_file_range"
CALLS = {
    "write EIO": (WRITES, "error=EIO", 1),
    "second write ENOSPC": (WRITES, "error=ENOSPC", 2),
    "third write EDQUOT": (WRITES, "error=EDQUOT", 3),
    "fallocate ENOSPC": ("fallocate", "error=ENOSPC", 1),
    "fallocate unsupported": ("fallocate", "error=EOPNOTSUPP", 1),
    "fsync EIO": ("fsync,fdatasync", "error=EIO", 1),
    "directory fsync EIO": ("fsync,fdatasync", "error=EIO", 2),
    "rename EACCES": ("rename,renameat,renameat2", "error=EACCES", 1),
    "rename EXDEV": ("rename,renameat,renameat2", "error=EXDEV", 1),
    "chmod EPERM": ("fchmod", "error=EPERM", 1),
    "killed at fsync": ("fsync,fdatasync", "signal=SIGKILL", 1),
    "killed at rename": ("rename,renameat,renameat2", "signal=SIGKILL", 1),
}


def strace_works() -> bool:
    """Whether strace is here and permitted to inject faults."""
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-f", "-o", "/dev/null", "-e", "inject=sync:error=EIO", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not strace_works(), reason="strace cannot inject faults here")
@pytest.mark.parametrize("fault", CALLS)
def test_the_target_is_old_or_new_under_any_single_fault(tmp_path: Path, fault: str) -> None:
    """Whichever call of a save fails, the target is the whole old or the whole new file, and no temporary one stays."""
    calls, what, when = CALLS[fault]
    path = tmp_path / "out"
    old = embd.Draft([("old", normal((3,)))]).seal()
    path.write_bytes(old)
    inject = f"inject={calls}:{what}:when={when}"
    # The counted calls must be those of the save: an interpreter's start, without byte code to write, makes none.
    env = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["strace", "-f", "-o", str(tmp_path.parent / "trace"), "-e", f"trace={calls}", "-e", inject]
    command += [sys.executable, "-c", SAVE, str(path), "embd"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    with wm.open(path, verify="full") as f:
        assert list(f) in (["old"], ["new"])
    if "killed" in fault:
        assert path.read_bytes() == old
        assert all(name == "out" or name.startswith(".out.") for name in listing(tmp_path))
        assert len(listing(tmp_path)) <= 2
    else:
        assert result.returncode in {0, 3}, result.stderr
        assert listing(tmp_path) == ["out"]


SHRINK = """
import os, sys, threading, time, weightmap as wm
path, target, action = sys.argv[1:]
data = open(path, "rb").read()
stop = threading.Event()

def shrink():
    number = 0
    while not stop.is_set():
        number += 1
        os.truncate(path, (number * 7919 * 13) % len(data))
        with open(path, "r+b") as file:
            file.write(data)

def copy(f):
    wm.open(path, mode="copy").close()

def verify(f):
    wm.open(path).verify()

def full(f):
    wm.open(path, verify="full").close()

def convert(f):
    wm.convert(path, target)

thread = threading.Thread(target=shrink)
thread.start()
caught = 0
for _ in range(100):
    try:
        globals()[action](None)
    except (wm.TensorFileError, OSError):
        caught += 1
stop.set()
thread.join()
print("alive")
"""


@pytest.mark.parametrize("action", ["verify", "full", "copy", "convert"])
def test_a_file_that_shrinks_meanwhile_is_an_exception(tmp_path: Path, action: str) -> None:
    """Opening, verifying, copying and converting a file that another thread keeps truncating never ends in SIGBUS."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(st.build({f"t{i}": normal((64, 1024), i) for i in range(8)}))
    result = run_child(SHRINK, path, tmp_path / "out.weights", action, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, "alive"), result.stderr


MANY = """
import resource, sys, weightmap as wm
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
for _ in range(200):
    f = wm.open(sys.argv[1])
    held.append(f["a"])
    f.close()
print(sum(float(array.sum()) for array in held))
"""


def test_views_hold_no_descriptors(tmp_path: Path) -> None:
    """200 files' views live at once in a process that may have 64 descriptors."""
    path = tmp_path / "model.weights"
    path.write_bytes(embd.Draft([("a", Tensor("float32", (2,), np.ones(2, "<f4").tobytes()))]).seal())
    assert float(run_child(MANY, path).stdout) == 400


BOMB = """
import resource, sys, weightmap as wm
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    wm.open(sys.argv[1])
except wm.FormatError as error:
    print(type(error).__name__)
"""


def test_bombs_meet_a_memory_limit_unharmed(tmp_path: Path) -> None:
    """Files that declare terabytes are refused in a process that may have 1 GiB of address space."""
    huge = Tensor("uint8", (2**32 - 1, 2**20), b"")
    bombs = {
        "embd": embd.Draft([("a", huge)]).seal(),
        "count": embd.Draft([("a", normal((2,)))]).header(tensor_index_count=2**27).seal(),
        "simple": embd.simple([("a", Tensor("float32", (2**31, 2**30), b""))]),
        "safetensors": st.raw(b"{}", b"", 2**62),
    }
    for name, data in bombs.items():
        (tmp_path / name).write_bytes(data)
        assert run_child(BOMB, tmp_path / name).stdout.strip().endswith("Error"), name
