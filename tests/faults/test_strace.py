"""The sweep of `test_saving.py` once more, for a few calls, by the kernel itself: strace fails them below libc.

It needs strace and the right to trace, which a fresh machine rarely has; where it is there, it also shows that the shim
misses no call.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders import embd, normal
from tests.support import SOURCES, listing, preloaded

import weightmap as wm

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
    "link EPERM": ("link,linkat", "error=EPERM", 1),
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
def test_the_shim_misses_no_call(shim: Path, tmp_path: Path) -> None:
    """The shim counts the calls that the kernel sees of a conversion and of reading, in their order."""
    trace = tmp_path / "trace"
    command = ["strace", "-o", str(trace), "-E", f"LD_PRELOAD={preloaded(shim)}"]
    command += [sys.executable, "-c", WATCHED, str(shim), str(tmp_path), str(Path(__file__).parent)]
    env = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    text = trace.read_text(encoding="utf-8", errors="replace").split('"/begin"')[1].split('"/end"')[0]
    lines = [line for line in text.splitlines()[1:-1] if "(" in line and "MAP_ANONYMOUS" not in line]
    kernel = [name for name in (line.partition("(")[0] for line in lines) if name not in NO_FILES]
    assert {"openat", "renameat"} <= set(kernel)
    counted = done.stdout.split()
    assert [KERNEL_NAMES.get(name, name) for name in kernel] == [KERNEL_NAMES.get(name, name) for name in counted]
