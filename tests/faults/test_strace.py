"""The shim of `test_saving.py` and `test_reading.py` misses no call, as strace sees them: where that may trace."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import HANG, SOURCES, preloaded


def strace_works():
    """Whether strace is here and permitted to inject faults."""
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-f", "-o", "/dev/null", "-e", "inject=sync:error=EIO", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


WATCHED = """
import os, sys
sys.path.insert(0, sys.argv[3])
import numpy as np, weightmap as wm
from injection import Shim
shim = Shim(sys.argv[1])
source, target = sys.argv[2] + "/a.weights", sys.argv[2] + "/b.safetensors"
wm.save(source, {"w": np.ones(1000, "f4")}, vocab=["a"])
wm.convert(source, target)
os.path.exists("/begin")
shim.arm()
wm.convert(source, target)
with wm.open(target) as f:
    f.verify(), f["w"], f.read("w")
count = shim.disarm()
os.path.exists("/end")
print(*[shim.name(number + 1) for number in range(count)])
"""
# The kernel's names of these calls; all other calls of a process have nothing to do with files.
KERNEL_NAMES = {
    "openat": "open",
    "newfstatat": "stat",
    "fstat": "stat",
    "lstat": "stat",
    "stat": "stat",
    "pread64": "pread",
    "preadv": "pread",
    "preadv2": "pread",
    "pwrite64": "pwrite",
    "pwritev": "pwrite",
    "pwritev2": "pwrite",
    "fdatasync": "fsync",
    "renameat": "rename",
    "renameat2": "rename",
    "linkat": "link",
    "unlinkat": "unlink",
}
NO_FILES = {"munmap", "brk", "mprotect", "madvise", "futex", "getrandom", "rt_sigaction", "rt_sigprocmask", "getcwd"}
NO_FILES |= {"fadvise64", "lseek", "ioctl", "fcntl", "sched_yield", "clock_nanosleep", "rseq", "gettid", "getpid"}
NO_FILES |= {"sched_getaffinity"}


@pytest.mark.skipif(not strace_works(), reason="strace cannot inject faults here")
def test_the_shim_misses_no_call(shim, tmp_path):
    trace = tmp_path / "trace"
    command = ["strace", "-o", str(trace), "-E", f"LD_PRELOAD={preloaded(shim)}"]
    command += [sys.executable, "-c", WATCHED, str(shim), str(tmp_path), str(Path(__file__).parent)]
    env = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=HANG)
    text = trace.read_text(encoding="utf-8", errors="replace").split('"/begin"')[1].split('"/end"')[0]
    lines = [line for line in text.splitlines()[1:-1] if "(" in line and "MAP_ANONYMOUS" not in line]
    kernel = [name for name in (line.partition("(")[0] for line in lines) if name not in NO_FILES]
    assert {"openat", "renameat"} <= set(kernel)
    counted = done.stdout.split()
    assert [KERNEL_NAMES.get(name, name) for name in kernel] == [KERNEL_NAMES.get(name, name) for name in counted]
