"""Our part of the user's cache directory: small files that this user alone can have written."""

from __future__ import annotations

import contextlib
import os
import stat

from weightmap.errors import TensorFileError
from weightmap.io.atomic import write_plan
from weightmap.io.sink import WritePlan


def folder(name: str = "") -> str | None:
    """Return the path of a folder in it; None where the system has no owners of files, or the user no home."""
    # By the XDG specification, a variable without an absolute path is ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser(os.path.join("~", ".cache"))
    return os.path.join(base, "weightmap", name) if hasattr(os, "geteuid") and os.path.isabs(base) else None


def is_ours(path: str) -> bool:
    """Whether a directory, not a link to one, and the one above it are ours and closed to all others."""
    at = path.rstrip(os.sep)
    if os.path.basename(at) != "weightmap" and not is_ours(os.path.dirname(at)):
        return False
    status = os.lstat(at)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def stored(at: str | None, name: str, most: int) -> bytes | None:
    """Return a file of at most so many bytes; None unless nobody else can have written it."""
    with contextlib.suppress(OSError):
        if at is not None and is_ours(at):
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.path.join(at, name), "rb", opener=lambda path, _: os.open(path, flags)) as file:
                status = os.fstat(file.fileno())
                private = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                if stat.S_ISREG(status.st_mode) and private and status.st_size <= most:
                    return file.read(most)
    return None


def store(at: str | None, name: str, content: bytes, *, durable: bool = True) -> None:
    """Keep a file for later runs, if the cache can be used."""
    with contextlib.suppress(OSError, TensorFileError):
        if at is not None:
            os.makedirs(os.path.dirname(at.rstrip(os.sep)), 0o700, exist_ok=True)
            os.makedirs(at, 0o700, exist_ok=True)
            if is_ours(at):
                plan = WritePlan(len(content), lambda sink: sink.write(content))
                write_plan(os.path.join(at, name), plan, durable=durable)
                os.chmod(os.path.join(at, name), 0o600)  # whatever the umask is
