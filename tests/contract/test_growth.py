"""The cost of opening, and its growth: very many tensors, ten times as many, memory by the size of the header.

Nothing is timed. Valgrind counts the instructions of whole calls from Python, the system counts bytes.
"""

import os
import re
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from tests import builders
from tests.builders import amb
from tests.places import ROOT
from tests.support import HANG, SOURCES, run_child, save_with

import weightmap as wm

# By kind.
FILES = {kind: make for builder in builders.known().values() for kind, make in builder.growing.items()}
every_file = pytest.mark.parametrize("kind", FILES)


# Seconds of processor time.
SECONDS = dict.fromkeys(FILES, 10)
for known in builders.known().values():
    SECONDS |= known.seconds
OPEN = """
import resource, sys, weightmap as wm
path, small, count, seconds = *sys.argv[1:3], *map(int, sys.argv[3:])

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))

with wm.open(small) as f:
    list(f), f.infos()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # from here on the peak is counted anew
before, used = peak(), resource.getrusage(resource.RUSAGE_SELF)
seconds += int(used.ru_utime + used.ru_stime)
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
f = wm.open(path)
grown = peak() - before
words = f.vocab
assert len(words if words is not None else f) == count
last = f["embeddings"][-1] if words is not None else f[list(f)[-1]]
assert not last.any()
print(grown, len(f))
"""


@every_file
@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_very_many_tensors_open_in_bounded_time_and_memory(kind, count, tmp_path):
    """At the limits: at most seconds of processor time, and 1 MiB plus 32 bytes for each byte of the header.

    The system ends a process that takes longer. All its memory counts, including the C module's and the pages of the
    file.
    """
    path, small = tmp_path / "many", tmp_path / "few"
    path.write_bytes(FILES[kind](count))
    small.write_bytes(FILES[kind](10))
    grown, tensors = map(int, run_child(OPEN, path, small, count, SECONDS[kind]).stdout.split())
    header = path.stat().st_size
    assert grown <= 2**20 + 32 * header
    if tensors == count:  # and not as many words
        with pytest.raises(wm.LimitError):
            wm.open(path, limits=wm.Limits(max_tensors=count - 1))


FAR = "\U0001f300"  # one such character makes each of a text take four bytes


def in_lists(depth):
    return '{"a":[' + ",".join(["[" * depth + "]" * depth] * (1_000_000 // (2 * depth + 1))) + "]}"


def in_objects(depth):
    return '{"a":[' + ",".join(['{"":' * depth + "0" + "}" * depth] * (1_000_000 // (5 * depth + 2))) + "]}"


# The texts with most memory for their size: each Python object holds as little as possible.
TEXTS = {
    "lists": lambda: in_lists(1),
    "lists of lists": lambda: in_lists(125),
    "objects": lambda: in_objects(1),
    "objects in objects": lambda: in_objects(125),
    "one key in each": lambda: '{"a":[' + ",".join(['{"a":0}'] * 100_000) + "]}",
    "keys, a few more than a table holds": lambda: "{" + ",".join(f'"{i:x}":0' for i in range(87_384)) + "}",
    "keys of wide characters": lambda: (
        "{" + ",".join(f'"{chr(0x4E00 + i % 20_000)}{i // 20_000}":0' for i in range(43_694)) + "}"
    ),
    "strings": lambda: '{"a":[' + ",".join(f'"{i:x}"' for i in range(100_000)) + "]}",
    "lists, and a far character": lambda: in_lists(1).replace("a", FAR),
    "lists of lists, and a far character": lambda: in_lists(125).replace("a", FAR),
    "lists of lists, a far character and an escape": lambda: in_lists(125).replace("a", "\\u00e9" + FAR),
    "objects in objects, a far character and an escape": lambda: in_objects(125).replace("a", "\\u00e9" + FAR),
}


@pytest.mark.parametrize("case", TEXTS)
def test_json_takes_sixty_four_bytes_of_memory_for_each_of_its_own(case):
    """Metadata that becomes the most Python objects takes at most 1 MiB plus 64 bytes for each byte of text."""
    text = TEXTS[case]().encode()
    data = amb.build(metadata=text)
    wm.open(amb.build(metadata=b'{"a": 1}')).close()
    tracemalloc.start()
    try:
        wm.open(data).close()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(text) < peak < 2**20 + 64 * len(text)


COUNTS = (400, 4_000)
# The largest ratio of instructions for ten times the tensors: more than n log n, far less than n squared.
RATIO = 15
COUNT = """
import ctypes, os, sys, weightmap as wm
library, folder, *kinds = sys.argv[1:]
counter = ctypes.CDLL(library)
for kind in kinds:
    few, many = (os.path.join(folder, f"{kind}-{count}") for count in ("few", "many"))
    with wm.open(few) as f:  # modules of the first use
        list(f), f.infos(), f[list(f)[-1]], f.vocab and list(f.vocab)
    for path in (few, many):
        counter.count_begin()
        f = wm.open(path)
        counter.count_end(os.path.basename(path + " open").encode())
        counter.count_begin()
        list(f), f.infos(), f.vocab and (list(f.vocab), f.vocab.get("0000777"))
        f.get("0000777"), f.get("0000888"), f.get("none")
        counter.count_end(os.path.basename(path + " use").encode())
        f.close()
"""


def count(folder):
    """Count all kinds of file in one process, whose output stays in the folder."""
    library = folder / "callgrind.so"
    source = ROOT / "tests" / "c" / "callgrind.c"
    built = subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(library)], capture_output=True, text=True, check=False
    )
    if built.returncode:
        pytest.skip("the headers of valgrind are not installed")
    for kind, make in FILES.items():
        for name, count in zip(("few", "many"), COUNTS, strict=True):
            (folder / f"{kind}-{name}").write_bytes(make(count))
    tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
    command = [*tool, sys.executable, "-c", COUNT, str(library), str(folder), *FILES]
    environment = {**os.environ, "PYTHONPATH": SOURCES, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def counted(once):
    """Instructions by kind of file, number of tensors and operation."""
    if shutil.which("valgrind") is None or shutil.which("cc") is None:
        pytest.skip("counts instructions with valgrind and needs a C compiler: one of them is not installed")
    found = {}
    for path in once("growth", count).glob("out.*"):
        text = path.read_text(encoding="utf-8")
        label = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        if label and total:
            found[label[1]] = int(total[1])
    assert len(found) == 4 * len(FILES)
    return found


@pytest.mark.slow
@every_file
@pytest.mark.parametrize("what", ["open", "use"])
def test_ten_times_as_many_take_no_more_than_fifteen_times(counted, kind, what):
    """Opening, and listing and finding names: counted in instructions, neither grows like the square of the number."""
    few, many = counted[f"{kind}-few {what}"], counted[f"{kind}-many {what}"]
    assert few > 10_000
    assert many < RATIO * few


@pytest.mark.parametrize("kind", builders.saved())
def test_a_copy_takes_the_size_of_the_file_and_a_mebibyte(kind, tmp_path):
    suffix, arguments = builders.saved()[kind]
    path, small = tmp_path / f"big{suffix}", tmp_path / f"small{suffix}"
    array = np.ones((1536, 2048), np.float32)
    for target, values in ((small, array[:2]), (path, array)):
        save_with(target, **arguments(values), durable=False)
        tracemalloc.start()
        try:
            with wm.open(target, mode="copy") as f:
                held = list(f.values())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert held[0].flags.owndata is False
        assert peak <= target.stat().st_size + 2**20
    assert peak > 2**22
