"""Contenders for one question, timed in turns.

On a shared machine, times drift within seconds by more than libraries differ. So every contender gets a turn in each
round, and slow ones in some of the rounds; medians of times from the same rounds are compared.

A contender has a clock, which returns how long a number of calls took: a function timed here (`Timed`), a C loop that
reads its own clock (`limits`), or a library in another interpreter (`external_env`).
"""

from __future__ import annotations

import gc
import importlib
import itertools
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest

from weightmap import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUNDS = 25
BUDGET = 0.15  # seconds a contender, unless the minimum of rounds takes longer
SLOW = 1.0  # seconds of a call that is not repeated
SHORTEST = 2e-3  # seconds of a turn, which repeats shorter calls
WARM = 2e-2  # seconds of a call up to which the caches decide: a call before each turn fills them
BEST = kernels.available_isas()[-1]


class Clock(Protocol):
    """Returns how many seconds a number of calls took; `info` goes to `extra_info`.

    A clock with `turns` gets this number, however long one takes. If it is also `alike`, as a process for each call is,
    its calls need no warming up.
    """

    info: dict[str, Any]

    def __call__(self, calls: int) -> float:
        """Make `calls` calls and return their seconds."""


class Timed:
    """A function timed in this process; it gets the result of `setup`, which is not timed."""

    def __init__(self, function: Callable[..., object], setup: Callable[[], object] | None = None, **info: Any) -> None:
        self.function, self.setup, self.info = function, setup, info

    def __call__(self, calls: int) -> float:
        function, now = self.function, time.perf_counter
        if self.setup is None:
            begin = now()
            for _ in range(calls):
                function()
            return now() - begin
        total = 0.0
        for _ in range(calls):
            given = self.setup()
            begin = now()
            function(given)
            total += now() - begin
            del given
        return total


class Contender(NamedTuple):
    """One way to do the work: `role` is "ours", "rival", or "limit", the least work."""

    role: str
    prepare: Callable[..., Clock]
    isa: str | None = None
    threads: int = 1


def rival(prepare: Callable[..., Clock]) -> Contender:
    """Return a rival; `prepare(case)` returns its clock, or skips where its library is missing (`need`)."""
    return Contender("rival", prepare)


def limit(prepare: Callable[..., Clock], threads: int = 1) -> Contender:
    """Return a limit, which no contender with as many threads can beat."""
    return Contender("limit", prepare, threads=threads)


def ours(
    prepare: Callable[..., Clock], name: str = "weightmap", *, isas: tuple[str, ...] = (), threads: int = 1
) -> dict[str, Contender]:
    """Return ours under `name`, with the best instruction set, and with each other of `isas` that this CPU has."""
    others = [isa for isa in kernels.available_isas() if isa in isas and isa != BEST]
    return {name: Contender("ours", prepare, BEST, threads)} | {
        f"{name}, {isa}": Contender("ours", prepare, isa, threads) for isa in others
    }


EVERY_ISA = kernels.available_isas()
AVX2 = ("avx2",)  # enough where no loop over bytes decides the time


def each_contender(groups: Mapping[str, Mapping[str, Contender]]) -> pytest.MarkDecorator:
    """Make a benchmark of each contender of each group; a module lists all of its groups in `GROUPS`."""
    cases = [(group, who) for group, contenders in groups.items() for who in contenders]
    return pytest.mark.parametrize(("group", "who"), cases)


def need(module: str) -> Any:
    """Return the module of a rival, or skip the rival where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module} is not installed: {error}")


class Lane:
    """A prepared contender: the number of calls in a turn, the number of turns, and their times."""

    def __init__(self, contender: Contender, clock: Clock) -> None:
        self.contender, self.clock = contender, clock
        self.calls, self.turns, self.warms, self.times = 1, 1, False, list[float]()

    def turn(self, calls: int) -> float:
        """Make `calls` calls with the contender's instruction set."""
        kernels.use_isa(self.contender.isa or BEST)
        try:
            return self.clock(calls)
        finally:
            kernels.use_isa(BEST)

    def calibrate(self) -> None:
        """Find how many calls a turn makes and how many turns there is time for; this also warms up."""
        if getattr(self.clock, "alike", False):
            self.turns = self.clock.turns
            return
        for number in itertools.count():
            begin = time.perf_counter()
            measured = self.turn(self.calls)
            took = time.perf_counter() - begin
            if number == 0 and took < WARM:
                continue  # it touched memory for the first time
            if took >= SHORTEST or self.calls >= 100_000:
                break
            self.calls <<= max(1, math.ceil(math.log2(SHORTEST / took)))  # like contenders make as many calls
        least = 5 if took < SLOW else 3
        self.warms = took / self.calls < WARM
        usual = 1 if measured > SLOW else max(least, min(ROUNDS, int(BUDGET / took)))
        self.turns = getattr(self.clock, "turns", usual)

    def take(self, number: int) -> None:
        """Take a turn, if this round is one of the lane's."""
        if number * self.turns % ROUNDS < self.turns:
            if self.warms:
                self.turn(1)  # the other contenders have used the caches
            self.times.append(self.turn(self.calls) / self.calls)


class Result(NamedTuple):
    """Seconds a call by contender, their `info`, and the exceptions of contenders that could not run."""

    times: dict[str, list[float]]
    info: dict[str, dict[str, Any]]
    out: dict[str, BaseException]


def time_in_turns(contenders: Mapping[str, Contender], *cases: tuple[Any, ...]) -> Result:
    """Time the contenders in turns; one that cannot run does not stop the others.

    Rounds take the `cases` in turn: the same work in different memory, since how pages lie changes times by a tenth.
    Every second round goes backwards: a contender's remains in the caches slow or help the next one.
    """
    lanes: dict[str, list[Lane]] = {}
    out: dict[str, BaseException] = {}
    for name, contender in contenders.items():
        try:
            first, *others = (Lane(contender, contender.prepare(*case)) for case in cases)
            first.calibrate()
            for lane in others:
                lane.calls, lane.turns, lane.warms = first.calls, first.turns, first.warms
                lane.turn(1)
            lanes[name] = [first, *others]
        except pytest.skip.Exception as reason:
            out[name] = reason.with_traceback(None)  # a traceback would keep everything prepared alive
        except Exception as error:  # noqa: BLE001 - the benchmark of this contender raises it
            out[name] = error
    # The collector shall not walk the objects that pytest made.
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS):
        order = list(lanes.values())
        for every in reversed(order) if number % 2 else order:
            every[number % len(every)].take(number)
    gc.unfreeze()
    info = {name: {"calls": every[0].calls, **every[0].clock.info} for name, every in lanes.items()}
    return Result({name: [took for lane in every for took in lane.times] for name, every in lanes.items()}, info, out)


class Replay:
    """A timer for pytest-benchmark that replays measured times: `load` them, then let it time nothing."""

    __name__ = "in turns"

    def __init__(self) -> None:
        self.instants: list[float] = []

    def load(self, seconds: list[float]) -> None:
        """Make the next rounds seem to take these times."""
        self.instants = [instant for took in reversed(seconds) for instant in (took, 0.0)]

    def __call__(self) -> float:
        return self.instants.pop()
