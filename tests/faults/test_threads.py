"""One handle in many threads and processes: right results or a ClosedError, nothing deadlocks, nothing leaks."""

import itertools
import multiprocessing
import os
import pickle
import shutil
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests import builders
from tests.support import HANG, run_child, save_with

import weightmap as wm

THREADS = 8
ROUNDS = 30
# Nothing here takes a tenth of this: a thread that still runs then waits for ever.
MATRIX = np.random.default_rng(5).standard_normal((200, 32)).astype(np.float32)
SCHEMES = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive")
DATA = Path(__file__).parent.parent / "data"


# Files with many tensors, quantised ones and subwords, besides a file of each kind.
SPECIAL = {
    "many.bt": lambda path: wm.save(path, {f"t{i}": MATRIX + i for i in range(20)}),
    "quantised.amb": lambda path: wm.save(
        path, {"w": MATRIX} | {scheme: wm.quantize(MATRIX, scheme) for scheme in SCHEMES}
    ),
    "pq.fifu": lambda path: shutil.copy(DATA / "finalfusion" / "bucket_1_2__pq_norms__meta.fifu", path),
}


# A small file of each read-only format.
READ_ONLY = {
    f"{example.format}{example.suffix}": example.data
    for example in builders.examples()
    if not builders.known()[example.format].saved and len(example.data) <= 1000 and example.tensors
}


def write(folder):
    """A file of each kind that behaves in its own way."""
    paths = {kind: folder / f"{kind}{suffix}" for kind, (suffix, _) in builders.saved().items()}
    for kind, (_, arguments) in builders.saved().items():
        save_with(paths[kind], **arguments(MATRIX))
    for name, make in SPECIAL.items():
        make(folder / name)
    for name, data in READ_ONLY.items():
        (folder / name).write_bytes(data)
    return paths | {name: folder / name for name in (*SPECIAL, *READ_ONLY)}


MODES = ("mmap", "cow", "copy", "sealed") if hasattr(os, "memfd_create") else ("mmap", "cow", "copy")
KINDS = (*builders.saved(), *SPECIAL, *READ_ONLY)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write(tmp_path_factory.mktemp("threads"))


def digest(array):
    return array.shape, str(array.dtype), array.tobytes()


# The uses of a handle by threads: functions of the handle whose results can be compared.
USES = {
    "look up": lambda f: [digest(np.asarray(f[name])) for name in f],
    "values": lambda f: [digest(np.asarray(value)) for value in f.values()],
    "read": lambda f: [digest(f.read(name)) for name in f],
    "infos": lambda f: (f.infos(), dict(f.metadata)),
    "verify": lambda f: f.verify().checks,
    "prefetch": lambda f: f.prefetch(),
    "words": lambda f: f.vocab and (list(f.vocab), f.vocab.get("word7"), f.vocab.special_ids),
    "embed": lambda f: f.embeddings and digest(f.embeddings.batch(list(f.vocab)[:9])[0]),
}


def together(work):
    """Run it in eight threads that start at one moment; raise what one of them raised, fail if one does not end."""
    start, wrong = threading.Barrier(THREADS), []

    def run(number):
        try:
            start.wait(HANG)
            work(number)
        except BaseException as error:  # noqa: BLE001 - a thread's error has to reach the test
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    if wrong:
        raise wrong[0]
    assert not any(thread.is_alive() for thread in threads), "a deadlock"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_handle_serves_many_threads(paths, kind, mode):
    with wm.open(paths[kind]) as f:
        expected = {name: use(f) for name, use in USES.items()}
    uses = list(USES.items())
    for turn in range(ROUNDS // 3):
        with wm.open(paths[kind], mode=mode) as f:

            def work(number, f=f, turn=turn):
                for i in range(len(uses)):
                    name, use = uses[(number + turn + i) % len(uses)]
                    assert use(f) == expected[name], name

            together(work)


@pytest.mark.parametrize("kind", KINDS)
def test_closing_while_seven_threads_use_it(paths, kind):
    with wm.open(paths[kind]) as f:
        expected = {name: use(f) for name, use in USES.items()}
    uses, met = list(USES.items()), list[str]()
    for turn in range(ROUNDS):
        f, least = wm.open(paths[kind]), len(met) + turn % 5

        def work(number, f=f, least=least):
            if number == 0:
                while len(met) < least:
                    time.sleep(1e-4)
                f.close()
                return
            for i in itertools.count():  # until it is closed
                name, use = uses[(number + i) % len(uses)]
                try:
                    met.append("right" if use(f) == expected[name] else f"wrong {name}")
                except wm.ClosedError as error:
                    met.append("closed" if error.path == str(paths[kind]) else "nameless")
                    return

        together(work)
        f.close()
    assert set(met) <= {"right", "closed"}
    assert met.count("closed") == ROUNDS * (THREADS - 1)


def summary(f):
    return [use(f) for use in USES.values()]


def summary_of_pickled(blob):
    with pickle.loads(blob) as f:
        return summary(f)


@pytest.mark.parametrize("kind", KINDS)
def test_one_handle_serves_a_forked_child(paths, kind):
    with wm.open(paths[kind]) as f:
        expected = summary(f)
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                same = summary(f) == expected
                f.close()
                os.write(theirs, b"same" if same else b"different")
            finally:
                os._exit(0)
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            assert pipe.read() == b"same"
        assert os.waitpid(child, 0)[1] == 0
        assert summary(f) == expected


FORKS = """
import os, sys, threading, numpy as np, weightmap as wm
from weightmap import kernels
path, quantised = sys.argv[1:]
f, q = wm.open(path), wm.open(quantised)
big = np.random.default_rng(1).standard_normal(1 << 21).astype(np.float32)
stop = threading.Event()

def use():
    while not stop.is_set():
        f.verify()
        for name in q:
            q.read(name, threads=2)
        kernels.crc32(big, threads=2)

# What is imported at its first use is imported before a fork.
f.verify(), [q.read(name, threads=2) for name in q]
threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads:
    thread.start()
crc = kernels.crc32(big)
for _ in range(20):
    child = os.fork()
    if child == 0:
        # Threads of the parent are gone here: nothing may wait for them, or for a lock that one of them held.
        fine = kernels.crc32(big, threads=2) == crc and f.verify().checks and q.read("int4_block", threads=2).any()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
print("alive")
"""


def test_forking_while_threads_run(paths):
    assert run_child(FORKS, paths["embd"], paths["quantised.amb"]).stdout.strip() == "alive"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_one_handle_serves_many_processes(paths, method):
    context = multiprocessing.get_context(method)
    expected, blobs = [], []
    for kind in KINDS:
        with wm.open(paths[kind]) as f:
            expected.append(summary(f))
            blobs.append(pickle.dumps(f))
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        found = list(pool.map(summary_of_pickled, blobs, timeout=HANG))
    assert found == expected


CYCLES = """
import gc, os, sys, weightmap as wm

def now():
    gc.collect()
    with open("/proc/self/maps") as file:
        maps = sum(1 for _ in file)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return len(os.listdir("/proc/self/fd")), maps, resident

def cycle(path, mode, number):
    f = wm.open(path, mode=mode)
    if number % 3:
        for name in f:
            f[name]
            break
    if number % 7 == 0:
        f.vocab and f.vocab.get("word3")
        f.infos(), dict(f.metadata)
    if number % 2:
        f.close()
    if number % 50 == 0:
        try:
            f["no such tensor"]
        except (KeyError, wm.ClosedError):
            pass

rounds, paths = int(sys.argv[1]), sys.argv[2:]
modes = ("mmap", "cow", "copy", "sealed") if hasattr(os, "memfd_create") else ("mmap", "cow", "copy")
work = [(path, mode) for path in paths for mode in modes]
for path, mode in work:
    for number in range(210):
        cycle(path, mode, number)
before = now()
for path, mode in work:
    for number in range(rounds):
        cycle(path, mode, number)
after = now()
print(after[0] - before[0], after[1] - before[1], after[2] - before[2])
"""


@pytest.mark.slow
def test_ten_thousand_openings_leave_nothing(paths):
    descriptors, maps, memory = map(int, run_child(CYCLES, 500, *paths.values()).stdout.split())
    assert descriptors == 0
    assert abs(maps) <= 2  # the allocator's own
    assert memory < 2 << 20
