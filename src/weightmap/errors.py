"""The exceptions of weightmap: one tree, one form of message.

Every exception for bad input derives from `TensorFileError` and names the file, the defect, its place, and the expected
value. A real `OSError` (no such file, no space, no permission) passes through unchanged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "AddressError",
    "ChecksumError",
    "ClosedError",
    "DeltaError",
    "EncodeError",
    "FileChangedError",
    "FormatError",
    "LayoutError",
    "LimitError",
    "MissingDependencyError",
    "ModelWarning",
    "NotRegularFileError",
    "PlanError",
    "QuantError",
    "Remedy",
    "RemoteError",
    "ShardsError",
    "TargetError",
    "TensorFileError",
    "TensorNotFoundError",
    "TruncatedError",
    "TrustError",
    "UnknownFormatError",
    "UnknownWordError",
    "UnsupportedError",
]

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
    >>> from weightmap.errors import escape
    >>> print(escape("layer\x1b[31m.weight"))
    layer\x1b[31m.weight
    """
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_HIDDEN, _escape_one, text)


# Characters of a name in a message; a name may be as long as a header.
_MOST_QUOTED = 200


def quoted(name: object) -> str:
    """Return a name as messages show it: in quotes, a long one cut off.

    Examples
    --------
    >>> from weightmap.errors import quoted
    >>> print(quoted("weight"), quoted("w" * 1000)[-30:])
    'weight' wwwwwwww'... (1000 characters)
    """
    if isinstance(name, str) and len(name) > _MOST_QUOTED:
        return f"{name[:_MOST_QUOTED]!r}... ({len(name)} characters)"
    return repr(name)


def counted(number: int, what: str) -> str:
    """Return a number with its noun, in the singular or plural.

    Examples
    --------
    >>> from weightmap.errors import counted
    >>> counted(1, "tensor"), counted(1234, "tensor")
    ('1 tensor', '1,234 tensors')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class Remedy(NamedTuple):
    """An option that would help the caller; Python and the command line spell it differently."""

    words: str  # with ``{}`` in the place of the option
    option: str  # its name in Python
    value: str | bool | None = None  # the value that helps, if it is known
    switch: bool = False  # whether the option is on or off, and off by default
    flag: str = ""  # the option of the command line, where it has another name
    python: str = ""  # what to write in Python, where that is no keyword of the function that was called


# Options that another function has, or that an argument holds.
_HELD = dict.fromkeys(("layout", "align", "checksums", "sha256sums", "durable", "overwrite"), "output=Output({})")
_HELD |= dict.fromkeys(("store", "concurrency", "deadline", "redirects", "unversioned"), "remote=Remote({})")
_HELD |= dict.fromkeys(("strict", "trust", "config"), "open(..., {})") | {"weights": "f.weights"}


def _in_python(remedy: Remedy) -> str:
    if remedy.python:
        return remedy.python
    value, place = remedy.switch or remedy.value, _HELD.get(remedy.option)
    if value is None:
        return f"{remedy.option}=" if place is None else place.format(f"{remedy.option}=...")
    return (place or "{}").format(f"{remedy.option}={value!r}")


class TensorFileError(Exception):
    """Root of all errors of weightmap.

    Parameters
    ----------
    what : str
        The defect; or, with `actual`, the thing whose value is wrong. Other objects become text once the message is
        rendered.
    path : str, optional
        The file, or a word in angle brackets for a source without a name, such as ``<bytes>``.
    format : str, optional
        The format that was being read or written.
    field : str, optional
        The field's name in the specification of the format.
    offset : int, optional
        Place of the defect, in bytes from the start of the file.
    expected, actual : optional
        The value that the file should hold, and its actual value.
    remedy : Remedy, optional
        The option that would help; it ends the message.

    Attributes
    ----------
    path, format, field, offset, expected, actual, remedy
        As given; None if it does not apply. They survive pickling.
    """

    def __init__(
        self,
        what: Any,
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
        """Fill in the file and the format if they are missing, and return the error itself."""
        self.path = path if self.path is None else self.path
        self.format = format if self.format is None else self.format
        return self

    def __str__(self) -> str:
        return self.render(_in_python)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def render(self, spell: Callable[[Remedy], str]) -> str:
        """Return the message; `spell` spells the remedy's option."""
        text = str(self.what)
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
        # An ImportError keeps its path outside of its dictionary.
        return _rebuild, (type(self), vars(self) | {"what": str(self.what), "path": self.path})


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
    """The file uses a version, a flag or a data type that this library does not know or numpy lacks."""


class TruncatedError(FormatError):
    """The file ends before what it declares."""


class LayoutError(FormatError):
    """Sections or tensors overlap, leave holes, or lie out of order or outside of the file; or sizes disagree."""


class ChecksumError(FormatError):
    """A stored checksum does not match the bytes."""


class TrustError(ChecksumError):
    """The file is not the one whose digest was recorded, or no digest of it was: see `weightmap.trust`."""


class DeltaError(FormatError):
    """A delta is damaged or does not fit the model: wrong base, order or encoding, or the checksum of a result."""


class LimitError(FormatError):
    """The file asks for more than `Limits` allows."""


class ModelWarning(UserWarning):
    """The index of a model, or a part of it, disagrees with its files; weightmap opened the files that exist."""


class EncodeError(TensorFileError, ValueError):
    """The target format cannot express the data. Raised before a file is created.

    Attributes
    ----------
    refused : tuple of str
        Everything that cannot be expressed, a line for each tensor; the message names only the first of many.
    """

    refused: tuple[str, ...] = ()


class QuantError(TensorFileError, ValueError):
    """Quantised data is inconsistent, or an array cannot be quantised."""


class PlanError(TensorFileError, ValueError, IndexError):
    """The plan is impossible: an index out of range, a rank past the last one, a budget that is too small."""


class TensorNotFoundError(TensorFileError, KeyError):
    """The file has no tensor of this name."""


class UnknownWordError(TensorFileError, KeyError):
    """The model has no vector for this word.

    Attributes
    ----------
    word : object
        The word that was asked for.
    """

    word: object = None


class ClosedError(TensorFileError, ValueError):
    """The handle was closed."""


class FileChangedError(TensorFileError, OSError):
    """The file has changed since it was opened."""


class RemoteError(TensorFileError, OSError):
    """A store fails to deliver an object, or answers a request wrongly."""

    __str__ = TensorFileError.__str__


class AddressError(TensorFileError, ValueError):
    """The address has no form that a request can go to. The message repeats no part of it: it may hold a password."""


class NotRegularFileError(TensorFileError, OSError):
    """The path names a directory, FIFO, socket or device where a regular file is needed."""


class TargetError(TensorFileError, OSError):
    """The target exists and may not be replaced, is being written by another run, or belongs to the source."""


class ShardsError(TensorFileError):
    """Shards of a model failed, with errors of several classes or of a foreign one.

    Attributes
    ----------
    errors : tuple of (str, BaseException)
        Each failed shard with its error; the message names the first of many.
    """

    errors: tuple[tuple[str, BaseException], ...] = ()


class MissingDependencyError(TensorFileError, ImportError):
    """The operation needs an optional package that is not installed."""


# --------------------------------------------------------------- faults that any format may have, each in one wording


def cut_off(
    what: str, at: int, needed: int | None = None, *, field: str | None = None, whole: str = "the file"
) -> TruncatedError:
    """Return the error for a `whole` that ends at byte `at`, within `what`, which needs it to reach byte `needed`.

    Examples
    --------
    >>> from weightmap.errors import cut_off
    >>> print(cut_off("the name of tensor 0", 60, 80))
    the file ends within the name of tensor 0, expected at least 80 bytes (at byte 60)
    """
    expected = None if needed is None else f"at least {needed} bytes"
    return TruncatedError(f"{whole} ends within {what}", field=field, offset=at, expected=expected)


def shrank(at: int, needed: int | None = None, *, during: str = "it") -> TruncatedError:
    """Return the error for a file that became shorter, so that it ends at byte `at`, while `during` was being read."""
    expected = None if needed is None else f"at least {needed} bytes"
    return TruncatedError(
        f"the file changed or became shorter while {during} was being read", offset=at, expected=expected
    )


def too_many(
    what: str, count: int, most: int, *, field: str | None, offset: int, given: str = "the bytes that follow"
) -> TruncatedError:
    """Return the error for a declared number of things that exceeds `most`, the number that fits.

    Examples
    --------
    >>> from weightmap.errors import too_many
    >>> print(too_many("number of words", 5, 3, field="n", offset=8))
    number of words is 5, expected at most 3, given the bytes that follow (at byte 8)
    """
    return TruncatedError(what, field=field, offset=offset, actual=count, expected=f"at most {most}, given {given}")


def trailing_bytes(
    size: int, end: int, *, field: str, offset: int | None = None, whole: str = "the file"
) -> LayoutError:
    """Return the error for a `whole` of `size` bytes whose content ends after `end` of them.

    Examples
    --------
    >>> from weightmap.errors import trailing_bytes
    >>> print(trailing_bytes(200, 176, field="size"))
    there are trailing bytes: the size of the file is 200, expected 176 (at byte 176)
    """
    at = end if offset is None else offset
    return LayoutError(
        f"there are trailing bytes: the size of {whole}", field=field, offset=at, actual=size, expected=end
    )


def nonzero_padding(where: str, offset: int) -> LayoutError:
    """Return the error for padding that should be zero.

    Examples
    --------
    >>> from weightmap.errors import nonzero_padding
    >>> print(nonzero_padding("between sections", 96))
    padding between sections is not zero (at byte 96)
    """
    return LayoutError(f"padding {where} is not zero", field="padding", offset=offset)
