"""Rivals in other environments: they run in a child process and read their own clocks.

`ExternalClock` starts the interpreter that ``WEIGHTMAP_FINALFUSION`` names, with a script that imports only the rival.
A line on its standard input asks for a number of calls; a line on its standard output answers with the seconds they
took.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("external_env_child.py")
OTHER = os.environ.get("WEIGHTMAP_FINALFUSION")
VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


@functools.cache
def version(library: str) -> str | None:
    """Return the version of a library in the other environment, or None."""
    if OTHER is None:
        return None
    done = subprocess.run([OTHER, "-c", VERSION, library], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


class ExternalClock:
    """The clock of a library in the other environment, for one question of `external_env_child.py`."""

    def __init__(self, library: str, question: str, *arguments: str) -> None:
        if version(library) is None:
            pytest.skip(f"{library} is not installed, or WEIGHTMAP_FINALFUSION names no interpreter that has it")
        self.info: dict[str, Any] = {"in": f"a process of its own, {library} {version(library)}"}
        self.child = subprocess.Popen(
            [OTHER, str(CHILD), question, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, calls: int) -> float:
        self.child.stdin.write(f"{calls}\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        assert answer, f"the other interpreter ended with status {self.child.wait()}"
        return float(answer)

    def __del__(self) -> None:
        if child := getattr(self, "child", None):
            child.stdin.close()
            child.stdout.close()
            child.wait()
