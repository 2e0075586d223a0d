"""Loading in a process of its own, which reads its clock and what `/proc` says of its memory.

Memory is told apart: *anonymous* is what the process has for itself and the system can only swap out, *file-backed*
are pages of files, which are shared with every other process that maps them and given up when memory is wanted.
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
# What each way of loading imports, so that it can be left out where that is not installed.
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

    The seconds are those until a byte of every page was read. "after opening" and "after use" are what came on top of
    the process that had imported the library.
    """

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
