"""The formats: discovered by looking into this folder, recognised by content.

Every module here (or folder, where a format takes several) that does not begin with an underscore defines one record
called ``FORMAT`` (see `_base`). To add a format, add a file; nothing else is to be told. The modules are imported when
a file is to be recognised, or somebody asks which formats there are.
"""

from __future__ import annotations

import functools
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weightmap.errors import EncodeError, FormatError, TruncatedError, UnknownFormatError
from weightmap.formats._base import HEAD, Content, Format, Options
from weightmap.lazy import on_demand

if TYPE_CHECKING:
    from weightmap.formats._verifying import Verification
    from weightmap.formats._writing import Parts, Payload, Plan, Request, refuse
    from weightmap.source import Source

    FORMATS: dict[str, Format]

__all__ = [
    "FORMATS",
    "HEAD",
    "Content",
    "Format",
    "Options",
    "Parts",
    "Payload",
    "Plan",
    "Request",
    "Verification",
    "by_name",
    "by_suffix",
    "formats",
    "identify",
    "mistaken",
    "refuse",
]

_WRITING = dict.fromkeys(("Parts", "Payload", "Plan", "Request", "refuse"), "_writing")
_on_demand = on_demand(__name__, globals(), _WRITING | {"Verification": "_verifying"})
# No file begins so: each of the formats without magic bytes begins with a length, and this one is too large.
_NEVER = b"\xff" * 8
# Those that were imported so far, by the beginning of their magic bytes.
_by_magic: dict[bytes, Format] = {}


def __getattr__(name: str) -> Any:
    if name == "FORMATS":  # all of them, by name
        found = globals()["FORMATS"] = {format_.name: format_ for format_ in _all()}
        return found
    return _on_demand(name)


@functools.cache
def _module_names() -> list[str]:
    found: set[str] = set()
    for folder in __path__:
        try:
            entries = os.listdir(folder)
        except OSError:  # inside a zip archive
            import pkgutil  # noqa: PLC0415

            return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
        found.update(
            entry.removesuffix(".py")
            for entry in entries
            if entry[0] not in "_." and (entry.endswith(".py") or "." not in entry)
        )
    return sorted(found)


@functools.cache
def _read(module: str) -> Format:
    """Import one of the modules, and return its record."""
    format_: Format = import_module(f"{__name__}.{module}").FORMAT
    if format_.magic:
        _by_magic[format_.magic[:4]] = format_
    return format_


@functools.cache
def _all() -> tuple[Format, ...]:
    """Return every format."""
    return tuple(map(_read, _module_names()))


def formats() -> tuple[str, ...]:
    """Return the names of the formats that can be read.

    Examples
    --------
    >>> "embd" in formats()
    True
    """
    return tuple(format_.name for format_ in _all())


def by_name(name: str) -> Format:
    """Return the format called `name`. Raises ValueError when there is none."""
    for format_ in _all():
        if format_.name == name:
            return format_
    msg = f"format is {name!r}, expected one of {', '.join(formats())}"
    raise ValueError(msg)


def by_suffix(path: str) -> Format:
    """Return the format that is written to files with this suffix. Raises `EncodeError` when there is none."""
    for format_ in _all():
        if format_.plan is not None and path.lower().endswith(format_.suffixes):
            return format_
    known = ", ".join(suffix for format_ in _all() if format_.plan for suffix in format_.suffixes)
    msg = "the suffix does not tell the format; give format=, or use one of"
    raise EncodeError(f"{msg} {known}", path=path)


def mistaken(format_: Format, head: bytes) -> UnknownFormatError | None:
    """Return what to say instead, when a file that `format_` recognised and refused is known to be something else.

    The length of a header, with which formats without magic bytes begin, may look like those of another kind of file.
    """
    from weightmap.formats._hints import hint  # noqa: PLC0415 - needed for what cannot be opened

    return None if format_.magic else hint(head, 3)


def identify(source: Source, head: bytes) -> Format:
    """Return the one format that recognises the file.

    Raises
    ------
    TruncatedError
        When the file is empty.
    UnknownFormatError
        When no format recognises it, or more than one does.
    """
    # A file that begins with one format's magic bytes needs no other to be asked: those without magic bytes begin with
    # a length of at most 100,000,000, and four printable characters are a larger number than that.
    start = head[:4]
    format_ = _by_magic.get(start) or (_namesake(start) if start.isalnum() else None)
    if format_ is not None and head.startswith(format_.magic or _NEVER):
        return format_
    claims = [format_ for format_ in _unmarked() if format_.claims(head, source.size)]
    format_ = _by_magic.get(start)  # now that all are known
    if format_ is not None and head.startswith(format_.magic):
        return format_
    if len(claims) == 1:
        return claims[0]
    raise _unknown(head, claims)


@functools.cache
def _unmarked() -> tuple[Format, ...]:
    """Return the formats that have no magic bytes; all are imported then."""
    return tuple(format_ for format_ in _all() if not format_.magic)


def _namesake(start: bytes) -> Format | None:
    """Return the format whose module is called like these magic bytes: then the others need not be imported."""
    text = start[:2].decode("latin-1").lower()
    name = next((name for name in _module_names() if name.startswith(text)), None)
    return None if name is None else _read(name)


def _unknown(head: bytes, claims: list[Format]) -> FormatError:
    """Return what to say of a file that not exactly one format recognises."""
    from weightmap.formats._hints import hint  # noqa: PLC0415 - needed for what cannot be opened

    if not head:
        msg = "the file is empty"
        return TruncatedError(msg, offset=0)
    if claims:
        msg = f"more than one format recognises this file: {', '.join(claim.name for claim in claims)}; give format="
        return UnknownFormatError(msg)
    known = hint(head, 2)
    if known is not None:
        return known
    found = "nothing but zero bytes" if not any(head) else repr(head[:16])
    what = "no format recognises this file: its beginning"
    return UnknownFormatError(what, offset=0, actual=found, expected=f"that of one of {', '.join(formats())}")
