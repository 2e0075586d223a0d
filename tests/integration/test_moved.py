"""Old keywords: the usual TypeError, whose message names the new place."""

import pytest

import weightmap as wm
from weightmap.core.arguments import MOVED

ROWS = [(function, keyword, place) for function, rows in MOVED.items() for keyword, place in rows.items()]


@pytest.mark.parametrize(
    ("function", "keyword", "place"), ROWS, ids=lambda value: value if value.isidentifier() else ""
)
def test_an_old_keyword_names_its_place(function, keyword, place):
    with pytest.raises(TypeError, match="unexpected keyword argument") as caught:
        getattr(wm, function)("a", "b", **{keyword: None})
    assert f"{keyword!r}: use {place}" in str(caught.value)
