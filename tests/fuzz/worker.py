"""One process that tries mutants of a format one after another: ``python -m tests.fuzz.worker``.

It writes its progress into a small mapped file, so that its parent knows the mutant when the process
dies or hangs. Failures go to standard output, a line of JSON each, and the mutant into a folder.
"""

import argparse
import contextlib
import json
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from pathlib import Path

from tests.attacks.case import INDEX

import weightmap as wm

from .corpus import FORMATS, shards
from .exercise import error_of
from .mutate import mutant

# Limits: memory of a process beyond its imports, and processor time of one mutant.
MEMORY = 512 << 20
SECONDS = 1.0
# After this much, the system ends an endless mutant by SIGPROF.
ENDLESS = 60.0
# Tracing is slow, so it watches only one in this many mutants.
TRACED = 50
# One in this many mutants is used in every way if it opens, else its error is pickled; the others only look up tensors
# and compare them with the file, or make the error's message.
THOROUGH = 16
MAX_FAILURES = 20
# For models in several files: a file system in memory, if there is one.
MEMORY_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Sources:
    def __init__(self, folder):
        self.folder = folder
        self.begun = {}

    def of(self, found):
        data = found.files.get("")
        if data is not None:
            return memoryview(data), data
        changed = next((name for name, part in found.files.items() if part is not shards()[name]), INDEX)
        folder = self.begun.get(changed) or self.begin(changed)
        # A third of the time of Path.write_bytes.
        file = os.open(f"{folder}/{changed}", os.O_WRONLY | os.O_TRUNC)
        os.write(file, found.files[changed])
        os.close(file)
        return f"{folder}/{found.opened}" if found.opened else folder, None

    def begin(self, changed):
        folder = self.folder / str(len(self.begun))
        folder.mkdir()
        for name, data in shards().items():
            (folder / name).write_bytes(data)
        self.begun[changed] = str(folder)
        return str(folder)


def bounded():
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows, macOS, or limited already
        import resource

        size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def heap_of_opening(source, options):
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        with contextlib.suppress(wm.TensorFileError):
            wm.open(source, **options).close()
        return tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()


def attempt(number, found, sources):
    """Try one mutant: return the outcome, for counting. Raises an exception for a forbidden outcome."""
    source, data = sources.of(found)
    brief = number % THOROUGH != 0
    started = time.perf_counter()
    error = error_of(source, data, brief=brief, **found.options)
    if time.perf_counter() - started >= SECONDS:
        # Perhaps the machine was busy. Clocks of processor time can cost more than a mutant, so they count only now.
        started = time.thread_time()
        error_of(source, data, brief=brief, **found.options)
        assert time.thread_time() - started < SECONDS, "it took too long"
    if number % TRACED == 0:
        heap = heap_of_opening(source, found.options)
        size = sum(map(len, found.files.values()))
        # A block that is read at once, and the lines that name what disagrees.
        assert heap <= (1 << 20) + (1 << 13) + 32 * size, f"opening {size} bytes took {heap} bytes of memory"
    return "" if error is None else f"{type(error).__name__} {error.field or ''}"


def alarm(seconds):
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_PROF, seconds)


def run(format, first, count, state, failures):
    outcomes = Counter()
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as folder:
        sources = Sources(Path(folder))
        for number in range(first, first + count):
            struct.pack_into("<Q", state, 0, number)
            alarm(ENDLESS)
            found = mutant(format, number)
            try:
                outcomes[attempt(number, found, sources)] += 1
            except Exception:  # noqa: BLE001 - any other exception is what is looked for
                outcomes["failed"] += 1
                told = traceback.format_exc(limit=-6)
                print(json.dumps({"format": format, "number": number, "options": found.options, "error": told}))
                save(failures, format, number, found)
                if outcomes["failed"] >= MAX_FAILURES:
                    break
        alarm(0)
    struct.pack_into("<Q", state, 0, 2**64 - 1)
    return outcomes


def save(folder, format, number, found):
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in found.files.items():
            (folder / f"{format}-{number}{name and '-'}{name}").write_bytes(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--failures", type=Path)
    args = parser.parse_args()
    bounded()
    state = bytearray(8)
    if args.state is not None:
        with args.state.open("r+b") as file:
            state = mmap.mmap(file.fileno(), 8)
    outcomes = run(args.format, args.first, args.count, state, args.failures)
    print(json.dumps({"outcomes": outcomes}))
    sys.exit(bool(outcomes["failed"]))


if __name__ == "__main__":
    main()
