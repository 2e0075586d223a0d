"""Metadata: a TOML document, kept with its text."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap.errors import FormatError, LimitError, MissingDependencyError
from weightmap.formats.finalfusion import toml
from weightmap.options import DEEPEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.formats._writing import Reason


class TomlDocument(dict[str, Any]):
    """The content of a TOML document with its text, so that it is written again with its comments and order.

    ``TensorFile.metadata`` is a read-only view of one; its ``copy()`` returns the document.
    """

    __slots__ = ("text",)

    def __init__(self, content: Mapping[str, Any], text: str) -> None:
        super().__init__(content)
        self.text = text

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
        return TomlDocument(toml.loads(text), text)
    except UnicodeDecodeError as error:
        raise fail(f"it is not UTF-8 ({error.reason})", error.start) from None
    except LimitError as error:
        error.offset = offset
        raise
    except ValueError as error:  # from the parser, int or datetime
        reason = "a number has too many digits" if "digits" in str(error) else str(error)[:200]
        raise fail(reason) from None


def encode_metadata(metadata: Mapping[str, Any], reasons: list[Reason]) -> bytes:
    """Return metadata as TOML, unchanged metadata as the text that it was read from.

    Adds to `reasons` what TOML cannot express. Raises `MissingDependencyError` when new text needs the missing package
    tomli_w.
    """
    document = metadata.copy() if isinstance(metadata, MappingProxyType) else metadata
    if isinstance(document, TomlDocument) and _says(document):
        return document.text.encode()
    if not document:
        return b""
    try:
        import tomli_w  # noqa: PLC0415 - optional
    except ImportError:
        msg = "new metadata of finalfusion files needs the package tomli_w: pip install tomli-w"
        raise MissingDependencyError(msg) from None
    if not toml.shallow(_plain(document)):
        reasons.append(f"metadata nested more than {DEEPEST} deep")
        return b""
    try:
        text: str = tomli_w.dumps(document)
        toml.loads(text)
        return text.encode()
    except LimitError as error:
        reasons.append(str(error))
        return b""
    except (TypeError, ValueError, RecursionError, AttributeError) as error:
        reasons.append(f"metadata that is not TOML: {str(error)[:200]}")
        return b""


def _says(document: TomlDocument) -> bool:
    """Whether the text of a document still says its content, which the caller may have changed."""
    try:
        return toml.loads(document.text) == document
    except (ValueError, RecursionError):
        return False


def _plain(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else dict(value)
