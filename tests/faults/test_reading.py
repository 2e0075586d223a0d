"""A read that fails in any way gives the right result or an exception that names the failure, never a signal.

`shim.c` makes each system call fail, do half of its work, or find the file truncated; see `reading.py`.
"""

import errno
import json
import os

import numpy as np
import pytest
from tests import builders
from tests.builders import Tensor, embd, normal
from tests.builders import safetensors as st
from tests.faults.support import drive
from tests.support import run_child, save_with

import weightmap as wm
from weightmap.core.bytes.source import Source
from weightmap.core.model import internals as parts

SEALED = ("sealed",) if hasattr(os, "memfd_create") else ()
CALLS = ("open", "open, full", "verify", "read", "copy", *SEALED, "convert", "diff")
COMMANDS = tuple(f"command {name}" for name in ("inspect", "verify", "convert", "diff", "export", "quantize"))
PAGES = ("command doctor", "command cache show", "command cache warm", "command cache evict")
FILES = {
    **{f"{kind}{suffix}": CALLS for kind, (suffix, _) in builders.saved().items()},
    **dict.fromkeys(("a.npz", "deflated.npz", "a.pt", "legacy.pt"), (*CALLS, "device")),
    "words.weights": COMMANDS,
    # As if its index were a large one.
    "a.weights": tuple(f"{what}, mapped index" for what in ("open, full", "convert", "diff", *COMMANDS, *PAGES)),
    "q.amb": (*CALLS, *COMMANDS, "plan", "device"),
    "pq.fifu": (*CALLS, "command inspect"),
    "sharded": (
        *("open", "verify", "read", "copy", *SEALED, "convert", "diff"),
        *("read, no descriptors", "verify, no descriptors", "plan", "device"),
    ),
}


# What takes longest; the other files have operations of each kind.
SLOW = {"a.weights", "q.amb"}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FILES]
)
def swept(request, shim, memory):
    name = request.param
    return drive("reading.py", shim, memory(), name, *FILES[name])


def rows_of(swept, *, truncated):
    """Operation, outcome, and whether the result was right; for truncations or for failing calls."""
    return [
        (operation, row, row["result"] == found["expected"])
        for operation, found in swept.items()
        for row in found["rows"]
        if row["fault"].startswith("truncated") == truncated
    ]


def test_a_file_truncated_at_any_call_is_an_exception_and_no_signal(swept):
    caught = 0
    for operation, row, right in rows_of(swept, truncated=True):
        assert row["signal"] == 0, (operation, row)
        error = row["error"]
        assert right or error, (operation, row)
        if error is not None:
            caught += 1
            assert error["own"] or error["status"] in {3, 4}, (operation, row)
            assert "sources" in error["text"], (operation, row)
    assert caught > len(swept)


def test_a_call_that_fails_is_an_os_error_or_changes_nothing(swept):
    """EIO, EINTR and EACCES at any call: the right result, or that OSError with the name of the file."""
    caught = 0
    for operation, row, right in rows_of(swept, truncated=False):
        assert row["signal"] == 0, (operation, row)
        error = row["error"]
        assert right or error, (operation, row)
        if error is None:
            continue
        caught += 1
        code = getattr(errno, row["fault"])
        assert "sweep" in error["text"], (operation, row)
        if error["status"] is not None:
            assert error["status"] == 4, (operation, row)
            assert os.strerror(code) in error["text"], (operation, row)
        else:
            assert error["system"], (operation, row)
            assert not error["own"], (operation, row)
            # A directory that was not recognised as one cannot be read.
            assert error["errno"] in ({code, errno.EISDIR} if row["call"] == "stat" else {code}), (operation, row)
    assert caught > len(swept)


def test_short_and_interrupted_reads_go_on(swept):
    for operation, row, right in rows_of(swept, truncated=False):
        if row["fault"] == "short" or (row["fault"] == "EINTR" and row["call"] in {"open", "pread"}):
            assert right, (operation, row)


def test_no_descriptor_leaks_when_reading_fails(swept):
    assert not [row for found in swept.values() for row in found["rows"] if row["leaked"]]


CHANGES = {
    "truncated": lambda path: os.truncate(path, 10),
    "emptied": lambda path: os.truncate(path, 0),
    "grown": lambda path: os.truncate(path, path.stat().st_size + 1),
    "overwritten": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "touched": lambda path: os.utime(path, ns=(1, 1)),
}
LOOK_UPS = {
    "look-up": lambda f, name: f[name],
    "get": lambda f, name: f.get(name),
    "values": lambda f, _: list(f.values()),
    "items": lambda f, _: dict(f),
    "read": lambda f, name: f.read(name),
    "verify": lambda f, _: f.verify(),
    "check_unchanged": lambda f, _: parts.check_unchanged(f),
}


@pytest.mark.parametrize("kind", builders.saved())
@pytest.mark.parametrize("change", CHANGES)
def test_every_look_up_notices_a_file_that_changed(tmp_path, kind, change):
    suffix, arguments = builders.saved()[kind]
    path = tmp_path / f"model{suffix}"
    save_with(path, **arguments(np.arange(2000, dtype=np.float32).reshape(1000, 2)))
    with wm.open(path) as f:
        name = next(iter(f))
        held = f[name] if change == "touched" else None
        CHANGES[change](path)
        for use in LOOK_UPS.values():
            with pytest.raises(wm.FileChangedError, match=suffix) as caught:
                use(f, name)
            error = caught.value
            assert isinstance(error, OSError)
            assert str(error).endswith(f" it is {error.actual}, expected {error.expected}")
        f.info(name)
        assert held is None or held.shape[0] == 1000


def test_verify_of_a_file_that_becomes_shorter(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    path.write_bytes(st.build({"w": normal((50, 100))}))
    left = path.stat().st_size - 1000
    with wm.open(path) as f:
        monkeypatch.setattr(Source, "check_unchanged", lambda _: os.truncate(path, left))
        with pytest.raises(wm.TruncatedError, match=r"m\.safetensors.*became shorter") as caught:
            f.verify()
    assert caught.value.offset == left


# Each use of the index, with the file truncated right after it was seen to be unchanged.
MAPPED = """
import os, sys, weightmap as wm
from weightmap.core.bytes.source import Source

path, same = sys.argv[1:]
USES = {
    "names": list, "in": lambda f: "t7" in f, "info": lambda f: f.info("t7"), "infos": lambda f: f.infos(),
    "items": dict, "look-up": lambda f: f["t7"], "read": lambda f: f.read("t7"), "verify": lambda f: f.verify(),
    "diff": lambda f: wm.diff(f, same),
}
data = open(path, "rb").read()
check_unchanged = Source.check_unchanged

def checked_too_early(source):
    check_unchanged(source)
    os.truncate(path, 0)

def outcome(use, verify):
    with wm.open(path, verify=verify) as f:
        if late:
            Source.check_unchanged = checked_too_early
        else:
            os.truncate(path, 0)
        try:
            return "the right result" if use(f) else "none"
        except Exception as error:
            return type(error).__name__
        finally:
            Source.check_unchanged = check_unchanged
            with open(path, "wb") as file:
                file.write(data)

for verify in ("header", "full", "none"):
    late = False
    found = {name: outcome(use, verify) for name, use in USES.items()}
    if verify == "full":  # the index was read
        assert all(found.pop(name) == "the right result" for name in ("names", "in", "info", "infos")), found
    assert set(found.values()) == {"FileChangedError"}, found
    late = True
    found = {name: outcome(USES[name], verify) for name in ("read", "verify", "diff")}
    assert set(found.values()) <= {"TruncatedError", "FileChangedError"}, found
print("alive")
"""


def test_a_mapped_index_is_not_touched_when_the_file_is_gone(tmp_path):
    """No look-up faults, even if the file is truncated right after the check that it is unchanged."""
    data = embd.Draft([(f"t{i}", normal((32,), i)) for i in range(2000)]).seal()
    for name in ("a.weights", "b.weights"):
        (tmp_path / name).write_bytes(data)
    assert run_child(MAPPED, tmp_path / "a.weights", tmp_path / "b.weights").stdout.split() == ["alive"]


SHRINK = """
import os, sys, weightmap as wm
from weightmap import cli
path, target, action = sys.argv[1:]
data = open(path, "rb").read()
package = os.path.join(os.path.dirname(wm.__file__), "")

def copy():
    wm.open(path, mode="copy").close()

def sealed():
    with wm.open(path, mode="sealed") as f:
        sum(float(array.sum()) for array in f.values())

def verify():
    wm.open(path).verify()

def full():
    wm.open(path, verify="full").close()

def convert():
    wm.convert(path, target)

def read():
    with wm.open(path) as f:
        for name in f:
            f.read(name, "float64")

def diff():
    wm.diff(path, target)

def export():
    if cli.main(["export", path, "t3", target + ".npy"]):
        raise OSError

def run(number):
    # Before the line with this number, of all that are gone through in this package, the file is truncated.
    lines = 0
    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(package):
            return None
        if event == "line":
            lines += 1
            if lines == number:
                os.truncate(path, number * 7919 * 13 % len(data))
        return trace
    sys.settrace(trace)
    try:
        globals()[action]()
    except (wm.TensorFileError, OSError):
        return lines, 1
    finally:
        sys.settrace(None)
    return lines, 0

wm.convert(path, target)
run(0)
lines, failed = run(0)
assert lines and not failed
caught = 0
for number in range(1, lines + 1, max(lines // 40, 1)):
    caught += run(number)[1]
    with open(path, "r+b") as file:
        file.write(data)
print(caught, "alive")
"""


SHRINKING = {
    "model.safetensors": ("verify", "full", "copy", *SEALED, "convert", "read", "diff", "export"),
    # Opening in mode "mmap" reads a mapped index in its mapping, unless everything is verified.
    "model.weights": ("full", "copy", *SEALED, "convert", "diff", "export"),
}
SHRINKING_SLOWLY = {("model.weights", "convert"), ("model.weights", "diff")}


@pytest.mark.parametrize(
    ("name", "action"),
    [
        pytest.param(name, action, marks=[pytest.mark.slow] * ((name, action) in SHRINKING_SLOWLY))
        for name in SHRINKING
        for action in SHRINKING[name]
    ],
)
def test_a_file_that_shrinks_meanwhile_is_an_exception(tmp_path, name, action):
    """Reading, verifying, comparing or converting a file never ends in SIGBUS, whenever it is truncated meanwhile.

    It is truncated between two steps in Python, at forty of them from the first to the last, one in each run.
    """
    path = tmp_path / name
    if path.suffix == ".weights":
        path.write_bytes(embd.Draft([(f"t{i}", normal((32,), i)) for i in range(2000)]).seal())
    else:
        path.write_bytes(st.build({f"t{i}": normal((64, 1024), i) for i in range(8)}))
    result = run_child(SHRINK, path, tmp_path / "out.weights", action, check=False)
    assert result.returncode == 0, result.stderr
    caught, alive = result.stdout.split()[-2:]
    assert alive == "alive"
    assert int(caught) > 0  # always the same lines, so not by luck


@pytest.fixture(scope="module")
def many_shards(memory):
    folder = memory()
    return st.shard(folder, {f"{i:04}.safetensors": {f"t{i}": constant(i)} for i in range(3000)})


def constant(value):
    return Tensor("float32", (2,), np.full(2, value, "<f4").tobytes())


MANY_SHARDS = """
import os, resource, sys, weightmap as wm
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
before = len(os.listdir("/proc/self/fd"))
with wm.open(sys.argv[1], mode=sys.argv[2]) as f:
    assert len(os.listdir("/proc/self/fd")) == before
    views = list(f.values())
    looked_up = sum(float(f[name].sum()) for name in f)
    read = sum(float(f.read(name).sum()) for name in list(f)[::100])
    checks = len(f.verify().checks)
    assert len(os.listdir("/proc/self/fd")) == before
print(len(views), sum(float(view.sum()) for view in views), looked_up, read, checks > 3000)
"""


@pytest.mark.parametrize("mode", ["mmap", "cow", "copy", *SEALED])
def test_three_thousand_shards_and_a_thousand_descriptors(many_shards, mode):
    """A model of 3,000 files opens in a process that may have 1,024 descriptors, and keeps none of them.

    Views, look-ups, reading and verifying work.
    """
    said = run_child(MANY_SHARDS, many_shards, mode).stdout.split()
    assert said == ["3000", "8997000.0", "8997000.0", "87000.0", "True"]


SHARDS = """
import errno, os, resource, sys, weightmap as wm
most = int(sys.argv[2])
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    with wm.open(sys.argv[1]) as f:
        print(len(f), sum(float(array.sum()) for array in f.values()), len(os.listdir("/proc/self/fd")) - before <= 60)
except OSError as error:
    assert not isinstance(error, wm.TensorFileError)
    print(errno.errorcode[error.errno], os.path.basename(error.filename))
    del error
assert len(os.listdir("/proc/self/fd")) == before
"""


def test_more_shards_than_descriptors(tmp_path):
    """A model of 60 files takes one descriptor for each at most; without them, EMFILE, and none of them stays open."""
    where = {}
    for i in range(60):
        wm.save(tmp_path / f"{i:03}.safetensors", {f"t{i}": np.full(2, i, np.float32)}, output=wm.Output(durable=False))
        where[f"t{i}"] = f"{i:03}.safetensors"
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    assert run_child(SHARDS, index, 80).stdout.split() == ["60", "3540.0", "True"]
    assert run_child(SHARDS, index, 30).stdout.split()[0] == "EMFILE"


MANY = """
import resource, sys, weightmap as wm
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
for _ in range(200):
    f = wm.open(sys.argv[1])
    held.append(f["a"])
    f.close()
print(sum(float(array.sum()) for array in held))
"""


def test_views_hold_no_descriptors(tmp_path):
    path = tmp_path / "model.weights"
    path.write_bytes(embd.Draft([("a", Tensor("float32", (2,), np.ones(2, "<f4").tobytes()))]).seal())
    assert float(run_child(MANY, path).stdout) == 400
