"""Proxies by the environment, and logins of hosts in ``~/.netrc``.

``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy`` mean what `urllib.request` makes of them: a proxy is
spoken to in HTTP, and asked by CONNECT for hosts of HTTPS. A message repeats no part of a proxy's address, which may
hold a password.
"""

from __future__ import annotations

import base64
import netrc
import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from weightmap.remote.fetching import StoreError

_PORTS = {"http": 80, "https": 443}
_NETRC = ("~/.netrc", "~/_netrc")


class Proxy(NamedTuple):
    """A proxy, and the headers for it."""

    secure: bool
    name: str
    port: int
    headers: dict[str, str]


def proxy_of(scheme: str, host: str) -> Proxy | None:
    """Return the proxy for a host, which has its port behind a colon; None if there is none.

    Raises `StoreError` for one that cannot be used.
    """
    proxies = getproxies()
    address = proxies.get(scheme) or proxies.get("all")
    if not address or proxy_bypass(host):
        return None
    kind, separator, _ = address.partition("://")
    if not separator:
        kind, address = "http", f"http://{address}"
    if kind.lower() not in _PORTS:
        words = f"the environment has a proxy for {scheme} that is none of HTTP: set {scheme}_proxy, or no_proxy"
        raise StoreError("refused", words)
    try:
        parts = urlsplit(address)
        name, port = parts.hostname, parts.port
    except ValueError:
        name, port = None, None
    if not name or not name.isprintable() or " " in name:
        words = f"the environment has a proxy for {scheme} that names no host: set {scheme}_proxy, or no_proxy"
        raise StoreError("refused", words)
    headers = {}
    if parts.username is not None:
        headers["Proxy-Authorization"] = _basic(unquote(parts.username), unquote(parts.password or ""))
    return Proxy(parts.scheme == "https", name, _PORTS[parts.scheme] if port is None else port, headers)


def login_of(host: str) -> str | None:
    """Return the ``Authorization`` for a host that ``~/.netrc`` names, or the file that ``NETRC`` names.

    The entry ``default`` goes to no host: it would go to every one that redirects lead to.
    """
    named = os.environ.get("NETRC")
    for path in (named,) if named else map(os.path.expanduser, _NETRC):
        try:
            entry = netrc.netrc(path).hosts.get(host)
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):  # none, or not one
            continue
        if entry is not None and host != "default":
            return _basic(entry[0], entry[2] or "")
    return None


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
