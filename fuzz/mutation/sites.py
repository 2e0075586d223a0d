"""The sites that are changed, in C and in Python: comparisons, and whole numbers in their operands.

A comparison `a < b` has three mutants, of which each must make some test fail: the bound one off to either side
(``a <= b``, ``a + 1 < b``), and the opposite (``a >= b``). An equality has its opposite. A number that is part of
what is compared, such as the 4 of ``left - 4 < size``, is once one more and once one less.

All mutants are there at once, in a copy of the package, and one is switched on at a time: so nothing is compiled or
imported for each of them, and what has been reached while none was on tells which tests can notice a mutant at all.
"""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass
from typing import NamedTuple

# Of each comparison the mutants, as they would be written. The opposite comes last.
COMPARISONS = {
    "<": ("{l} <= {r}", "{l} + 1 < {r}", "{l} >= {r}"),
    "<=": ("{l} < {r}", "{l} <= {r} + 1", "{l} > {r}"),
    ">": ("{l} >= {r}", "{l} > {r} + 1", "{l} <= {r}"),
    ">=": ("{l} > {r}", "{l} + 1 >= {r}", "{l} < {r}"),
    "==": ("{l} != {r}",),
    "!=": ("{l} == {r}",),
}
NUMBER = ("{l} + 1", "{l} - 1")


def without_comment(line: str) -> str:
    """Return a line of C or Python without white space around it and without the comment at its end."""
    return re.sub(r"\s*(/\*.*\*/|\s#\s.*)$", "", line.strip())


class Key(NamedTuple):
    """Identifies a mutant from one run to the next: without a line number, so that edits elsewhere do not matter.

    Attributes
    ----------
    file : str
        Relative to the root of the repository.
    line : str
        The line of the source on which it stands: see `without_comment`.
    change : str
        What it makes of what; where lines of a file read the same, or a line has the same twice, with a number.
    """

    file: str
    line: str
    change: str

    @property
    def text(self) -> str:
        """The change without the number."""
        return re.sub(r"  \(\d+\)$", "", self.change)


@dataclass(frozen=True)
class Site:
    """A place in a source that has mutants.

    Attributes
    ----------
    number : int
        Among all sites of its language.
    first : int
        The number of its first mutant, among all mutants of its language.
    file : str
        Relative to the root of the repository.
    kind : str
        The operator, or "" for a number.
    mutants : tuple of str
        What stands there in place of what is there.
    keys : tuple of Key
        Of each of its mutants.
    importing : bool
        Python runs it when it imports the module, and never again.
    """

    number: int
    first: int
    file: str
    kind: str
    mutants: tuple[str, ...]
    keys: tuple[Key, ...]
    importing: bool


class Sites(list[Site]):
    """All sites of a language."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: collections.Counter[Key] = collections.Counter()

    def _key(self, file: str, line: str, change: str) -> Key:
        key = Key(file, line, change)
        self._seen[key] += 1
        count = self._seen[key]
        return key if count == 1 else Key(file, line, f"{change}  ({count})")

    def add(self, file: str, line: str, kind: str, left: str, right: str = "", *, importing: bool = False) -> Site:
        """Add a comparison of this kind, or with "" a number, and return it."""
        forms = COMPARISONS[kind] if kind else NUMBER
        text = f"{left} {kind} {right}" if kind else left
        first = self[-1].first + len(self[-1].mutants) if self else 0
        mutants = tuple(form.format(l=left, r=right) for form in forms)
        keys = tuple(self._key(file, without_comment(line), f"{text}  →  {mutant}") for mutant in mutants)
        site = Site(len(self), first, file, kind, mutants, keys, importing)
        self.append(site)
        return site


class Mutant(NamedTuple):
    """A mutant: in which language, where, and which of those of its site."""

    language: str
    site: Site
    number: int

    @property
    def key(self) -> Key:
        """Its key."""
        return self.site.keys[self.number]

    @property
    def opposite(self) -> bool:
        """Whether it turns a comparison round, which is the coarsest that can be wrong with one."""
        return bool(self.site.kind) and self.number == len(self.site.mutants) - 1
