"""TOML from files of strangers: its size in keys and its depth are known before it is parsed.

The parser of the standard library keeps a tuple for each part of a dotted key, as long as what stands before it, and a
kilobyte for each part that it has not seen before: 80 kB of ``a.a.a.a`` take it 6 GiB. What it would have to keep is
counted first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightmap.errors import LimitError
from weightmap.options import DEEPEST

if TYPE_CHECKING:
    from collections.abc import Iterable

# Parts of keys, those of dotted keys and of the names of tables among them. The parser keeps up to two kilobytes for
# each.
MOST_KEYS = 1 << 16
# What a document is made of: comments and strings, which count for nothing; then what gives it structure. What has no
# end ends with the line, or with the document: the parser says so when it comes there.
_TOKEN = re.compile(
    r"""\#[^\n]*+
    | \"""(?:[^"\\]++|\\.|"(?!""))*+(?:\"""\"{0,2})?
    | '''(?:[^']++|'(?!''))*+(?:'''\'{0,2})?
    | "(?:[^"\\\n]++|\\[^\n])*+"?
    | '[^'\n]*+'?
    | (?P<sign>[\n.=,\[\]{}])""",
    re.DOTALL | re.VERBOSE,
)
_SIGNS = ".=[{"


class TooDeepError(ValueError):
    """Something is nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {DEEPEST} deep")


def loads(text: str) -> dict[str, Any]:
    """Parse a document.

    Raises
    ------
    LimitError
        When it has more than `MOST_KEYS` keys.
    ValueError
        `TooDeepError` for nesting deeper than `DEEPEST`; what `tomllib` raises for whatever else is wrong.
    """
    import tomllib  # noqa: PLC0415 - 5 ms, needed by files with metadata only, and by them when it is asked for

    if sum(map(text.count, _SIGNS)) > DEEPEST:  # each key and each level has one of these
        _check(found["sign"] for found in _TOKEN.finditer(text))
    try:
        content = tomllib.loads(text)
    except RecursionError:  # the caller has nearly used it up
        raise TooDeepError from None
    if not shallow(content):
        raise TooDeepError
    return content


def _check(signs: Iterable[str | None]) -> None:
    """Count parts of keys, and how deep arrays and inline tables lie, by the signs of a document."""
    keys = 0
    parts = 1  # of the key that is being read
    opened: list[str] = []
    in_key, in_name = True, False  # of a value, or of a table in brackets at the beginning of a line
    for sign in signs:
        if sign is None:
            continue
        if sign == "." and in_key:
            parts += 1
        elif sign == "=":
            keys, parts, in_key = keys + parts, 1, False
        elif sign == "\n" and not opened:
            keys, parts, in_key, in_name = keys + in_name * parts, 1, True, False
        elif sign == "[" and in_key and not opened:
            in_name = True
        elif sign in "[{":
            opened.append(sign)
            in_key = sign == "{"
        elif sign in "]}" and opened:
            opened.pop()
            in_key = False
        elif sign == ",":
            in_key = opened[-1:] == ["{"]
        if parts > DEEPEST or len(opened) > DEEPEST:
            raise TooDeepError
        if keys > MOST_KEYS:
            what, expected = "number of keys in the metadata", f"at most {MOST_KEYS}"
            raise LimitError(what, field="metadata", actual=f"more than {MOST_KEYS}", expected=expected)


def shallow(content: Any) -> bool:
    """Whether nothing is nested more than `DEEPEST` deep; without recursion."""
    level = [content]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return True
    return False
