"""Repositories of the Hugging Face Hub as stores: ``hf://owner/name[@revision][/path]``.

huggingface_hub, the extra ``[hub]``, provides endpoint, token, offline switch and cache. Our own client, which has
deadlines, sends the requests. One request resolves a revision to a commit, and lists all its files with their digests;
further requests fetch ranges of files of this commit. The Hub redirects requests for large files to signed addresses of
other hosts, which get no token; later ranges of a file are requested there directly.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
import os
import re
import time
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from weightmap._messages import counted
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.open_source import read_small, stays_inside
from weightmap.core.bytes.sink import WritePlan
from weightmap.errors import AddressError, MissingDependencyError, Remedy, TensorFileError
from weightmap.remote.fetching import ATTEMPTS, MORE_TIME, TOO_LONG, Access, StoreError, fault_of_status, pause
from weightmap.remote.location import Location
from weightmap.remote.web import WebStore, login_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_KINDS = {"datasets": "dataset", "spaces": "space"}
_FORM = "hf://owner/name[@revision][/path]"
_COMMIT = re.compile("[0-9a-f]{40}")
# Digests from the Hub: SHA-256, or git's SHA-1 for a small file.
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_FILE_BYTES = 1 << 63
# As `Limits.max_header_bytes`.
_MAX_LISTING_BYTES = 100_000_000
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class Entry(NamedTuple):
    """A file of a repository: its size and digest; the digest is None if only the cache has the file."""

    size: int
    digest: str | None


class _Snapshot(NamedTuple):
    """The files of a commit.

    Attributes
    ----------
    commit : str
    files : mapping of str to Entry
        The files, by plain relative paths.
    odd : tuple of str
        Names that are not plain relative paths: never used for reading or writing.
    modified : datetime or None
    offline : str
        The reason why the Hub was not asked; empty if it was.
    """

    commit: str
    files: Mapping[str, Entry]
    odd: tuple[str, ...]
    modified: dt.datetime | None
    offline: str

    @classmethod
    def of(cls, listing: Any, commit: str | None) -> _Snapshot:
        """Return the snapshot in the Hub's answer about a revision or a commit.

        Raises an exception of any class for a malformed answer.
        """
        sha, modified = listing["sha"], listing.get("lastModified")
        if not isinstance(sha, str) or _COMMIT.fullmatch(sha) is None or commit not in (None, sha):
            raise ValueError("commit")
        if modified is not None:
            modified = dt.datetime.fromisoformat(modified)
            modified.timestamp()
        files: dict[str, Entry] = {}
        for entry in listing.get("siblings") or ():
            name, size, lfs = entry["rfilename"], entry.get("size"), entry.get("lfs")
            digest = lfs["sha256"] if lfs else entry.get("blobId")
            if not isinstance(name, str):
                raise ValueError("name")  # noqa: TRY004 - all are one fault
            if type(size) not in (int, type(None)) or not 0 <= (size or 0) < _MAX_FILE_BYTES:
                raise ValueError("size")
            if digest is not None and (not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None):
                raise ValueError("digest")
            files[name] = Entry(size or 0, digest)
        plain = {name: files[name] for name in files if _is_text(name) and stays_inside(name)}
        return cls(sha, plain, tuple(files.keys() - plain.keys()), modified, "")


class HubStore:
    """The files of one revision of a repository, fixed at the first request: see obstore's stores.

    Parameters
    ----------
    kind : str
        "model", "dataset" or "space".
    name : str
        Owner and name.
    revision : str, optional
        A branch, tag or commit; by default the main branch.
    deadline : float
        Longest wait for a server, in seconds.
    """

    kind: str
    name: str
    revision: str | None

    def __init__(self, kind: str, name: str, revision: str | None, deadline: float) -> None:
        self.kind, self.name, self.revision, self._deadline = kind, name, revision, deadline
        self._called = f"{kind}s--{name.replace('/', '--')}"
        self._names_commit = revision is not None and _COMMIT.fullmatch(revision) is not None
        self._hub = _library()
        self._lock = Lock()
        self._snapshot: _Snapshot | None = None
        self._web: WebStore | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return HubStore, (self.kind, self.name, self.revision, self._deadline)

    # ------------------------------------------------------------------------------------------------- a commit
    def snapshot(self, _: str = "") -> _Snapshot:
        """Return the files of the revision, resolved at the first call. Raises `StoreError`."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = self._requested()
            return self._snapshot

    def _requested(self) -> _Snapshot:
        if self._hub.is_offline_mode():
            return self._offline("the Hub is switched off by HF_HUB_OFFLINE")
        failed, path = 0, f"api/{self.kind}s/{self.name}"
        if self.revision is not None:
            path += f"/revision/{quote(self.revision, safe='')}"
        while True:
            try:
                listing = json.loads(self._client().whole(f"{path}?blobs=true", _MAX_LISTING_BYTES))
                return _Snapshot.of(listing, self.revision if self._names_commit else None)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - what comes of an answer of any bytes
                fault = _fault_of_listing(error)
            failed += 1
            if fault.kind != "again" or failed >= ATTEMPTS:
                if fault.kind == "again" and fault.words.startswith("the Hub"):
                    return self._offline(fault.words, fault.remedy)
                raise fault from None
            time.sleep(pause(failed, fault.after))

    def _client(self) -> WebStore:
        """Return the client for the endpoint of the Hub, with the token."""
        if self._web is None:
            headers = self._hub.utils.build_hf_headers(library_name="weightmap", **self._login)
            headers = {name.lower(): value for name, value in headers.items()}
            base = f"{self._hub.constants.ENDPOINT}/"
            # The function must not hold this store, whose end closes its connections.
            fault = partial(_fault_of_answer, self._hub, self.kind, self.name, self.revision or "main")
            self._web = WebStore(base, self._deadline, redirects=True, private=headers, fault=fault)
        return self._web

    def _offline(self, why: str, remedy: Remedy | None = None) -> _Snapshot:
        """Return the cached files of the revision; raise `StoreError` if the cache does not have it."""
        folder, revision = self.folder, self.revision or "main"
        try:
            commit = (read_small(os.path.join(folder, "refs", revision)) or b"").decode().strip() or revision
        except (OSError, UnicodeDecodeError, TensorFileError):
            commit = revision
        root = os.path.join(folder, "snapshots", commit)
        if _COMMIT.fullmatch(commit) is None or not os.path.isdir(root):
            words = f"{why}, and the cache has no revision {revision!r} of {self.name}"
            raise StoreError("refused", words, remedy=remedy)
        # `rglob` takes a folder without permission for an empty one; `listdir` raises.
        paths = [path for path in Path(root).rglob("*") if path.is_file()] if os.listdir(root) else []
        files = {path.relative_to(root).as_posix(): Entry(path.stat().st_size, None) for path in paths}
        return _Snapshot(commit, files, (), None, why)

    @property
    def folder(self) -> str:
        """The folder of the repository in the cache."""
        return os.path.join(self._hub.constants.HF_HUB_CACHE, self._called)

    @property
    def _login(self) -> dict[str, Any]:
        """The endpoint's login from ``~/.netrc``, if there is no token, as arguments for huggingface_hub."""
        host = urlsplit(self._hub.constants.ENDPOINT).hostname or ""
        login = None if self._hub.get_token() else login_of(host)
        return {} if login is None else {"token": False, "headers": {"authorization": login}}

    @contextlib.contextmanager
    def locked(self, digest: str) -> Iterator[bool]:
        """Hold huggingface_hub's lock of a cached blob; yield False while another process holds it."""
        path = os.path.join(self._hub.constants.HF_HUB_CACHE, ".locks", self._called, f"{digest}.lock")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        from filelock import FileLock, Timeout  # noqa: PLC0415 - huggingface_hub's

        lock = FileLock(path, mode=0o664)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def note_commit(self, commit: str) -> None:
        """Note in the cache the commit of the revision."""
        revision = self.revision or "main"
        if revision == commit:
            return
        path = os.path.join(self.folder, "refs", *revision.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        raw = commit.encode()
        write_plan(path, WritePlan(len(raw), lambda sink: sink.write(raw)), durable=False)

    def location(self, sibling: Location, key: str) -> Location:
        """Return the location of a file, given the location of another one."""
        return Location(sibling.base + key, sibling.access, sibling.base, encoded=False)

    def cached(self, key: str) -> str | None:
        """Return the path of a cached file, or None. If the revision is a commit, the Hub is not asked."""
        commit = self.revision if self._names_commit else self.snapshot().commit
        query: dict[str, Any] = {"revision": commit, "repo_type": self.kind}
        path = self._hub.try_to_load_from_cache(self.name, key, **query)
        return path if isinstance(path, str) and os.path.isfile(path) else None

    def digest(self, key: str) -> str | None:
        """Return the digest of a file: SHA-256, or git's SHA-1 for a small file; None if unknown."""
        entry = self.snapshot().files.get(key)
        return None if entry is None else entry.digest

    def offline(self, _: str = "") -> str:
        """Return the reason why files may be missing if the Hub was not asked, else an empty text."""
        why = self.snapshot().offline
        if not why:
            return ""
        folder = Path(self.folder)
        partial_files = [*folder.glob("blobs/*.incomplete"), *folder.glob("incomplete/*")]
        begun = f": {counted(len(partial_files), 'download')} of it did not end" if partial_files else ""
        return f"{why}, and the cache has a part of this revision{begun}; download it again"

    # ------------------------------------------------------------------------------------------------- its files
    def get(self, path: str, *, options: dict[str, Any]) -> Any:
        """Request a range of a file, or with ``head`` its metadata: see obstore's `get`."""
        snapshot = self.snapshot()
        entry = snapshot.files.get(path)
        if entry is None:
            words = f"{self.name} has no such file at revision {snapshot.commit[:12]}"
            if snapshot.offline:
                words = f"{snapshot.offline}, and the cache does not have it"
            raise StoreError("missing", words, specific=True)
        meta = {"size": entry.size, "e_tag": f'"{entry.digest}"', "last_modified": snapshot.modified}
        if "range" not in options:
            return _Metadata(meta)
        if snapshot.offline:
            raise StoreError("refused", f"{snapshot.offline}, and the cache does not have it")
        if options["range"][0] >= entry.size:
            raise StoreError("beyond", "there are no such bytes")
        base = f"{self._hub.constants.ENDPOINT}/"
        address = self._hub.hf_hub_url(self.name, path, repo_type=self.kind, revision=snapshot.commit)
        answer = self._client().get(address.removeprefix(base), options={"range": options["range"]})
        tag = (answer.meta["e_tag"] or "").removeprefix("W/").strip('"')
        # A signed address answers with its own tag; the Hub's redirect has the file's tag.
        if answer.meta["size"] != entry.size or (answer.linked and entry.digest and tag != entry.digest):
            answer.close()
            raise StoreError("changed", "the Hub's answer has another size or digest than its list of files")
        answer.meta |= meta
        return answer

    def list_with_delimiter(self, prefix: str) -> dict[str, Any]:
        """List the files and folders directly below a prefix."""
        prefix = f"{prefix}/" if prefix else ""
        below = [key for key in self.snapshot().files if key.startswith(prefix)]
        folders = {prefix + key[len(prefix) :].partition("/")[0] for key in below if "/" in key[len(prefix) :]}
        objects = [{"path": key} for key in below if "/" not in key[len(prefix) :]]
        return {"common_prefixes": sorted(folders), "objects": objects}


def _fault_of_listing(error: Exception) -> StoreError:
    """Return the error for an exception of the client, or for a malformed answer of the Hub."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError):
        return StoreError("again", f"the Hub {TOO_LONG}", remedy=MORE_TIME)
    if isinstance(error, OSError | http.client.HTTPException):
        return StoreError("again", "the Hub cannot be reached")
    return StoreError("refused", "the Hub did not answer with the files of a repository: is HF_ENDPOINT a Hub?")


def _fault_of_answer(hub: Any, kind: str, name: str, revision: str, status: int, headers: Any) -> StoreError:
    """Return the error for an answer about a repository, with advice for the user."""
    fault, code = fault_of_status(status, headers), headers.get("X-Error-Code")
    if code == "GatedRepo":
        endpoint = re.sub("//.*@", "//", hub.constants.ENDPOINT)  # without a password
        page = f"{endpoint}/{'' if kind == 'model' else f'{kind}s/'}{name}"
        return StoreError("denied", f"{name} is gated: accept its conditions at {page}, and {_LOG_IN}")
    if code == "RevisionNotFound":
        return StoreError("missing", f"{name} has no revision {revision!r}", specific=True)
    if code == "RepoNotFound" or (status == http.HTTPStatus.UNAUTHORIZED and hub.get_token() is None):
        words = f"the Hub has no repository {name}, or a private one: check the name, or {_LOG_IN}"
        return StoreError("missing", words, specific=True)
    if fault.kind == "denied":
        return StoreError("denied", f"{fault.words}: the token may not read {name}; {_LOG_IN}")
    if status == http.HTTPStatus.TOO_MANY_REQUESTS:
        words = f"{fault.words}: the rate limit of the Hub for {name}; wait some minutes, or {_LOG_IN}"
        return StoreError("again", words, after=fault.after)
    return fault


class _Metadata:
    """An answer without bytes."""

    def __init__(self, meta: dict[str, Any]) -> None:
        self.meta = meta
        self.range = (0, 0)

    def __iter__(self) -> Iterator[bytes]:
        return iter(())


def location(address: str, concurrency: int | None, deadline: float) -> Location:
    """Return the location of a file or folder on the Hub.

    Raises
    ------
    AddressError
        For an address of another form.
    MissingDependencyError
    """
    parts = address.partition("://")[2].split("/")
    kind, prefix = "model", ""
    if parts[0] in _KINDS:
        prefix = f"{parts[0]}/"
        kind = _KINDS[parts.pop(0)]
    if len(parts) < 2 or not parts[0] or not parts[1].partition("@")[0]:
        raise AddressError(f"the hf address names no repository, expected {_FORM}")
    (owner, named), path = parts[:2], parts[2:]
    name, separator, text = named.partition("@")
    if separator and text == "refs" and len(path) > 1:  # the ref of a pull request, or of converted files
        text, path = "/".join(("refs", *path[:2])), path[2:]
    revision = unquote(text)
    key = "/".join(path)
    if separator and not (_is_text(revision) and stays_inside(revision)):
        raise AddressError(f"the hf address has an empty revision or one that Git refuses, expected {_FORM}")
    if key and not (_is_text(key) and stays_inside(key.removesuffix("/"))):
        raise AddressError(f"the hf address has no plain path, expected {_FORM}")
    hub = _library()
    try:
        hub.utils.validate_repo_id(f"{owner}/{name}")
    except hub.utils.HFValidationError:
        raise AddressError(f"no repository of the Hub has such an owner and name, expected {_FORM}") from None
    store = HubStore(kind, f"{owner}/{name}", revision or None, deadline)
    at = f"@{quote(revision, safe='')}" if revision else ""
    base = f"hf://{prefix}{owner}/{name}{at}/"
    return Location(base + key, Access(store, concurrency, deadline), base, encoded=False)


def _is_text(name: str) -> bool:
    """Whether a name can be part of a path and an address: UTF-8, without NUL."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


def _library() -> Any:
    """Return huggingface_hub."""
    try:
        import huggingface_hub.utils  # noqa: PLC0415 - an extra, and 60 ms
    except ImportError:
        msg = "hf:// addresses need huggingface_hub: pip install '.[hub]' in a checkout"
        raise MissingDependencyError(msg) from None
    return huggingface_hub
