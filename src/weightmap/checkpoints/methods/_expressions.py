"""Regular expressions of a configuration, matched in time that is linear in the length of a name.

`re` tries one way of matching after another, and a short expression can have too many ways to wait for. Here Python's
own parser reads the expression, so that it has the same meaning as in `re`, and a finite automaton follows all ways at
once. A state of the automaton is made when a name first needs it.
"""

from __future__ import annotations

import re
from itertools import dropwhile, takewhile
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Bits of a position, for the assertions that hold there. Bits of lookarounds follow.
_START, _END, _LAST, _BOUNDARY, _LOOKAROUND = 1, 2, 4, 8, 16
_POSITIONS = {
    op.AT_BEGINNING: (_START, True),
    op.AT_BEGINNING_STRING: (_START, True),
    op.AT_END: (_END, True),
    op.AT_END_STRING: (_LAST, True),
    op.AT_BOUNDARY: (_BOUNDARY, True),
    op.AT_NON_BOUNDARY: (_BOUNDARY, False),
}
_CATEGORIES = {
    op.CATEGORY_DIGIT: re.compile(r"\d"),
    op.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    op.CATEGORY_SPACE: re.compile(r"\s"),
    op.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    op.CATEGORY_WORD: re.compile(r"\w"),
    op.CATEGORY_NOT_WORD: re.compile(r"\W"),
}
_UNSUPPORTED = {
    op.GROUPREF: "a back-reference",
    op.GROUPREF_EXISTS: "a conditional group",
    op.ATOMIC_GROUP: "an atomic group",
    op.POSSESSIVE_REPEAT: "a possessive repetition",
}
_FLAGS = re.UNICODE | re.VERBOSE | re.DOTALL | re.IGNORECASE
# Nodes that counted repetitions may add to an expression, and most states that are kept.
_MAX_ADDED_NODES, _MAX_STATES = 10_000, 1_000
_WORD = re.compile(r"\w")


class UnsupportedExpressionError(ValueError):
    """A valid expression uses a feature that is not supported here."""


class Expression:
    """A regular expression.

    Parameters
    ----------
    text : str

    Raises
    ------
    re.error, OverflowError, RecursionError
        For a text that is not an expression.
    UnsupportedExpressionError
        For back-references, atomic groups, possessive repetitions, flags other than i, s and x, or repetitions counted
        in thousands.
    """

    def __init__(self, text: str) -> None:
        parsed = parser.parse(text)
        _check_flags(parsed.state.flags & ~re.UNICODE)
        self._lookarounds: list[_Automaton] = []
        self._bounded = False
        self._budget = len(text) + _MAX_ADDED_NODES
        self._automaton = self._compiled(parsed, parsed.state.flags)
        # The literal prefix of every match, which rules out most expressions of a long list.
        items = dropwhile(lambda item: item[0] is op.AT, () if parsed.state.flags & re.IGNORECASE else parsed)
        self._prefix = "".join(chr(value) for _, value in takewhile(lambda item: item[0] is op.LITERAL, items))

    def fits(self, name: str) -> bool:
        """Whether the beginning of a name matches, as in `re.match`."""
        if not name.startswith(self._prefix):
            return False
        positions = self._positions(name)
        if positions is None:  # assertions only at the ends
            if not name:
                symbols: list[Any] = [("", _START | _END | _LAST)]
            else:
                symbols = [*name, ("", _END | _LAST)]
                symbols[0] = name[0], _START | (_END if name == "\n" else 0)
                if name[-1] == "\n" and len(name) > 1:
                    symbols[-2] = "\n", _END
        else:
            symbols = list(zip((*name, ""), positions, strict=True))
        return self._automaton.fits(symbols)

    def _positions(self, name: str) -> list[int] | None:
        """Return the bits of each position of a name; None if only the ends have assertions."""
        if not self._bounded and not self._lookarounds:
            return None
        words = [False, *(_WORD.match(c) is not None for c in name), False]
        bits = [_BOUNDARY if words[i] != words[i + 1] else 0 for i in range(len(name) + 1)]
        bits[0] |= _START
        bits[-1] |= _END | _LAST
        if name.endswith("\n"):
            bits[-2] |= _END
        for number, lookaround in enumerate(self._lookarounds):
            # A lookahead runs from the end of the name to its beginning.
            pairs = list(zip((*name, ""), bits, strict=True))
            if lookaround.backwards:
                pairs = list(zip((*reversed(name), ""), reversed(bits), strict=True))
            ends = lookaround.ends(pairs)
            for i, holds in enumerate(reversed(ends) if lookaround.backwards else ends):
                bits[i] |= holds << (4 + number)
        return bits

    # ---------------------------------------------------------------------------------------- from the parsed text
    def _compiled(self, items: Any, flags: int, *, backwards: bool = False, everywhere: bool = False) -> _Automaton:
        automaton = _Automaton(backwards=backwards, everywhere=everywhere)
        automaton.start = self._sequence(automaton, items, flags, _Automaton.MATCH)
        return automaton

    def _sequence(self, automaton: _Automaton, items: Iterable[Any], flags: int, after: int) -> int:
        """Add nodes for a sequence before the node `after`; return the first."""
        for kind, value in items if automaton.backwards else reversed(list(items)):
            after = self._item(automaton, kind, value, flags, after)
        return after

    def _item(self, automaton: _Automaton, kind: Any, value: Any, flags: int, after: int) -> int:
        self._spend()
        if kind in {op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN}:
            return automaton.consume(_test(kind, value, flags), after)
        if kind is op.BRANCH:
            return automaton.split([self._sequence(automaton, branch, flags, after) for branch in value[1]])
        if kind is op.SUBPATTERN:
            _, more, less, inner = value
            _check_flags(more | less)
            return self._sequence(automaton, inner, (flags | more) & ~less, after)
        if kind in {op.MAX_REPEAT, op.MIN_REPEAT}:
            low, high, inner = value
            return self._repeat(automaton, low, high, inner, flags, after)
        return self._assertion(automaton, kind, value, flags, after)

    def _assertion(self, automaton: _Automaton, kind: Any, value: Any, flags: int, after: int) -> int:
        if kind is op.AT:
            self._bounded |= _POSITIONS[value][0] == _BOUNDARY
            return automaton.require(*_POSITIONS[value], after)
        if kind in {op.ASSERT, op.ASSERT_NOT}:
            direction, inner = value
            if direction < 0 and len(set(inner.getwidth())) > 1:
                raise re.error("look-behind requires fixed-width pattern")
            ahead = direction > 0
            lookaround = self._compiled(inner, flags, backwards=ahead, everywhere=True)
            self._lookarounds.append(lookaround)  # behind those within it
            bit = _LOOKAROUND << (len(self._lookarounds) - 1)
            return automaton.require(bit, kind is op.ASSERT, after)
        if kind is op.FAILURE:
            return automaton.split([])
        raise UnsupportedExpressionError(_UNSUPPORTED.get(kind, str(kind)))

    def _repeat(self, automaton: _Automaton, low: int, high: int, inner: Any, flags: int, after: int) -> int:
        if high is op.MAXREPEAT:
            again = automaton.split([after])
            automaton.nodes[again][1].insert(0, self._sequence(automaton, inner, flags, again))
            after = again
        else:
            end = after
            for _ in range(high - low):
                self._spend()
                after = automaton.split([self._sequence(automaton, inner, flags, after), end])
        for _ in range(low):
            self._spend()
            after = self._sequence(automaton, inner, flags, after)
        return after

    def _spend(self) -> None:
        self._budget -= 1
        if self._budget < 0:
            raise UnsupportedExpressionError("counted repetitions of thousands")


def _check_flags(flags: int) -> None:
    if flags & ~_FLAGS:
        raise UnsupportedExpressionError("flags other than i, s and x")


def _test(kind: Any, value: Any, flags: int) -> Callable[[str], bool]:
    """Return the function that tests whether a character is one of these."""
    plain = _plain_test(kind, value, flags)
    if not flags & re.IGNORECASE or kind is op.ANY:
        return plain
    if kind is op.NOT_LITERAL or (kind is op.IN and value[0][0] is op.NEGATE):  # not one of these in any case
        return lambda c: all(map(plain, _cases(c)))
    return lambda c: any(map(plain, _cases(c)))


def _cases(character: str) -> list[str]:
    """Return a character, its lower case (the first character of it), and its upper case unless that is several."""
    return [character, character.lower()[0], *(character.upper() if len(character.upper()) == 1 else "")]


def _plain_test(kind: Any, value: Any, flags: int) -> Callable[[str], bool]:
    if kind is op.ANY:
        return (lambda _: True) if flags & re.DOTALL else (lambda c: c != "\n")
    if kind is op.LITERAL:
        return chr(value).__eq__
    if kind is op.NOT_LITERAL:
        return chr(value).__ne__
    return lambda c: _in_set(c, value)


def _in_set(character: str, items: Any) -> bool:
    code, negated = ord(character), False
    for kind, value in items:
        if kind is op.NEGATE:
            negated = True
        elif (
            (kind is op.LITERAL and code == value)
            or (kind is op.RANGE and value[0] <= code <= value[1])
            or (kind is op.CATEGORY and _CATEGORIES[value].match(character) is not None)
        ):
            return not negated
    return negated


class _Automaton:
    """The nodes of an expression, and states, which are sets of nodes.

    A node is a test of a character and the next node; or alternative next nodes; or a bit of the position, its required
    value, and the next node. A symbol is a character, or a character with the bits of its position.

    Parameters
    ----------
    backwards : bool
        Whether the nodes match a reversed name.
    everywhere : bool
        Whether a match may begin at any position, to find the ends of matches.
    """

    MATCH = 0

    def __init__(self, *, backwards: bool, everywhere: bool) -> None:
        self.backwards, self.everywhere = backwards, everywhere
        self.nodes: list[tuple[Any, Any, int]] = [(None, None, 0)]
        self.start = self.MATCH
        self._states: dict[frozenset[int], _State] = {}

    def consume(self, test: Callable[[str], bool], after: int) -> int:
        """Add a node that takes a character."""
        self.nodes.append(("character", test, after))
        return len(self.nodes) - 1

    def split(self, others: list[int]) -> int:
        """Add a node with alternative next nodes."""
        self.nodes.append(("split", others, 0))
        return len(self.nodes) - 1

    def require(self, bit: int, holds: bool, after: int) -> int:  # noqa: FBT001 - a pair of `_POSITIONS`
        """Add a node that asserts a bit of the position."""
        self.nodes.append((bit, holds, after))
        return len(self.nodes) - 1

    def fits(self, symbols: Iterable[Any]) -> bool:
        """Whether a match begins at the first symbol."""
        state = self.state(frozenset((self.start,)))
        for symbol in symbols:
            state = state[symbol]
            if state.final:
                return state.matched
        return False

    def ends(self, symbols: Iterable[Any]) -> list[bool]:
        """Return for each position whether a match ends there."""
        ends, state = [], self.state(frozenset((self.start,)))
        for symbol in symbols:
            state = state[symbol]
            ends.append(state.matched)
        return ends

    def state(self, nodes: frozenset[int], *, matched: bool = False) -> _State:
        """Return the state of a set of nodes."""
        key = nodes | {-1} if matched else nodes
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= _MAX_STATES:
                self._states.clear()
            final = not self.everywhere and (matched or not nodes)
            state = self._states[key] = _State(self, nodes, matched=matched, final=final)
        return state

    def step(self, nodes: Iterable[int], symbol: Any) -> tuple[frozenset[int], bool]:
        """Return the nodes behind a symbol, and whether a match ends before it."""
        character, bits = (symbol, 0) if isinstance(symbol, str) else symbol
        pending, visited, after = list(nodes), set(nodes), set()
        while pending:
            kind, value, following = self.nodes[pending.pop()]
            if kind == "character":
                if character and value(character):
                    after.add(following)
                continue
            for node in value if kind == "split" else (following,) if kind and bool(bits & kind) is value else ():
                if node not in visited:
                    visited.add(node)
                    pending.append(node)
        if self.everywhere:
            after.add(self.start)
        return frozenset(after), self.MATCH in visited


class _State(dict[Any, "_State"]):
    """A set of nodes; by symbol, the next state."""

    def __init__(self, automaton: _Automaton, nodes: frozenset[int], *, matched: bool, final: bool) -> None:
        super().__init__()
        self._automaton, self._nodes = automaton, nodes
        self.matched, self.final = matched, final

    def __missing__(self, symbol: Any) -> _State:
        nodes, matched = self._automaton.step(self._nodes, symbol)
        self[symbol] = state = self._automaton.state(nodes, matched=matched)
        return state
