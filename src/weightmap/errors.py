"""The exceptions of weightmap: one tree, one form of message.

Every exception for bad input derives from `TensorFileError` and names the file, the defect, its place, and the expected
value. A real `OSError` (no such file, no space, no permission) passes through unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import counted as _counted
from weightmap._messages import escape as _escape
from weightmap._messages import quoted as _quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


class Remedy(NamedTuple):
    """An option that would help the caller; Python and the command line spell it differently."""

    words: str  # ``{}`` stands for the option
    option: str  # its name in Python
    value: str | bool | None = None  # the value that helps, if it is known
    switch: bool = False  # whether the option is on or off, and off by default
    flag: str = ""  # the option's name on the command line, if it differs
    python: str = ""  # the remedy in Python, if it is not a keyword of the called function


# How to spell options in Python that are not keywords of the called function.
_PLACES = dict.fromkeys(("layout", "align", "checksums", "sha256sums", "durable", "overwrite"), "output=Output({})")
_PLACES |= dict.fromkeys(("store", "concurrency", "deadline", "redirects", "unversioned"), "remote=Remote({})")
_PLACES |= dict.fromkeys(("strict", "trust", "config"), "open(..., {})") | {"weights": "f.weights"}


def _in_python(remedy: Remedy) -> str:
    if remedy.python:
        return remedy.python
    value, place = remedy.switch or remedy.value, _PLACES.get(remedy.option)
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
        return _escape(text if self.path is None else f"{self.path}: {text}")

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
    """The file does not match its recorded digest, or has no recorded digest: see `weightmap.trust`."""


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

    def naming(self, refused: Iterable[object]) -> EncodeError:
        """Fill in `refused`, and return the error itself."""
        self.refused = tuple(map(str, refused))
        return self


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
    """A store does not deliver an object, or answers a request wrongly."""

    __str__ = TensorFileError.__str__


class AddressError(TensorFileError, ValueError):
    """No request can go to an address of this form. The message does not repeat it: it may hold a password."""


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

    @classmethod
    def of(cls, errors: Sequence[tuple[str, BaseException]]) -> ShardsError:
        """Return the error for shards that failed, from their names and errors; the first is its cause."""
        some = "; ".join(f"{_quoted(name)}: {_named(error)}" for name, error in errors[:_NAMED])
        more = f"; and {len(errors) - _NAMED:,} more" if len(errors) > _NAMED else ""
        failed = cls(f"{_counted(len(errors), 'shard')} failed: {some}{more}")
        failed.errors, failed.__cause__ = tuple(errors), errors[0][1]
        return failed


# Shards that one message names
_NAMED = 3


def _named(error: BaseException) -> str:
    """Return the message of an error, behind its class if this is a foreign one."""
    return str(error) if isinstance(error, TensorFileError | OSError) else f"{type(error).__name__}: {error}"


class MissingDependencyError(TensorFileError, ImportError):
    """The operation needs an optional package that is not installed."""
