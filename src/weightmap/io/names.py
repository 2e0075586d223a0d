"""Names of files that a file or a server states."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

# An empty part of a path, or dots with blanks behind them: a system may take these for "." or "..".
_UPWARDS = re.compile(r"(?:^|[/\\])[.\s]*(?:$|[/\\])")
# Layers of percent-encoding that are undone.
_ROUNDS = 8


def stays_inside(name: str) -> bool:
    """Whether a name is a plain relative path that stays within its directory, however it is encoded."""
    bad = any(character in name for character in "\\:\0")
    return not bad and not any(_UPWARDS.search(spelling) for spelling in _spellings(name))


def _spellings(name: str) -> Iterator[str]:
    """Yield a name, and its repeated decodings, as servers and proxies may decode it."""
    for _ in range(_ROUNDS):
        yield name
        decoded = unquote(name)
        if decoded == name:
            return
        name = decoded
    yield ".."
