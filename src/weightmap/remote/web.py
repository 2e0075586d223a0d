"""A store over HTTP, by the standard library: ranges of the objects below an address.

It follows redirects only on request, and never from HTTPS to HTTP. The query of an address, often a signature, goes
only to its server.

``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy`` have the same meaning as for `urllib.request`: requests
to a proxy use HTTP, and CONNECT for HTTPS hosts. Messages repeat no part of a proxy's address, which may hold a
password. Logins of hosts come from ``~/.netrc``.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import http.client
import io
import netrc
import os
import re
import socket
import string
import weakref
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from weightmap.core.bytes import Range
from weightmap.errors import Remedy
from weightmap.remote.fetching import SLOWEST, StoreError, fault_of_status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PORTS = {"http": 80, "https": 443}
_NETRC = ("~/.netrc", "~/_netrc")


class Proxy(NamedTuple):
    """A proxy, and the headers for it."""

    secure: bool
    name: str
    port: int
    headers: dict[str, str]


def proxy_of(scheme: str, host: str) -> Proxy | None:
    """Return the proxy for a host, whose port follows a colon; None without a proxy.

    Raises `StoreError` for a proxy that cannot be used.
    """
    proxies = getproxies()
    address = proxies.get(scheme) or proxies.get("all")
    if not address or proxy_bypass(host):
        return None
    kind, separator, _ = address.partition("://")
    if not separator:
        kind, address = "http", f"http://{address}"
    if kind.lower() not in _PORTS:
        words = f"the environment's proxy for {scheme} is not an HTTP proxy: set {scheme}_proxy, or no_proxy"
        raise StoreError("refused", words)
    try:
        parts = urlsplit(address)
        name, port = parts.hostname, parts.port
    except ValueError:
        name, port = None, None
    if not name or not name.isprintable() or " " in name:
        words = f"the environment's proxy for {scheme} names no host: set {scheme}_proxy, or no_proxy"
        raise StoreError("refused", words)
    headers = {}
    if parts.username is not None:
        headers["Proxy-Authorization"] = _basic(unquote(parts.username), unquote(parts.password or ""))
    return Proxy(parts.scheme == "https", name, _PORTS[parts.scheme] if port is None else port, headers)


def login_of(host: str) -> str | None:
    """Return the ``Authorization`` header for a host from ``~/.netrc``, or from the file that ``NETRC`` names.

    The entry ``default`` is not used: every host that a redirect leads to would get it.
    """
    named = os.environ.get("NETRC")
    for path in (named,) if named else map(os.path.expanduser, _NETRC):
        try:
            entry = netrc.netrc(path).hosts.get(host)
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):  # no file, or a malformed one
            continue
        if entry is not None and host != "default":
            return _basic(entry[0], entry[2] or "")
    return None


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


_CHUNK = 1 << 18
_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK, _PARTIAL = 200, 206
# Statuses of an address whose signature may have expired.
_EXPIRED = frozenset({400, 401, 403, 404, 410})
# Characters of a path that stay unquoted; an address is quoted already.
_SAFE = "/%:@!$&'()*+,;=~-._"
_RANGE = re.compile("bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_LENGTH = re.compile("[0-9]{1,18}")
_TAG = re.compile(r"[^\x00-\x1f\x7f]*")
HOST = re.compile(r"[^\x00-\x20\x7f]+")


class _Answer:
    """The answer to a request: see obstore's GetResult. `readinto1` reads its bytes.

    `close` closes the connection, unless all bytes were read and `give_back` got it.
    """

    def __init__(
        self,
        meta: dict[str, Any],
        span: Range,
        connection: http.client.HTTPConnection,
        response: _Response,
        give_back: Callable[[http.client.HTTPConnection], None],
    ) -> None:
        self.meta = meta
        self.range: Range = span
        self._missing = span.nbytes
        self.linked = False  # whether a redirect brought the file's tag
        self._connection: http.client.HTTPConnection | None = connection
        self._response = response
        self._give_back = give_back

    def readinto1(self, room: memoryview) -> int:
        """Fill memory with bytes that have arrived; return their number, 0 at the end."""
        response, connection = self._response, self._connection
        count = response.receive(room)
        self._missing -= count
        if self._missing <= 0 and connection is not None:
            if response.length:
                raise StoreError("refused", "the answer has more bytes than requested")
            if response.length == 0 and not response.will_close:
                response.close()
                self._connection = None
                self._give_back(connection)
        return count

    def abort(self) -> None:
        """End the answer for a thread that waits for bytes."""
        if self._connection is not None:
            self._response.abort()

    def close(self) -> None:
        """Close the connection, unless it was given back."""
        if self._connection is not None:
            _close(self._connection, self._response)


class _Timed(io.RawIOBase):
    """The bytes of a socket, with a deadline, because a server that sends single bytes could hold a thread for ever."""

    def __init__(self, sock: Any, raw: io.RawIOBase, until: float) -> None:
        self._sock, self._raw, self._until = sock, raw, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._until - monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response with a deadline."""

    def __init__(self, until: float, sock: Any, **options: Any) -> None:
        super().__init__(sock, **options)
        self._sock = sock
        self.fp = io.BufferedReader(_Timed(sock, self.fp.detach(), until))

    def receive(self, room: memoryview) -> int:
        """Read like `read1`, but into memory."""
        if self.fp is None or self.chunked:
            with contextlib.suppress(OverflowError):  # of a wrong size
                piece = self.read1(len(room))
            if self.chunked and (self.chunk_left or 0) < 0:  # the piece may be larger than the room
                raise StoreError("refused", "the answer has a chunk of negative size")
            room[: len(piece)] = piece
            return len(piece)
        count: int = self.fp.readinto1(room if self.length is None else room[: self.length])
        if self.length is not None:
            self.length -= count
        return count

    def abort(self) -> None:
        """End the answer that another thread waits for."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


class _Host(NamedTuple):
    secure: bool
    name: str
    port: int

    @classmethod
    def of(cls, address: str) -> _Host:
        """Return the host of an address. Raises ValueError without a host; its text has no part of the address."""
        try:
            parts = urlsplit(address)
            secure, name, port = parts.scheme == "https", parts.hostname or "", parts.port
            name.encode("idna")
        except ValueError:  # a missing bracket, a port that is not a number, a label that is too long
            secure, name, port = False, "", None
        if HOST.fullmatch(name) is None:
            raise ValueError("names no host that a request can go to")
        usual = http.client.HTTPS_PORT if secure else http.client.HTTP_PORT
        return cls(secure, name, usual if port is None else port)

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection, perhaps through a proxy. Raises `StoreError` for a proxy that cannot be used."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        proxy = proxy_of("https" if self.secure else "http", f"{name}:{self.port}")
        if proxy is None:
            kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
            return kind(self.name, self.port, timeout=timeout)
        if self.secure:
            tunnel = http.client.HTTPSConnection(proxy.name, proxy.port, timeout=timeout)
            tunnel.set_tunnel(self.name, self.port, proxy.headers)
            return tunnel
        forwarding = (_SecureForwarding if proxy.secure else _Forwarding)(proxy.name, proxy.port, timeout=timeout)
        forwarding.base, forwarding.more = f"http://{name}:{self.port}", proxy.headers
        return forwarding


class _Forwarding(http.client.HTTPConnection):
    """A connection to a proxy, whose requests name whole addresses."""

    base: str
    more: dict[str, str]

    def request(self, method: str, url: str, body: Any = None, headers: Any = MappingProxyType({}), **how: Any) -> None:
        super().request(method, self.base + url, body, {**headers, **self.more}, **how)


class _SecureForwarding(_Forwarding, http.client.HTTPSConnection):
    """A connection to a proxy over TLS."""


class WebStore:
    """The objects below an address.

    Parameters
    ----------
    base : str
        The address, which ends with a slash. Without a host, ValueError is raised.
    timeout : float
        Longest wait for the server, in seconds.
    redirects : bool
        Whether to follow redirects.
    query : str
        The query of every address, the part behind the ``?``.
    private : mapping of str to str, optional
        Headers, in lower case, only for the host of the address. With them, redirects are remembered: later requests
        for an object go directly to the target, until it refuses. An answer has the tag of the redirect.
    fault : callable, optional
        ``fault(status, headers)`` returns the error for an answer; by default `fault_of_status`.
    """

    def __init__(
        self,
        base: str,
        timeout: float,
        *,
        redirects: bool = False,
        query: str = "",
        private: Mapping[str, str] | None = None,
        fault: Callable[[int, Any], StoreError] = fault_of_status,
    ) -> None:
        self._base, self._timeout, self._redirects, self._query = base, timeout, redirects, query
        self._private, self._home, self._fault = private, _Host.of(base), fault
        # The target of the redirect for each object, and the object's tag.
        self._moved: dict[str, tuple[str, str | None]] = {}
        self._logins: dict[str, str | None] = {}
        self._idle: dict[_Host, list[http.client.HTTPConnection]] = {}
        self._lock = Lock()
        self._process = os.getpid()
        weakref.finalize(self, _close_all, self._idle)  # runs before objects of a garbage cycle are finalised

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(WebStore, redirects=self._redirects, query=self._query), (self._base, self._timeout)

    def get(self, path: str, *, options: dict[str, Any]) -> _Answer:
        """Request a range of an object, or with ``head`` its metadata: see obstore's `get`.

        The path is percent-encoded.
        """
        headers = {}
        span = Range(*options["range"]) if options.get("range") else None
        if span is not None:
            headers["Range"] = f"bytes={span.begin}-{span.end - 1}"
        if options.get("if_match"):
            headers["If-Match"] = options["if_match"]
        first = self._base + quote(path, safe=_SAFE) + (f"?{self._query}" if self._query else "")
        until = monotonic() + self._timeout + (0 if span is None else span.nbytes / SLOWEST)
        method = "HEAD" if span is None else "GET"
        host, connection, response, address, tag = self._request(method, path, first, headers, until)
        try:
            answer = self._answer(host, connection, response, span)
        except BaseException:
            _close(connection, response)
            raise
        if self._private is not None and tag is not None:
            answer.meta["e_tag"], answer.linked = tag, True
            if address != first:
                self._moved[path] = address, tag
        return answer

    def whole(self, path: str, limit: int) -> bytes:
        """Return the bytes of an object by its quoted path, perhaps with a query. `StoreError` above `limit` bytes."""
        until = monotonic() + self._timeout
        _, connection, response, *_ = self._request("GET", path, self._base + path, {}, until)
        content, room = bytearray(), memoryview(bytearray(_CHUNK))
        try:
            if response.status != _OK:
                raise self._fault(response.status, response.headers)
            while count := response.receive(room):
                content += room[:count]
                if len(content) > limit:
                    raise StoreError("refused", f"the answer has more than {limit:,} bytes")
            if response.length:
                raise http.client.IncompleteRead(b"")
        finally:
            _close(connection, response)
        return bytes(content)

    def _request(
        self, method: str, path: str, first: str, headers: dict[str, str], until: float
    ) -> tuple[_Host, http.client.HTTPConnection, _Response, str, str | None]:
        """Follow redirects; return the answering host, and the address and the tag of the object."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "weightmap", **headers}
        address, tag = self._moved.get(path, (first, None))
        for _ in range(_MAX_REDIRECTS if self._redirects else 1):
            host = _Host.of(address)
            sent = headers if self._private is None or host != self._home else {**headers, **self._private}
            sent = sent if "authorization" in sent else {**sent, **self._login(host)}
            connection, response = self._ask(host, method, address, sent, until)
            expired = path in self._moved and response.status in _EXPIRED
            if not expired and response.status not in _REDIRECTS:
                break
            self._finish(host, connection, response)
            if expired:
                self._moved.pop(path, None)
                address, tag = first, None
            else:
                tag = tag or response.getheader("X-Linked-Etag")
                address = self._followed(address, response.getheader("Location"))
        else:
            raise StoreError("refused", "the server redirects in a circle")
        return host, connection, response, address, tag or response.getheader("X-Linked-Etag")

    def _login(self, host: _Host) -> dict[str, str]:
        if host.name not in self._logins:
            self._logins[host.name] = login_of(host.name)
        login = self._logins[host.name]
        return {} if login is None else {"authorization": login}

    def _finish(self, host: _Host, connection: http.client.HTTPConnection, response: _Response) -> None:
        """Read the short text of an answer, and keep the connection."""
        if response.length is None or response.length > _CHUNK or response.will_close:
            _close(connection, response)
            return
        response.read()
        self._keep(host, connection)

    def _followed(self, address: str, target: str | None) -> str:
        """Return the target of a redirect, if it may be followed."""
        try:
            # http.client decodes the bytes of a header as Latin-1.
            following = urljoin(address, (target or "").encode("latin-1").decode(errors="surrogateescape"))
            parts = urlsplit(following)
        except ValueError:
            raise StoreError("refused", "the server redirects to an invalid address") from None
        if not self._redirects:
            where = f" to {parts.hostname}" if parts.hostname else ""
            remedy = Remedy("{} follows it", "redirects", switch=True)
            raise StoreError("refused", f"the server redirects{where}", remedy=remedy)
        if parts.scheme not in ("http", "https") or (parts.scheme == "http" and _Host.of(address).secure):
            raise StoreError("refused", "the server redirects to an address that is not protected")
        try:
            _Host.of(following)
        except ValueError as error:
            raise StoreError("refused", f"the server redirects to an address that {error}") from None
        return following

    def _ask(
        self, host: _Host, method: str, address: str, headers: dict[str, str], until: float
    ) -> tuple[http.client.HTTPConnection, _Response]:
        parts = urlsplit(address)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        target = quote(target, safe=string.punctuation, errors="surrogateescape")
        while True:
            connection, reused = self._connection(host)
            connection.response_class = partial(_Response, until)  # type: ignore[assignment]
            try:
                connection.request(method, target, headers=headers)
                return connection, connection.getresponse()  # type: ignore[return-value]
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
                if not reused:  # otherwise the server has closed it meanwhile
                    raise
            except BaseException:
                connection.close()
                raise

    def _connection(self, host: _Host) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._process != os.getpid():  # a forked child shares no connection
                self._process = os.getpid()
                _close_all(self._idle)
            idle = self._idle.get(host)
            if idle:
                return idle.pop(), True
        return host.connect(self._timeout), False

    def _answer(
        self,
        host: _Host,
        connection: http.client.HTTPConnection,
        response: _Response,
        span: Range | None,
    ) -> _Answer:
        if response.status not in (_OK, _PARTIAL):
            raise self._fault(response.status, response.headers)
        tag = response.getheader("ETag")
        if tag is not None and _TAG.fullmatch(tag) is None:
            raise StoreError("refused", "the ETag of the answer has control characters")
        modified = _date(response.getheader("Last-Modified"))
        length = _LENGTH.fullmatch(response.getheader("Content-Length") or "")
        if span is None:
            if length is None:
                raise StoreError("refused", "the answer does not state the length of the object")
            size, part = int(length[0]), Range(0, 0)
        elif response.status == _PARTIAL:
            match = _RANGE.fullmatch(response.getheader("Content-Range") or "")
            if match is None:
                raise StoreError("refused", "the answer does not state its range of bytes")
            first, last, size = map(int, match.groups())
            part = Range(first, last + 1)
        elif self._private is not None and not span.begin and length is not None and int(length[0]) <= span.end:
            size = int(length[0])  # the Hub may send a small file whole
            part = Range(0, size)
        else:
            raise StoreError("refused", "the server ignores ranges: download the object, and open that")
        meta = {"e_tag": tag, "last_modified": modified, "size": size}
        return _Answer(meta, part, connection, response, partial(self._keep, host))

    def _keep(self, host: _Host, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for the next request."""
        with self._lock:
            self._idle.setdefault(host, []).append(connection)


def _close(connection: http.client.HTTPConnection, response: _Response) -> None:
    """Close a connection, and its response, which holds the connection if the server ends it after this answer."""
    response.close()
    connection.close()


def _close_all(idle: dict[_Host, list[http.client.HTTPConnection]]) -> None:
    """Close connections."""
    while idle:
        for connection in idle.popitem()[1]:
            connection.close()


def _date(text: str | None) -> dt.datetime | None:
    """Return the time in a header, or None. Raises `StoreError` for a malformed time."""
    if not text:
        return None
    try:
        time = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # includes impossible years and zones
        raise StoreError("refused", "the answer's Last-Modified is not a date") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
