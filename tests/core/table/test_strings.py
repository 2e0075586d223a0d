"""Tables of strings whose hashes collide: every way to look strings up gives what a dictionary gives."""

import struct

import numpy as np
import pytest
from tests.collisions import colliding

from weightmap.core.table.strings import StringTable

NAMES = {
    "plain": lambda: [f"word {i}" for i in range(200)],
    "flooded": lambda: [name.decode() for name in colliding()[:200]],
}


@pytest.mark.parametrize("built", [False, True], ids=["first look-up", "later"])
@pytest.mark.parametrize("kind", NAMES)
def test_spans_and_texts_are_found_as_in_a_dictionary(kind, built):
    names = NAMES[kind]()
    table = StringTable.of(names, "word")
    expected = {name: i for i, name in enumerate(names)}
    if built:
        assert table.find(names[3]) == 3
    asked = [names[7], "missing", names[-1], "", names[7]]
    numbers = [expected.get(name, -1) for name in asked]
    bounds = np.cumsum([0, *map(len, asked)]).astype(np.uint32)
    assert table.find_spans("".join(asked).encode(), bounds).tolist() == numbers
    assert table.find_many(asked).tolist() == numbers
    assert [table.find(text) for text in asked] == numbers
    assert (table.index is None) == (kind == "flooded")


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_no_text_of_a_file_is_missing(kind):
    table = StringTable.of([*NAMES[kind](), "é", "𝄞"], "word")
    assert [table.find(text) for text in ("é", "𝄞", "\ud834", b"word 1", 1, None)] == [200, 201, *[-1] * 4]


@pytest.mark.parametrize("empty", [0, 1, 2], ids=["first", "within", "last"])
def test_tables_are_joined_an_empty_one_too(empty):
    parts = [["a", "", "bc"], ["d"]]
    parts.insert(empty, [])
    joined = StringTable.joined((StringTable.of(part, "word") for part in parts), "word")
    assert list(joined) == ["a", "", "bc", "d"]
    assert [joined.find(text) for text in ("d", "bc", "e")] == [3, 2, -1]


def test_tables_whose_strings_lie_apart_are_joined():
    data = b"".join(struct.pack("<H", len(text)) + text for text in (b"a", b"", b"bc"))
    apart = StringTable(data, np.array([2, 5, 7, 11], np.uint32), 2, "word")
    assert list(apart) == ["a", "", "bc"]
    joined = StringTable.joined(iter([apart, StringTable.of(["d"], "word")]), "word")
    assert list(joined) == ["a", "", "bc", "d"]
    assert [joined.find(text) for text in ("d", "bc", "e")] == [3, 2, -1]
