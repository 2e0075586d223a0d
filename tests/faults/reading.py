"""Runs operations that read, while each of their system calls meets a fault or finds the file truncated.

    LD_PRELOAD=shim.so python reading.py SHIM FOLDER FILE OPERATION...

It prints the outcome of each fault as JSON and leaves the judgement to the tests. The faults happen in a child
process; if a signal ends it, that is an outcome, and another child goes on with the next fault.
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
from injection import ERRORS, PARTIAL, SHORT, TRUNCATED, Shim, attempt, command, descriptors, prepare
from tests import builders
from tests.device_support import FakeDevice

import weightmap as wm
from weightmap.core.model import sharded
from weightmap.device import Staging, load

FAULTS = {name: ERRORS[name] for name in ("EIO", "EINTR", "EACCES")} | {"short": SHORT}
# Sizes to truncate to: 0, so that all pages are gone; 100 bytes, so that the rest of a page reads as zeros.
SIZES = (0, 100)
WRITTEN = {suffix for suffix, _ in builders.saved().values()}
# The end of the names of operations that run `with_mapped_index`.
MAPPED = ", mapped index"


def everything(source, **options):
    """Open a file; return everything that the handle knows without reading the mapping."""
    with wm.open(source, **options) as f:
        special_ids = f.vocab and f.vocab.special_ids
        return [f.format, f.layout, f.infos(), dict(f.metadata), special_ids, f.config, f.tokenizer]


def reads(source, **options):
    with wm.open(source, **options) as f:
        return [digest(f.read(name, dtype)) for name in f for dtype in ("float32", "float64")]


def copies(source):
    with wm.open(source, mode="copy") as f:
        return [digest(np.asarray(array)) for array in f.values()]


def sealed(source):
    with wm.open(source, mode="sealed") as f:
        return [digest(np.asarray(array)) for array in f.values()]


def without_descriptors(work, source):
    """Do it with a sharded model that keeps no descriptors, as for many files."""
    with mock.patch.object(sharded.open_source, "MAX_OPEN", 0):
        return work(source)


def with_mapped_index(work):
    """Do it as if an index of any size were large, and read in its mapping."""
    with mock.patch("weightmap.core.formats.embd.READ_INDEX", 0):
        return work()


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


def verified(source):
    with wm.open(source) as f:
        report = f.verify()
        return [report.checks, report.warnings, report.nbytes]


def converted(source, to):
    wm.convert(source, to)
    return to


def planned(source):
    """Read all tensors, and a row of one, by a plan; leave out the cold bytes, which vary."""
    with wm.open(source) as f:
        plan = wm.plan(f)
        plan.warm(threads=1)
        found = [(name, digest(np.asarray(array))) for name, array in plan.run("read", release=True, verify=True)]
        first = next(name for name in plan.names if f.info(name).shape)
        found += [(name, digest(np.asarray(array))) for name, array in wm.plan(f, {first: 0}).run("read")]
        return found


def on_a_device(source):
    """Load all tensors to a device, through slots that are used several times."""
    with wm.open(source) as f:
        found = load(wm.plan(f), FakeDevice(), verify=True, staging=Staging(2, 1 << 14, 1))
        return [(name, digest(array)) for name, array in found]


def about_pages(*argv):
    """Run a command about pages in memory; return its output on the file without the varying numbers."""
    document = json.loads(command(*argv, "--json"))
    return document.get("error") or [document["nbytes"], [one["name"] for one in document.get("names", [])]]


def inspected(path):
    """Run `inspect`; return its output on the file without the configuration, which may be unreadable."""
    document = json.loads(command("inspect", path, "--json"))
    assert (document.pop("weight", None) is None) is (document.pop("problem", None) is not None)
    return document


READINGS = {
    "open": lambda r: everything(r.path),
    "open, full": lambda r: everything(r.path, verify="full"),
    "verify": lambda r: verified(r.path),
    "read": lambda r: reads(r.path),
    "copy": lambda r: copies(r.path),
    "sealed": lambda r: sealed(r.path),
    "read, no descriptors": lambda r: without_descriptors(reads, r.path),
    "verify, no descriptors": lambda r: without_descriptors(verified, r.path),
    "plan": lambda r: planned(r.path),
    "device": lambda r: on_a_device(r.path),
    "convert": lambda r: converted(r.path, r.target),
    "diff": lambda r: wm.diff(r.path, r.same),
    "command inspect": lambda r: inspected(r.path),
    "command verify": lambda r: command("verify", r.path, "--json"),
    "command convert": lambda r: command("convert", r.path, r.target).rpartition(",")[0],
    "command diff": lambda r: command("diff", r.path, r.same),
    "command export": lambda r: command("export", r.path, r.tensor, r.out / "out.npy"),
    "command doctor": lambda r: about_pages("doctor", r.path),
    "command cache show": lambda r: about_pages("cache", "show", r.path),
    "command cache warm": lambda r: about_pages("cache", "warm", r.path, "--threads", 1),
    "command cache evict": lambda r: about_pages("cache", "evict", r.path),
    "command quantize": lambda r: command("quantize", r.path, r.out / "o.amb", "--scheme", "int8").rpartition(",")[0],
}


class Reading:
    def __init__(self, folder, operation, name):
        self.at, self.out = folder / "sources", folder / operation
        self.out.mkdir()
        what = operation.removesuffix(MAPPED)
        self.mapped = what != operation
        self.operation, self.path = READINGS[what], self.at / name
        self.victim = self.path / "one.safetensors" if self.path.is_dir() else self.path
        self.data = self.victim.read_bytes()
        self.same = self.out / f"same{self.path.suffix}"
        (shutil.copytree if self.path.is_dir() else shutil.copy)(self.path, self.same)
        self.target = self.out / f"out{self.path.suffix if self.path.suffix in WRITTEN else '.safetensors'}"
        with wm.open(self.path) as f:
            self.tensor = next(iter(f))

    def run(self):
        return with_mapped_index(lambda: self.operation(self)) if self.mapped else self.operation(self)

    def reset(self):
        self.victim.write_bytes(self.data)


def told(result):
    result = result.read_bytes() if isinstance(result, Path) else result
    return hashlib.sha256(repr(result).encode()).hexdigest()[:16]


def outcomes(shim, reading, cases, to):
    """Let an operation meet these faults one after another; write each outcome to a pipe, a line each."""
    for case in cases:
        number, _, fault, size = case
        reading.reset()
        shim.victim(reading.victim, size)
        before = descriptors()
        problem, result = attempt(shim, number, fault, reading.run)
        leaked = len(descriptors() - before)
        # The call that met the fault: where threads read, their calls come in any order.
        row = {
            "error": problem,
            "result": None if problem else told(result),
            "leaked": leaked,
            "call": shim.name(number),
        }
        os.write(to, json.dumps(row).encode() + b"\n")


def lines_of(run):
    """Run it in a child process; return the lines that it wrote to its pipe, and its exit status."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            run(theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, encoding="utf-8") as pipe:
        lines = pipe.read().splitlines()
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def cases_of(calls):
    for number, call in enumerate(calls, 1):
        for name, fault in FAULTS.items():
            if fault != SHORT or call in PARTIAL:
                yield number, name, fault, 0
        for size in SIZES:
            yield number, f"truncated to {size}", TRUNCATED, size


def sweep(shim, reading):
    reading.run()  # whatever is loaded at the first time is there
    shim.arm()
    result = reading.run()
    calls = [shim.name(number + 1) for number in range(shim.disarm())]
    cases = list(cases_of(calls))
    rows = []
    while len(rows) < len(cases):
        left = cases[len(rows) :]
        lines, status = lines_of(lambda to, left=left: outcomes(shim, reading, left, to))
        rows += [json.loads(line) | {"signal": 0} for line in lines]
        if status:
            rows.append(
                {"error": None, "result": None, "leaked": 0, "signal": -status, "call": calls[cases[len(rows)][0] - 1]}
            )
    for row, (number, fault, _, _) in zip(rows, cases, strict=True):
        row |= {"number": number, "fault": fault}
    reading.reset()
    return {"expected": told(result), "calls": calls, "rows": rows}


def main(shim, folder, name, *operations):
    at = Path(folder)
    (at / "sources").mkdir()
    prepare(at / "sources")
    found = {operation: sweep(Shim(shim), Reading(at, operation, name)) for operation in operations}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
