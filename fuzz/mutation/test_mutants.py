"""The makers of mutants: each mutant differs from its original, is switched on alone, and keeps its name."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import TYPE_CHECKING

import pytest

from mutation import python_sources, verdicts
from mutation.runner import forget
from mutation.sites import COMPARISONS, Key, Mutant, Sites, without_comment
from weightmap.formats import _npy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

SOURCE = """
BELOW = [n for n in range(6) if n < 3]

def inside(low, n, high):
    return low <= n < high

def fits(left, size):
    return size > left - 4

def same(a, b):
    return a == b

def same_too(a, b):
    return a == b

def third(values):
    return values[2] != 2
"""


@pytest.mark.parametrize("kind", COMPARISONS)
def test_mutants_do_as_they_are_called(kind):
    """Every mutant of a comparison does what its text says, and not always what the comparison does."""
    for form, mutant in zip(COMPARISONS[kind], python_sources.MUTANTS[kind], strict=True):
        pairs = list(itertools.product(range(-3, 4), repeat=2))
        written = [eval(form.format(l=left, r=right)) for left, right in pairs]
        assert [mutant(*pair) for pair in pairs] == written
        assert written != [python_sources.PLAIN[kind](*pair) for pair in pairs]
    # The last one is the opposite.
    assert all(mutant(*pair) != python_sources.PLAIN[kind](*pair) for pair in pairs)


@pytest.fixture
def changed(tmp_path: Path) -> Iterator[tuple[python_sources.Switch, ModuleType]]:
    """A module with mutants."""
    (tmp_path / "with_mutants.py").write_text(SOURCE, encoding="utf-8")
    sys.path.insert(0, str(tmp_path))
    switch = python_sources.install(tmp_path, ("with_mutants",))
    yield switch, importlib.import_module("with_mutants")
    sys.path.remove(str(tmp_path))
    del sys.meta_path[0], sys.modules["with_mutants"]


def outcomes(module: ModuleType) -> list[object]:
    """All that the functions of the module say."""
    numbers = range(-2, 8)
    found: list[object] = [module.BELOW, *(module.inside(1, n, 4) for n in numbers)]
    found += [module.fits(n, 2) for n in numbers]
    found += [f(a, b) for f in (module.same, module.same_too) for a in (1, 2) for b in (1, 2)]
    return [*found, module.third([0, 0, 2]), module.third([0, 0, 3]), module.third([0, 0, 1])]


def test_without_a_mutant_nothing_changes(changed):
    """As long as none is on, a module does what its source says, and what it has reached is known."""
    switch, module = changed
    plain: dict[str, object] = {}
    exec(SOURCE, plain)
    switch.reached[:] = bytes(len(switch.reached))
    module.inside(1, 2, 3)
    reached = [site.keys[0].line for site in switch.sites if switch.reached[site.number]]
    assert reached == ["return low <= n < high"] * 2
    assert plain["BELOW"] == module.BELOW


def test_each_mutant_is_noticed_by_somebody(changed):
    """Every mutant that is made of the module changes an outcome, also that of what runs when it is imported."""
    switch, module = changed
    right = outcomes(module)
    mutants = [Mutant("Python", site, i) for site in switch.sites for i in range(len(site.mutants))]
    assert len(mutants) == 3 + 2 * 3 + (3 + 2) + 1 + 1 + 3
    for mutant in mutants:
        switch.on(mutant.site.number, mutant.number)
        if mutant.site.importing:
            importlib.reload(module)
        assert outcomes(module) != right, mutant.key
        kind = mutant.site.kind
        switch._actions[mutant.site.number] = python_sources.PLAIN[kind] if kind else 0
        if mutant.site.importing:
            importlib.reload(module)
        assert outcomes(module) == right
    assert sum(site.importing for site in switch.sites) == 1
    assert sum(mutant.opposite for mutant in mutants) == 7


def test_names_of_mutants_do_not_depend_on_other_lines():
    """A mutant is known by file, line and change, with a number where a line of the file reads the same."""
    sites = Sites()
    first = sites.add("a.c", "  if (a == b) return 1;", "==", "a", "b")
    again = sites.add("a.c", "    if (a == b) return 1;", "==", "a", "b")
    other = sites.add("b.c", "if (a == b) return 1;", "==", "a", "b")
    assert first.keys == (Key("a.c", "if (a == b) return 1;", "a == b  →  a != b"),)
    assert again.keys == (Key("a.c", "if (a == b) return 1;", "a == b  →  a != b  (2)"),)
    assert other.keys == (Key("b.c", "if (a == b) return 1;", "a == b  →  a != b"),)
    assert [site.first for site in sites] == [0, 1, 2]


def test_verdicts_are_kept(monkeypatch, tmp_path):
    """Saved verdicts are loaded again, in the requested order, and the others are gone."""
    monkeypatch.setattr(verdicts, "RESULTS", tmp_path / "results.jsonl")
    assert verdicts.load() == {}
    keys = [Key("a.c", "x", str(i)) for i in range(3)]
    found = {key: verdicts.Verdict("killed", "test", "0") for key in keys}
    verdicts.save(found, [keys[2], keys[0]])
    assert list(verdicts.load().items()) == [(key, found[key]) for key in (keys[2], keys[0])]


def test_caches_are_empty_before_a_mutant_runs():
    """A header that was parsed before is parsed again, by the mutant."""
    _npy._literal(b"{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "latin-1")
    assert _npy._literal.cache_info().currsize
    forget()
    assert not _npy._literal.cache_info().currsize


def test_a_reason_belongs_to_a_change_in_a_file(monkeypatch):
    """A reason holds for each mutant of its file with that change, wherever it stands; unused ones are told."""
    monkeypatch.setattr(verdicts, "_reasons", lambda: {"a.c": {"a == b  →  a != b": "Why."}})
    keys = [Key("a.c", "x", "a == b  →  a != b  (2)"), Key("b.c", "x", "a == b  →  a != b"), Key("a.c", "x", "b")]
    assert [verdicts.reason(key) for key in keys] == ["Why.", None, None]
    assert verdicts.unused(keys) == []
    assert verdicts.unused(keys[1:]) == [("a.c", "a == b  →  a != b")]


def test_comments_are_no_part_of_a_line():
    """A mutant keeps its name when the comment behind its line changes."""
    for line in ("  if (a < b) /* why */", "if (a < b)  # why", "if (a < b)"):
        assert without_comment(line) == "if (a < b)"
    assert without_comment('if sign == "#":') == 'if sign == "#":'
