"""`scratch_folder`: a folder for files of the moment, which no interruption leaves behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Make a folder where the system has such folders, and remove it in the end, whenever an exception comes.

    `tempfile.TemporaryDirectory` leaves it behind if an exception comes while it makes the folder, or removes it.
    """
    path = os.path.join(tempfile.gettempdir(), f"weightmap-{secrets.token_hex(16)}")  # nobody else has this name
    try:
        os.mkdir(path, 0o700)
        yield path
    finally:
        try:
            _remove(path)
        except BaseException:
            _remove(path)
            raise


def _remove(path: str) -> None:
    """Remove a folder of ours. After an interruption `shutil.rmtree` closes a descriptor twice, and raises EBADF."""
    with contextlib.suppress(FileNotFoundError):
        for folder, folders, files in os.walk(path, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in folders:
                os.rmdir(os.path.join(folder, name))
        os.rmdir(path)
