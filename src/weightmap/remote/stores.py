"""Makes a `Location` from a URL, or from a store and a key in it."""

from __future__ import annotations

import os
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from weightmap.core.arguments import as_float, as_integer
from weightmap.core.model.typing import Remote
from weightmap.errors import AddressError, MissingDependencyError, RemoteError
from weightmap.remote.fetching import Access
from weightmap.remote.location import Location
from weightmap.remote.web import HOST, WebStore

DEADLINE = 60.0
# Class, meaning of the first part of an address, and prefix of the environment variables.
_OF_OBSTORE = {
    "s3": ("S3Store", "bucket", "AWS"),
    "gs": ("GCSStore", "bucket", "GOOGLE"),
    "az": ("AzureStore", "container", "AZURE"),
}
SCHEMES = (*_OF_OBSTORE, "https", "http", "hf")
_USUAL = Remote()


def location_of(path: str, remote: Remote = _USUAL) -> Location | str:
    """Return the location of an object; `path` itself if it names a file, without a store or a scheme of ours.

    Raises
    ------
    AddressError
        For an address with credentials, without a host, or with a key that is not a plain path.
    MissingDependencyError
    """
    scheme, separator, after = path.partition("://")
    scheme = scheme.lower()
    store, unversioned = remote.store, remote.unversioned
    count = None if remote.concurrency is None else as_integer("concurrency", remote.concurrency)
    timeout = DEADLINE if remote.deadline is None else as_float("deadline", remote.deadline)
    if store is None and scheme not in SCHEMES:
        return path
    if store is None and scheme == "hf":
        from weightmap.remote.hub import location  # noqa: PLC0415 - only the Hub needs it

        return location(path, count, timeout)
    if not separator:
        _check_key(path.lstrip("/"))
        return Location(path.lstrip("/"), Access(store, count, timeout, unversioned=unversioned), "", encoded=False)
    host, _, key = after.partition("/")
    query, encoded = "", store is None and scheme not in _OF_OBSTORE
    if scheme in {"https", "http"}:
        host, key, query = _parts_of(path, scheme)
        key = key if encoded else unquote(key)
    if "@" in host:
        raise AddressError(f"the {scheme} address has a name or a password in it: {_credentials(scheme)}")
    if not encoded:
        _check_key(key)
    base = f"{scheme}://{host}/"
    if store is not None:
        base += _prefix_of(store, key)
    elif HOST.fullmatch(host) is None:
        raise _no_host(scheme)
    elif encoded:
        try:
            store = WebStore(base, timeout, redirects=remote.redirects, query=query)
        except ValueError:
            raise _no_host(scheme) from None
    if store is None:
        access: Access = _Usual(path, count, timeout, unversioned=unversioned)
    else:
        access = Access(store, count, timeout, unversioned=unversioned)
    return Location(base + key.removeprefix(base.split("/", 3)[3]), access, base, encoded)


def _parts_of(address: str, scheme: str) -> tuple[str, str, str]:
    """Return host, path and query of an HTTP address."""
    try:
        parts = urlsplit(address)
    except ValueError:  # drop its message, which may repeat a password
        raise _no_host(scheme) from None
    return parts.netloc, parts.path.lstrip("/"), parts.query


def _no_host(scheme: str) -> AddressError:
    kind = _OF_OBSTORE[scheme][1] if scheme in _OF_OBSTORE else "host"
    return AddressError(f"the {scheme} address names no {kind} that a request can go to")


def _check_key(key: str) -> None:
    """Raise `AddressError` for a key with an empty part or a part of dots: stores refuse or change it."""
    if key and not {"", ".", ".."}.isdisjoint(key.removesuffix("/").split("/")):
        what = "the address names no object: its path has an empty part (two slashes in a row), '.' or '..'"
        raise AddressError(what)


def _credentials(scheme: str) -> str:
    if scheme in _OF_OBSTORE:
        return f"give these in the environment, as variables that begin with {_OF_OBSTORE[scheme][2]}_"
    return "write these to ~/.netrc"


def _prefix_of(store: Any, key: str) -> str:
    """Return the prefix that a store adds to a key."""
    prefix = getattr(store, "prefix", None)
    if isinstance(prefix, str) and prefix:
        prefix = prefix.strip("/") + "/"
        if key.startswith(prefix):
            return prefix
    return ""


class _Usual(Access):
    """The default store of an address, made in each process with the credentials of its environment."""

    def __init__(self, address: str, concurrency: int | None, deadline: float, *, unversioned: bool) -> None:
        super().__init__(_obstore(address), concurrency, deadline, unversioned=unversioned)
        self._address = address

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(_Usual, unversioned=self.unversioned), (self._address, self.requested_concurrency, self.deadline)


def _obstore(address: str) -> Any:
    """Return obstore's store for an address."""
    scheme, _, after = address.partition("://")
    scheme = scheme.lower()
    try:
        from obstore import store as stores  # noqa: PLC0415 - an extra, and 50 ms
    except ImportError:
        msg = f"{scheme}:// addresses need obstore: pip install '.[remote]' in a checkout"
        raise MissingDependencyError(msg, path=address) from None
    # `Access` bounds attempts and time; the store itself finds credentials.
    kind, _, prefix = _OF_OBSTORE[scheme]
    plain = os.environ.get(f"{prefix}_ALLOW_HTTP", "").lower() in {"true", "1", "yes", "on"}
    client = {"timeout": "1d", "connect_timeout": "10s", "allow_http": plain}
    try:
        return getattr(stores, kind)(after.partition("/")[0], retry_config={"max_retries": 0}, client_options=client)
    except Exception:  # noqa: BLE001 - of any class, and its text may repeat a variable
        msg = f"its store cannot be used: check the environment variables that begin with {prefix}_"
        raise RemoteError(msg, path=address) from None
