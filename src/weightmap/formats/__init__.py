"""The formats: discovered in this folder, recognised by content.

Every module here (or folder) that does not begin with an underscore defines one record called ``FORMAT``: see `_base`.
To add a format, add a file; no registration is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.errors import EncodeError, FormatError, Remedy, TruncatedError, UnknownFormatError
from weightmap.formats._base import HEAD, LOOK, Content, Format, Importer, discover
from weightmap.lazy import later, on_demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from weightmap.formats._metadata import fitted
    from weightmap.formats._verification import Verification
    from weightmap.formats._writing import Filled, Payload, Request, Tensors, Unfit, check_names, listed, refuse
    from weightmap.io.source import Source

__all__ = [
    "FORMATS",
    "HEAD",
    "Content",
    "Filled",
    "Format",
    "Importer",
    "Payload",
    "Request",
    "Tensors",
    "Unfit",
    "Verification",
    "by_name",
    "by_suffix",
    "check_names",
    "fitted",
    "formats",
    "identify",
    "listed",
    "mistaken",
    "of_ranks",
    "refuse",
]

_WRITING = dict.fromkeys(
    ("Filled", "Payload", "Request", "Tensors", "Unfit", "check_names", "listed", "refuse"), "_writing"
)
_hint = later("weightmap.formats._hints", "hint")
_damaged = later("weightmap.formats._hints", "damaged")
of_ranks = later("weightmap.formats._hints", "of_ranks")
__getattr__: Callable[[str], Any] = on_demand(
    __name__, globals(), _WRITING | {"Verification": "_verification", "fitted": "_metadata"}
)


# Every format with its reading, so that opening a file imports nothing, and opens no other file.
FORMATS: dict[str, Format] = discover(__name__, __path__, "FORMAT")
_BY_MAGIC = {format_.magic[:4]: format_ for format_ in FORMATS.values() if format_.magic}
_UNMARKED = tuple(format_ for format_ in FORMATS.values() if not format_.magic)
_GUESSED = tuple(format_ for format_ in _UNMARKED if not format_.leads)
# By the first byte of a file: the formats without magic bytes that may claim it, where these are more than `_GUESSED`.
_BY_LEAD = {
    bytes([lead]): tuple(format_ for format_ in _UNMARKED if lead in format_.leads or not format_.leads)
    for lead in b"".join(format_.leads for format_ in _UNMARKED)
}


def formats() -> tuple[str, ...]:
    """Return the names of the formats that can be read.

    Examples
    --------
    >>> import weightmap as wm
    >>> "embd" in wm.formats()
    True
    """
    return tuple(FORMATS)


def by_name(name: str) -> Format:
    """Return the format called `name`. Raises ValueError when there is none."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise ValueError(f"format is {name!r}, expected one of {', '.join(FORMATS)}") from None


def by_suffix(path: str) -> Format:
    """Return the format of files with this suffix, one that can be written where there are two.

    Raises `EncodeError` when there is none.
    """
    lower, found = path.lower(), None
    for format_ in FORMATS.values():
        if lower.endswith(format_.suffixes):
            if format_.plan is not None:
                return format_
            found = format_
    known = ", ".join(suffix for format_ in FORMATS.values() if format_.plan for suffix in format_.suffixes)
    from weightmap.formats._hints import FOREIGN, WORDS  # noqa: PLC0415 - for errors only

    foreign = next((what for suffix, what in FOREIGN.items() if lower.endswith(suffix)), None)
    if foreign is not None:
        raise EncodeError(f"{foreign}; files are written with one of the suffixes {known}", path=path)
    if found is not None:
        return found
    msg = f"no format has this suffix: use one of {known}"
    words = next((name for suffix, name in WORDS.items() if lower.endswith(suffix)), None)
    others = " or ".join(sorted({*WORDS.values(), "word2vec"} - {words}))
    remedy = (
        Remedy("or give {}", "format") if words is None else Remedy(f"for words give {{}}, {others}", "format", words)
    )
    raise EncodeError(msg, path=path, remedy=remedy)


def mistaken(format_: Format | Importer, head: bytes) -> UnknownFormatError | None:
    """Return a better error for a file that `format_` recognised and refused, if the file is known to be another kind.

    Formats without magic bytes begin with the length of a header, which the beginning of another kind may look like.
    """
    known: UnknownFormatError | None = _hint(head, 3) if format_ in _GUESSED else None
    return known


def identify(source: Source, head: bytes, importers: Callable[[], Iterable[Importer]] = tuple) -> Format | Importer:
    """Return the one format that recognises the file; where none does, the one of `importers()`.

    Raises
    ------
    TruncatedError
        When the file is empty.
    UnknownFormatError
        When none recognises it, or more than one does.
    """
    # Magic bytes settle it: formats without them begin with a length of at most 100,000,000, and four printable
    # characters are a larger number.
    format_ = _BY_MAGIC.get(head[:4])
    if format_ is not None and head.startswith(format_.magic):
        return format_
    found = [format_ for format_ in _BY_LEAD.get(head[:1], _GUESSED) if format_.claims(head, source.size)]
    claims: list[Format | Importer] = [format_ for format_ in found if format_.leads] or [*found]
    if not claims and head:
        look = source.pread(0, min(LOOK, source.size))
        claims += [importer for importer in importers() if importer.claims(look, source.size)]
    if len(claims) == 1:
        return claims[0]
    raise _unknown(head, source.size, claims)


def _unknown(head: bytes, size: int, claims: list[Format | Importer]) -> FormatError:
    """Return the error for a file that none, or more than one, recognises."""
    if not head:
        msg = "the file is empty"
        return TruncatedError(msg, offset=0)
    if claims:
        msg = f"more than one format recognises this file: {', '.join(claim.name for claim in claims)}"
        return UnknownFormatError(msg, remedy=Remedy("give {}", "format"))
    known: UnknownFormatError | None = _hint(head, 2) or _damaged(head, size)
    if known is not None:
        return known
    found = "nothing but zero bytes" if not any(head) else repr(head[:16])
    what = "no format recognises this file: its beginning"
    titles = ", ".join(format_.title for format_ in FORMATS.values())
    return UnknownFormatError(what, offset=0, actual=found, expected=f"that of one of {titles}")
