"""Which names look like one that is not there, for messages: found with little work, whatever the names are."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["alike"]

# A miss costs milliseconds at most: so many names are listed, of those of about the right length so many are looked at
# from both ends, and of these so many characters one by one. Names that are longer than _LONG get no suggestions.
_LISTED, _LOOKED_AT, _COMPARED = 10_000, 1_000, 10_000
_LONG = 400
# By so many characters another name may be longer or shorter: "model." in front is the usual mistake.
_SLACK = 8
# At least this part of the characters of two names that are alike stands in both, in the same order.
_ALIKE = 0.7


def alike(wanted: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return the names that are most like the one that is wanted, the likest first.

    Examples
    --------
    >>> alike("wieght", ["bias", "weight", "weights"])
    ['weight', 'weights']
    """
    if not 0 < len(wanted) <= _LONG:
        return []
    near = islice((name for name in islice(names, _LISTED) if abs(len(name) - len(wanted)) <= _SLACK), _LOOKED_AT)
    common = _Common(wanted)
    scores, left = [], _COMPARED
    for name in sorted(near, key=lambda name: -_shared_ends(wanted, name)):
        left -= len(name)
        if left < 0:
            break
        scores.append((2 * common.count(name) / (len(wanted) + len(name)), name))
    return [name for score, name in sorted(scores, key=lambda found: -found[0]) if score >= _ALIKE][:most]


def _shared_ends(a: str, b: str) -> int:
    """Return how many bytes two names have in common at their beginning and at their end."""
    x, y = (name.encode("utf-8", "surrogatepass") for name in (a, b))
    length = max(len(x), len(y))
    # As one large number each: the highest and the lowest bit in which they differ tell where.
    ahead = int.from_bytes(x.ljust(length, b"\0"), "big") ^ int.from_bytes(y.ljust(length, b"\0"), "big")
    behind = int.from_bytes(x, "big") ^ int.from_bytes(y, "big")
    if not ahead:
        return length
    start = length - (ahead.bit_length() + 7) // 8
    end = ((behind & -behind).bit_length() - 1) // 8
    return min(start + end, len(x), len(y))


class _Common:
    """Counts the characters that a name has in common with others, in the same order.

    That is the length of the longest common subsequence, of which a bit for each character of the name is enough to
    know (H. Hyyrö, Bit-parallel LCS-length computation revisited, 2004): a step for each character of the other name.
    """

    def __init__(self, name: str) -> None:
        self._all = (1 << len(name)) - 1
        self._where: dict[str, int] = {}
        for i, letter in enumerate(name):
            self._where[letter] = self._where.get(letter, 0) | 1 << i

    def count(self, other: str) -> int:
        """Return how many characters the longest common subsequence with another name has."""
        left, whole = self._all, self._all
        for letter in other:
            here = left & self._where.get(letter, 0)
            left = ((left + here) | (left - here)) & whole
        return (whole ^ left).bit_count()
