"""The metadata of finalfusion: TOML, bounded by keys and depth before it is parsed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightmap.errors import FormatError, LimitError
from weightmap.options import DEEPEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Most parts of keys, dotted keys and table names included. The parser keeps up to two kilobytes for each.
MOST_KEYS = 1 << 16
# The pieces of a document: comments and strings, which are skipped, and the signs of its structure. An unclosed string
# ends with the line or the document; the parser reports it later.
_PIECE = r"""(?xs)
    \#[^\n]*+
    | \"""(?:[^"\\]++|\\.|"(?!""))*+(?:\"""\"{0,2})?
    | '''(?:[^']++|'(?!''))*+(?:'''\'{0,2})?
    | "(?:[^"\\\n]++|\\[^\n])*+"?
    | '[^'\n]*+'?
    | (?P<sign>[\n.=,\[\]{}])"""
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
        _check(found["sign"] for found in re.finditer(_PIECE, text))
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


class TomlDocument(dict[str, Any]):
    """The content of a TOML document with its text, so that it is written again with its comments and order.

    ``TensorFile.metadata`` is a read-only view of one; its ``copy()`` returns the document.
    """

    __slots__ = ("text",)

    def __init__(self, content: Mapping[str, Any], text: str) -> None:
        super().__init__(content)
        self.text: str = text

    def copy(self) -> TomlDocument:
        """Return a document with the same content and text."""
        return TomlDocument(self, self.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return TomlDocument, (dict(self), self.text)


def load_metadata(raw: bytes, offset: int) -> TomlDocument:
    """Parse a TOML document at `offset` of the file. Dates and times become `datetime` objects.

    Raises
    ------
    FormatError
        For bytes that are not UTF-8, bad syntax, numbers of thousands of digits, and nesting deeper than 128.
    LimitError
        For more than 65,536 keys.
    """

    def fail(reason: str, at: int = 0) -> FormatError:
        return FormatError(f"the metadata is not valid TOML: {reason}", field="metadata", offset=offset + at)

    try:
        text = raw.decode()
        return TomlDocument(loads(text), text)
    except UnicodeDecodeError as error:
        raise fail(f"it is not UTF-8 ({error.reason})", error.start) from None
    except LimitError as error:
        error.offset = offset
        raise
    except ValueError as error:  # from the parser, int or datetime
        reason = "a number has too many digits" if "digits" in str(error) else str(error)[:200]
        raise fail(reason) from None
