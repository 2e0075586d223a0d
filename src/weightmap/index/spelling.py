"""Names similar to a missing one, for messages: found quickly, however many and long the names are."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from weightmap.errors import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Limits that keep a miss to milliseconds: names listed, names of about the right length whose ends are compared, and
# characters of these compared one by one. A name longer than _LONG gets no suggestions.
_LISTED, _LOOKED_AT, _COMPARED = 10_000, 1_000, 10_000
_LONG = 400
# Largest difference in length between similar names: "model." in front is the usual mistake.
_SLACK = 8
# Names are alike if they share at least this fraction of their characters, in the same order.
_ALIKE = 0.7
# Where none is alike, all names are shown if they are no more, and together no longer, than this.
_FEW, _SHOWN = 5, 200


def others(wanted: object, names: Collection[str]) -> str:
    """Return the end of a message about a missing name: similar names, else all if they are few; or its wrong type.

    Examples
    --------
    >>> from weightmap.index.spelling import others
    >>> others("wieght", ["bias", "weight"]), others("w", ["bias", "weight"])
    ("; similar names: 'weight'", "; the names are 'bias', 'weight'")
    """
    if not isinstance(wanted, str):
        return "; names are strings (str)"
    close = alike(wanted, names)
    if close:
        return f"; similar names: {', '.join(map(quoted, close))}"
    if not 0 < len(names) <= _FEW or sum(map(len, names)) > _SHOWN:
        return ""
    return f"; {'the names are' if len(names) > 1 else 'its name is'} {', '.join(map(quoted, names))}"


def alike(wanted: str, names: Iterable[str], most: int = 3, least: float = _ALIKE) -> list[str]:
    """Return the names most like `wanted`, best first; `least` is the fraction of characters that they must share.

    Examples
    --------
    >>> from weightmap.index.spelling import alike
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
    return [name for score, name in sorted(scores, key=lambda found: -found[0]) if score >= least][:most]


def _shared_ends(a: str, b: str) -> int:
    """Return how many bytes two names share at their beginning and at their end."""
    x, y = (name.encode("utf-8", "surrogatepass") for name in (a, b))
    length = max(len(x), len(y))
    # Each as one large number: the highest and the lowest differing bit are where they part.
    ahead = int.from_bytes(x.ljust(length, b"\0"), "big") ^ int.from_bytes(y.ljust(length, b"\0"), "big")
    behind = int.from_bytes(x, "big") ^ int.from_bytes(y, "big")
    if not ahead:
        return length
    start = length - (ahead.bit_length() + 7) // 8
    end = ((behind & -behind).bit_length() - 1) // 8
    return min(start + end, len(x), len(y))


class _Common:
    """Counts the characters that a name shares with others, in the same order.

    The count is the length of the longest common subsequence, computed with a bit per character of the name, in one
    step per character of the other (H. Hyyrö, Bit-parallel LCS-length computation revisited, 2004).
    """

    def __init__(self, name: str) -> None:
        self._all = (1 << len(name)) - 1
        self._where: dict[str, int] = {}
        for i, letter in enumerate(name):
            self._where[letter] = self._where.get(letter, 0) | 1 << i

    def count(self, other: str) -> int:
        """Return the length of the longest common subsequence with `other`."""
        left, whole = self._all, self._all
        for letter in other:
            here = left & self._where.get(letter, 0)
            left = ((left + here) | (left - here)) & whole
        return (whole ^ left).bit_count()
