"""Shared functions of this folder's scripts."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

# The end of a question whose files are not in the page cache.
COLD = ", cold"
PAGE = 4096


class Absent(Exception):  # noqa: N818 - no error: a library that is not here
    """A contender's library or tool is missing."""


def load(script: str) -> ModuleType:
    """Return a script of this folder."""
    return importlib.import_module(f"workflows.{script}")


def environment() -> dict[str, str]:
    """Return a user's environment: modules are compiled once, and output is buffered."""
    others = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    return {name: value for name, value in os.environ.items() if name not in others}


def need(module: str) -> Any:
    """Return a module, or raise `Absent`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Absent(str(error)) from None


def touch(array: Any) -> int:
    """Read a byte of every page of an array or a tensor."""
    if not isinstance(array, np.ndarray):
        array = array.view(need("torch").uint8).numpy()
    return int(array.reshape(-1).view(np.uint8)[::PAGE].sum())


def normal(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Return normally distributed float32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def matrices(mib: int, count: int = 32) -> dict[str, Any]:
    """Return `count` matrices of float32 with `mib` MiB in all: the same numbers again and again."""
    one = normal((mib * 256 // count, 1024))
    return {f"model.layers.{i}.mlp.weight": one for i in range(count)}


def anonymous(pid: int | str) -> float:
    """Return the anonymous memory of a process and its children in MiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:  # it has ended
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")) + sum(
        map(anonymous, started)
    )


def run(command: list[str]) -> dict[str, float]:
    """Run a command; return its times and its memory, all of the process."""
    begin, most = time.perf_counter(), 0.0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        found, code, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            break
        most = max(most, anonymous(process.pid))
        time.sleep(0.002)
    seconds = time.perf_counter() - begin
    process.returncode = code
    if code:
        sys.exit(f"{command} ended with {code}")
    return {
        "seconds": seconds,
        "processor": usage.ru_utime + usage.ru_stime,
        "resident": usage.ru_maxrss / 1024,
        "anonymous": most,
    }
