"""Our JSON parser beside the standard library's: the same values, and errors at the same places."""

import json
import random

import pytest
from tests.support import in_one_item

import weightmap as wm
from weightmap.core.bytes import strict_json

TEXTS = [
    '{"a": 1}',
    ' \t\n\r{"a": [1, -2.5e3, true, false, null, "\\u00e9\\ud83d\\ude00"], "b": {"c": {}}} \t\n\r',
    '{"\\u0061": "\\"\\\\\\/\\b\\f\\n\\r\\t"}',
    *("", " ", "{", "[", '{"a"', '{"a":', '{"a":}', '{"a": 1,}', "{a: 1}", '{"a": 1} x', '{"a": 1}\0', "\x0b{}"),
    *("\xa0{}", '{"a": "\x01"}', '{"a": "\\x"}', '{"a": "\\u12"}', '{"a": nul}', '{"a": 01}', '{"a": 1.}'),
    *('{"a": .5}', '{"a": "b}'),
]


def outcome_of(loads, text):
    try:
        return loads(text)
    except ValueError as error:
        return getattr(error, "offset", None), getattr(error, "pos", None)


class TwiceError(ValueError):
    """A key occurs twice."""


def once(pairs):
    if len(dict(pairs)) < len(pairs):
        raise TwiceError
    return dict(pairs)


def library(text):
    """The standard library's outcome, its place in bytes; lone surrogates and repeated keys are errors without one."""
    try:
        value = json.loads(text, object_pairs_hook=once)
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, TwiceError):
        return None, None
    except json.JSONDecodeError as error:
        return len(text[: error.pos].encode()), None
    return value


@in_one_item("text", TEXTS)
def test_values_and_places_are_those_of_the_library(text):
    assert outcome_of(lambda raw: strict_json.loads(raw, "text"), text.encode()) == library(text)


def test_constants_of_python_are_taken_where_they_are_asked_for():
    raw = b'{"a": [NaN, Infinity, -Infinity]}'
    for constant in (b"NaN", b"Infinity", b"-Infinity"):
        with pytest.raises(wm.FormatError, match=f"{constant.decode()} is not JSON"):
            strict_json.loads(b'{"a": %b}' % constant, "text")
    assert str(strict_json.loads(raw, "text", constants=True)) == "{'a': [nan, inf, -inf]}"
    for damaged in (b'{"a": 1e999}', b'{"a": NaN, "a": 1}', b'{"a": Inf}', b'{"a": nan}'):
        with pytest.raises(wm.FormatError, match="text: "):
            strict_json.loads(damaged, "text", constants=True)


def test_damaged_texts_are_judged_as_the_library_judges_them():
    dice = random.Random(1)
    places = [place for place in range(len(TEXTS[1])) for _ in range(20)]
    for place in places:
        text = TEXTS[1][:place] + dice.choice('{}[]",:0 aé') + TEXTS[1][place + 1 :]
        expected = library(text)
        if isinstance(expected, (dict, tuple)):
            assert outcome_of(lambda raw: strict_json.loads(raw, "text"), text.encode()) == expected


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": [{"b": "x\\ud83dy"}]}'])
def test_lone_surrogates_are_refused_wherever_they_stand(text):
    with pytest.raises(wm.FormatError, match="lone surrogate"):
        strict_json.loads(text.encode(), "text")
