"""From a URL, or a store and a key in it, to a `Location`: which store serves it, and how it is asked."""

from __future__ import annotations

import math
import os
from typing import Any
from urllib.parse import urlsplit

from weightmap.arguments import as_float, as_integer
from weightmap.errors import MissingDependencyError
from weightmap.io.fetching import Access
from weightmap.io.location import Location

__all__ = ["CONCURRENCY", "DEADLINE", "SCHEMES", "locate"]

CONCURRENCY, DEADLINE = 16, 60.0
# The class, what the first part of an address is, and what variables of the environment begin with.
_OF_OBSTORE = {
    "s3": ("S3Store", "bucket", "AWS"),
    "gs": ("GCSStore", "bucket", "GOOGLE"),
    "az": ("AzureStore", "container", "AZURE"),
}
SCHEMES = (*_OF_OBSTORE, "https", "http")


def locate(
    path: str,
    *,
    store: Any = None,
    concurrency: int | None = None,
    deadline: float | None = None,
    redirects: bool = False,
) -> Location | str:
    """Return where an object lies; a path of another scheme, and without a store, is a file's.

    Raises
    ------
    ValueError
        For an address with a name and a password, and for bounds that let no request through. The message has no part
        of either.
    MissingDependencyError
    """
    scheme, found, rest = path.partition("://")
    scheme = scheme.lower()
    if store is None and scheme not in SCHEMES:
        return path
    count = CONCURRENCY if concurrency is None else as_integer("concurrency", concurrency)
    seconds = DEADLINE if deadline is None else as_float("deadline", deadline)
    if count < 1:
        raise ValueError(f"concurrency is {count}, expected at least 1")
    if not 0 < seconds < math.inf:
        raise ValueError(f"deadline is {seconds}, expected a positive number of seconds")
    if not found:
        return Location(path.lstrip("/"), Access(store, count, seconds), "")
    host, _, key = rest.partition("/")
    if "@" in host:
        raise ValueError(f"the {scheme} address has a name or a password in it: give these to the store, as store=")
    base, query = f"{scheme}://{host}/", ""
    if scheme in {"https", "http"}:
        parts = urlsplit(path)
        key, query = parts.path.lstrip("/"), parts.query
    if store is None:
        if not host:
            raise ValueError(
                f"the {scheme} address names no {_OF_OBSTORE[scheme][1] if scheme in _OF_OBSTORE else 'host'}"
            )
        store = _store_of(path, scheme, host, base, seconds, redirects=redirects, query=query)
    else:
        base += _prefix_of(store, key)
    return Location(base + key.removeprefix(base.split("/", 3)[3]), Access(store, count, seconds), base)


def _prefix_of(store: Any, key: str) -> str:
    """Return the beginning of a key that a store knows already."""
    prefix = getattr(store, "prefix", None)
    if isinstance(prefix, str) and prefix:
        prefix = prefix.strip("/") + "/"
        if key.startswith(prefix):
            return prefix
    return ""


def _store_of(path: str, scheme: str, host: str, base: str, deadline: float, *, redirects: bool, query: str) -> Any:
    """Return the store for an address, with the credentials that its environment has."""
    if scheme not in _OF_OBSTORE:
        from weightmap.io.web import WebStore  # noqa: PLC0415 - others need none of it

        return WebStore(base, deadline, redirects=redirects, query=query)
    try:
        from obstore import store as stores  # noqa: PLC0415 - an extra, and 50 ms
    except ImportError:
        msg = (
            f"{scheme}:// addresses need obstore, the extra [remote]: pip install obstore, or '.[remote]' in a checkout"
        )
        raise MissingDependencyError(msg, path=path) from None
    # Attempts and time are bounded by `Access`; credentials are asked for by the store itself.
    kind, _, prefix = _OF_OBSTORE[scheme]
    plain = os.environ.get(f"{prefix}_ALLOW_HTTP", "").lower() in {"true", "1", "yes", "on"}
    client = {"timeout": "1d", "connect_timeout": "10s", "allow_http": plain}
    made: Any = getattr(stores, kind)
    return made(host, retry_config={"max_retries": 0}, client_options=client)
