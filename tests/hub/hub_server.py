"""A Hub for tests: repositories of files by commit, which it redirects to a second server; faults on demand."""

import contextlib
import functools
import hashlib
import json
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote

from tests.support import HANG

__all__ = ["Asked", "Hub", "git_hash", "sha256"]

# Larger files are stored elsewhere, as LFS files are.
SMALL = 600


@functools.lru_cache(1024)
def sha256(data):
    """The digest of a large file."""
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(1024)
def git_hash(data):
    """The digest of a small file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Asked(NamedTuple):
    """A request: "api", "resolve" or "data", for a file; the bytes of its answer, and the header with the token."""

    what: str
    path: str
    nbytes: int
    token: str | None


class Hub:
    """A Hub, and the server of large files that it redirects to, on the loopback."""

    def __init__(self):
        # By name, and then by revision: the files of a commit.
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        # By repository, the tokens that may read it; any may where it is missing.
        self.tokens: dict[str, set[str]] = {}
        self.gated: set[str] = set()  # repositories whose conditions nobody has accepted
        # By kind of request: status and headers for the next ones; 0 cuts the body in half, None is no fault.
        self.faults: dict[str, list[tuple[int, dict[str, str]] | None]] = defaultdict(list)
        self.together: threading.Barrier | None = None  # for the first requests for bytes of large files
        self.held_from: int | None = None  # requests for bytes of large files from there on wait for `released`
        self.released = threading.Event()
        # By repository: the answer that replaces the list of its files; or a function that returns its pieces.
        self.listings: dict[str, object] = {}
        self.signed = 0  # how often addresses expired
        self.etags: dict[str, str] = {}  # wrong digests for files
        self.spoilt: set[str] = set()  # digests of files whose bytes are wrong
        self.asked: list[Asked] = []
        self._lock = threading.Lock()
        self._servers: list[ThreadingHTTPServer] = []
        for handler in (_Front, _Data):
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads, server.request_queue_size = True, 256
            server.socket.listen(256)
            server.hub = self
            server.handle_error = lambda *_: None
            self._servers.append(server)
        self.url, self.data_url = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def commit(self, name, revision):
        """The commit of a revision, and its files."""
        for branch, files in self.repositories[name].items():
            commit = git_hash(f"{name} {branch}".encode())
            if revision in {branch, commit}:
                return commit, files
        return None

    def take(self, what, path, nbytes, token):
        with self._lock:
            self.asked.append(Asked(what, path, nbytes, token))
            faults = self.faults[what]
            fault = faults.pop(0) if faults else None
            number = sum(asked.what == "data" for asked in self.asked)
        if self.together is not None and what == "data" and 1 < number <= 1 + self.together.parties:
            self.together.wait(HANG)
        return fault

    def count(self, what):
        return sum(asked.what == what for asked in self.asked)

    def __enter__(self):
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.released.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def hub(self):
        return self.server.hub

    def log_message(self, *_):
        """Print nothing."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        """Answer."""
        raise NotImplementedError

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def ranged(self, what, path, data, **headers):
        """Answer with a range of bytes, or with all."""
        begin, end, status = 0, len(data), 200
        if (span := self.headers.get("Range")) and self.command == "GET":
            first, _, last = span.removeprefix("bytes=").partition("-")
            begin, end, status = int(first), min(int(last) + 1 if last else end, end), 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        fault = self.hub.take(what, path, end - begin, self.headers.get("Authorization"))
        if what == "data" and self.hub.held_from is not None and begin >= self.hub.held_from:
            self.hub.released.wait(HANG)
        if fault is not None and fault[0] == 0:  # the body is cut
            self.send_response(status)
            for name, value in {"Content-Length": str(end - begin), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data[begin : begin + (end - begin) // 2])
            self.close_connection = True
        elif fault is not None:
            self.answer(fault[0], b"secret", **fault[1])
        else:
            self.answer(status, data[begin:end], **headers)


class _Front(_Handler):
    def do_GET(self):
        """Answer about a repository, or redirect to the bytes of a file."""
        hub, path = self.hub, unquote(self.path.partition("?")[0])
        path = path.strip("/")
        if path.startswith(("api/models/", "api/datasets/", "api/spaces/")):
            name, _, revision = path.removeprefix("api/").removeprefix("models/").partition("/revision/")
            self._about(name, revision or "main")
            return
        name, _, rest = path.partition("/resolve/")
        revision, _, file = rest.partition("/")
        if self._refuses(name):
            return
        if name in hub.gated:
            hub.take("resolve", file, 0, self.headers.get("Authorization"))
            self.answer(403, X_Error_Code="GatedRepo")
            return
        found = hub.commit(name, revision)
        if found is None or file not in found[1]:
            self.answer(404, X_Error_Code="EntryNotFound")
            return
        commit, data = found[0], found[1][file]
        if len(data) <= SMALL:
            self.ranged("resolve", file, data, ETag=f'"{git_hash(data)}"', X_Repo_Commit=commit)
            return
        fault = hub.take("resolve", file, 0, self.headers.get("Authorization"))
        if fault is not None:
            self.answer(fault[0], b"secret", **fault[1])
            return
        where = f"{hub.data_url}/{sha256(data)}?sign={hub.signed}"
        etag = f'"{hub.etags.get(file, sha256(data))}"'
        told = {"X_Linked_Etag": etag, "X_Linked_Size": str(len(data)), "X_Repo_Commit": commit}
        self.answer(302, b"moved", Location=where, **told)

    def _about(self, name, revision):
        fault = self.hub.take("api", name, 0, self.headers.get("Authorization"))
        if fault is not None:
            self.answer(fault[0], b"{}", **fault[1])
            return
        if self._refuses(name):
            return
        listing = self.hub.listings.get(name)
        if callable(listing):
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):
                for piece in listing():
                    self.wfile.write(piece)
            return
        if listing is not None:
            self.answer(200, listing, Content_Type="application/json")
            return
        found = self.hub.commit(name, revision)
        if found is None:
            self.answer(404, X_Error_Code="RevisionNotFound")
            return
        siblings = []
        for file, data in found[1].items():
            entry = {"rfilename": file, "size": len(data), "blobId": git_hash(data)}
            if len(data) > SMALL:
                entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        about = {"id": name, "sha": found[0], "siblings": siblings, "lastModified": "2026-01-02T03:04:05.000Z"}
        self.answer(200, json.dumps(about).encode(), Content_Type="application/json")

    def _refuses(self, name):
        tokens = self.hub.tokens.get(name)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if name in self.hub.repositories and (tokens is None or token in tokens):
            return False
        self.answer(401 if name not in self.hub.repositories or not token else 403, X_Error_Code="RepoNotFound")
        return True


class _Data(_Handler):
    def do_GET(self):
        """Answer with a range of a file, by its digest."""
        digest, _, sign = self.path.strip("/").partition("?sign=")
        every = [files for branches in self.hub.repositories.values() for files in branches.values()]
        data = next((data for files in every for data in files.values() if sha256(data) == digest), None)
        if data is None:
            self.hub.take("elsewhere", self.path, 0, self.headers.get("Authorization"))
            self.answer(404)
            return
        if sign != str(self.hub.signed):
            self.hub.take("data", digest, 0, self.headers.get("Authorization"))
            self.answer(403)
            return
        data = bytes(len(data)) if digest in self.hub.spoilt else data
        self.ranged("data", digest, data, ETag='"of the other server"')
