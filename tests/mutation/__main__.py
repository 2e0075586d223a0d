"""Runs the mutants: see sites.py for what they are.

Tests are collected once and run once, without a mutant, which tells what each of them reaches. Then a process is forked
for each mutant, switches it on, and runs tests that reach it, quickest first, until one fails. The mutant is

    killed      when a test fails,
    crashed     when the process dies of a signal,
    endless     when it takes far longer than the tests do,
    survived    when the tests all pass,
    unreached   when there is no test that reaches it.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from . import c_sources, python_sources

if TYPE_CHECKING:
    from .sites import Site, Sites

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "build/checks/mutation"
C_FILES = (
    *("table.c", "index.c", "json.c", "json.h", "safetensors.c", "bintensors.c", "amb.c", "cnn.c", "fifu.c", "scan.c"),
    *("utf8.c", "utf8.h"),
)
MODULES = ("weightmap.formats", "weightmap.table", "weightmap.records", "weightmap.strict_json", "weightmap.limits")
TESTS = (
    *(
        "attacks",
        "index",
        "scan",
        "safetensors_scan",
        "table",
        "embd",
        "embd_malformed",
        "amb",
        "amb_malformed",
        "cnn_v2",
    ),
    *("bintensors", "bintensors_malformed", "finalfusion", "finalfusion_malformed", "safetensors", "sharded"),
    "guard_pages",
)
# Of the tests that reach a mutant: as many as take so long together, in seconds, when nothing is wrong.
MOST = 6.0


class Mutant(NamedTuple):
    """A mutant: in which language, where, and which of those of its site."""

    language: str
    site: Site
    number: int

    @property
    def change(self) -> str:
        """What the mutant makes of what."""
        return f"{self.site.text}  →  {self.site.mutants[self.number]}"


class Plugin:
    """Takes the place of pytest's loop over tests."""

    def __init__(self, c_sites: Sites, switch: python_sources.Switch, budget: float, seed: int) -> None:
        self._c_sites = c_sites
        self._switch = switch
        self._budget = budget
        self._seed = seed
        self.results: list[tuple[Mutant, str, str, float]] = []
        self.total = 0
        # Which tests reach a site, by language and number of the site; and the seconds that each test takes.
        self._reaching: dict[tuple[str, int], list[int]] = collections.defaultdict(list)
        self._seconds: list[float] = []
        self._killers: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)

    @staticmethod
    def pytest_configure() -> None:
        """Look for a failing example and be done: the smallest one is of no use here."""
        from hypothesis import Phase, settings

        settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None, derandomize=True)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests once, and then for each mutant those that reach it."""
        library = self._library()
        self._explore(session, library)
        mutants = [
            Mutant(language, site, number)
            for language, sites in (("C", self._c_sites), ("Python", self._switch.sites))
            for site in sites
            for number in range(len(site.mutants))
            if language == "C" or not (number == 1 and len(site.mutants) == 3 and site.number in self._switch.other)
        ]
        self.total = len(mutants)
        random.Random(self._seed).shuffle(mutants)
        begin = _cpu()
        for mutant in mutants:
            if _cpu() - begin > self._budget:
                break
            before = _cpu()
            verdict, by = self._try(session, library, mutant)
            self.results.append((mutant, verdict, by, _cpu() - before))
        return True

    @staticmethod
    def _library() -> ctypes.CDLL:
        from weightmap import _kernels

        return ctypes.CDLL(_kernels.__file__)

    def _explore(self, session: pytest.Session, library: ctypes.CDLL) -> None:
        reached = (ctypes.c_ubyte * len(self._c_sites)).in_dll(library, "wm_reached")
        for number, item in enumerate(session.items):
            ctypes.memset(reached, 0, len(reached))
            self._switch.reached[:] = bytes(len(self._switch.reached))
            follower = session.items[number + 1] if number + 1 < len(session.items) else None
            before = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
            self._seconds.append(time.process_time() - before)
            if session.testsfailed:  # as some do that look at the module itself: such a test would notice every mutant
                session.testsfailed = 0
                print(f"\nleft out, since it fails without a mutant: {item.nodeid}")
                continue
            for language, flags in (("C", bytes(reached)), ("Python", self._switch.reached)):
                for site, flag in enumerate(flags):
                    if flag:
                        self._reaching[language, site].append(number)
        print(f"\n{len(session.items)} tests take {sum(self._seconds):.0f} s", flush=True)

    def _chosen(self, mutant: Mutant) -> list[int]:
        reaching = self._reaching[mutant.language, mutant.site.number]
        killers = self._killers[mutant.site.file]
        chosen, seconds = [], 0.0
        for number in sorted(reaching, key=lambda number: (-killers[number], self._seconds[number])):
            if chosen and seconds + self._seconds[number] > MOST:
                continue
            chosen.append(number)
            seconds += self._seconds[number]
        return chosen

    def _try(self, session: pytest.Session, library: ctypes.CDLL, mutant: Mutant) -> tuple[str, str]:
        chosen = self._chosen(mutant)
        if not chosen:
            return "unreached", ""
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os._exit(self._run(session, library, mutant, chosen, sender))
            finally:
                os._exit(3)
        os.close(sender)
        with os.fdopen(receiver, "rb") as pipe:
            killer = pipe.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            by = signal.Signals(os.WTERMSIG(status)).name
            return ("endless" if by in {"SIGXCPU", "SIGALRM", "SIGKILL"} else "crashed"), by
        if os.WEXITSTATUS(status) == 0:
            return "survived", f"{len(chosen)} of {len(self._reaching[mutant.language, mutant.site.number])} tests"
        if not killer:
            return "crashed", f"exit status {os.WEXITSTATUS(status)}"
        number = int(killer)
        self._killers[mutant.site.file][number] += 1
        return "killed", session.items[number].nodeid

    def _run(
        self, session: pytest.Session, library: ctypes.CDLL, mutant: Mutant, chosen: list[int], sender: int
    ) -> int:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        seconds = int(3 * sum(self._seconds[number] for number in chosen)) + 3
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
        signal.alarm(20 * seconds)
        if mutant.language == "C":
            ctypes.c_int.in_dll(library, "wm_mutant").value = mutant.site.first + mutant.number
        else:
            self._switch.on(mutant.site.number, mutant.number)
        items = [session.items[number] for number in chosen]
        for number, item, follower in zip(chosen, items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
            if session.testsfailed:
                os.write(sender, str(number).encode())
                return 1
        return 0


def _cpu() -> float:
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def _write(plugin: Plugin, path: Path) -> None:
    """Keep every verdict, and tell the numbers."""
    rows = [
        {
            "verdict": verdict,
            "place": f"{mutant.site.file}:{mutant.site.line}",
            "change": mutant.change,
            "by": by,
            "seconds": round(seconds, 2),
        }
        for mutant, verdict, by, seconds in plugin.results
    ]
    rows.sort(key=lambda row: (row["place"].partition(":")[0], int(row["place"].partition(":")[2])))
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        table[row["place"].partition(":")[0]][row["verdict"]] += 1
        table["all"][row["verdict"]] += 1
    verdicts = ("killed", "crashed", "endless", "survived", "unreached")
    print(f"{len(rows)} of {plugin.total} mutants\n\n| file | {' | '.join(verdicts)} |\n|---|{'---|' * len(verdicts)}")
    for file, counts in table.items():
        print(f"| {file} | {' | '.join(str(counts[verdict]) for verdict in verdicts)} |")


def main() -> int:
    """Make the mutants, run them, and return 0 when all that were run were noticed or are known."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="of processor time for the mutants (default: no end)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order in which they are run")
    parser.add_argument("--only", default="", help="mutants of files whose names contain this")
    parser.add_argument("--tests", nargs="*", default=[f"tests/test_{name}.py" for name in TESTS])
    args = parser.parse_args()
    files = tuple(name for name in C_FILES if args.only in f"csrc/{name}")
    c_sites = c_sources.build(ROOT, FOLDER, files)
    source = FOLDER / "src"
    sys.path[:0] = [str(source), str(ROOT / "tests"), str(ROOT)]
    switch = python_sources.install(source, MODULES)
    plugin = Plugin(c_sites, switch, 60 * args.minutes, args.seed)
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:faulthandler", f"--rootdir={ROOT}"]
    status = pytest.main([*options, *args.tests], plugins=[plugin])
    if not plugin.results:
        return int(status) or 1
    _write(plugin, FOLDER / "results.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
