"""Names of files that a file or a server states."""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

# An empty part of a path, or dots with blanks behind them: a system may take these for "." or "..".
_UPWARDS = re.compile(r"(?:^|[/\\])[.\s]*(?:$|[/\\])")
# Most links in a row, as Linux follows them; the name of a shared blob
_MOST_LINKS = 40
_SHARED = re.compile("[0-9a-f]{64}")
# Layers of percent-encoding that are undone.
_ROUNDS = 8


def stays_inside(name: str) -> bool:
    """Whether a name is a plain relative path that stays within its directory, however it is encoded."""
    bad = any(character in name for character in "\\:\0")
    return not bad and not any(_UPWARDS.search(spelling) for spelling in _spellings(name))


def plain(name: str) -> str:
    """Return a relative path without the parts that say nothing, such as ``./``, by its text alone.

    Examples
    --------
    >>> from weightmap.core.bytes.names import plain
    >>> plain("./model.data"), plain("a/./../model.data"), plain("../model.data")
    ('model.data', 'model.data', '../model.data')
    """
    return posixpath.normpath(name) if name else name


def _spellings(name: str) -> Iterator[str]:
    """Yield a name, and its repeated decodings, as servers and proxies may decode it."""
    for _ in range(_ROUNDS):
        yield name
        decoded = unquote(name)
        if decoded == name:
            return
        name = decoded
    yield ".."


def blob_of(path: str) -> str | None:
    """Return the path of the blob that a file of the Hub's cache is a link to; None for any other file.

    ``models--o--n/snapshots/COMMIT/NAME`` is a link to ``models--o--n/blobs/DIGEST``. That is a file, or a link to one
    that repositories share (`is_shared`).
    """
    for _ in range(_MOST_LINKS):
        folder, name = os.path.realpath(os.path.dirname(path)), os.path.basename(path)
        above, kind = os.path.split(folder)
        if kind == "blobs" and os.path.isdir(os.path.join(above, "snapshots")):
            return os.path.join(folder, name)
        try:
            path = os.path.join(folder, os.readlink(os.path.join(folder, name)))
        except (OSError, ValueError):  # no link
            return None
    return None


def is_shared(real: str, blob: str) -> bool:
    """Whether a file is one of those that the repositories of a cache share, of the cache with this blob.

    huggingface_hub keeps them as ``blobs/XX/XXYYYY...`` beside ``models--o--n``, with a file that marks the folder.
    """
    store = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(blob))), "blobs")
    name = os.path.basename(real)
    is_there = _SHARED.fullmatch(name) is not None and real == os.path.join(store, name[:2], name)
    return is_there and os.path.isfile(os.path.join(store, ".huggingface-shared-blobs"))
