"""The exceptions of weightmap: one tree, one form of message.

Every exception that bad input can cause derives from `TensorFileError` and tells the file, what is wrong, where, and
what was expected. A real `OSError` (no such file, no space, no permission) passes through unchanged.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = [
    "ChecksumError",
    "ClosedError",
    "EncodeError",
    "FileChangedError",
    "FormatError",
    "LayoutError",
    "LimitError",
    "MissingDependencyError",
    "NotRegularFileError",
    "QuantError",
    "TensorFileError",
    "TensorNotFoundError",
    "TruncatedError",
    "UnknownFormatError",
    "UnsupportedError",
    "escape",
    "quoted",
]

# What a file must not be able to say to a terminal, and what nobody sees there, so that two names look the same: C0 and
# C1 controls, DEL, separators of lines and paragraphs, lone surrogates, all characters of format (marks and overrides
# of bidirectional text, soft hyphens, annotations, tags), and whatever else Unicode lets a terminal leave out, such as
# fillers and selectors of variants (Default_Ignorable_Code_Point). Unassigned ones among the last are in it, too.
_HIDDEN = (
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def _escape_one(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape(text: str) -> str:
    r"""Return `text` with every control character and every invisible one spelt out, safe to print on a terminal.

    All text of files and of callers that the package shows, in messages and on the command line, passes through here.

    Parameters
    ----------
    text : str
        Anything, such as a tensor name or a metadata value read from a file.

    Returns
    -------
    str
        The same text with controls, characters of format, other invisible ones and lone surrogates written as
        ``\xNN``, ``\uNNNN`` or ``\UNNNNNNNN``.

    Examples
    --------
    >>> print(escape("layer\x1b[31m.weight"))
    layer\x1b[31m.weight
    """
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_HIDDEN, _escape_one, text)


# A name may have as many characters as a header has bytes.
_MOST_QUOTED = 200


def quoted(name: object) -> str:
    """Return a name as messages show it: in quotes, and of a long one the beginning.

    Examples
    --------
    >>> print(quoted("weight"), quoted("w" * 1000)[-30:])
    'weight' wwwwwwww'... (1000 characters)
    """
    if isinstance(name, str) and len(name) > _MOST_QUOTED:
        return f"{name[:_MOST_QUOTED]!r}... ({len(name)} characters)"
    return repr(name)


class TensorFileError(Exception):
    """Root of all errors of weightmap.

    Parameters
    ----------
    what : str
        What is wrong; or, together with `actual`, the thing whose value is wrong.
    path : str, optional
        The file, or a word in angle brackets for a source without a name, such as ``<bytes>``.
    format : str, optional
        The format that was being read or written.
    field : str, optional
        The field of the format, by its name in the specification.
    offset : int, optional
        Where, in bytes from the start of the file.
    expected, actual : optional
        What the file should have held and what it holds.

    Attributes
    ----------
    path, format, field, offset, expected, actual
        As given; None where it does not apply. They survive pickling.
    """

    def __init__(
        self,
        what: str,
        *,
        path: str | None = None,
        format: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        expected: Any = None,
        actual: Any = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.path = path
        self.format = format
        self.field = field
        self.offset = offset
        self.expected = expected
        self.actual = actual

    def located(self, *, path: str | None, format: str | None = None) -> TensorFileError:
        """Fill in the file and the format where they are not known yet, and return the error itself."""
        self.path = path if self.path is None else self.path
        self.format = format if self.format is None else self.format
        return self

    def __str__(self) -> str:
        text = self.what
        if self.actual is not None:
            text += f" is {self.actual}"
        if self.expected is not None:
            text += f", expected {self.expected}"
        if self.offset is not None:
            text += f" (at byte {self.offset})"
        return escape(text if self.path is None else f"{self.path}: {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.path, self.format, self.field, self.offset, self.expected, self.actual)
        return _rebuild, (type(self), self.what, state)


def _rebuild(cls: type[TensorFileError], what: str, state: tuple[Any, ...]) -> TensorFileError:
    path, format_, field, offset, expected, actual = state
    return cls(what, path=path, format=format_, field=field, offset=offset, expected=expected, actual=actual)


class FormatError(TensorFileError, ValueError):
    """The bytes break the rules of the format."""


class UnknownFormatError(FormatError):
    """No format, or more than one, recognises the file."""


class UnsupportedError(FormatError):
    """The file uses a version, a flag or a data type that this library does not know or numpy does not have."""


class TruncatedError(FormatError):
    """The file ends before what it declares."""


class LayoutError(FormatError):
    """Sections or tensors overlap, leave holes, lie out of order or outside of the file, or sizes disagree."""


class ChecksumError(FormatError):
    """A stored checksum does not match the bytes."""


class LimitError(FormatError):
    """The file asks for more than `Limits` allows."""


class EncodeError(TensorFileError, ValueError):
    """The target format cannot express what is to be written. Raised before a file is created."""


class QuantError(TensorFileError, ValueError):
    """Quantised data is inconsistent, or an array cannot be quantised."""


class TensorNotFoundError(TensorFileError, KeyError):
    """The file has no tensor of this name."""

    # KeyError shows the repr of its argument; this is a message.
    __str__ = TensorFileError.__str__


class ClosedError(TensorFileError, ValueError):
    """The handle was closed."""


class FileChangedError(TensorFileError, OSError):
    """The file is no longer the one that was opened."""

    __str__ = TensorFileError.__str__


class NotRegularFileError(TensorFileError, OSError):
    """The path names a directory, FIFO, socket or device where a regular file is needed."""

    __str__ = TensorFileError.__str__


class MissingDependencyError(TensorFileError, ImportError):
    """An optional package is needed for this and is not installed."""

    __str__ = TensorFileError.__str__
