"""Pulls that end early, at each call that changes a file or at any moment: killed, or by a full disk; two at once."""

import errno
import json
import os
import random
import shutil
import signal
import sys
import time

import pytest
from tests.deltas.delta_files import digests, model, stepped, write_delta, write_model

import weightmap as wm
from weightmap import deltas
from weightmap.deltas import local as places

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked, and files asked for who has them open"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

# Calls that change files or their names, and calls that wait for the disk.
CALLS = ("write", "pwrite", "rename", "replace", "unlink", "rmdir", "link", "mkdir", "ftruncate", "fsync")
CALLS += ("posix_fallocate",)
WITHOUT = 5


def forked(work):
    """Run in a new process, without this one's machinery; return how it ended."""
    child = os.fork()
    if not child:
        how = 0
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - nothing may go on to pytest's code in this process
            how = 3 if isinstance(error, wm.TargetError) else 4
            if how == 4:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(how)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def ending(number, end):
    """Let `end` end the number-th of `CALLS`, a write after half of its bytes; return the function that does so."""
    left = number

    def around(call):
        def run(*args, **named):
            nonlocal left
            left -= 1
            if not left:
                if call in (os.write, os.pwrite):
                    call(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])
                end()
            return real[call.__name__](*args, **named)

        return run

    real = {name: getattr(os, name) for name in CALLS}
    for name, call in real.items():
        setattr(os, name, around(call))
    return lambda: left <= 0


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def fill():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def to_and_fro(tmp_path):
    """Make a local model in some shards; version 1 can be applied to it, and version 2 leads back."""

    def make(shards):
        tensors = {**model(), "last": model(9)["embed"]}
        states = [tensors, stepped(tensors, 1), tensors]
        names = list(tensors)
        parts = [{name: tensors[name] for name in names[i::shards]} for i in range(shards)]
        folder, source = write_model(tmp_path / "local", *parts), tmp_path / "source"
        for version in (1, 2):
            write_delta(source, version, *states[version - 1 : version + 1])
        begin(folder, 0)
        return folder, source, [digests(state) for state in states]

    return make


def begin(folder, version):
    """Record a version for the model; nothing of the previous one remains, as on a new disk."""
    sync = folder / ".weight_sync"
    shutil.rmtree(sync, ignore_errors=True)
    sync.mkdir()
    (sync / "state.json").write_text(json.dumps({"version": f"{version:06}"}), encoding="utf-8")


def is_away(folder, states, versions, *, in_place):
    """Require that a model is wholly one of some versions; or, in place, that it is unavailable until the next pull."""
    found = places.Local(folder).version()
    if found is None:
        assert in_place
        with pytest.raises(wm.TensorFileError, match="pull again"):
            wm.open(folder)
        return True
    assert found in versions
    assert digests(wm.load(folder)) == states[found]
    return False


def check_next(folder, source, states, version):
    """Require that the next pull ends at a version, and leaves nothing of the previous one."""
    deltas.pull(folder, source, version=version)
    assert digests(wm.load(folder)) == states[version]
    assert {path.name for path in (folder / ".weight_sync").iterdir()} <= {"lock", "state.json", "spare"}


def ended_at_each_call(folder, source, states, end, ended, *, in_place):
    """End a pull at each of its calls, and check the files; return how many were ended."""
    number, away = 0, 0
    while True:
        number += 1
        for version in (1, 2):
            begin(folder, version - 1)

            def work(version=version, number=number):
                is_over = ending(number, end)
                deltas.pull(folder, source, version=version, in_place=in_place, threads=1)
                if is_over():  # pulls can do without this call
                    os._exit(WITHOUT)

            how = forked(work)
            away += is_away(folder, states, (version - 1, version), in_place=in_place)
            check_next(folder, source, states, version)
            if how == 0:
                assert (away > 5) == in_place
                return 2 * number - 3 + version
            assert how in (ended, WITHOUT)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 9])
def test_kills_at_random_moments(to_and_fro, shards):
    """SIGKILL at any point of a pull, and often of the repair after a kill; ``WEIGHTMAP_KILLS=500`` for many."""
    seed, kills = random.SystemRandom().randrange(1 << 32), int(os.environ.get("WEIGHTMAP_KILLS", "40"))
    sys.stdout.write(f"seed {seed}\n")
    rng = random.Random(seed)
    folder, source, states = to_and_fro(shards)
    version, most, killed, away, ever_in_place = 1, 0.05, 0, 0, False
    while killed < kills // 2:
        in_place, threads, told = rng.random() < 0.5, rng.choice((1, 2)), os.pipe()
        ever_in_place |= in_place
        child = os.fork()
        if not child:
            os.write(told[1], b"1")
            how = 1
            try:
                deltas.pull(folder, source, version=version, in_place=in_place, threads=threads)
                how = 0
            finally:
                os._exit(how)
        os.read(told[0], 1)
        time.sleep(rng.uniform(0, most))
        os.kill(child, signal.SIGKILL)
        how = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for end in told:
            os.close(end)
        assert how in (0, -signal.SIGKILL), how
        # About half are killed and half end, so that the kills spare no moment of a pull.
        most *= 1.1 if how else 0.9
        killed += how != 0
        away += is_away(folder, states, (version - 1, version), in_place=ever_in_place)
        if not how or rng.random() < 0.5:
            check_next(folder, source, states, version)
            version, ever_in_place = 3 - version, False
            if version == 1:
                begin(folder, 0)
    sys.stdout.write(f"{killed} killed, the model away after {away}\n")


@pytest.mark.parametrize("in_place", [False, True])
def test_a_disk_that_is_full_at_each_call(to_and_fro, in_place):
    """Is a `TargetError`, and the model is wholly one version."""
    assert ended_at_each_call(*to_and_fro(1), fill, 3, in_place=in_place) > 30


@pytest.mark.parametrize("in_place", [False, True])
def test_two_processes_at_once(to_and_fro, in_place):
    """The second process starts while the first makes the step: it waits for the lock, and finds the work done."""
    folder, source, states = to_and_fro(2)
    told, go = os.pipe(), os.pipe()
    second = []

    def work():
        def wait(name):
            if name == ("patch" if in_place else "switch"):
                os.write(told[1], b"1")
                os.read(go[0], 1)

        places.step = wait
        assert deltas.pull(folder, source, version=1, in_place=in_place).tensors > 0

    def other():
        lock = places._lock

        def tell(file):
            os.write(go[1], b"2")  # the first one's: it goes on now that this one waits for the lock
            lock(file)

        places._lock = tell
        assert deltas.pull(folder, source, version=1, in_place=in_place).tensors == 0

    first = os.fork()
    if not first:
        os._exit(forked(work))
    assert os.read(told[0], 1) == b"1"
    second.append(forked(other))
    assert [os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]), *second] == [0, 0]
    assert digests(wm.load(folder)) == states[1]
