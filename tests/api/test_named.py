"""`weightmap.lazy.NamedTuple` beside that of `typing`: the same fields, methods, copies and pickles; `Record`."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from weightmap import lazy


class Ours(lazy.NamedTuple):
    """Three fields, one with a default."""

    a: int
    b: str
    c: tuple[int, ...] = ()

    @property
    def twice(self):
        """A property."""
        return 2 * self.a


class Theirs(typing.NamedTuple):
    """The same."""

    a: int
    b: str
    c: tuple[int, ...] = ()


CALLS = [((1, "x", (2,)), {}), ((1, "x"), {}), ((1,), {"b": "x"}), ((), {"c": (3,), "b": "y", "a": 4})]


@pytest.mark.parametrize(("values", "named"), CALLS)
def test_fields_are_those_of_a_named_tuple(values, named):
    """Fields by place and by name, defaults, copies and pickles are those of a named tuple; methods are kept."""
    ours, theirs = Ours(*values, **named), Theirs(*values, **named)
    assert (tuple(ours), ours._asdict()) == (tuple(theirs), theirs._asdict())
    assert (Ours._fields, Ours._field_defaults) == (Theirs._fields, Theirs._field_defaults)
    assert (Ours.__doc__, Ours.__module__) == ("Three fields, one with a default.", __name__)
    assert ours.twice == 2 * theirs.a
    assert not hasattr(ours, "__dict__")
    for copied in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(copied) is Ours
        assert copied == ours


class Noted(lazy.Record):
    """Two fields, one with a default."""

    a: int
    b: str = "y"


def test_records_take_fields_by_place_and_by_name():
    """A record has its fields and defaults, equals one with the same, makes changed ones, and is pickled."""
    for record in (Noted(1, "x"), Noted(1, b="x"), Noted(1).replaced(b="x"), pickle.loads(pickle.dumps(Noted(1, "x")))):
        assert (type(record), record.a, record.b) == (Noted, 1, "x")
    assert (Noted(a=2).a, Noted(2).b) == (2, "y")
    assert len({Noted(1), Noted(1, "y"), Noted(a=1), Noted(1, "x")}) == 2
