"""JSON from files of strangers: RFC 8259 and nothing else, one clear error for everything that is wrong."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from weightmap import kernels
from weightmap.errors import FormatError
from weightmap.options import DEEPEST

__all__ = ["kind_of", "loads"]

_KINDS = {
    type(None): "null",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
}


def kind_of(value: object) -> str:
    """Return what JSON calls a value that was read from it."""
    return _KINDS.get(type(value), "an object")


class _ForbiddenError(Exception):
    """What the decoder below does not take."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        msg = f"key {key!r} stands there twice"
        raise _ForbiddenError(msg)
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        msg = f"the number {text[:40]} is too large"
        raise _ForbiddenError(msg)
    return value


def _constant(text: str) -> NoReturn:
    msg = f"{text} is not JSON"
    raise _ForbiddenError(msg)


# Made once: `json.loads` with such functions makes one for each text, which takes longer than a small text does.
_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_constant).decode


def loads(raw: bytes, what: str, *, offset: int | None = None) -> dict[str, Any]:
    """Parse one JSON object.

    Parameters
    ----------
    raw : bytes
        UTF-8; other encodings are not guessed.
    what : str
        What it is called in messages, such as "config.json".
    offset : int, optional
        Where it begins in the file, for messages.

    Returns
    -------
    dict

    Raises
    ------
    FormatError
        For bytes that are not UTF-8, bad syntax, repeated keys, NaN and infinities (also by overflow), integers of
        thousands of digits, lone surrogates, nesting deeper than `DEEPEST`, and a root that is no object.

    Examples
    --------
    >>> loads(b'{"a": [1, 2.5]}', "example")
    {'a': [1, 2.5]}
    >>> loads(b'{"a": 1, "a": 2}', "example")
    Traceback (most recent call last):
    weightmap.errors.FormatError: example: key 'a' stands there twice
    """

    def fail(reason: str, at: int | None = None) -> NoReturn:
        where = offset if at is None or offset is None else offset + at
        msg = f"{what}: {reason}"
        raise FormatError(msg, field=what, offset=where if offset is not None else at) from None

    try:
        text = raw.decode()
        if text.startswith("\ufeff"):
            fail("it begins with a byte order mark", 0)
        # Before it is parsed: the parser goes as deep as the interpreter allows, which may be deeper than the stack.
        # Texts of few brackets need no closer look.
        if raw.count(b"{") + raw.count(b"[") > DEEPEST and kernels.json_depth(raw) > DEEPEST:
            fail(f"it is nested more than {DEEPEST} deep")
        value = _decode(text)
        if b"\\u" in raw:
            json.dumps(value, ensure_ascii=False).encode()
    except _ForbiddenError as error:
        fail(str(error))
    except UnicodeDecodeError as error:
        fail(f"it is not UTF-8 ({error.reason})", error.start)
    except UnicodeEncodeError:
        fail("a string has a lone surrogate")
    except json.JSONDecodeError as error:
        fail(
            f"it is not valid JSON: {error.msg.partition(' (')[0].removesuffix(' at')}",
            len(error.doc[: error.pos].encode()),
        )
    except RecursionError:
        fail("it is nested deeper than what the caller has left of the stack")
    except FormatError:
        raise
    except ValueError:  # an integer of more digits than Python converts
        fail("a number has too many digits")
    if not isinstance(value, dict):
        fail(f"it is {kind_of(value)}, expected an object")
    return value
