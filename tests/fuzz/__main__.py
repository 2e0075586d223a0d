"""Tries mutants in several processes: ``python -m tests.fuzz --count 100000``, or ``make fuzz``.

Mutants are numbered, and each number is always the same mutant: a campaign that was stopped goes on with ``--first``,
and ``python -m tests.fuzz amb --first 4711 --count 1`` repeats a failure. Files that fail are left
in a folder.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.places import ROOT
from tests.support import HANG

from .corpus import FORMATS

# A process tries this many, then another one continues, so that retained memory does not add up.
BATCH = 100_000


class Result(NamedTuple):
    """The outcomes of some mutants: how often each came, and the failures, each as a text."""

    outcomes: Counter[str]
    failures: list[str]


def batch(format, first, count, failures):
    """Try some mutants in a new process, and report the one at which it died or hung."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        state.write_bytes(first.to_bytes(8, "little"))
        command = [sys.executable, "-m", "tests.fuzz.worker", format, str(first), str(count)]
        command += ["--state", str(state), "--failures", str(failures)]
        # After the path of this process, which may name a sanitised build.
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT / "src"))))
        with (
            (Path(folder) / "out").open("w+") as out,
            subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}) as child,
        ):
            hung = not watched(child, state) or -child.returncode == getattr(signal, "SIGPROF", None)
            out.seek(0)
            lines = out.read().splitlines()
        found = Result(Counter(), [line for line in lines if line.startswith('{"format"')])
        if lines and lines[-1].startswith('{"outcomes"'):
            found.outcomes.update(json.loads(lines[-1])["outcomes"])
        else:
            number = int.from_bytes(state.read_bytes(), "little")
            what = "hung" if hung else f"ended the process with status {child.returncode}"
            found.failures.append("\n".join((f"{format} {number} {what}", *lines[-20:])))
        return found


def watched(child, state):
    before, since = b"", time.monotonic()
    while child.poll() is None:
        now = state.read_bytes()
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > HANG:
            child.kill()
            child.wait()
            return False
        try:
            child.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    return True


def campaign(format, first, count, *, jobs, failures, progress=False):
    total, started, done = Result(Counter(), []), time.monotonic(), 0
    size = min(BATCH, -(-count // jobs))
    starts = range(first, first + count, size)
    with ThreadPoolExecutor(jobs) as pool:
        tasks = [pool.submit(batch, format, start, min(size, first + count - start), failures) for start in starts]
        for start, task in zip(starts, tasks, strict=True):
            found = task.result()
            total.outcomes.update(found.outcomes)
            total.failures.extend(found.failures)
            done += min(size, first + count - start)
            if progress:
                rate = done / (time.monotonic() - started)
                told = f"{format}: {done:,} of {count:,}, {rate:,.0f} a second, {len(total.failures)} failed"
                print(f"{told}; go on with --first {first + done}", flush=True)
    return total


def main():
    """Run the campaign of the command line; the exit status says whether anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"of {', '.join(FORMATS)}; all by default")
    parser.add_argument("--first", type=int, default=0, help="the first mutant")
    parser.add_argument("--count", type=int, default=10_000_000, help="how many, of each format")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument(
        "--failures", type=Path, default=ROOT / "build" / "fuzz", help="where mutants that fail are put"
    )
    args = parser.parse_args()
    if unknown := set(args.formats) - set(FORMATS):
        parser.error(f"there is no format {', '.join(sorted(unknown))}")
    failed = 0
    for format in args.formats or FORMATS:
        options = {"jobs": args.jobs, "failures": args.failures.absolute(), "progress": True}
        found = campaign(format, args.first, args.count, **options)
        failed += len(found.failures)
        print(*found.failures, sep="\n")
        kinds = sum(1 for kind in found.outcomes if kind not in {"", "failed"})
        print(f"{format}: {found.outcomes['']:,} opened and were sound, {kinds} different errors")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
