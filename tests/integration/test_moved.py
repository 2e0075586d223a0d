"""Old keywords: the usual TypeError, whose message names the new place."""

import pytest

import weightmap as wm
from weightmap.core.arguments import MOVED

ROWS = [(function, keyword, place) for function, rows in MOVED.items() for keyword, place in rows.items()]
ELSEWHERE = {"load_file": "torch", "load_into": "torch", "write_report": "report"}


@pytest.mark.parametrize(("function", "keyword", "place"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_an_old_keyword_names_its_place(function, keyword, place):
    module = getattr(wm, ELSEWHERE[function]) if function in ELSEWHERE else wm
    with pytest.raises(TypeError, match="unexpected keyword argument") as caught:
        getattr(module, function)("a", "b", **{keyword: None})
    assert f"{keyword!r}: use {place}" in str(caught.value)
