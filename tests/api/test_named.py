"""`weightmap.lazy.Named` beside `typing.NamedTuple`: what a named tuple does, it does."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import pytest

from weightmap.lazy import Named


class Ours(Named):
    """Three fields, one with a default."""

    __slots__ = ()

    a: int
    b: str
    c: tuple[int, ...] = ()


class Theirs(NamedTuple):
    """The same."""

    a: int
    b: str
    c: tuple[int, ...] = ()


CALLS = [((1, "x", (2,)), {}), ((1, "x"), {}), ((1,), {"b": "x"}), ((), {"c": (3,), "b": "y", "a": 4})]


@pytest.mark.parametrize(("values", "named"), CALLS)
def test_fields_are_those_of_a_named_tuple(values, named):
    """Fields by place and by name, equality, hash, order, copies and pickles are those of a named tuple."""
    ours, theirs = Ours(*values, **named), Theirs(*values, **named)
    assert tuple(ours) == tuple(theirs)
    assert (ours.a, ours.b, ours.c) == (theirs.a, theirs.b, theirs.c)
    assert ours == theirs
    assert hash(ours) == hash(theirs)
    assert Ours._fields == Theirs._fields
    assert ours._replace(b="z") == theirs._replace(b="z")
    assert ours._asdict() == theirs._asdict()
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert Ours._make(tuple(theirs)) == ours
    for copied in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(copied) is Ours
        assert copied == ours


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1,), {}), ((1,), {"c": ()})])
def test_a_field_without_value_is_an_error(values, named):
    """A field that has no default must be given."""
    with pytest.raises((TypeError, KeyError)):
        Theirs(*values, **named)
    with pytest.raises(TypeError):
        Ours(*values, **named)


@pytest.mark.parametrize(("values", "named"), [((1, "x", (), 4), {}), ((1, "x"), {"d": 1}), ((1, "x", ()), {"a": 1})])
def test_more_than_the_fields_is_an_error(values, named):
    """A fourth value, an unknown name and a field given twice are errors, as of any function."""
    with pytest.raises(TypeError):
        Theirs(*values, **named)
    with pytest.raises(TypeError):
        Ours(*values, **named)


def test_fields_cannot_be_assigned():
    """A named tuple is immutable, and has no other attributes."""
    for name in ("a", "d"):
        with pytest.raises(AttributeError):
            setattr(Ours(1, "x"), name, 2)


def test_an_unknown_field_cannot_be_replaced():
    """It is an error, as for a named tuple."""
    with pytest.raises((TypeError, ValueError)):
        Theirs(1, "x")._replace(d=1)
    with pytest.raises(TypeError, match="no field d"):
        Ours(1, "x")._replace(d=1)
