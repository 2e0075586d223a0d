"""Metadata: a TOML document, kept with its text."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightmap.errors import FormatError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of tables and arrays within each other. The parser survives more; what walks the result by recursion does not.
_DEEPEST = 100


class TomlDocument(dict[str, Any]):
    """What a TOML document holds, and its text: written again unchanged, it keeps comments and order.

    ``TensorFile.metadata`` is a read-only view of one, whose ``copy()`` gives it.
    """

    __slots__ = ("text",)

    def __init__(self, content: Mapping[str, Any], text: str) -> None:
        super().__init__(content)
        self.text = text

    def copy(self) -> TomlDocument:
        """Return a document of the same content and text."""
        return TomlDocument(self, self.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return TomlDocument, (dict(self), self.text)


def load_metadata(raw: bytes, offset: int) -> TomlDocument:
    """Parse a TOML document that begins at `offset` of the file.

    Dates and times become objects of `datetime`.

    Raises
    ------
    FormatError
        For bytes that are not UTF-8, bad syntax, numbers of thousands of digits, and nesting deeper than 100.
    """
    import tomllib  # noqa: PLC0415 - 5 ms, needed by files with metadata only, and by them when it is asked for

    def fail(reason: str, at: int = 0) -> FormatError:
        return FormatError(f"the metadata is no TOML: {reason}", field="metadata", offset=offset + at)

    try:
        text = raw.decode()
        content = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise fail(f"it is not UTF-8 ({error.reason})", error.start) from None
    except RecursionError:
        raise fail("it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise fail(str(error)[:200]) from None
    except ValueError as error:  # of int or datetime
        reason = "a number has too many digits" if "digits" in str(error) else str(error)[:200]
        raise fail(reason) from None
    if not _shallow(content):
        raise fail(f"it is nested more than {_DEEPEST} deep")
    return TomlDocument(content, text)


def _shallow(content: Any) -> bool:
    """Whether nothing is nested too deeply; without recursion."""
    level = [content]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return True
    return False


def encode_metadata(metadata: Mapping[str, Any], reasons: list[str]) -> bytes:
    """Return metadata as TOML: the text that it was read from, if it is unchanged.

    What cannot be expressed is added to `reasons`. Raises `MissingDependencyError` when the text is new and the package
    tomli_w is not installed.
    """
    import tomllib  # noqa: PLC0415 - as above

    document = metadata.copy() if isinstance(metadata, MappingProxyType) else metadata
    if isinstance(document, TomlDocument) and tomllib.loads(document.text) == document:
        return document.text.encode()
    if not document:
        return b""
    try:
        import tomli_w  # noqa: PLC0415 - optional
    except ImportError:
        msg = "new metadata of finalfusion files needs the package tomli_w (pip install tomli_w)"
        raise MissingDependencyError(msg) from None
    try:
        if not _shallow(_plain(document)):
            reasons.append(f"metadata nested more than {_DEEPEST} deep")
            return b""
        text: str = tomli_w.dumps(document)
        tomllib.loads(text)
        return text.encode()
    except (TypeError, ValueError, RecursionError, AttributeError) as error:
        reasons.append(f"metadata that is not TOML: {str(error)[:200]}")
        return b""


def _plain(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else dict(value)
