"""A bounded parser of TOML from untrusted files: it counts keys and depth before it parses.

For each part of a dotted key, the parser of the standard library keeps a tuple as long as the key up to there, and a
kilobyte for each new part: 80 kB of ``a.a.a.a`` take it 6 GiB.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightmap.errors import LimitError
from weightmap.options import DEEPEST

if TYPE_CHECKING:
    from collections.abc import Iterable

# Most parts of keys, including those of dotted keys and table names. The parser keeps up to two kilobytes for each.
MOST_KEYS = 1 << 16
# The tokens of a document: comments and strings, which are skipped, and the signs of its structure. An unclosed string
# ends with the line or the document; the parser reports it later.
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
        `TooDeepError` for nesting deeper than `DEEPEST`; that of `tomllib` for any other defect.
    """
    import tomllib  # noqa: PLC0415 - takes 5 ms, needed when metadata is used

    if sum(map(text.count, _SIGNS)) > DEEPEST:  # each key and each level has one of these
        _check(found["sign"] for found in _TOKEN.finditer(text))
    try:
        content = tomllib.loads(text)
    except RecursionError:  # the caller has used up most of the stack
        raise TooDeepError from None
    if not shallow(content):
        raise TooDeepError
    return content


def _check(signs: Iterable[str | None]) -> None:
    """Check the parts of keys, and the depth of arrays and inline tables, by the signs of a document."""
    keys = 0
    parts = 1  # of the current key
    opened: list[str] = []
    in_key, in_name = True, False  # in a key or a table's name; in the latter, in brackets at the beginning of a line
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
    """Whether content is nested at most `DEEPEST` deep, found without recursion."""
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
