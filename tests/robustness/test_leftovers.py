"""The check that no test leaves anything behind for the next one."""

import os
import subprocess
import sys
import threading

from tests import leftovers
from tests.leftovers import Leftovers


def test_threads_processes_and_settings_are_noticed(monkeypatch):
    """What goes on, or is another than before, is named; what ends meanwhile is waited for."""
    before = Leftovers()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="stays")
    thread.start()
    with monkeypatch.context() as patched, subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        patched.setattr(leftovers, "SECONDS", 0)
        patched.setenv("WEIGHTMAP_MODE", "copy")
        mask = os.umask(0o7)
        found = before.found()
        os.umask(mask)
        child.communicate()
    assert found[0] == "thread stays"
    assert found[1].startswith("process ") or sys.platform != "linux"
    assert found[-2] == "the environment is another: {b'WEIGHTMAP_MODE': b'copy'}"
    assert found[-1] == "the mask of new files is another"
    monkeypatch.setattr(leftovers.time, "sleep", lambda _: end.set())
    assert before.found() == []


def test_what_a_fixture_starts_is_no_leftover():
    """Servers that serve several tests are accepted."""
    before, end = Leftovers(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    before.accept()
    assert before.found() == []
    end.set()
    thread.join()
