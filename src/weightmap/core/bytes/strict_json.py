"""Parses JSON from untrusted files: RFC 8259 without extensions, and one clear error for every defect."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from weightmap.core.arguments import DEEPEST
from weightmap.core.native import scans
from weightmap.errors import FormatError

_KINDS = {
    type(None): "null",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
}


def kind_of(value: object) -> str:
    """Return JSON's name for the type of a parsed value."""
    return _KINDS.get(type(value), "an object")


class _ForbiddenError(Exception):
    """Raised by the hooks of the decoder."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    pairs_by_key = dict(pairs)
    if len(pairs_by_key) != len(pairs):
        keys: set[str] = set()
        key = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise _ForbiddenError(f"key {key!r} occurs twice")
    return pairs_by_key


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _ForbiddenError(f"the number {text[:40]} is too large")
    return value


def _constant(text: str) -> NoReturn:
    raise _ForbiddenError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_constant)
_OF_PYTHON = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite)


def _encode(value: Any) -> None:
    """Encode every text of a parsed value. Raises UnicodeEncodeError for a lone surrogate."""
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, str):
            inner.encode()
        elif isinstance(inner, dict):
            pending.extend(inner)
            pending.extend(inner.values())
        elif isinstance(inner, list):
            pending.extend(inner)


def loads(raw: bytes, what: str, *, offset: int | None = None, constants: bool = False) -> dict[str, Any]:
    """Parse one JSON object.

    Parameters
    ----------
    raw : bytes
        UTF-8; no other encoding is recognised.
    what : str
        Name of the text in messages, such as "config.json".
    offset : int, optional
        Position of the text in the file, for messages.
    constants : bool
        Whether to accept NaN, Infinity and -Infinity, as Python's own parser does: transformers wrote them to the
        ``config.json`` of Mamba 2 and Nemotron-H.

    Returns
    -------
    dict

    Raises
    ------
    FormatError
        For bytes that are not UTF-8, bad syntax, repeated keys, NaN and infinities (also by overflow), integers of
        thousands of digits, lone surrogates, nesting deeper than `DEEPEST`, and a root that is not an object.

    Examples
    --------
    >>> from weightmap.core.bytes.strict_json import loads
    >>> loads(b'{"a": [1, 2.5]}', "example")
    {'a': [1, 2.5]}
    >>> loads(b'{"a": 1, "a": 2}', "example")
    Traceback (most recent call last):
    weightmap.errors.FormatError: example: key 'a' occurs twice
    """

    def fail(reason: str, at: int | None = None) -> NoReturn:
        where = offset if at is None or offset is None else offset + at
        raise FormatError(f"{what}: {reason}", field=what, offset=where if offset is not None else at) from None

    try:
        text = raw.decode()
        if text.startswith("\ufeff"):
            fail("it begins with a byte order mark", 0)
        # Check before parsing: the parser recurses as deep as the interpreter allows, which may exceed the stack. Texts
        # with few brackets cannot be deep.
        if raw.count(b"{") + raw.count(b"[") > DEEPEST and scans.json_depth(raw) > DEEPEST:
            fail(f"it is nested more than {DEEPEST} deep")
        value = (_OF_PYTHON if constants else _DECODER).decode(text)
        if b"\\u" in raw:
            _encode(value)
    except _ForbiddenError as error:
        fail(str(error))
    except UnicodeDecodeError as error:
        fail(f"it is not UTF-8 ({error.reason})", error.start)
    except UnicodeEncodeError:
        fail("a string has a lone surrogate")
    except RecursionError:
        fail("it is nested deeper than the rest of the caller's stack allows")
    except FormatError:
        raise
    except ValueError as error:  # of `json`, or of an integer with more digits than Python converts
        at: int | None = getattr(error, "pos", None)
        if at is None:
            fail("a number has too many digits")
        reason = str(error).partition(": line ")[0].removesuffix(" at")
        fail(f"it is not valid JSON: {reason}", len(text[:at].encode()))
    if not isinstance(value, dict):
        fail(f"it is {kind_of(value)}, expected an object")
    return value
