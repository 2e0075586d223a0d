"""The library that draws the charts, as one script: bundled once for each version, then read from the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
from importlib import import_module, metadata

from weightmap.errors import MissingDependencyError
from weightmap.io import cache

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
        script = _stored(name)
        if script is None:
            script = import_module("vl_convert").javascript_bundle()
            _store(name, script)
    except ImportError:  # or no such distribution
        msg = "reports need Vega-Lite, the extra [report]: pip install vl-convert-python, or '.[report]' in a checkout"
        raise MissingDependencyError(msg) from None
    # The end tag of a script can only occur in string literals of the bundle.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _stored(name: str) -> str | None:
    """Return the script that an earlier run stored; None unless it is whole and nobody else can have written it."""
    digest, _, octets = (cache.stored(cache.folder(), name, _MOST) or b"").partition(b"\n")
    with contextlib.suppress(UnicodeDecodeError):
        if digest == _digest(octets):
            return octets.decode()
    return None


def _store(name: str, script: str) -> None:
    """Keep a script for later runs, if the cache can be used."""
    octets = script.encode()
    cache.store(cache.folder(), name, _digest(octets) + b"\n" + octets)


def _digest(octets: bytes) -> bytes:
    """Return the first line of a stored script, its digest: a disk may have lost part of the rest."""
    return b"//" + hashlib.sha256(octets).hexdigest().encode()
