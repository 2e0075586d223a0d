"""The exceptions of weightmap: one tree, one form of message.

Every exception that bad input can cause derives from `TensorFileError` and tells the file, what is wrong, where, and
what was expected. A real `OSError` (no such file, no space, no permission) passes through unchanged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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
    "Remedy",
    "TensorFileError",
    "TensorNotFoundError",
    "TruncatedError",
    "UnknownFormatError",
    "UnsupportedError",
    "counted",
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


def counted(number: int, what: str) -> str:
    """Return a number of things, in the singular where it is one.

    Examples
    --------
    >>> counted(1, "tensor"), counted(1234, "tensor")
    ('1 tensor', '1,234 tensors')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class Remedy(NamedTuple):
    """What the caller may ask for instead: an option, which is spelt otherwise in Python and on the command line.

    Attributes
    ----------
    words : str
        With ``{}`` where the option stands.
    option : str
        Its name in Python.
    value : str or None
        What to give it, where that is known.
    switch : bool
        Whether it is one that is off until it is asked for.
    """

    words: str
    option: str
    value: str | None = None
    switch: bool = False


def _in_python(remedy: Remedy) -> str:
    value = remedy.switch or remedy.value
    return f"{remedy.option}={'' if value is None else repr(value)}"


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
    remedy : Remedy, optional
        What to ask for instead; the end of the message.

    Attributes
    ----------
    path, format, field, offset, expected, actual, remedy
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
        remedy: Remedy | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.path = path
        self.format = format
        self.field = field
        self.offset = offset
        self.expected = expected
        self.actual = actual
        self.remedy = remedy

    def located(self, *, path: str | None, format: str | None = None) -> TensorFileError:
        """Fill in the file and the format where they are not known yet, and return the error itself."""
        self.path = path if self.path is None else self.path
        self.format = format if self.format is None else self.format
        return self

    def __str__(self) -> str:
        return self.told(_in_python)

    def told(self, spell: Callable[[Remedy], str]) -> str:
        """Return the message, with the option of the remedy as `spell` spells it."""
        text = self.what
        if self.actual is not None:
            text += f" is {self.actual}"
        if self.expected is not None:
            text += f", expected {self.expected}"
        if self.remedy is not None:
            text += f"; {self.remedy.words.format(spell(self.remedy))}"
        if self.offset is not None:
            text += f" (at byte {self.offset})"
        return escape(text if self.path is None else f"{self.path}: {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        # The path of an ImportError lies elsewhere than in its dictionary.
        return _rebuild, (type(self), vars(self) | {"path": self.path})


def _rebuild(cls: type[TensorFileError], attributes: dict[str, Any]) -> TensorFileError:
    error = cls(attributes["what"])
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


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
    """The target format cannot express what is to be written. Raised before a file is created.

    Attributes
    ----------
    refused : tuple of str
        Everything that cannot be expressed, a line for each tensor; of thousands the message names the first alone.
    """

    refused: tuple[str, ...] = ()


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
