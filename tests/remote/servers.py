"""Object stores for tests: a server of HTTP ranges, and stores with obstore's interface, all with faults on demand."""

from __future__ import annotations

import asyncio
import datetime as dt
import posixpath
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import Self

__all__ = ["AsyncStore", "Objects", "Request", "Server", "Stored", "Virtual"]

MODIFIED = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


class Request(NamedTuple):
    """What was asked for; `target` is how a server was asked."""

    key: str
    begin: int
    end: int
    if_match: str | None
    head: bool = False
    target: str = ""


class Virtual:
    """An object of many zeros behind a few bytes."""

    def __init__(self, head: bytes, size: int) -> None:
        self._head, self._size = head, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        found = self._head[start:stop]
        return found + bytes(stop - start - len(found))


class Objects:
    """Objects by key, the requests for them, and the faults that the next requests meet.

    Attributes
    ----------
    faults : list of str
        Taken by one request each: a status such as "503", or "reset", "short", "elsewhere", "whole", "stall", "drip",
        "silent" (no Content-Range), "more", "trickle"; "" for none. `always` stands for every request behind those.
    headers : dict of str to (str or None)
        Headers of every answer of a server, in UTF-8, instead of its own ones.
    etags : dict of str to (str or None)
        '"1"' when a key is missing here.
    conditional : bool
        Whether If-Match is respected.
    """

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = dict(objects)
        self.requests: list[Request] = []
        self.faults: list[str] = []
        self.always = ""
        self.etags: dict[str, str | None] = {}
        self.modified: dt.datetime | None = MODIFIED
        self.conditional = True
        self.redirect: str | None = "/elsewhere"
        self.headers: dict[str, str | None] = {}
        self.outlasted = False  # whether a reader listened to the end of a trickle
        self.released = threading.Event()  # what a stalled request waits for
        self.entered: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def next_fault(self) -> str:
        """The fault of the request at hand."""
        with self._lock:
            return self.faults.pop(0) if self.faults else self.always

    def etag(self, key: str) -> str | None:
        """The ETag of an object."""
        return self.etags.get(key, '"1"')

    @property
    def nbytes(self) -> int:
        """Bytes of all answers so far, if none met a fault."""
        return sum(min(r.end, len(self.objects[r.key])) - r.begin for r in self.requests if not r.head)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HTTPServer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        """Answer without the bytes."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer a request for a range, or meet a fault. As servers do, decode and normalise the path."""
        objects, head = self.server.objects, self.command == "HEAD"
        key = posixpath.normpath(unquote(self.path.partition("?")[0])).lstrip("/")
        begin, end = 0, 0
        if not head:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            begin, end = int(first), int(last) + 1
        objects.requests.append(Request(key, begin, end, self.headers.get("If-Match"), head, self.path))
        objects.entered()
        fault = objects.next_fault()
        if fault == "trickle":
            self._trickle()
        elif fault.isdecimal():
            self._answer(int(fault), b"secret body of the server")
        else:
            self._object(key, begin, end, fault)

    def _trickle(self) -> None:
        """Begin a header that does not end."""
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 206 Partial Content\r\nX: ")
        for _ in range(400):
            self.wfile.write(b"x")
            self.wfile.flush()
            self.server.objects.released.wait(0.01)
        self.server.objects.outlasted = True

    def _object(self, key: str, begin: int, end: int, fault: str) -> None:
        objects, head = self.server.objects, self.command == "HEAD"
        data, etag = objects.objects.get(key), objects.etag(key)
        if data is None:
            self._answer(404)
        elif objects.conditional and self.headers.get("If-Match") not in (None, etag):
            self._answer(412)
        elif head or fault == "whole":
            self._answer(200, data[: len(data)], ETag=etag)
        elif begin >= len(data):
            self._answer(416)
        else:
            self._range(data, begin, min(end, len(data)), etag, fault)

    def _range(self, data: Any, begin: int, end: int, etag: str | None, fault: str) -> None:
        body, shift = data[begin:end], 7 if fault == "elsewhere" else 0
        span = None if fault == "silent" else f"bytes {begin + shift}-{end - 1 + shift}/{len(data)}"
        if fault == "stall":
            self.server.objects.released.wait(60)
        self._head(206, len(body), ETag=etag, **{"Content-Range": span})
        if fault in {"reset", "short"}:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            if fault == "reset":
                self.connection.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER: closing resets
            self.connection.close()
        elif fault == "drip":
            self.wfile.write(body[:1])
            self.wfile.flush()
            self.server.objects.released.wait(60)
        else:
            self.wfile.write(body)

    def _answer(self, status: int, body: bytes = b"", **headers: str | None) -> None:
        location = self.server.objects.redirect if 300 <= status < 400 else None
        self._head(status, len(body), Location=location, **headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, length: int, **headers: str | None) -> None:
        self.send_response(status)
        modified = self.server.objects.modified
        if modified is not None:
            headers["Last-Modified"] = f"{modified:%a, %d %b %Y %H:%M:%S} GMT"
        for name, value in {**headers, "Content-Length": str(length), **self.server.objects.headers}.items():
            if value is not None:
                self.send_header(name, value.encode().decode("latin-1"))
        self.end_headers()


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    objects: Objects

    def handle_error(self, *_: Any) -> None:
        """Print nothing of readers that went away."""


class Server:
    """A server of `Objects` on the loopback."""

    def __init__(self, objects: Objects) -> None:
        self._server = _HTTPServer(("127.0.0.1", 0), _Handler)
        self._server.objects = objects
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}/"
        self._objects = objects

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._objects.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class GenericError(Exception):
    """The exception of that name in obstore."""

    __module__ = "obstore.exceptions"


class PreconditionError(Exception):
    """The exception of that name in obstore."""


class _Answer:
    def __init__(self, meta: dict[str, Any], span: tuple[int, int], body: bytes, fault: str) -> None:
        self.meta, self.range = meta, span
        self._body, self._fault = body, fault

    def __iter__(self) -> Iterator[bytes]:
        yield self._body[: len(self._body) // 2]
        if self._fault == "reset":
            raise ConnectionResetError("reset with a secret")
        if self._fault != "short":
            yield self._body[len(self._body) // 2 :] + (b"!" if self._fault == "more" else b"")

    async def stream(self, min_chunk_size: int) -> AsyncIterator[bytes]:
        assert min_chunk_size > 0
        for piece in self:
            yield piece


class Stored:
    """A store of `Objects`, with the methods of obstore's that wait."""

    def __init__(self, objects: Objects) -> None:
        self.of = objects

    def get(self, path: str, *, options: dict[str, Any]) -> _Answer:
        """Return a range of an object, or meet a fault."""
        begin, end = options.get("range", (0, 0))
        self.of.requests.append(Request(path, begin, end, options.get("if_match"), bool(options.get("head"))))
        self.of.entered()
        fault = self.of.next_fault()
        if fault.isdecimal():
            raise GenericError(f"Server returned non-2xx status code: {fault} with a secret")
        if fault == "stall":
            self.of.released.wait(60)
        if path not in self.of.objects:
            raise FileNotFoundError(path)
        data, etag = self.of.objects[path], self.of.etag(path)
        if self.of.conditional and options.get("if_match") not in (None, etag):
            raise PreconditionError("secret")
        meta = {"size": len(data), "e_tag": etag, "last_modified": self.of.modified}
        if options.get("head"):
            return _Answer(meta, (0, 0), b"", "")
        if begin >= len(data):
            raise OSError("StartTooLarge")
        stop = min(end, len(data))
        shift = 7 if fault == "elsewhere" else 0
        return _Answer(meta, (begin + shift, stop + shift), bytes(data[begin:stop]), fault)

    def list_with_delimiter(self, prefix: str) -> dict[str, Any]:
        """List what lies directly below a prefix."""
        prefix = f"{prefix}/" if prefix else ""
        below = [key for key in self.of.objects if key.startswith(prefix)]
        folders = {prefix + key[len(prefix) :].partition("/")[0] for key in below if "/" in key[len(prefix) :]}
        objects = [{"path": key} for key in below if "/" not in key[len(prefix) :]]
        return {"common_prefixes": sorted(folders), "objects": objects}


class AsyncStore:
    """A store of `Objects`, with those methods of obstore's that are awaited, and no others."""

    def __init__(self, objects: Objects) -> None:
        self._stored = Stored(objects)

    async def get_async(self, path: str, *, options: dict[str, Any]) -> _Answer:
        """Return a range of an object, or meet a fault; "stall" waits until it is cancelled."""
        objects = self._stored.of
        if "stall" in (objects.always, *objects.faults[:1]):
            objects.next_fault()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                objects.released.set()
                raise
        return self._stored.get(path, options=options)

    async def list_with_delimiter_async(self, prefix: str) -> dict[str, Any]:
        """List what lies directly below a prefix."""
        return self._stored.list_with_delimiter(prefix)
