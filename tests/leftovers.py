"""Leftovers that fail a test: threads, processes, settings of the process or of the package.

A plugin of pytest; `conftest.py` registers it, as hooks of its own would not see fixtures of the session.
It waits for threads that end by themselves, such as a prefetch's, so no test depends on their time.
"""

import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest

from weightmap import kernels

# How long to wait for threads and processes that end by themselves, however busy the machine is.
SECONDS = 300
# The loop that serves all requests of a process, and a thread of Dask, which both run by design to its end.
KEPT = ("weightmap-remote", "Dask-Offload")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1)
EARLIER: list[dict[str, Any]] = []
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _threads() -> set[int]:
    return set(sys._current_frames())


def _name(thread: int) -> str | None:
    """The name of a thread; None without one, as for threads that `_thread` starts."""
    known = threading._active.get(thread)
    return known.name if known else None


def _processes() -> set[int]:
    if sys.platform != "linux":
        return set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    # Both start at their first use, and serve all later uses.
    kept = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}
    found = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has ended
            found.update(map(int, task.read_text().split()))
    return found - kept


def _settings() -> dict[str, Any]:
    os.umask(mask := os.umask(0o77))
    # pytest, torch and jax have variables of their own.
    own = (b"PYTEST_CURRENT_TEST", b"TORCH", b"_TORCH", b"TF_", b"TPU_")
    environment = {name: value for name, value in os.environ._data.items() if not name.startswith(own)}
    return {
        "the instruction set": kernels.isa(),
        "the working directory": os.getcwd(),  # noqa: PTH109 - Path takes ten times as long
        "the environment": environment,
        "a signal's handler": [signal.getsignal(number) for number in SIGNALS],
        "whether a timer runs": [signal.getitimer(timer) != (0, 0) for timer in TIMERS],
        "a limit of the process": [resource.getrlimit(limit) for limit in LIMITS],
        "the mask of new files": mask,
        "whether garbage is collected": gc.isenabled(),
        "sys.path": sys.path.copy(),
    }


class Leftovers:
    """The state before a test."""

    def __init__(self) -> None:
        self.threads, self.processes, self.settings = _threads(), _processes(), _settings()

    def accept(self) -> None:
        """Accept the present state as the earlier one: a fixture for several tests has made it."""
        self.threads |= _threads()
        self.processes |= _processes()
        if (settings := _settings()) != self.settings:
            EARLIER.append(self.settings)  # the state that its end restores
            self.settings = settings

    def found(self) -> list[str]:
        """Return the leftovers, once threads and processes have had time to end."""
        begin, pause = time.monotonic(), 0.001
        while (more := self._running()) and time.monotonic() < begin + SECONDS:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            if pause > 0.02:
                gc.collect()  # executors end with their last owner, which may be part of a cycle with a traceback
        known = (self.settings, *EARLIER)
        return more + [
            f"{what} is another{_which(value, self.settings[what])}"
            for what, value in _settings().items()
            if value not in [one[what] for one in known]
        ]

    def _running(self) -> list[str]:
        threads = [name for thread in _threads() - self.threads if not (name := _name(thread) or "").startswith(KEPT)]
        return [f"thread {name}" for name in threads] + [f"process {one}" for one in _processes() - self.processes]


def _which(now: Any, before: Any) -> str:
    """The entries of a dictionary that differ."""
    return f": {dict(now.items() ^ before.items())}" if isinstance(now, dict) else ""


BEFORE = pytest.StashKey[Leftovers]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Note the state before a test."""
    item.stash[BEFORE] = Leftovers()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Accept the threads and settings of a fixture that serves several tests."""
    result = yield
    if fixturedef.scope != "function":
        request._pyfuncitem.stash[BEFORE].accept()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test that leaves something behind; wait for its threads, so that no test sees another's."""
    result = yield
    before = item.stash[BEFORE]
    del item.stash[BEFORE]  # or each collection of garbage would go through those of all tests
    if found := before.found():
        pytest.fail(f"left behind: {', '.join(found)}", pytrace=False)
    return result
