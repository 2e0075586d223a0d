"""How messages show names, numbers and text from files."""

from __future__ import annotations

import re

# Characters that control a terminal, or that are invisible there and make two names look the same: C0 and C1 controls,
# DEL, line and paragraph separators, lone surrogates, format characters (bidirectional marks and overrides, soft
# hyphens, annotations, tags), and Unicode's Default_Ignorable_Code_Point (fillers, variation selectors), also
# unassigned ones.
_HIDDEN = (
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def _escape_one(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape(text: str) -> str:
    r"""Return `text` with control and invisible characters spelt out, safe to print on a terminal.

    All text from files and callers passes through here before messages and the command line show it.

    Parameters
    ----------
    text : str
        Anything, such as a tensor name or a metadata value.

    Returns
    -------
    str
        The same text, with control, format and other invisible characters and lone surrogates written as ``\xNN``,
        ``\uNNNN`` or ``\UNNNNNNNN``.

    Examples
    --------
    >>> from weightmap._messages import escape
    >>> print(escape("layer\x1b[31m.weight"))
    layer\x1b[31m.weight
    """
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_HIDDEN, _escape_one, text)


# Characters of a name in a message; a name may be as long as a header.
_MAX_QUOTED = 200


def quoted(name: object) -> str:
    """Return a name as messages show it: in quotes, a long one cut off.

    Examples
    --------
    >>> from weightmap._messages import quoted
    >>> print(quoted("weight"), quoted("w" * 1000)[-30:])
    'weight' wwwwwwww'... (1000 characters)
    """
    if isinstance(name, str) and len(name) > _MAX_QUOTED:
        return f"{name[:_MAX_QUOTED]!r}... ({len(name)} characters)"
    return repr(name)


def counted(number: int, what: str) -> str:
    """Return a number with its noun, in the singular or plural.

    Examples
    --------
    >>> from weightmap._messages import counted
    >>> counted(1, "tensor"), counted(1234, "tensor")
    ('1 tensor', '1,234 tensors')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
