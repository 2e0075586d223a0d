"""Runs operations that write, while each of their system calls meets each fault.

    LD_PRELOAD=shim.so python writing.py SHIM FOLDER OPERATION SCENARIO

It prints the files that exist after each fault as JSON and leaves the judgement to the tests. Only SIGKILL needs a
new process; this one goes on after an error, so leftovers of the error would be seen.
"""

import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from injection import ERRORS, KILLED, MATRIX, PARTIAL, SHORT, Shim, attempt, command, descriptors, prepare
from tests import builders
from tests.support import save_with

import weightmap as wm
from weightmap.core.bytes import atomic

FAULTS = {**ERRORS, "short": SHORT, "SIGKILL": KILLED}
OLD = b"the old file"


class Writing(NamedTuple):
    """An operation that writes: the suffix of its target, and a function of the sources and the target."""

    suffix: str
    run: Callable[[Path, Path], object]


WRITINGS = {
    **{
        f"save {kind}": Writing(suffix, lambda _, to, arguments=arguments: save_with(to, **arguments(MATRIX)))
        for kind, (suffix, arguments) in builders.saved().items()
    },
    "save quantised": Writing(".amb", lambda _, to: wm.save(to, {"x": MATRIX.T, "q": wm.quantize(MATRIX, "int4")})),
    # Larger than the staging buffer: several writes.
    "save in pieces": Writing(".safetensors", lambda _, to: wm.save(to, {"w": np.ones(9 << 18, np.float32)})),
    "convert to embd": Writing(".weights", lambda at, to: wm.convert(at / "words.fifu", to)),
    "convert to amb": Writing(".amb", lambda at, to: wm.convert(at / "a.weights", to, quantize="int5", threads=1)),
    "convert quantised": Writing(".safetensors", lambda at, to: wm.convert(at / "q.amb", to, dtype="float16")),
    "convert shards": Writing(".bt", lambda at, to: wm.convert(at / "sharded", to)),
    "convert to word2vec": Writing(".w2v", lambda at, to: wm.convert(at / "words.fifu", to, format="word2vec")),
    "convert from text": Writing(".fifu", lambda at, to: wm.convert(at / "words.txt", to)),
    "command convert": Writing(".safetensors", lambda at, to: command("convert", at / "a.weights", to)),
    "command quantize": Writing(
        ".amb", lambda at, to: command("quantize", at / "a.weights", to, "--scheme", "int4_block", "--threads", 1)
    ),
    "command export": Writing(".npy", lambda at, to: command("export", at / "a.weights", "w", to)),
}


class Saving:
    """One operation that writes, in one possible situation of its target."""

    def __init__(self, folder, operation, scenario):
        self.at, self.folder, self.scenario = folder / "sources", folder / "target", scenario
        self.at.mkdir()
        self.folder.mkdir()
        prepare(self.at)
        self.writing = WRITINGS[operation]
        self.given = self.target = self.folder / f"out{self.writing.suffix}"
        if scenario == "link":
            self.given = folder / f"link{self.writing.suffix}"
        if scenario == "named":  # as where no file can be without a name
            atomic._UNNAMED = 0
        self.reset()
        self.run()
        self.new = self.target.read_bytes()
        self.mode = self.target.stat().st_mode

    def run(self):
        self.writing.run(self.at, self.given)

    def reset(self):
        for path in self.folder.iterdir():
            path.unlink()
        if self.scenario == "link":
            self.given.unlink(missing_ok=True)
            self.given.symlink_to(self.target)
        if self.scenario == "new":
            return
        self.target.write_bytes(OLD)
        self.target.chmod(0o640)

    def found(self):
        names = sorted(path.name for path in self.folder.iterdir())
        left = [name for name in names if name != self.target.name]
        if self.target.name not in names:
            return {"target": "absent", "left": left, "mode": None}
        data = self.target.read_bytes()
        return {
            "target": "old" if data == OLD else "new" if data == self.new else f"torn: {len(data)} bytes",
            "left": left,
            "mode": oct(stat.S_IMODE(self.target.stat().st_mode)),
            "link": self.scenario != "link" or self.given.is_symlink(),
        }


def _apart(run):
    """Run it in a process of its own; return its exit status, negative if a signal ended it."""
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sweep(shim, folder, operation, scenario):
    saving = Saving(folder, operation, scenario)
    saving.run()  # once more: whatever is loaded or created at the first time is there
    saving.reset()
    shim.arm()
    saving.run()
    calls = [shim.name(number + 1) for number in range(shim.disarm())]
    rows = []
    for number, call in enumerate(calls, 1):
        for name, fault in FAULTS.items():
            if fault == SHORT and call not in PARTIAL:
                continue
            saving.reset()
            before, problem = descriptors(), None
            if fault == KILLED:
                status = _apart(lambda number=number: attempt(shim, number, KILLED, saving.run))
                assert status == -signal.SIGKILL, (status, number, call, calls)
            else:
                problem, _ = attempt(shim, number, fault, saving.run)
            leaked = len(descriptors() - before)
            rows.append({"number": number, "call": call, "fault": name, "error": problem, "leaked": leaked})
            rows[-1] |= saving.found()
    saving.reset()
    saving.run()
    return [*rows, {"number": 0, "call": "none", "fault": "none", "error": None, "leaked": 0} | saving.found()]


if __name__ == "__main__":
    print(json.dumps(sweep(Shim(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])))  # noqa: T201
