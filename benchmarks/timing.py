"""Contenders for one question, timed in turns.

On a shared machine times drift from one second to the next, by more than what two libraries differ in. So the
contenders for a question are not timed one after another: in each round everybody gets a turn, and slow ones take part
in some of the rounds only. What is compared are medians of times that lie side by side.

A contender is whatever tells how long a number of calls took: a function timed here (`Timed`), a loop in C that reads
its own clock (`limits`), a library in another interpreter (`external_env`).
"""

from __future__ import annotations

import gc
import importlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest

from weightmap import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUNDS = 45
BUDGET = 0.4  # seconds for a contender, unless the fewest rounds take longer
SLOW = 1.0  # seconds of a call that is not repeated
SHORTEST = 2e-3  # seconds of a turn: shorter calls are repeated within it
BEST = kernels.available_isas()[-1]


class Clock(Protocol):
    """Whatever tells how many seconds a number of calls took; `info` goes to `extra_info`."""

    info: dict[str, Any]

    def __call__(self, calls: int) -> float:
        """Call as often, and return how long that took."""


class Timed:
    """A function timed in this process; what `setup` returns is handed to it, and the time of `setup` not counted."""

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
    """One of those compared: `role` is "ours", "rival", or "limit" for what nobody can do without."""

    role: str
    prepare: Callable[..., Clock]
    isa: str | None = None
    threads: int = 1


def rival(prepare: Callable[..., Clock]) -> Contender:
    """Return a contender that `prepare(case)` makes ready; it skips when its library is not there (`need`)."""
    return Contender("rival", prepare)


def limit(prepare: Callable[..., Clock], threads: int = 1) -> Contender:
    """Return what no contender of so many threads can be faster than."""
    return Contender("limit", prepare, threads=threads)


def ours(
    prepare: Callable[..., Clock], name: str = "weightmap", *, isas: tuple[str, ...] = (), threads: int = 1
) -> dict[str, Contender]:
    """Return ours under `name`, with the best instruction set, and again with each other of `isas` that is here."""
    others = [isa for isa in kernels.available_isas() if isa in isas and isa != BEST]
    return {name: Contender("ours", prepare, BEST, threads)} | {
        f"{name}, {isa}": Contender("ours", prepare, isa, threads) for isa in others
    }


EVERY_ISA = kernels.available_isas()
AVX2 = ("avx2",)  # where no loop over bytes decides: the other one that most users have


def everyone(groups: Mapping[str, Mapping[str, Contender]]) -> pytest.MarkDecorator:
    """Make a benchmark of every contender of every group; each module's groups, all of them, are its `GROUPS`."""
    cases = [(group, who) for group, contenders in groups.items() for who in contenders]
    return pytest.mark.parametrize(("group", "who"), cases)


def need(module: str) -> Any:
    """Return a module of a rival, or leave the rival out, visibly, where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module} is not installed: {error}")


class Lane:
    """A contender that has been prepared, the number of calls in a turn, the number of turns, and their times."""

    def __init__(self, contender: Contender, clock: Clock) -> None:
        self.contender, self.clock = contender, clock
        self.calls, self.turns, self.times = 1, 1, list[float]()

    def turn(self, calls: int) -> float:
        """Call so often, with the instruction set asked for."""
        kernels.use_isa(self.contender.isa or BEST)
        try:
            return self.clock(calls)
        finally:
            kernels.use_isa(BEST)

    def calibrate(self) -> None:
        """Find how many calls a turn takes, which warms up too, and how many turns there is time for."""
        while True:
            begin = time.perf_counter()
            told = self.turn(self.calls)
            took = time.perf_counter() - begin
            if took >= SHORTEST or self.calls >= 100_000:
                break
            self.calls *= 4
        least = 5 if took < BUDGET else 3
        self.turns = 1 if told > SLOW else max(least, min(ROUNDS, int(BUDGET / took)))

    def take(self, number: int) -> None:
        """Take part in this round, if it is one of ours."""
        if number * self.turns % ROUNDS < self.turns:
            if self.calls > 1:
                self.turn(1)  # others have been using the caches
            self.times.append(self.turn(self.calls) / self.calls)


class Result(NamedTuple):
    """Seconds a call of each contender, what else they have to say, and the exceptions of those that were left out."""

    times: dict[str, list[float]]
    info: dict[str, dict[str, Any]]
    out: dict[str, BaseException]


def compete(contenders: Mapping[str, Contender], *case: Any) -> Result:
    """Time the contenders in turns, each prepared for this case; one that cannot run does not keep others from it."""
    lanes: dict[str, Lane] = {}
    out: dict[str, BaseException] = {}
    for name, contender in contenders.items():
        try:
            lane = Lane(contender, contender.prepare(*case))
            lane.calibrate()
            lanes[name] = lane
        except pytest.skip.Exception as reason:
            out[name] = reason.with_traceback(None)  # which would keep alive all that was prepared
        except Exception as error:  # noqa: BLE001 - raised for this one, later
            out[name] = error
    # What the collection of the tests and of other files has left is not what the contenders are to be slowed by.
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS):
        for lane in lanes.values():
            lane.take(number)
    gc.unfreeze()
    info = {name: {"calls": lane.calls, **lane.clock.info} for name, lane in lanes.items()}
    return Result({name: lane.times for name, lane in lanes.items()}, info, out)


class Replay:
    """A timer for pytest-benchmark that tells times measured before: `load` them, then let it time nothing."""

    __name__ = "race"

    def __init__(self) -> None:
        self.instants: list[float] = []

    def load(self, seconds: list[float]) -> None:
        """Let the next rounds seem to take so long."""
        self.instants = [instant for took in reversed(seconds) for instant in (took, 0.0)]

    def __call__(self) -> float:
        return self.instants.pop()
