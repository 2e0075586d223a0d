"""The library that draws the charts, as one script: bundled once for each version, then read from the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from importlib import import_module, metadata

from weightmap.errors import MissingDependencyError

# Most bytes of a bundle: today it has 0.9 million.
_MOST = 1 << 26


def library() -> str:
    """Return Vega-Lite, Vega and Vega-Embed as one script.

    Bundling takes seconds of processor time, so the script is kept in the user's cache. Without a trusted, writable
    cache it is bundled at each run.

    Raises
    ------
    MissingDependencyError
        Without vl-convert-python.
    """
    try:
        name = f"vega-{metadata.version('vl-convert-python')}.js"
        folder = _cache()
        script = None if folder is None else _stored(os.path.join(folder, name))
        if script is None:
            script = import_module("vl_convert").javascript_bundle()
            if folder is not None:
                _store(os.path.join(folder, name), script)
    except ImportError:  # or no such distribution
        msg = "reports need Vega-Lite, the extra [report]: pip install vl-convert-python, or '.[report]' in a checkout"
        raise MissingDependencyError(msg) from None
    # The end tag of a script can only occur in string literals of the bundle.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _cache() -> str | None:
    """Create our folder in the user's cache, and return it; None unless it is closed to all other users."""
    # By the XDG specification, a variable without an absolute path is ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser(os.path.join("~", ".cache"))
    if hasattr(os, "geteuid") and os.path.isabs(base):
        folder = os.path.join(base, "weightmap")
        with contextlib.suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)
            status = os.lstat(folder)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return folder
    return None


def _stored(path: str) -> str | None:
    """Return the script that an earlier run stored; None unless it is whole and nobody else can have written it."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path, "rb", opener=_opened) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            digest, _, octets = file.read(_MOST).partition(b"\n")
            if digest == _digest(octets):
                return octets.decode()
    return None


def _store(path: str, script: str) -> None:
    """Keep a script for later runs, if the cache can be used."""
    octets = script.encode()
    with contextlib.suppress(OSError), open(path, "wb", opener=_opened) as file:
        file.write(_digest(octets) + b"\n" + octets)


def _opened(path: str, flags: int) -> int:
    """Open a file of the cache: no link, without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def _digest(octets: bytes) -> bytes:
    """Return the first line of a stored script, its digest: another run may be writing the rest, or a disk lost it."""
    return b"//" + hashlib.sha256(octets).hexdigest().encode()
