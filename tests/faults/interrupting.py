"""Operations that are interrupted at every opcode: an exception is raised there, as a handler of a signal raises one.

    python interrupting.py FOLDER how OPERATION...

`how` is "all" or "some". For "all", an exception is raised once before each opcode of every function in Python, of this
package or another, that an operation runs through. For "some", before a third of the opcodes of modules that get
something from the system, another third for each operation, and before few of the others. It prints as JSON how often,
and the leftovers: descriptors, mappings, files beside the target, targets that are neither old nor new. The tests judge
them.

Real signals interrupt at fewer places, since CPython asks for them only at the beginning of functions, at calls and at
jumps back. So code that passes this passes those.
"""

import errno
import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from injection import MATRIX, WORDS, command, descriptors, prepare

import weightmap as wm
from weightmap.core.bytes import atomic

OLD = b"the old file"
# Modules whose functions own descriptors, mappings or files.
OWNING = {f"{name}.py" for name in ("descriptor", "mapping", "reader", "sink", "atomic", "sealed", "source", "_files")}
# Modules without such things, whose opcodes are skipped; importlib would lose its locks.
APART = ("argparse.py", "gettext.py", "<frozen importlib")
# What a command handles.
ENDING = (signal.SIGTERM, signal.SIGHUP)
# From this size on `access.empty` maps memory for an array.
LARGE = 32 << 20


class Interruption(BaseException):
    """The exception that is raised; nobody catches it."""


class Operation(NamedTuple):
    """An operation to interrupt, given the sources and the target, if it has one."""

    run: Callable[[Path, Path], object]
    suffix: str = ""
    system: str = ""  # "named": without files that have no name; "unlinked": without links
    each: int = 3  # the share of OWNING's opcodes in "some"
    few: int = 101  # and of all


def _decode(at, name):
    with wm.open(at / name) as f:
        for tensor in f:
            f.read(tensor)


def _look(at, name, **options):
    with wm.open(at / name, **options) as f:
        for tensor in f:
            f[tensor]


OPERATIONS = {
    "save embd": Operation(lambda _, to: wm.save(to, {"w": MATRIX, "x": MATRIX.T}, vocab=WORDS), ".weights"),
    "save safetensors": Operation(lambda _, to: wm.save(to, {"w": MATRIX}), ".safetensors"),
    "save named": Operation(lambda _, to: wm.save(to, {"w": MATRIX}), ".safetensors", "named"),
    "save unlinked": Operation(lambda _, to: wm.save(to, {"w": MATRIX}), ".safetensors", "unlinked"),
    "save passing": Operation(lambda _, to: wm.save(to, {"w": MATRIX}, output=wm.Output(durable=False)), ".bt"),
    "open embd": Operation(lambda at, _: _look(at, "a.weights")),
    "open cow": Operation(lambda at, _: _look(at, "a.safetensors", mode="cow")),
    "open copy": Operation(lambda at, _: _look(at, "a.bt", mode="copy")),
    "open sealed": Operation(lambda at, _: _look(at, "a.bt", mode="sealed")),
    "open shards": Operation(lambda at, _: _look(at, "sharded")),
    "open large": Operation(lambda at, _: _look(at, "large.safetensors", mode="copy")),
    "read": Operation(lambda at, _: _decode(at, "a.weights")),
    "read quantised": Operation(lambda at, _: _decode(at, "q.amb")),
    "verify": Operation(lambda at, _: wm.open(at / "a.weights").verify()),
    "convert": Operation(lambda at, to: wm.convert(at / "a.weights", to), ".safetensors", "", 23, 401),
    "convert named": Operation(lambda at, to: wm.convert(at / "a.weights", to), ".bt", "named", 11, 401),
    "convert shards": Operation(lambda at, to: wm.convert(at / "sharded", to), ".bt", "", 23, 401),
    "convert quantised": Operation(
        lambda at, to: wm.convert(at / "q.amb", to, dtype="float16"), ".safetensors", "", 23, 401
    ),
    "convert from text": Operation(lambda at, to: wm.convert(at / "words.txt", to), ".fifu", "", 23, 401),
    "command convert": Operation(lambda at, to: command("convert", at / "a.weights", to), ".safetensors", "", 47, 2003),
}


class Interrupter:
    """Raises `Interruption` before the opcode of this number, from 0 on; notes each opcode's module up to there."""

    def __init__(self, number=None):
        self.number = number
        self.modules = []

    def __call__(self, frame, event, _):
        name = frame.f_code.co_filename
        if event == "call":
            if name.startswith(APART) or name.endswith(APART):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.modules.append(name)
            if len(self.modules) - 1 == self.number:
                raise Interruption
        return self


def mappings(folder):
    """How many mappings this process has: of files in this folder, of sealed memory, and for large arrays."""
    count = 0
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        begin, _, end = line.partition(" ")[0].partition("-")
        large = line.endswith(" 0 ") and LARGE <= int(end, 16) - int(begin, 16) < LARGE + (8 << 20)
        count += large or str(folder) in line or "memfd:weightmap" in line
    return count


class Sweep:
    def __init__(self, folder, name):
        self.folder, self.at, self.to = folder, folder / "sources", folder / "target"
        self.name, self.operation = name, OPERATIONS[name]
        self.target = self.to / f"out{self.operation.suffix}"
        self.reset()
        for _ in range(2):  # whatever is loaded or created at the first time is there
            self.operation.run(self.at, self.target)
        self.new = self.target.read_bytes() if self.operation.suffix else b""

    def reset(self):
        shutil.rmtree(self.to, ignore_errors=True)
        self.to.mkdir()
        if self.operation.suffix:
            self.target.write_bytes(OLD)

    def trace(self, interrupter):
        """Do it with this tracer. Whether it ended by the interruption."""

        def run():
            # A generator: an interruption at the last opcode of a handler, where no signal can come, leaves the handled
            # exception set, and with it all its frames. Generators have their own place for it.
            self.operation.run(self.at, self.target)
            yield

        steps = run()  # named, so that it ends after the tracing
        sys.settrace(interrupter)
        try:
            next(steps)
        except Interruption:
            return True
        finally:
            sys.settrace(None)
            # The driver redirects the output of commands, and these handle signals until their process ends: what
            # an interruption of the redirection, or of the last step of a command, leaves behind is put back.
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            for number in ENDING:
                signal.signal(number, signal.SIG_DFL)
        return False

    def numbers(self, how):
        for _ in range(2):  # from 3.12 on, CPython reports opcodes of the functions that were traced before
            interrupter = Interrupter()
            self.trace(interrupter)
        if how == "all":
            return list(range(len(interrupter.modules)))
        shift = list(OPERATIONS).index(self.name)
        owning = [i for i, module in enumerate(interrupter.modules) if os.path.basename(module) in OWNING]  # noqa: PTH119
        each, few = self.operation.each, self.operation.few
        return sorted({*owning[shift % each :: each], *range(shift % few, len(interrupter.modules), few)})

    def run(self, how):
        seen = dict.fromkeys(("interrupted", "swallowed", "descriptors", "mappings", "litter", "torn"), 0)
        gc.collect()
        open_before, mapped_before = descriptors(), mappings(self.folder)
        for number in self.numbers(how):
            interrupter = Interrupter(number)
            ended = self.trace(interrupter)
            raised = len(interrupter.modules) > number  # from 3.13 on, later runs have some opcodes fewer
            open_now, mapped_now = descriptors(), mappings(self.folder)
            if open_now - open_before or mapped_now > mapped_before:  # by a cycle, or for good?
                gc.collect()
                open_now, mapped_now = descriptors(), mappings(self.folder)
            litter = any(path != self.target for path in self.to.iterdir())
            data = self.target.read_bytes() if self.operation.suffix else b""
            seen["interrupted"] += raised
            seen["swallowed"] += raised and not ended
            seen["descriptors"] += bool(open_now - open_before)
            seen["mappings"] += mapped_now > mapped_before
            seen["litter"] += litter
            seen["torn"] += data not in {b"", OLD, self.new}
            open_before, mapped_before = open_now, mapped_now
            if litter or data != OLD:
                self.reset()
        return seen


def refuse(*_, **__):
    """Stand in for `os.link` where there are no links."""
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def sweep(folder, name, how):
    system, before = OPERATIONS[name].system, (atomic._UNNAMED, os.link)
    if system == "named":
        atomic._UNNAMED = 0
    elif system == "unlinked":
        os.link = refuse
    try:
        return Sweep(folder, name).run(how)
    finally:
        atomic._UNNAMED, os.link = before


def prepare_sources(folder):
    folder.mkdir()
    prepare(folder)
    size = LARGE + (1 << 20)
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (folder / "large.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)


def main(folder, how, names):
    sys.unraisablehook = lambda _: None  # in a finaliser: the checks see what it leaves behind
    prepare_sources(folder / "sources")
    return {name: sweep(folder, name, how) for name in names}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])))  # noqa: T201
