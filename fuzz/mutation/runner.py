"""Runs the mutants, in the place of pytest's loop over tests: see sites.py for what they are.

Tests are collected once and run once, without a mutant, which tells what each of them reaches. Then a process is forked
for each mutant, switches it on, and runs tests that reach it, until one fails: first the one that noticed it before,
then those that have noticed most in the same file, then the quickest. The mutant is

    killed      when a test fails,
    crashed     when the process dies of a signal,
    endless     when it takes far longer than the tests do,
    survived    when the tests all pass,
    unreached   when there is no test that reaches it.

The first time that a test has noticed a mutant, it is run in such a process without one, where it has to pass: else it
would notice anything.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import importlib
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from .sites import Mutant
from .verdicts import NOTICED, Verdict, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    import pytest

    from .python_sources import Switch
    from .sites import Key, Sites


class Plugin:
    """Takes the place of pytest's loop over tests.

    Parameters
    ----------
    c_sites : Sites
    switch : Switch
    known : mapping of Key to Verdict
        Of earlier runs.
    choose : callable
        Returns those of all mutants that are to be run, in that order.
    most : float
        Of the tests that reach a mutant, as many are run as take so many seconds together, when nothing is wrong.
    keep : callable
        Is given each verdict.
    """

    def __init__(
        self,
        c_sites: Sites,
        switch: Switch,
        known: Mapping[Key, Verdict],
        choose: Callable[[Sequence[Mutant]], Sequence[Mutant]],
        most: float,
        keep: Callable[[Mutant, Verdict], None],
    ) -> None:
        self._c_sites = c_sites
        self._switch = switch
        self._known = known
        self._choose = choose
        self._most = most
        self._keep = keep
        self.mutants: list[Mutant] = []
        # Which tests reach a site, by language and number of the site; and the seconds that each test takes.
        self._reaching: dict[tuple[str, int], set[int]] = collections.defaultdict(set)
        self._seconds: list[float] = []
        self._numbers: dict[str, int] = {}
        self._killers: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        # Whether a test that has noticed a mutant passes where there is none.
        self._sound: dict[int, bool] = {}

    @staticmethod
    def pytest_configure() -> None:
        """Look for a failing example and be done: the smallest one is of no use here."""
        from hypothesis import Phase, settings

        settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None, derandomize=True)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests once, and then for each mutant those that reach it."""
        from weightmap import _kernels

        if session.testsfailed:
            raise session.Interrupted("some tests cannot be collected")
        library = ctypes.CDLL(_kernels.__file__)
        self._numbers = {item.nodeid: number for number, item in enumerate(session.items)}
        self._explore(session, library)
        forget()
        gc.collect()
        gc.freeze()  # or the first collection in each process would copy all that is there
        numbers = self._switch.whole - self._switch.other
        self.mutants = [
            Mutant(language, site, number)
            for language, sites in (("C", self._c_sites), ("Python", self._switch.sites))
            for site in sites
            for number in range(len(site.mutants))
            # "One more" means nothing unless the values are whole numbers.
            if language == "C" or number != 1 or len(site.mutants) != 3 or site.number in numbers
        ]
        for key, verdict in self._known.items():
            if verdict.by in self._numbers:
                self._killers[key.file][self._numbers[verdict.by]] += 1
        for mutant in self._choose(self.mutants):
            word, by = self._try(session, library, mutant)
            self._keep(mutant, Verdict(word, by, digest(mutant.site.file, noticed=word in NOTICED)))
        return True

    def _explore(self, session: pytest.Session, library: ctypes.CDLL) -> None:
        reached = (ctypes.c_ubyte * len(self._c_sites)).in_dll(library, "wm_reached")
        for number, item in enumerate(session.items):
            ctypes.memset(reached, 0, len(reached))
            self._switch.reached[:] = bytes(len(self._switch.reached))
            follower = session.items[number + 1] if number + 1 < len(session.items) else None
            before = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
            self._seconds.append(time.process_time() - before)
            if session.testsfailed:  # as some do that look at the module itself
                session.testsfailed = 0
                print(f"left out, since it fails without a mutant: {item.nodeid}")
                continue
            for language, flags in (("C", bytes(reached)), ("Python", self._switch.reached)):
                for site, flag in enumerate(flags):
                    if flag:
                        self._reaching[language, site].add(number)
        print(f"{len(session.items)} tests take {sum(self._seconds):.0f} s", flush=True)

    def _reaching_of(self, mutant: Mutant) -> set[int]:
        if not mutant.site.importing:
            return self._reaching[mutant.language, mutant.site.number]
        # The module will be imported again, and then it may be anything of it that shows the difference.
        alike = [site.number for site in self._switch.sites if site.file == mutant.site.file]
        return set().union(*(self._reaching[mutant.language, number] for number in alike))

    def _chosen(self, mutant: Mutant, reaching: set[int]) -> list[int]:
        killers = self._killers[mutant.site.file]
        known = self._known.get(mutant.key)
        before = self._numbers.get(known.by) if known else None
        chosen, seconds = [], 0.0
        for number in sorted(reaching, key=lambda number: (number != before, -killers[number], self._seconds[number])):
            if not self._sound.get(number, True) or (chosen and seconds + self._seconds[number] > self._most):
                continue
            chosen.append(number)
            seconds += self._seconds[number]
        return chosen

    def _try(self, session: pytest.Session, library: ctypes.CDLL, mutant: Mutant) -> tuple[str, str]:
        reaching = self._reaching_of(mutant)
        while True:
            chosen = self._chosen(mutant, reaching)
            if not chosen:
                return "unreached", ""
            word, last = self._fork(session, library, mutant, chosen)
            if word == "survived":
                return word, f"{len(chosen)} of {len(reaching)} tests"
            if last not in self._sound:
                self._sound[last] = self._fork(session, library, None, [last])[0] == "survived"
            if self._sound[last]:
                self._killers[mutant.site.file][last] += 1
                return word, session.items[last].nodeid
            print(f"left out, since it fails in a process of its own: {session.items[last].nodeid}")

    def _fork(
        self, session: pytest.Session, library: ctypes.CDLL, mutant: Mutant | None, chosen: list[int]
    ) -> tuple[str, int]:
        """Run tests in a process of their own; return what became of it, and which test was the last."""
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os._exit(self._run(session, library, mutant, chosen, sender))
            finally:
                os._exit(3)
        os.close(sender)
        with os.fdopen(receiver, "rb") as pipe:
            begun = pipe.read().split()
        _, status = os.waitpid(child, 0)
        last = int(begun[-1]) if begun else chosen[0]
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
                raise KeyboardInterrupt("somebody ended a process, which says nothing of its mutant")
            slow = {signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL}
            return ("endless" if number in slow else "crashed"), last
        return {0: "survived", 1: "killed"}.get(os.WEXITSTATUS(status), "crashed"), last

    def _run(
        self, session: pytest.Session, library: ctypes.CDLL, mutant: Mutant | None, chosen: list[int], sender: int
    ) -> int:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        seconds = int(3 * sum(self._seconds[number] for number in chosen)) + 3
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
        signal.alarm(20 * seconds)
        if mutant is not None:
            self._switch_on(library, mutant)
        items = [session.items[number] for number in chosen]
        for number, item, follower in zip(chosen, items, [*items[1:], None], strict=True):
            os.write(sender, b"%d\n" % number)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
            if session.testsfailed:
                return 1
        return 0

    def _switch_on(self, library: ctypes.CDLL, mutant: Mutant) -> None:
        if mutant.language == "C":
            ctypes.c_int.in_dll(library, "wm_mutant").value = mutant.site.first + mutant.number
            return
        self._switch.on(mutant.site.number, mutant.number)
        if mutant.site.importing:
            name = mutant.site.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
            _import_again(importlib.import_module(name.replace("/", ".")))


def forget() -> None:
    """Empty the caches of the package's functions: what was found without a mutant would hide it."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "weightmap":
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _import_again(module: ModuleType) -> None:
    """Import a module into itself, so that its functions see what is new, and give that to who has what was there."""
    old = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    importlib.reload(module)
    places: list[Any] = [other for name, other in sys.modules.items() if name.startswith("weightmap.")]
    places += [value for other in places for value in vars(other).values() if isinstance(value, type)]
    for place in places:
        for name, value in list(vars(place).items()):
            for known, was in old.items():
                if value is was and getattr(module, known) is not was and not isinstance(was, int | str | type):
                    setattr(place, name, getattr(module, known))
