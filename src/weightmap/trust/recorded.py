"""Digests that lie beside a model: what `trust="recorded"` asks.

``SHA256SUMS`` in the model's folder; ``NAME.sha256`` and Git LFS pointers, called ``NAME`` and any suffix, beside a
file; the name of the blob that a hub cache links a file to (``models--o--n/snapshots/REVISION/NAME`` to
``models--o--n/blobs/DIGEST``); and the ETag that huggingface_hub keeps of a file that it downloaded to a folder
(``FOLDER/.cache/huggingface/download/NAME.metadata``, whose second line it is).
"""

from __future__ import annotations

import os
import stat

from weightmap.errors import TrustError
from weightmap.io.names import blob_of
from weightmap.io.open_source import is_missing
from weightmap.trust.lists import MOST, ONLY, Digest, Digests, add, of_etag, of_file, of_pointer, of_sums

SUMS = "SHA256SUMS"
SUFFIX = ".sha256"
_DOWNLOADS = os.path.join(".cache", "huggingface", "download")
# Folders above a model's that may be the one that it was downloaded to.
_ABOVE = 4
_SMALL = 1 << 16


def is_list(path: str) -> bool:
    """Whether a file holds digests of others: it needs none itself."""
    if os.path.basename(path) == SUMS or path.endswith(SUFFIX):
        return True
    raw = read_list(path, _SMALL) if os.path.isfile(path) and os.stat(path).st_size <= _SMALL else None
    return raw is not None and of_pointer(raw, path) is not None


def read_list(path: str, most: int = MOST) -> bytes | None:
    """Return the content of a file of digests; None if there is none. Raises `TrustError` for one that is too large."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TrustError("this is no regular file, and a list of digests is", path=path)
            raw = file.read(most + 1)
    except OSError as error:
        if is_missing(error):
            return None
        raise
    if len(raw) > most:
        raise TrustError("a list of digests is too large", path=path, expected=f"at most {most} bytes")
    return raw


def listed_in(folder: str) -> Digests:
    """Return the digests in the ``SHA256SUMS`` of a folder."""
    path = os.path.join(folder, SUMS)
    raw = read_list(path)
    return {} if raw is None else of_sums(raw, path)


def beside(folder: str, name: str) -> Digests:
    """Return what is recorded of one file of a model, apart from ``SHA256SUMS``."""
    found: Digests = {}
    path = os.path.join(folder, *name.split("/"))
    for digest in (_blob(path), _download(folder, name), *_neighbours(path)):
        if digest is not None:
            add(found, name, digest)
    return found


def _neighbours(path: str) -> list[Digest]:
    """Return the digests in ``NAME.sha256`` and in pointers beside a file."""
    found: list[Digest] = []
    at, own = os.path.split(path)
    raw = read_list(path + SUFFIX)
    if raw is not None:
        origin = path + SUFFIX
        lists = of_file(raw, origin)
        if lists.keys() - {ONLY, own}:
            raise TrustError("this list names another file than its own name does", path=origin)
        found += [digest for digests in lists.values() for digest in digests]
    for name in sorted(os.listdir(at)):
        if name.startswith(f"{own}.") and not name.endswith((SUFFIX, ".metadata")):
            other = os.path.join(at, name)
            status = os.stat(other)
            if stat.S_ISREG(status.st_mode) and status.st_size <= _SMALL:
                pointer = of_pointer(read_list(other, _SMALL) or b"", other)
                found += [] if pointer is None else [pointer]
    return found


def _blob(path: str) -> Digest | None:
    """Return the digest that a hub cache calls a file by."""
    blob = blob_of(path)
    return None if blob is None else of_etag(os.path.basename(blob), blob)


def _download(folder: str, name: str) -> Digest | None:
    """Return the digest that huggingface_hub noted of a file that it downloaded to a folder."""
    for _ in range(_ABOVE):
        path = os.path.join(folder, _DOWNLOADS, *name.split("/")) + ".metadata"
        raw = read_list(path, _SMALL)
        if raw is not None:
            lines = os.fsdecode(raw).split("\n")
            if len(lines) < 2:
                raise TrustError("the metadata of a download has no ETag", path=path)
            return of_etag(lines[1], path)
        above, own = os.path.split(folder)
        if not own:
            return None
        folder, name = above, f"{own}/{name}"
    return None
