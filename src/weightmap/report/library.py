"""The library that draws the charts, as one script: bundled once for each version, then read from the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from importlib import import_module, metadata

from weightmap.errors import MissingDependencyError, TensorFileError
from weightmap.io.atomic import write_plan
from weightmap.io.sink import WritePlan

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


def _folder() -> str | None:
    """Return our part of the user's cache; None where the system has no owners of files, or the user no home."""
    # By the XDG specification, a variable without an absolute path is ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser(os.path.join("~", ".cache"))
    return os.path.join(base, "weightmap") if hasattr(os, "geteuid") and os.path.isabs(base) else None


def _closed(folder: str) -> bool:
    """Whether a directory, not a link to one, is ours and closed to all others."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _stored(name: str) -> str | None:
    """Return the script that an earlier run stored; None unless it is whole and nobody else can have written it."""
    folder = _folder()
    with contextlib.suppress(OSError, ValueError):  # ValueError: not UTF-8
        if folder is not None and _closed(folder):
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.path.join(folder, name), "rb", opener=lambda path, _: os.open(path, flags)) as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_size <= _MOST:
                    digest, _, octets = file.read(_MOST).partition(b"\n")
                    if digest == _digest(octets):
                        return octets.decode()
    return None


def _store(name: str, script: str) -> None:
    """Keep a script for later runs, if the cache can be used."""
    folder, octets = _folder(), script.encode()
    content = _digest(octets) + b"\n" + octets
    with contextlib.suppress(OSError, TensorFileError):
        if folder is not None:
            os.makedirs(folder, 0o700, exist_ok=True)
            if _closed(folder):
                write_plan(os.path.join(folder, name), WritePlan(len(content), lambda sink: sink.write(content)))


def _digest(octets: bytes) -> bytes:
    """Return the first line of a stored script, its digest: a disk may have lost part of the rest."""
    return b"//" + hashlib.sha256(octets).hexdigest().encode()
