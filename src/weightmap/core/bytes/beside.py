"""Files named by another file: they lie in its directory, and are opened in its mode."""

from __future__ import annotations

import errno
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from weightmap._messages import quoted
from weightmap.core.bytes.open_source import from_path, is_missing, sibling_path
from weightmap.core.options import Limits
from weightmap.errors import LayoutError, NotRegularFileError, TensorFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from weightmap.core.bytes.source import Source

# Names of files that a file or a server states.

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
    >>> from weightmap.core.bytes.beside import plain
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


# Above this many files, descriptors are closed: systems grant a process 256 or 1024.
MAX_OPEN = 64


def open_beside(source: Source, name: str) -> Source:
    """Open another file in the directory of `source`, which holds some of its tensors, in the same mode.

    Raises
    ------
    LayoutError
        For a name or link to another directory, and for a missing file. Of a name, ``./`` and the like say nothing.
    UnsupportedError
        When `source` was not opened by path.
    """
    path = source.path
    if path is None:
        raise UnsupportedError(f"tensors lie in {quoted(name)}, beside this file: open it by its path")
    target = sibling_path(path, plain(name))
    if not stays_inside(plain(name)) or (type(path) is str and not _is_near(target, path)):
        expected = "a file in the same directory"
        raise LayoutError("a file with tensors", field="location", actual=quoted(name), expected=expected)
    try:
        sibling = from_path(target, source.mode)
    except IsADirectoryError:
        raise LayoutError(f"{quoted(name)}, in which tensors lie, is a directory", field="location") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise LayoutError(
                f"file {quoted(name)}, in which tensors lie, is a loop of links", field="location"
            ) from None
        if not is_missing(error):
            raise
        raise LayoutError(f"file {quoted(name)}, in which tensors lie, is missing", field="location") from None
    try:
        sibling.follow(source)
    except BaseException:
        sibling.close()
        raise
    return sibling


def open_all_beside(source: Source, names: Collection[str]) -> list[Source]:
    """Open files as `open_beside` does; if one cannot be opened, none stays open."""
    siblings: list[Source] = []
    try:
        for name in names:
            siblings.append(open_beside(source, name))
            if len(names) > MAX_OPEN:
                siblings[-1].release_descriptor()
    except BaseException:
        for opened in siblings:
            opened.close()
        raise
    return siblings


def _is_near(path: str, other: str) -> bool:
    """Whether a file really lies below the directory of another, or below that of the other's link target.

    Files of one repository in the Hub's cache are near, wherever the cache keeps them.
    """
    real = os.path.realpath(path)
    folders = os.path.realpath(os.path.dirname(other)), os.path.dirname(os.path.realpath(other))
    if any(real.startswith(os.path.join(folder, "")) for folder in folders):
        return True
    blob_, blob = blob_of(other), blob_of(path)
    if blob_ is None or blob is None or os.path.dirname(blob_) != os.path.dirname(blob):
        return False
    return real == blob or is_shared(real, blob)


def refuse_loop(error: OSError, path: str) -> None:
    """Raise `NotRegularFileError` where a file could not be opened because it is a link that leads to itself."""
    if error.errno == errno.ELOOP:
        what = "this file of the model is a link that leads to itself, expected a file: replace or remove it"
        raise NotRegularFileError(what, path=path) from None


def read_small(path: str, trust: Any = None) -> bytes | None:
    """Return the content of a small file, or None when there is none. `trust` has the digest that it must have."""
    try:
        source = from_path(path, "copy")
    except FileNotFoundError:
        return None
    except OSError as error:
        refuse_loop(error, path)
        raise
    try:
        Limits().check("max_header_bytes", source.size, "size of the file")
        if trust is not None:
            trust.admit(source, Limits())
        return source.pread(0, source.size)
    except TensorFileError as error:
        raise error.located(path=path) from None
    finally:
        source.close()
