"""Runs the mutants that have not been decided, and tells the numbers: see runner.py for how, and docs/mutation.md."""

from __future__ import annotations

import argparse
import random
import resource
import sys
from typing import TYPE_CHECKING

import pytest
from tests import builders
from tests.places import FORMAT_TESTS, suite

from . import c_sources, python_sources, verdicts
from .runner import Plugin
from .verdicts import NOTICED, ROOT, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .sites import Key, Mutant

FOLDER = ROOT / "build/checks/mutation"
# The tables and scanners that formats share, and those of each format.
C_FILES = (
    *("table.c", "names.c", "index.c", "json.c", "json.h", "strings.c", "utf8.c", "utf8.h", "read_at.c"),
    *(name for builder in builders.known().values() for name in builder.scans),
)
MODULES = (
    "weightmap.formats",
    "weightmap.index.table",
    "weightmap.index.columns",
    "weightmap.io.strict_json",
    "weightmap.options",
    "weightmap.quant.ggml",
)
# Those that look into files and at the functions that do; the first of them that notices decides.
SUITES = (
    *("attacks", "kernel_bounds", "writer_bounds", "index", "scan", "table", "sharded"),
    *("formats", "guard_pages", "roundtrip", "save", "limits"),
    *("nesting", "kinds", "strict_json", "gguf_scan", "quant", "align", "plan_spans", "plan_reads", "plan_run"),
)
TESTS = (FORMAT_TESTS, "tests/api/test_ggml.py", *map(suite, SUITES))


class Chooser:
    """Which mutants are run: those that have no verdict that still holds, the opposites first."""

    def __init__(self, known: Mapping[Key, Verdict], args: argparse.Namespace) -> None:
        self._known = known
        self._args = args

    def __call__(self, mutants: Sequence[Mutant]) -> Iterator[Mutant]:
        """Yield them until the time is over."""
        args = self._args
        todo = [mutant for mutant in mutants if args.only in mutant.key.file and not self.decided(mutant.key)]
        if args.unexplained:
            todo = [mutant for mutant in todo if verdicts.reason(mutant.key) is None]
        random.Random(args.seed).shuffle(todo)
        del todo[len(todo) if args.sample is None else args.sample :]
        todo.sort(key=lambda mutant: not mutant.opposite)
        print(f"{len(todo)} of {len(mutants)} mutants are to be run", flush=True)
        begin = _cpu()
        for mutant in todo:
            if _cpu() - begin > 60 * args.minutes:
                break
            yield mutant

    def decided(self, key: Key) -> bool:
        """Whether there is a verdict on what is there now."""
        known = self._known.get(key)
        if known is None or self._args.again:
            return False
        return known.of == verdicts.digest(key.file, noticed=known.word in NOTICED)


def _cpu() -> float:
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def _summary(found: Mapping[Key, Verdict], keys: Sequence[Key], *, whole: bool) -> tuple[list[str], dict[Key, str]]:
    """Return what is wrong, and a word for each mutant that has a verdict."""
    words = {key: found[key].word for key in keys if key in found}
    wrong = []
    for key, word in words.items():
        if word not in NOTICED and verdicts.reason(key) is not None:
            words[key] = "equivalent"
        elif word not in NOTICED:
            wrong.append(f"{word}: {key.file}: {key.line}\n    {key.change}")
    gone = verdicts.unused(keys) if whole else ()
    wrong += [f"listed as equivalent, and not there: {file}: {change}" for file, change in gone]
    return wrong, words


def main() -> int:
    """Run mutants, and return 0 when all that have a verdict were noticed, or are known to change nothing."""
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9, help="of processor time for the mutants (no end)")
    parser.add_argument("--sample", type=int, help="run so many, drawn at random (all)")
    parser.add_argument("--seed", type=int, default=1, help="of the order in which they are run")
    parser.add_argument("--again", action="store_true", help="run also what has a verdict")
    parser.add_argument("--unexplained", action="store_true", help="leave out what is listed as equivalent")
    parser.add_argument("--only", default="", help="mutants of files whose names contain this")
    parser.add_argument("--most", type=float, default=4.0, help="seconds of tests for one mutant (4)")
    parser.add_argument("--tests", nargs="*", help="run these instead of those that it takes")
    args = parser.parse_args()
    whole = not args.only and not args.tests
    known = verdicts.load()
    found = dict(known)
    verdicts.digests()  # now, since sources may be edited while this runs
    c_sites = c_sources.build(ROOT, FOLDER, tuple(name for name in C_FILES if args.only in f"csrc/{name}"))
    source = FOLDER / "src"
    sys.path[:0] = [str(source), str(ROOT / "tests"), str(ROOT)]
    switch = python_sources.install(source, MODULES)

    fresh: set[Key] = set()

    def keep(mutant: Mutant, verdict: Verdict) -> None:
        found[mutant.key] = verdict
        fresh.add(mutant.key)
        if len(fresh) % 50 == 0:  # a run that is cut short is gone on with
            verdicts.save(found, found)

    plugin = Plugin(c_sites, switch, known, Chooser(known, args), args.most, keep)
    options = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:faulthandler", f"--rootdir={ROOT}"]
    status = pytest.main([*options, *(args.tests or TESTS)], plugins=[plugin])
    if not plugin.mutants:
        return int(status) or 1
    keys = [mutant.key for mutant in plugin.mutants]
    # Verdicts on mutants that were not run stay.
    verdicts.save(found, keys if whole else list(dict.fromkeys((*keys, *found))))
    wrong, words = _summary(found, keys, whole=whole)
    print("\n".join(wrong))
    print(f"\n{len(words)} of {len(keys)} mutants have a verdict\n\n" + "\n".join(verdicts.table(words)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
