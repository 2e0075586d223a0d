"""Publishing, pulling and applying, interrupted where CPython lets a handler of a signal raise an exception.

That is at the beginning of functions and after calls. At every moment the caller gets the interrupt; no thread,
descriptor or folder is left, and the next run works.
"""

import asyncio
import errno
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import weakref
from pathlib import Path

import pytest
from tests.deltas.delta_files import digests, model, stepped, write_model
from tests.remote.servers import Objects, Taking

import weightmap as wm
from weightmap import deltas
from weightmap.core.model import sharding
from weightmap.core.model.typing import Remote
from weightmap.deltas import writing
from weightmap.remote.fetching import Access
from weightmap.remote.stores import location_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


class Interruption(BaseException):
    """The exception of a handler; nobody catches it."""


def interrupted(work, number, apart=()):
    """Interrupt work at an event of this number, from 0 on. Return how it ended: its error, or the number of events.

    Those in files of these names do not count.
    """
    count = 0

    def look(frame, event, _argument):
        nonlocal count
        if event in ("call", "c_return") and not frame.f_code.co_filename.endswith(apart):
            count += 1
            if count - 1 == number:
                sys.setprofile(None)
                raise Interruption

    sys.setprofile(look)
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - it is looked at
        return type(error)
    finally:
        sys.setprofile(None)
    return count


def descriptors():
    """The targets of this process's descriptors."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except OSError:  # the listing's own
            continue
    return sorted(found)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Two models, the delta between them, and a folder for temporary files."""
    old = model()
    new = stepped(old, 1)
    base, after = write_model(tmp_path / "base", old), write_model(tmp_path / "after", new)
    deltas.publish(base, after, tmp_path / "source", version=1)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # in a finaliser: the checks see what it leaves behind
    return tmp_path, old, new


def publish(at, **how):
    deltas.publish(at / "base", at / "after", at / "published", version=1, **how)


def publish_to_a_store(at):
    store = location_of("s3://bucket/source", Remote(Taking(Objects({}), ())))
    deltas.publish(at / "base", at / "after", store, version=1, threads=2)


def pull(at, **how):
    deltas.pull(at / "local", at / "source", base=at / "local", threads=2, **how)


WAYS = {
    "publish": (lambda at: publish(at, threads=2), 23),
    "publish a full version": (lambda at: publish(at, full=True), 97),
    "pull": (pull, 41),
    "pull in place": (lambda at: pull(at, in_place=True), 41),
    "apply": (lambda at: deltas.apply(at / "local", at / "source" / "weight_v000001", threads=2), 41),
    "apply to a file": (lambda at: deltas.apply(at / "alone.safetensors", at / "source" / "weight_v000001"), 41),
    "publish to a store": (publish_to_a_store, 53),
}

# Modules of conversion, whose interrupts other tests check.
STANDARD = ("threading.py", "_base.py", "thread.py", "events.py", "tasks.py")


def prepare(at):
    """Restore the changed files."""
    for name in ("published", "local"):
        shutil.rmtree(at / name, ignore_errors=True)
    shutil.copytree(at / "base", at / "local")
    shutil.copy(at / "base" / "model.safetensors", at / "alone.safetensors")


@pytest.mark.parametrize("way", WAYS)
def test_interrupts(world, way):
    """At some moments, others for each operation; ``WEIGHTMAP_INTERRUPTS=1`` takes every one."""
    at, old, new = world
    work, step = WAYS[way]
    step = int(os.environ.get("WEIGHTMAP_INTERRUPTS", step))
    for _ in range(2):  # load and create everything that the first use needs
        prepare(at)
        work(at)
    prepare(at)
    apart = STANDARD if "version" in way else ()
    events = interrupted(lambda: work(at), -1, apart)
    assert events > 300
    gc.collect()
    threads, files = set(threading.enumerate()), descriptors()
    for number in range(events % step, events, step):
        prepare(at)
        ended = interrupted(lambda: work(at), number, apart)
        assert ended is Interruption or isinstance(ended, int), (number, ended)
        assert set(threading.enumerate()) == threads, number
        if descriptors() != files:  # by a cycle, or for good?
            gc.collect()
        assert descriptors() == files, number
        assert not list((at / "temporary").iterdir()), number
        if (at / "published").exists():
            assert {path.name for path in (at / "published").iterdir()} <= {"weight_v000001"}, number
        if (at / "local" / ".weight_sync").exists():
            deltas.pull(at / "local", at / "source", base=at / "base", version=1)
            assert digests(wm.load(at / "local")) == digests(new)
            assert {path.name for path in (at / "local" / ".weight_sync").iterdir()} <= {"lock", "state.json", "spare"}
        assert digests(wm.load(at / "alone.safetensors")) in (digests(old), digests(new))


def test_an_interrupted_request_ends_and_the_next_one_is_answered(monkeypatch):
    """At each moment of the waiting thread, also in the standard library: no lock stays held, nothing keeps running."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # of callbacks of weak references to tasks
    access = Access(Taking(Objects({}), ()), None, 60)
    begun, ended = [], []

    async def request():
        begun.append(True)
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)
        return "answer"

    events = interrupted(lambda: access.run(request()), -1)
    assert events > 8
    for number in range(events):
        how = interrupted(lambda: access.run(request()), number)
        assert how is Interruption or isinstance(how, int), number
        assert len(begun) == len(ended), number
        assert not access._under_way, number
        assert access.run(request()) == "answer"


@pytest.mark.parametrize("way", ["publish", "open"])
def test_a_signal_during_a_request(world, way):
    """The interrupt reaches the caller when the request is over, however long the store takes to end it."""
    at, _, _ = world
    prepare(at)
    ended = []

    class Store(Taking):
        async def wait(self):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(100):
                    await asyncio.sleep(0)
                ended.append(True)

        async def put_async(self, key, path, **options):
            with path.open("rb"):
                await self.wait()

        async def get_async(self, path, *, options):
            await self.wait()

        async def list_with_delimiter_async(self, prefix):
            return {"objects": [], "common_prefixes": []}

    store = Store(Objects({}), ())
    Access(store, None, 60).run(asyncio.sleep(0))  # starts the loop
    files = descriptors()
    address = location_of("s3://bucket/source", Remote(store))
    ways = {
        "publish": lambda: deltas.publish(at / "base", at / "after", address, version=1),
        "open": lambda: wm.open("s3://bucket/model.safetensors", remote=Remote(store)),
    }
    with pytest.raises(KeyboardInterrupt):
        ways[way]()
    assert ended == [True]
    assert descriptors() == files
    assert not list((at / "temporary").iterdir())


@pytest.mark.parametrize("is_new", [True, False])
def test_interrupts_of_a_lock(tmp_path, is_new):
    """No interrupt leaves a file of the lock or a descriptor, nor its folder once that has been made."""
    folder = tmp_path / "model"
    target = sharding.ShardTarget(f"{folder}/", "model.index.json", "model", ".safetensors")

    def work():
        with sharding.holding(target):
            assert (folder / ".model.index.json.lock").exists()

    folder.mkdir()
    events = interrupted(work, -1)
    before = descriptors()
    for number in range(events):
        if folder.exists() == is_new:
            folder.rmdir() if is_new else folder.mkdir()
        assert interrupted(work, number) is Interruption, number
        gc.collect()
        assert not folder.exists() or not list(folder.iterdir()), number
        assert descriptors() == before
        work()


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_process_that_gets_no_more_threads(monkeypatch, started):
    """The existing threads do all the work; an error ends it, as ever."""
    real, left, done = writing._thread.start_new_thread, started, []

    def start(*args):
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("can't start new thread")
        return real(*args)

    monkeypatch.setattr(writing._thread, "start_new_thread", start)
    monkeypatch.setattr(writing.threading, "_start_new_thread", start)
    writing.exhaust([iter([number]) for number in range(1, 9)], 4, done.append)
    assert sorted(done) == [*range(1, 9)]

    def fail():
        yield 1
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    left = started
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        writing.exhaust([fail() for _ in range(4)], 4, done.append)


def test_a_supervisor_without_memory_is_an_error(monkeypatch):
    """Its caller waits no longer."""

    def fail(_):
        raise MemoryError

    monkeypatch.setattr(threading.Thread, "is_alive", fail)
    with pytest.raises(MemoryError):
        writing.exhaust([iter([1])], 1, lambda _: None)


def test_a_thread_that_ends_late_holds_nothing(monkeypatch):
    late, here = [], type("Holder", (), {"report": lambda self, _: None})()
    monkeypatch.setattr(writing._thread, "start_new_thread", lambda call, given: (late.append(call), call(*given)))
    writing.exhaust([iter([1])], 1, here.report)
    gone = weakref.ref(here)
    del here
    assert late
    assert gone() is None
