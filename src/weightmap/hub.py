"""Downloads from the Hugging Face Hub to the cache of huggingface_hub. To open a model without a download: ``hf://``.

The cache has huggingface_hub's layout: in ``models--owner--name``, digests name the ``blobs``, ``snapshots`` of commits
link to blobs, and ``refs`` name the commits of branches. We add one folder: ``incomplete`` holds a file until its
digest agrees, so that ``blobs`` has only good files. A download takes huggingface_hub's lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from weightmap._messages import quoted
from weightmap.core.arguments import as_globs, check_progress, takes
from weightmap.core.bytes.atomic import name_error
from weightmap.core.bytes.open_source import path_of
from weightmap.core.model.typing import Remote
from weightmap.core.native.access import in_threads
from weightmap.errors import AddressError, ChecksumError, NotRegularFileError, RemoteError
from weightmap.remote.hub import Entry, HubStore
from weightmap.remote.location import Location
from weightmap.remote.remote import RemoteSource
from weightmap.remote.stores import location_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["download"]

# Simultaneous files; bytes a piece; seconds between two checks of a file that another process downloads.
_FILES, _PIECE, _LOOK = 4, 1 << 20, 0.05
_SHA256 = 64


def download(
    address: str,
    include: str | Sequence[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    deadline: float | None = None,
) -> str:
    """Download the files of a repository to the cache of huggingface_hub.

    A file appears in the cache only after its digest agrees: SHA-256, or git's digest for a small file. A second call
    resumes an interrupted download. Simultaneous processes share the work.

    Parameters
    ----------
    address : str
        ``hf://owner/name[@revision][/folder]``, or the address of one file.
    include : glob or sequence of globs, optional
        Download only files whose path in the repository matches a glob.
    progress : callable, optional
        Called as ``progress(done, total)``, in bytes.
    deadline : float, optional
        Time limit of a request in seconds, 60 by default; each MiB adds one second.

    Returns
    -------
    str
        The path of the snapshot: the folder of the commit.

    Raises
    ------
    ChecksumError
        When the bytes do not match the file's digest; they are removed.
    AddressError
        When the address has another form.
    FileNotFoundError, PermissionError, RemoteError
        As for `weightmap.open`; FileNotFoundError also when no file matches.
    OSError
        When the cache cannot be written to; the next call resumes from the bytes that have arrived.
    MissingDependencyError
        When huggingface_hub is not installed.
    """
    globs = as_globs("include", include)
    check_progress(progress)
    location = path_of(address) if deadline is None else location_of(os.fspath(address), Remote(deadline=deadline))
    if not isinstance(location, Location) or not isinstance(location.access.store, HubStore):
        raise AddressError("address", actual=quoted(address), expected="one that begins with hf://")
    store, key = location.access.store, location.key.rstrip("/")
    snapshot = location.of_store("snapshot")

    def is_chosen(name: str) -> bool:
        return (not key or name == key or name.startswith(f"{key}/")) and takes(name, globs, None)

    chosen = {name: entry for name, entry in snapshot.files.items() if is_chosen(name)}
    for name in filter(is_chosen, snapshot.odd):
        raise RemoteError(f"the Hub lists a file whose path is not plain: {quoted(name)}", path=str(location))
    if not chosen:
        raise FileNotFoundError(2, "the repository has no such files", str(location))
    root = os.path.join(store.folder, "snapshots", snapshot.commit)
    if not snapshot.offline:
        _Download(store, location, snapshot.commit, chosen, progress).run()
        store.note_commit(snapshot.commit)
    return root


class _Download:
    """The files of one download."""

    def __init__(
        self,
        store: HubStore,
        location: Location,
        commit: str,
        files: dict[str, Entry],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._store, self._location, self._commit, self._progress = store, location, commit, progress
        self._pending = deque(files.items())
        self._total, self._done = sum(entry.size for entry in files.values()), 0
        self._lock = Lock()
        self._failed = False

    def run(self) -> None:
        """Download all files, some at a time."""
        with ThreadPoolExecutor(min(_FILES, len(self._pending))) as pool:
            try:
                for _ in in_threads(pool, lambda _: self._work(), range(min(_FILES, len(self._pending)))):
                    pass
            except BaseException:
                self._failed = True  # after an interrupt too, which workers do not see
                self._location.access.cancel()
                raise

    def _work(self) -> None:
        try:
            while not self._failed:
                with self._lock:
                    if not self._pending:
                        return
                    name, entry = self._pending.popleft()
                if not self._take(name, entry):  # another process downloads this file: try another
                    time.sleep(_LOOK)
                    with self._lock:
                        self._pending.append((name, entry))
        except BaseException:
            self._failed = True
            raise

    def _take(self, name: str, entry: Entry) -> bool:
        """Download a file that the cache lacks; False while another process downloads it."""
        digest, folder = entry.digest, self._store.folder
        if digest is None:
            raise RemoteError(f"the Hub states no digest of {quoted(name)}", path=str(self._location))
        blob = os.path.join(folder, "blobs", digest)
        if not os.path.exists(blob):
            with self._store.locked(digest) as acquired:
                if not acquired:
                    return False
                if os.path.exists(blob):
                    self._tell(entry.size)
                else:
                    partial = os.path.join(folder, "incomplete", digest)
                    try:
                        self._fetch(name, entry, blob, partial)
                    except OSError as error:
                        name_error(error, partial)
                        raise
                    finally:
                        if os.path.exists(partial) and not os.path.getsize(partial):
                            os.unlink(partial)
        else:
            self._tell(entry.size)
        if not self._failed:
            _link(blob, os.path.join(folder, "snapshots", self._commit, *name.split("/")))
        return True

    def _tell(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)

    def _fetch(self, name: str, entry: Entry, blob: str, partial: str) -> None:
        """Download a file to its blob, and continue an earlier download."""
        for path in (blob, partial):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        resumed, digest = self._filled(name, entry, partial)
        if resumed and digest not in (None, entry.digest):  # the old bytes may be damaged: a full or broken disk
            os.unlink(partial)
            self._tell(-entry.size)
            _, digest = self._filled(name, entry, partial)
        if digest is None:
            return
        if digest != entry.digest:
            os.unlink(partial)
            expected = f"{entry.digest}, which the Hub states"
            raise ChecksumError(f"digest of {quoted(name)}", path=str(self._location), actual=digest, expected=expected)
        os.replace(partial, blob)

    def _filled(self, name: str, entry: Entry, partial: str) -> tuple[int, str | None]:
        """Fetch the rest of a partial file; return its earlier size, and its digest or None if another file failed."""
        digest, resumed = _digest_of(entry), 0
        with _opened(partial) as file:
            if file.tell() > entry.size:
                file.truncate(0)
            file.seek(0)
            while piece := file.read(_PIECE):
                digest.update(piece)
                resumed += len(piece)
            self._tell(resumed)
            if resumed < entry.size:
                with contextlib.closing(RemoteSource(self._store.location(self._location, name))) as source:
                    for chunk in source.chunks(resumed, entry.size - resumed, _PIECE):
                        if self._failed:
                            return resumed, None
                        file.write(chunk)
                        digest.update(chunk)
                        self._tell(len(chunk))
            file.flush()
            os.fsync(file.fileno())
        return resumed, digest.hexdigest()


def _opened(partial: str) -> IO[bytes]:
    """Open a partial file for appending; refuse a link, which would lead to another file."""
    no_link = getattr(os, "O_NOFOLLOW", 0)
    try:
        return open(partial, "a+b", opener=lambda path, flags: os.open(path, flags | no_link, 0o666))
    except OSError:
        if not os.path.islink(partial):
            raise
    raise NotRegularFileError("no download is written through a symbolic link: remove it", path=partial)


def _digest_of(entry: Entry) -> Any:
    """Return a new hash object for a file: SHA-256, or git's SHA-1 for a small file."""
    if len(entry.digest or "") == _SHA256:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % entry.size, usedforsecurity=False)


def _link(blob: str, path: str) -> None:
    """Link a snapshot's file to its blob, or copy the blob if the system has no links."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    if os.path.lexists(path):
        if os.path.exists(path) and os.path.samefile(path, blob):
            return
        os.unlink(path)
    try:
        os.symlink(os.path.relpath(blob, folder), path)
    except FileExistsError:  # another process made it
        pass
    except OSError:
        import shutil  # noqa: PLC0415 - for systems without links

        shutil.copyfile(blob, path)
