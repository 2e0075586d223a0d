"""A save that fails in any way leaves the old file or the new one, and no other file.

`shim.c` makes each system call of a save fail in turn, with each error; see `writing.py`. Then what real file systems
do: a disk that is full, a limit on the size of files, a directory that may not be written, a process that is killed.
"""

import errno
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tests import builders
from tests.faults.support import drive
from tests.places import ROOT
from tests.support import HANG, SOURCES, listing, run_child

import weightmap as wm

OPERATIONS = (
    *(f"save {kind}" for kind in builders.saved()),
    "save quantised",
    "save in pieces",
    "convert to embd",
    "convert to amb",
    "convert quantised",
    "convert shards",
    "convert to word2vec",
    "convert from text",
    "command convert",
    "command quantize",
    "command export",
)
SWEEPS = [(operation, "replace") for operation in OPERATIONS] + [("save embd", "new"), ("save embd", "link")]
# Where no file can be without a name.
SWEEPS += [("save embd", "named"), ("convert to amb", "named"), ("command export", "named")]
# Errors of these calls may be ignored: there is a safe answer without them.
FORGIVEN = {
    "stat": "is the source a directory? opening it will tell",
    "fchown": "the group of the old file, which may not be ours to give",
    "close": "of files that were only read, and of the directory",
    "mmap": "what cannot be mapped is read",
    "link": "what cannot get a name by it is copied to a file that has one",
}
# On some file systems these calls fail for a directory.
NO_FLUSH = {"open", "fsync"}


# Every day: every format, a conversion, a command, and a file that has a name from the beginning.
SLOW = {*OPERATIONS[-6:], "convert to amb", "convert quantised", "save quantised"} - {"command convert"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(sweep, marks=[pytest.mark.slow] * (sweep[0] in SLOW)) for sweep in SWEEPS],
    ids=" ".join,
)
def swept(request, shim, memory):
    """The state of the folder after each fault of each call of one operation."""
    return drive("writing.py", shim, memory(), *request.param)


def calls_of(rows):
    return [row["call"] for row in rows if row["fault"] == "EIO"]


def test_a_sweep_sees_the_calls_of_a_save(swept):
    """The shim counts the calls of a save in this order, or the tests below would prove nothing."""
    calls = iter(calls_of(swept))
    assert all(call in calls for call in ("open", "open", "fallocate", "pwrite", "fsync", "close", "rename", "fsync"))


def test_the_target_is_the_old_file_or_the_new_one(swept):
    for row in swept:
        assert row["target"] in {"old", "new", "absent"}, row
        assert row.get("link", True), row
        assert row["mode"] in {"0o640", None} or row["target"] != "old", row


def test_a_save_that_succeeds_has_written_the_new_file(swept):
    for row in swept:
        if row["fault"] == "SIGKILL":
            continue
        error = row["error"]
        if error is None:
            assert row["target"] == "new", row
        elif row["target"] == "new":
            assert "the new file is in place" in error["text"] + "".join(error["notes"]), row


def test_no_litter_but_one_name_of_a_killed_process(swept):
    """Nothing stays beside the target, and after SIGKILL at most one hidden file that bears its name.

    Where files can be without one, only a file that is whole, if the process is killed just before it is renamed.
    """
    calls = calls_of(swept)
    linked = calls.index("link") + 1 if "link" in calls else 0
    for row in swept:
        if row["fault"] == "SIGKILL":
            assert not row["left"] or linked < row["number"] <= calls.index("rename") + 1, row
            assert len(row["left"]) <= 1, row
            assert all(name.startswith(".out.") and name.endswith(".tmp") for name in row["left"]), row
        else:
            assert row["left"] == [], row


def test_the_error_is_the_one_that_the_system_reported(swept):
    for row in swept:
        error = row["error"]
        if error is None:
            continue
        code = getattr(errno, row["fault"])
        assert ".tmp" not in error["text"], row
        assert "sweep" in error["text"], row  # the directory of all targets
        if error["status"] is not None:  # the command line's: exit status 4, and one line
            assert error["status"] == 4, row
            assert os.strerror(code) in error["text"], row
            assert error["text"].count("\n") == 1, row
        else:
            assert error["system"], row
            assert not error["own"], row
            assert error["errno"] == code, row


def test_no_error_is_swallowed(swept):
    """A failing call ends the save, unless there is another way, as there always is after EINTR and short counts."""
    calls = calls_of(swept)
    renamed = calls.index("rename") + 1
    flushed = renamed - calls[renamed - 1 :: -1].index("fsync")
    assert calls[renamed - 2] == "close"
    created = len(calls[: calls.index("fallocate")]) - calls[: calls.index("fallocate")][::-1].index("open")
    for row in swept:
        call, number = row["call"], row["number"]
        if row["error"] is not None or row["fault"] in {"EINTR", "short", "SIGKILL", "none"}:
            assert row["error"] is None or row["fault"] != "short", row
            continue
        assert number not in {flushed, renamed - 1, renamed}, row
        folder = number == created - 1 or number > renamed
        assert call in FORGIVEN or (folder and call in NO_FLUSH and row["fault"] == "EACCES"), row


def test_no_descriptor_leaks_when_a_save_fails(swept):
    assert not [row for row in swept if row["leaked"]]


def test_the_process_saves_on_after_all_of_these(swept):
    assert (swept[-1]["fault"], swept[-1]["target"]) == ("none", "new")


# A save of a matrix, by kind; arguments are a folder, a number, and the root of the tests.
SAVES = """
import os, sys
sys.path.append(sys.argv[3])
import numpy as np, weightmap as wm
from tests import builders
from tests.support import save_with
folder, number = sys.argv[1], int(sys.argv[2])
PATHS = {kind: os.path.join(folder, f"{kind}{suffix}") for kind, (suffix, _) in builders.saved().items()}
def save(kind, array): save_with(PATHS[kind], **builders.saved()[kind][1](array))
"""
FULL = (
    SAVES
    + """
import resource
BIG = np.ones((1 << 9, 1 << 11), "f4")
SMALL = np.ones((2, 3), "f4")
for kind, path in PATHS.items():
    save(kind, SMALL)
    before = open(path, "rb").read()
    if number:
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, resource.RLIM_INFINITY))
    try:
        save(kind, BIG)
    except OSError as error:
        assert not isinstance(error, wm.TensorFileError) and error.filename == path, error
        print(kind, error.errno, open(path, "rb").read() == before, *os.listdir(folder))
    if number:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.unlink(path)
"""
)


def full(code):
    """The lines that FULL prints when each save fails with this code."""
    return [f"{kind} {code} True {kind}{suffix}" for kind, (suffix, _) in builders.saved().items()]


def test_a_file_size_limit_leaves_the_old_file(tmp_path):
    assert run_child(FULL, tmp_path, 1 << 19, ROOT).stdout.splitlines() == full(errno.EFBIG)


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """In every format, on a real full file system: a tmpfs of 1 MiB, in its own mount namespace."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    script, disk = tmp_path / "script.py", tmp_path / "disk"
    script.write_text(FULL, encoding="utf-8")
    disk.mkdir()
    script_of_shell = 'mount -t tmpfs -o size=1m tmpfs "$0" || exit 77; exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script_of_shell, disk, sys.executable, script, disk, "0", ROOT]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("mount namespaces are not permitted here")
    assert done.stdout.splitlines() == full(errno.ENOSPC), done.stderr


READ_ONLY = """
import os, sys, numpy as np, weightmap as wm
folder = sys.argv[1]
# Before: what saving imports may lie where only this user may read.
wm.save(folder + ".before.weights", {"a": np.ones(2, "f4")})
wm.save(folder + ".before.gguf.index.json", {"a": np.ones(2, "f4")}, max_shard_size=100)
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)  # root may write everywhere
for name in ("out.weights", "new.weights", "model.weights.index.json"):
    shards = {"max_shard_size": 100} if name.endswith(".json") else {}
    try:
        wm.save(os.path.join(folder, name), {"a": np.ones(2, "f4")}, **shards)
    except PermissionError as error:
        print(name, isinstance(error, wm.TensorFileError), os.path.basename(error.filename))
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "out.weights").write_bytes(b"old")
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != parent.parent and os.geteuid() == 0:
            parent.chmod(parent.stat().st_mode | 0o055)
    yield folder
    folder.chmod(0o755)


def test_a_directory_that_may_not_be_written(folder):
    folder.chmod(0o555)
    printed = run_child(READ_ONLY, folder).stdout.split()
    folder.chmod(0o755)
    names = ["out.weights", "new.weights", "model.weights.index.json"]
    assert printed == [word for name in names for word in (name, "False", name)]
    assert (folder / "out.weights").read_bytes() == b"old"
    assert listing(folder) == ["out.weights"]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize("target", ["/proc/x.gguf", "/proc/x/"])
def test_a_directory_that_takes_no_files(target):
    options = {"format": "gguf", "max_shard_size": 100} if target.endswith("/") else {}
    with pytest.raises(FileNotFoundError, match=r"its directory takes no new files \(No such file.*/proc/x"):
        wm.save(target, {"a": np.ones(3, np.float32)}, **options)


def test_a_directory_that_may_not_be_read(folder):
    folder.chmod(0o333)
    printed = run_child(READ_ONLY, folder).stdout.split()
    folder.chmod(0o755)
    assert printed == []
    sharded = ["model-00001-of-00001.weights", "model.weights.index.json"]
    assert listing(folder) == [*sharded, "new.weights", "out.weights"]
    assert wm.load(folder / "out.weights").keys() == wm.load(folder / sharded[1]).keys() == {"a"}


KILLED = (
    SAVES
    + """
import random, signal, time
values = np.random.default_rng(3).standard_normal((300, 500)).astype("f4")
random.seed(5)
sound = {}
for kind, path in PATHS.items():
    sound[kind] = []
    for array in (values, -values, 2 * values):
        save(kind, array)
        sound[kind].append(open(path, "rb").read())
torn, litter, idle = [], [], []
for turn in range(number):
    kind = list(PATHS)[turn % len(PATHS)]
    path = PATHS[kind]
    with open(path, "wb") as file:
        file.write(sound[kind][2])
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        while True:
            save(kind, values)
            os.write(tells, b".")
            save(kind, -values)
            os.write(tells, b".")
    os.close(tells)
    done = turn // len(PATHS) % 4  # the number of files when the clock starts, however busy the machine is
    for _ in range(done):
        os.read(told, 1)
    time.sleep(random.random() / 100)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    data = open(path, "rb").read()
    if data not in sound[kind]:
        torn.append((turn, kind, len(data)))
    if done and data == sound[kind][2]:
        idle.append(turn)
    left = [name for name in os.listdir(folder) if name.endswith(".tmp")]
    if len(left) > 1 or any(not name.startswith(f".{os.path.basename(path)}.") for name in left):
        litter.append((turn, left))
    for name in left:
        os.unlink(os.path.join(folder, name))
print(torn, litter, idle, sorted(os.listdir(folder)) == sorted(map(os.path.basename, PATHS.values())))
"""
)


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path):
    """210 times kill -9 at a random moment, in every format: always a whole file, and at most one hidden beside it.

    What is asserted holds at every moment, so luck decides nothing. The sweeps above kill before each system call.
    """
    assert run_child(KILLED, tmp_path, 210, ROOT).stdout.split() == ["[]", "[]", "[]", "True"]


def test_processes_that_save_to_one_path(tmp_path):
    code = """
import sys, threading, numpy as np, weightmap as wm
def save():
    wm.save(sys.argv[1], {"n": np.full(50000, int(sys.argv[2]), np.int32)})
save()
print(flush=True)
stop = threading.Thread(target=sys.stdin.read)
stop.start()
while stop.is_alive():
    save()
"""
    path = tmp_path / "out.weights"
    wm.save(path, {"n": np.zeros(50000, np.int32)})
    command = [sys.executable, "-c", code, str(path)]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    pipe = subprocess.PIPE
    writers = [
        subprocess.Popen([*command, str(number)], env=environment, stdin=pipe, stdout=pipe) for number in range(1, 5)
    ]
    for writer in writers:  # all are at it
        assert writer.stdout is not None
        writer.stdout.readline()
    for _ in range(100):
        with wm.open(path, verify="full") as f:
            assert len(set(f["n"].tolist())) == 1
            assert f["n"][0] in range(1, 5)
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * 4
    assert listing(tmp_path) == ["out.weights"]
