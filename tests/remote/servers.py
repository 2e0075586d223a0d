"""Object stores for tests: a server of HTTP ranges, and stores with obstore's interface, all with faults on demand."""

import asyncio
import datetime as dt
import posixpath
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote

from tests.support import HANG

__all__ = ["AsyncStore", "Objects", "Request", "Server", "Stored", "Virtual"]

MODIFIED = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


class Request(NamedTuple):
    """A request; `target` is its form at a server."""

    key: str
    begin: int
    end: int
    if_match: str | None
    head: bool = False
    target: str = ""


class Virtual:
    """An object of many zeros behind a few bytes."""

    def __init__(self, head, size):
        self._head, self._size = head, size

    def __len__(self):
        return self._size

    def __getitem__(self, part):
        start, stop, _ = part.indices(self._size)
        found = self._head[start:stop]
        return found + bytes(stop - start - len(found))


class Objects:
    def __init__(self, objects):
        self.objects = dict(objects)
        self.requests = []
        self.faults = []
        self.always = ""
        self.etags = {}
        self.modified = MODIFIED
        self.conditional = True
        self.redirect = "/elsewhere"
        self.headers = {}
        self.outlasted = False  # whether a reader listened to the end of a trickle
        self.released = threading.Event()  # the event that ends a stalled request
        self.entered = lambda: None
        self.stuck = lambda: None  # called when a request is stalled
        self._lock = threading.Lock()

    def next_fault(self):
        with self._lock:
            return self.faults.pop(0) if self.faults else self.always

    def etag(self, key):
        return self.etags.get(key, '"1"')

    @property
    def nbytes(self):
        return sum(min(r.end, len(self.objects[r.key])) - r.begin for r in self.requests if not r.head)


def deadlines_pass_when_stuck(objects, monkeypatch):
    """Let the deadline of a request pass only when it is stalled: no request can be too slow for it."""
    real, newest = asyncio.timeout, []

    def timeout(_):
        newest[:] = asyncio.get_running_loop(), real(None)
        return newest[1]

    def stuck():
        loop, deadline = newest
        loop.call_soon_threadsafe(lambda: deadline.reschedule(loop.time()))

    monkeypatch.setattr(asyncio, "timeout", timeout)
    objects.stuck = stuck


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_HTTPServer"

    def log_message(self, *_):
        """Print nothing."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
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

    def _trickle(self):
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 206 Partial Content\r\nX: ")
        for _ in range(100 * HANG):
            self.wfile.write(b"x")
            self.wfile.flush()
            self.server.objects.released.wait(0.01)
        self.server.objects.outlasted = True

    def _object(self, key, begin, end, fault):
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

    def _range(self, data, begin, end, etag, fault):
        body, shift = data[begin:end], 7 if fault == "elsewhere" else 0
        span = None if fault == "silent" else f"bytes {begin + shift}-{end - 1 + shift}/{len(data)}"
        if fault == "stall":
            self.server.objects.stuck()
            self.server.objects.released.wait(HANG)
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
            self.server.objects.stuck()
            self.server.objects.released.wait(HANG)
        elif fault.startswith("chunk of "):
            self.wfile.write(f"{fault.removeprefix('chunk of ')}\r\n".encode() + body)
        else:
            self.wfile.write(body)

    def _answer(self, status, body=b"", **headers):
        location = self.server.objects.redirect if 300 <= status < 400 else None
        self._head(status, len(body), Location=location, **headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status, length, **headers):
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

    def handle_error(self, *_):
        """Print nothing of readers that went away."""


class Server:
    def __init__(self, objects):
        self._server = _HTTPServer(("127.0.0.1", 0), _Handler)
        self._server.objects = objects
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}/"
        self._objects = objects

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._objects.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class GenericError(Exception):
    __module__ = "obstore.exceptions"


class PreconditionError(Exception):
    """The exception of that name in obstore."""


class _Answer:
    def __init__(self, meta, span, body, fault):
        self.meta, self.range = meta, span
        self._body, self._fault = body, fault

    def __iter__(self):
        yield self._body[: len(self._body) // 2]
        if self._fault == "reset":
            raise ConnectionResetError("reset with a secret")
        if self._fault != "short":
            yield self._body[len(self._body) // 2 :] + (b"!" if self._fault == "more" else b"")

    async def stream(self, min_chunk_size):
        assert min_chunk_size > 0
        for piece in self:
            yield piece


class Stored:
    def __init__(self, objects):
        self.of = objects

    def get(self, path, *, options):
        begin, end = options.get("range", (0, 0))
        self.of.requests.append(Request(path, begin, end, options.get("if_match"), bool(options.get("head"))))
        self.of.entered()
        fault = self.of.next_fault()
        if fault.isdecimal():
            raise GenericError(f"Server returned non-2xx status code: {fault} with a secret")
        if fault == "stall":
            self.of.stuck()
            self.of.released.wait(HANG)
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

    def list_with_delimiter(self, prefix):
        prefix = f"{prefix}/" if prefix else ""
        below = [key for key in self.of.objects if key.startswith(prefix)]
        folders = {prefix + key[len(prefix) :].partition("/")[0] for key in below if "/" in key[len(prefix) :]}
        objects = [{"path": key} for key in below if "/" not in key[len(prefix) :]]
        return {"common_prefixes": sorted(folders), "objects": objects}


class AsyncStore:
    def __init__(self, objects):
        self._stored = Stored(objects)

    async def get_async(self, path, *, options):
        objects = self._stored.of
        if "stall" in (objects.always, *objects.faults[:1]):
            objects.next_fault()
            objects.stuck()
            try:
                await asyncio.sleep(HANG)
            except asyncio.CancelledError:
                objects.released.set()
                raise
        return self._stored.get(path, options=options)

    async def list_with_delimiter_async(self, prefix):
        return self._stored.list_with_delimiter(prefix)


class Taking(AsyncStore):
    """A store that takes objects; `faults` has the answers to the next requests to write, by status, 0 for none.

    The answer "lost" comes after the object was written. `entered` is called before an object is there.
    """

    def __init__(self, objects, faults=()):
        super().__init__(objects)
        self.objects, self.faults, self.put, self.removed = objects.objects, list(faults), [], []
        self.entered = lambda key: None
        self._tags = objects.etags

    async def put_async(self, key, path, mode="overwrite", chunk_size=5 << 20):
        assert len(path.read_bytes()) <= 10_000 * chunk_size
        fault = self.faults.pop(0) if self.faults else 0
        if fault and fault != "lost":
            raise GenericError(f"Server returned status code: {fault} with a secret")
        self.put.append(key.rpartition("/")[2])
        self.entered(key)
        if mode == "create" and key in self.objects:
            raise type("AlreadyExistsError", (Exception,), {})
        self.objects[key] = path.read_bytes()
        self._tags[key] = f'"{len(self.put)}"'
        if fault:
            raise GenericError("hyper IncompleteBody")
        return {"e_tag": self._tags[key], "version": None}

    async def delete_async(self, key):
        self.removed.append(key)
        del self.objects[key]

    def write(self, key, data):
        """Write an object as another writer does."""
        self.objects[key], self._tags[key] = data, '"another"'
