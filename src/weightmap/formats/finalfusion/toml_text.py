"""A TOML document as text: tables in sections, what lies in arrays inline."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPECIAL = re.compile(r'["\\\x00-\x08\x0a-\x1f\x7f]')
_SHORT = {"\b": "\\b", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def dumps(document: Mapping[str, object]) -> str:
    """Return a document as TOML.

    Raises
    ------
    TypeError
        For a value that TOML does not have, and for a key that is no text.
    ValueError
        For a time of day with a time zone, which TOML does not have either.
    """
    return "".join(_table(document, ""))


def _table(table: Mapping[str, object], name: str) -> Iterator[str]:
    tables = [(key, value) for key, value in table.items() if isinstance(value, Mapping)]
    values = [(key, value) for key, value in table.items() if not isinstance(value, Mapping)]
    lines = [f"[{name}]\n"] if name and (values or not tables) else []
    lines += [f"{_key(key)} = {_value(value, '')}\n" for key, value in values]
    yield from lines
    for number, (key, value) in enumerate(tables):
        if lines or number:
            yield "\n"
        yield from _table(value, f"{name}.{_key(key)}" if name else _key(key))


def _key(key: object) -> str:
    if not isinstance(key, str):
        msg = f"a key is {key!r}, expected text"
        raise TypeError(msg)
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    return f'"{_SPECIAL.sub(lambda found: _SHORT.get(found[0]) or f"{chr(92)}u{ord(found[0]):04x}", text)}"'


def _value(value: object, indent: str) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.time) and value.tzinfo is not None:
        msg = "a time of day has no time zone"
        raise ValueError(msg)
    if isinstance(value, int | float | dt.date | dt.time):
        return str(value)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(key)} = {_value(item, indent)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        inner = indent + "    "
        items = ",\n".join(inner + _value(item, inner) for item in value)
        return f"[\n{items},\n{indent}]" if value else "[]"
    msg = f"a value is of type {type(value).__name__}, which TOML does not have"
    raise TypeError(msg)
