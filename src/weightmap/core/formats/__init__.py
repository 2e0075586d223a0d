"""The formats: discovered in this folder, recognised by content.

Every module here (or folder) that does not begin with an underscore defines one record called ``FORMAT``: see `_base`.
To add a format, add a file; no registration is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weightmap.core.formats._base import HEAD, LOOK, Content, Format, Importer, module_names
from weightmap.core.formats._recognition import SIGNS, Signs
from weightmap.core.lazy import later, on_demand
from weightmap.errors import EncodeError, FormatError, Remedy, TruncatedError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification
    from weightmap.core.formats._writing import Filled, Payload, Request, Tensors, Unfit, check_names, listed, refuse

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
_hint = later("weightmap.core.formats._recognition", "hint")
_damaged = later("weightmap.core.formats._recognition", "damaged")
of_ranks: Callable[..., Any] = later("weightmap.core.formats._recognition", "of_ranks")
__getattr__: Callable[[str], Any] = on_demand(__name__, globals(), _WRITING | {"Verification": "_verification"})


class _Formats(Mapping[str, Format]):
    """Every format by its name. A format is imported when its record is first looked up."""

    def __init__(self, names: Iterable[str]) -> None:
        self._records: dict[str, Format | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Format:
        record = self._records[name]
        if record is None:
            record = self._records[name] = import_module(f"{__name__}.{name}").FORMAT
        return record

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def _signs_of(name: str) -> Signs:
    """Return the signs of a format; one that the table does not list is imported now."""
    if name in SIGNS:
        return SIGNS[name]
    record = FORMATS[name]
    return Signs(record.suffixes, record.plan is not None, record.magic, record.leads, record.claims)


FORMATS = _Formats(module_names(__path__))
_SIGNS = {name: _signs_of(name) for name in FORMATS}
_BY_MAGIC = {signs.magic[:4]: name for name, signs in _SIGNS.items() if signs.magic}
_GUESSED = tuple(name for name, signs in _SIGNS.items() if not signs.magic and not signs.leads)
# By the first byte of a file: the formats without magic bytes that may claim it, where these are more than `_GUESSED`.
_BY_LEAD = {
    bytes([lead]): tuple(
        name for name, signs in _SIGNS.items() if not signs.magic and (lead in signs.leads or not signs.leads)
    )
    for lead in b"".join(signs.leads for signs in _SIGNS.values())
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
    lower = path.lower()
    fitting = [name for name, signs in _SIGNS.items() if lower.endswith(signs.suffixes)]
    written = [name for name in fitting if _SIGNS[name].written]
    if written:
        return FORMATS[written[0]]
    suffixes = ", ".join(suffix for signs in _SIGNS.values() if signs.written for suffix in signs.suffixes)
    from weightmap.core.formats._recognition import FOREIGN, WORDS  # noqa: PLC0415 - for errors only

    foreign = next((what for suffix, what in FOREIGN.items() if lower.endswith(suffix)), None)
    if foreign is not None:
        raise EncodeError(f"{foreign}; files are written with one of the suffixes {suffixes}", path=path)
    if fitting:
        return FORMATS[fitting[-1]]
    msg = f"no format has this suffix: use one of {suffixes}"
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
    guess: UnknownFormatError | None = _hint(head, 3) if format_.name in _GUESSED else None
    return guess


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
    name = _BY_MAGIC.get(head[:4])
    if name is not None and head.startswith(_SIGNS[name].magic):
        return FORMATS[name]
    names = [name for name in _BY_LEAD.get(head[:1], _GUESSED) if _SIGNS[name].sniff(head, source.size)]
    certain = [name for name in names if _SIGNS[name].leads]
    claims: list[Format | Importer] = [FORMATS[name] for name in certain or names]
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
    guess: UnknownFormatError | None = _hint(head, 2) or _damaged(head, size)
    if guess is not None:
        return guess
    beginning = "nothing but zero bytes" if not any(head) else repr(head[:16])
    what = "no format recognises this file: its beginning"
    titles = ", ".join(format_.title for format_ in FORMATS.values())
    return UnknownFormatError(what, offset=0, actual=beginning, expected=f"that of one of {titles}")
