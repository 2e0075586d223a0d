"""A store over HTTP: ranges of what lies below an address, by the standard library.

It follows no redirect unless asked to, from HTTPS never to HTTP, and shows what comes behind the ``?`` of an address,
often a signature, to the server alone.
"""

from __future__ import annotations

import http.client
import os
import re
import weakref
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from weightmap.io.fetching import StoreError, fault_of_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["WebStore"]

_CHUNK = 1 << 18
_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK, _PARTIAL = 200, 206
# Characters of a path that stay as they are: an address is quoted already.
_SAFE = "/%:@!$&'()*+,;=~-._"
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})\Z")


class _Answer:
    """The answer to a request: see obstore's GetResult. Iterating it yields its bytes.

    `close` closes its connection, unless all bytes were taken: then `give_back` has it.
    """

    def __init__(
        self,
        meta: dict[str, Any],
        span: tuple[int, int],
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        give_back: Callable[[http.client.HTTPConnection], None],
    ) -> None:
        self.meta = meta
        self.range = span
        self._connection: http.client.HTTPConnection | None = connection
        self._response = response
        self._give_back = give_back

    def __iter__(self) -> Iterator[bytes]:
        response = self._response
        while piece := response.read1(_CHUNK):
            yield piece
        if response.length == 0 and not response.will_close and self._connection is not None:
            response.close()
            connection, self._connection = self._connection, None
            self._give_back(connection)

    def close(self) -> None:
        """Close the connection, if it is not given back."""
        if self._connection is not None:
            self._response.close()
            self._connection.close()


class _Host(NamedTuple):
    secure: bool
    name: str
    port: int | None

    @classmethod
    def of(cls, address: str) -> _Host:
        parts = urlsplit(address)
        return cls(parts.scheme == "https", parts.hostname or "", parts.port)

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        if not self.secure:
            return http.client.HTTPConnection(self.name, self.port, timeout=timeout)
        return http.client.HTTPSConnection(self.name, self.port, timeout=timeout)


class WebStore:
    """What lies below an address.

    Parameters
    ----------
    base : str
        The address, which ends with a slash.
    timeout : float
        Seconds that the server may let a reader wait.
    redirects : bool
        Whether to follow redirects.
    query : str
        What comes behind the ``?`` of every address.
    """

    def __init__(self, base: str, timeout: float, *, redirects: bool = False, query: str = "") -> None:
        self._arguments = (base, timeout, redirects, query)
        self._base, self._timeout, self._redirects, self._query = self._arguments
        self._idle: dict[_Host, list[http.client.HTTPConnection]] = {}
        self._lock = Lock()
        self._process = os.getpid()
        weakref.finalize(self, _close, self._idle)  # before anything of a cycle of garbage is finalised

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, self._arguments

    def get(self, path: str, *, options: dict[str, Any]) -> _Answer:
        """Ask for a range of an object, or with ``head`` for its metadata: see obstore's `get`."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "weightmap"}
        span = options.get("range")
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        if options.get("if_match"):
            headers["If-Match"] = options["if_match"]
        address = self._base + quote(path, safe=_SAFE) + (f"?{self._query}" if self._query else "")
        for _ in range(_MOST_REDIRECTS if self._redirects else 1):
            host = _Host.of(address)
            connection, response = self._ask(host, "HEAD" if span is None else "GET", address, headers)
            if response.status not in _REDIRECTS:
                break
            connection.close()
            address = self._followed(address, response.getheader("Location"))
        else:
            raise StoreError("refused", "the server redirects in a circle")
        try:
            return self._answer(host, connection, response, span)
        except BaseException:
            connection.close()
            raise

    def _followed(self, address: str, target: str | None) -> str:
        """Return where a redirect leads, if it may be followed."""
        following = urljoin(address, target or "")
        parts = urlsplit(following)
        if not self._redirects:
            where = f" to {parts.hostname}" if parts.hostname else ""
            raise StoreError("refused", f"the server redirects{where}, which redirects=True follows")
        if parts.scheme not in ("http", "https") or (parts.scheme == "http" and address.startswith("https:")):
            raise StoreError("refused", "the server redirects to an address that is not protected")
        return following

    def _ask(
        self, host: _Host, method: str, address: str, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(address)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        while True:
            connection, reused = self._connection(host)
            try:
                connection.request(method, target, headers=headers)
                return connection, connection.getresponse()
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
                if not reused:  # else the server has closed it meanwhile
                    raise
            except BaseException:
                connection.close()
                raise

    def _connection(self, host: _Host) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._process != os.getpid():  # a forked child shares no connection
                self._process = os.getpid()
                _close(self._idle)
            idle = self._idle.get(host)
            if idle:
                return idle.pop(), True
        return host.connect(self._timeout), False

    def _answer(
        self,
        host: _Host,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        span: tuple[int, int] | None,
    ) -> _Answer:
        if response.status not in (_OK, _PARTIAL):
            raise fault_of_status(response.status)
        meta = {"e_tag": response.getheader("ETag"), "last_modified": _date(response.getheader("Last-Modified"))}
        if span is None:
            size = int(response.getheader("Content-Length") or 0)
            return _Answer({**meta, "size": size}, (0, 0), connection, response, self._keeper(host))
        if response.status == _OK:
            raise StoreError("refused", "the server ignores ranges")
        found = _RANGE.match(response.getheader("Content-Range") or "")
        if found is None:
            raise StoreError("refused", "the answer does not say which bytes it has")
        first, last, size = map(int, found.groups())
        return _Answer({**meta, "size": size}, (first, last + 1), connection, response, self._keeper(host))

    def _keeper(self, host: _Host) -> Callable[[http.client.HTTPConnection], None]:
        """Return the function that keeps a connection for the next request."""

        def keep(connection: http.client.HTTPConnection) -> None:
            with self._lock:
                self._idle.setdefault(host, []).append(connection)

        return keep


def _close(idle: dict[_Host, list[http.client.HTTPConnection]]) -> None:
    """Close connections."""
    while idle:
        for connection in idle.popitem()[1]:
            connection.close()


def _made(base: str, timeout: float, redirects: bool, query: str) -> WebStore:  # noqa: FBT001 - of a pickle
    return WebStore(base, timeout, redirects=redirects, query=query)


def _date(text: str | None) -> Any:
    try:
        return parsedate_to_datetime(text or "")
    except ValueError:
        return None
