"""What is changed: comparisons, and whole numbers in what they compare. The same for C and for Python.

A comparison `a < b` has three mutants, of which each must make some test fail: the bound one off to either side
(``a <= b``, ``a + 1 < b``), and the opposite (``a >= b``). An equality has its opposite. A number that is part of
what is compared, such as the 4 of ``left - 4 < size``, is once one more and once one less.

All mutants are there at once, in a copy of the package, and one is switched on at a time: so nothing is compiled or
imported for each of them, and what has been reached while none was on tells which tests can notice a mutant at all.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of each comparison the mutants, as they would be written.
COMPARISONS = {
    "<": ("{l} <= {r}", "{l} + 1 < {r}", "{l} >= {r}"),
    "<=": ("{l} < {r}", "{l} <= {r} + 1", "{l} > {r}"),
    ">": ("{l} >= {r}", "{l} > {r} + 1", "{l} <= {r}"),
    ">=": ("{l} > {r}", "{l} + 1 >= {r}", "{l} < {r}"),
    "==": ("{l} != {r}",),
    "!=": ("{l} == {r}",),
}
NUMBER = ("{l} + 1", "{l} - 1")


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
    line : int
    text : str
        What stands there.
    mutants : tuple of str
        What stands there in place of it.
    """

    number: int
    first: int
    file: str
    line: int
    text: str
    mutants: tuple[str, ...]


class Sites(list[Site]):
    """All sites of a language."""

    def add(self, file: str, line: int, kind: str, left: str, right: str = "") -> Site:
        """Add a comparison of this kind, or with "" a number, and return it."""
        forms = COMPARISONS[kind] if kind else NUMBER
        text = f"{left} {kind} {right}" if kind else left
        first = self[-1].first + len(self[-1].mutants) if self else 0
        site = Site(len(self), first, file, line, text, tuple(form.format(l=left, r=right) for form in forms))
        self.append(site)
        return site
