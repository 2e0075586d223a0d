"""A pool that is interrupted wherever a signal can interrupt it stays sound; so does an arena.

An exception is raised once at each of these points of holds, prefetches and closings (see `points`); afterwards every
tensor is right, and nothing is held, lost or counted twice.
"""

import os
import signal
import threading
import time

import numpy as np
import pytest
from tests.points import EACH, Interrupter, Interruption
from tests.support import HANG

import weightmap as wm
from weightmap.plans.direct import ALIGN

SIZES = {f"t{i}": ALIGN * (1 + i % 3) - 100 * i for i in range(8)}
BUDGET = 8 * ALIGN


@pytest.fixture
def file(tmp_path):
    wm.save(tmp_path / "m.safetensors", {name: np.full(size, ord(name[1]), np.uint8) for name, size in SIZES.items()})
    with wm.open(tmp_path / "m.safetensors") as file:
        yield file


def check(pool):
    """Every tensor is right, and so are the pool's counts."""
    while pool._workers:
        time.sleep(0.001)
    for name, size in SIZES.items():
        with pool.hold(name) as array:
            assert array.shape == (size,)
            assert (array == ord(name[1])).all()
        del array  # a kept array is the caller's, beside the budget
    assert pool.stats.held_nbytes == 0
    assert pool.stats.resident_nbytes == sum(entry.cost for entry in pool._entries.values()) <= BUDGET
    assert pool._arena.nbytes <= BUDGET
    arena = pool._arena
    slots = [slot for free in (arena._paged, arena._bare) for some in free.values() for slot in some]
    assert len(set(slots) | set(arena._tenants)) == len(slots) + len(arena._tenants) == len(arena._slots)
    assert len(arena._slots) < 60  # 8 tensors in three sizes, and nothing of the interruptions


def holds(pool):
    with pool.hold("t1"), pool.hold("t2") as array:
        array.sum()
    for name in SIZES:
        with pool.hold(name):
            pass
    pool.hold("t3", 5).release()


@pytest.mark.parametrize("way", [True, False])
def test_holds(file, way):
    with file.pool(BUDGET, direct=way) as pool:
        holds(pool)
        counting = Interrupter()
        assert not counting.run(lambda: holds(pool))
        assert counting.count > 500
        interrupted = sum(
            Interrupter(number).run(lambda: holds(pool)) and not check(pool)
            for number in range(0, counting.count, EACH)
        )
        assert interrupted > 40


def test_prefetches_and_closing(file):
    """In the caller; the threads of the pool get no signals. Whatever it leaves queued, a hold reads."""

    def use(pool):
        pool.prefetch(["t1", ("t2", 3), "t4"])
        pool.hold("t4").release()
        pool.close()

    with file.pool(BUDGET) as pool:
        counting = Interrupter()
        counting.run(lambda: use(pool))
    threads = threading.active_count()
    interrupted = 0
    for number in range(0, counting.count, EACH):
        pool = file.pool(BUDGET)
        interrupted += Interrupter(number).run(lambda pool=pool: use(pool))
        if not pool._closed:
            check(pool)
        pool.close()
        assert not pool._workers
        assert not pool._entries
        assert pool._arena.nbytes == 0
    assert interrupted > 20
    assert threading.active_count() == threads


def test_a_read_that_was_interrupted_is_read_again(file, monkeypatch):
    """By the thread that waited for it; nobody waits for a vanished reader."""
    pool, begun, results = file.pool(1 << 20), threading.Event(), []
    read = type(pool)._values

    def interrupt(self, group):
        monkeypatch.setattr(type(pool), "_values", read)
        begun.set()
        waiting.join(0.2)  # it waits for this read
        raise Interruption

    def wait():
        begun.wait(HANG)
        with pool.hold("t5") as array:
            results.append(array.copy())

    monkeypatch.setattr(type(pool), "_values", interrupt)
    waiting = threading.Thread(target=wait)
    waiting.start()
    with pytest.raises(Interruption) as kept:  # with all frames
        pool.hold("t5")
    waiting.join(HANG)
    assert (results[0] == ord("5")).all()
    assert kept.value
    assert pool.stats.held_nbytes == 0
    pool.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_beside_threads_that_use_the_pool_waits_for_no_lock(file):
    """In the parent another thread holds the lock, in the child nobody does."""
    calls = (
        lambda pool: pool.hold("t1"),
        lambda pool: pool.hold("t1", -1),
        lambda pool: pool.prefetch(["t1"]),
        lambda pool: pool.stats,
        lambda pool: pool.close(),
    )
    pool = file.pool(1 << 20)
    hold, locked, done = pool.hold("t0"), threading.Event(), threading.Event()

    def keep():
        with pool._lock, pool._arena._lock:
            locked.set()
            done.wait(HANG)

    thread = threading.Thread(target=keep)
    thread.start()
    locked.wait(HANG)
    child = os.fork()
    if not child:
        signal.alarm(HANG)
        closed = 0
        for call in calls:
            try:
                call(pool)
            except wm.ClosedError:
                closed += 1
        hold.release()
        with file.pool(1 << 20) as other, other.hold("t2") as array:
            closed += bool((array == ord("2")).all())
        os._exit(closed)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)  # all but close, and the new pool's tensor
    hold.release()
    pool.close()
