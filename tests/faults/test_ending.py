"""Processes that end while files are open or being written: by a signal, before a thread is done, in any order."""

import signal
import sys

import numpy as np
import pytest
from tests.support import listing, run_child

import weightmap as wm

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are others there, and so are open files")

# A command that gets a signal in the middle of its writing, sent by itself to be sure. It is writing the second piece
# of a file of 9 MiB, whose space is claimed and which has a name or none.
ENDED = """
import os, signal, sys
from weightmap import cli
from weightmap.core.bytes import atomic
source, target, number, named, ignored = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(int, sys.argv[4:])
if named:
    atomic._UNNAMED = 0
# The test sets the signal's action itself: nohup ignores SIGHUP.
signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
pwrite, written = os.pwrite, []
def write(fd, data, offset):
    written.append(offset)
    if len(written) == 2:
        print(os.fstat(fd).st_size, os.fstat(fd).st_nlink, flush=True)
        os.kill(os.getpid(), number)
    return pwrite(fd, data, offset)
os.pwrite = write
status = cli.main(["convert", source, target])
print("done")
sys.exit(status)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_a_signal_that_ends_a_command_leaves_no_file(tmp_path, number, *, named):
    source = tmp_path / "a.weights"
    wm.save(source, {"w": np.ones(9 << 18, np.float32)})
    done = run_child(ENDED, source, tmp_path / "b.safetensors", int(number), int(named), 0, check=False)
    size, links = done.stdout.split()
    assert int(size) > 9 << 20
    assert links == "1" if named else links in "01"
    assert done.returncode == -number
    assert done.stderr == ""
    assert listing(tmp_path) == ["a.weights"]


def test_commands_leave_the_handlers_of_signals_as_they_were(tmp_path):
    """Programs call `main`, too, in any thread: afterwards, signals work as before."""
    code = """
import signal, sys, threading
from weightmap import cli
def mine(*_): pass
signal.signal(signal.SIGHUP, mine)
print(cli.main(["inspect", sys.argv[1]]))
thread = threading.Thread(target=lambda: print(cli.main(["inspect", sys.argv[1]])))
thread.start()
thread.join()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.getsignal(signal.SIGHUP) is mine)
"""
    wm.save(tmp_path / "a.weights", {"w": np.ones(3, np.float32)})
    lines = run_child(code, tmp_path / "a.weights").stdout.splitlines()
    assert lines.count("0") == 2
    assert lines[-1] == "True True"


# A thread that nobody waits for saves, and stands still in the middle while the process ends.
DAEMON = """
import sys, threading, time
import numpy as np, weightmap as wm
from weightmap.core.bytes import atomic
if int(sys.argv[2]):
    atomic._UNNAMED = 0
middle = threading.Event()
def progress(done, total):
    if done:
        middle.set()
        threading.Event().wait()
def run():
    wm.save(sys.argv[1], {"w": np.ones(9 << 18, np.float32)}, progress=progress)
threading.Thread(target=run, daemon=True).start()
middle.wait()
if int(sys.argv[3]):  # a child of that moment has no part in it
    import os
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(len(os.listdir(os.path.dirname(sys.argv[1]))))
"""


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_a_thread_that_saves_when_the_process_ends_leaves_no_file(tmp_path, *, named):
    run_child(DAEMON, tmp_path / "a.weights", int(named), 0)
    assert listing(tmp_path) == []


def test_a_child_that_ends_leaves_the_files_of_its_parent(tmp_path):
    """A process that was forked while a thread was saving does not remove the temporary file when it ends."""
    assert run_child(DAEMON, tmp_path / "a.weights", 1, 1).stdout == "1\n"
    assert listing(tmp_path) == []


# Handles, arrays and large arrays in a module that is emptied last, and beyond that. `Py_IncRef` stands for extension
# modules that keep one, as jax and torch do.
LATE = """
import ctypes, os, sys, types
import numpy as np, weightmap as wm
from weightmap.core.native.access import empty
late = types.ModuleType("late")
class Witness:
    module = sys.modules["weightmap.core.native.access"]
    def __del__(self, write=sys.stderr.write, ours=vars(module), system=vars(os)):
        write(f"{ours['os']} {system['close']}")
modes = ["mmap", "cow", "copy"] + ["sealed"] * hasattr(os, "memfd_create")
late.kept = [wm.open(name, mode=mode) for name in sys.argv[1:] for mode in modes]
late.kept += [f[name] for f in late.kept for name in f] + [empty(40 << 20, np.uint8)]
late.kept.append(Witness())
others = dict(sys.modules)
sys.modules.clear()
sys.modules.update({"late": late} | others)
for module in (late, os, *(others[name] for name in others if name.startswith("weightmap"))):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
del late, others, module
"""


def test_what_is_let_go_of_when_all_modules_are_empty(tmp_path):
    """Handles and arrays are freed silently, whichever modules the ending interpreter clears first."""
    for suffix in (".weights", ".safetensors"):
        wm.save(tmp_path / f"a{suffix}", {"w": np.ones(3, np.float32)})
    done = run_child(LATE, tmp_path / "a.weights", tmp_path / "a.safetensors")
    assert done.stderr == "None None"
