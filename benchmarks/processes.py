"""Loading in a new process, which reads its own clock, and its memory from `/proc`.

*Anonymous* memory belongs to the process alone, and the system can only swap it out. *File-backed* pages are shared
with every process that maps the file, and the system takes them back when memory runs short.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from external_env import OTHER, version
from timing import need

CHILD = Path(__file__).with_name("processes_child.py")
# The library of each way of loading; where it is missing, the contender is skipped.
LIBRARIES = {
    "weightmap": "weightmap",
    "weightmap, words": "weightmap",
    "safetensors, numpy": "safetensors",
    "safetensors, torch": "torch",
    "bintensors": "bintensors",
    "torch.load(mmap)": "torch",
    "gguf-py": "gguf",
    "np.load": "numpy",
    "gensim": "gensim",
    "finalfusion": "finalfusion",
}


class Loading:
    """The clock of a process that opens a file and uses all of it; `info` has its memory in MiB, of the last call.

    The seconds end when a byte of every page was read. "after opening" and "after use" are what loading adds to a
    process that has imported the library.
    """

    alike, turns = True, 3

    def __init__(self, who: str, path: str, *more: str, words: int = 0) -> None:
        if not sys.platform.startswith("linux"):
            pytest.skip("asks /proc")
        self.interpreter = sys.executable
        if LIBRARIES[who] != "finalfusion":
            need(LIBRARIES[who])
        elif version("finalfusion") is None:
            pytest.skip("finalfusion is not installed, or WEIGHTMAP_FINALFUSION names no interpreter that has it")
        else:
            self.interpreter = OTHER
        self.arguments = [who, path, *more]
        self.words, self.info = words, dict[str, Any]()

    def __call__(self, calls: int) -> float:
        total = 0.0
        for _ in range(calls):
            command = [self.interpreter, str(CHILD), *self.arguments]
            self.info |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            total += self.info["seconds"]
        if self.words:
            self.info["bytes a word"] = self.info["anonymous MiB after use"] * 2**20 / self.words
        return total
