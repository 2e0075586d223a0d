"""The checksums of deltas, and the packages that deltas need."""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any

from weightmap.errors import MissingDependencyError

# Hexadecimal digits of each.
CHECKSUMS = {"xxh3-128": 32, "blake3": 64, "adler32": 8}


def package(name: str) -> Any:
    """Import a package of the extra ``[deltas]``."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingDependencyError(f"{name} is needed for this delta: pip install 'weightmap[deltas]'") from None


def new_sum(checksum: str) -> Any:
    """Return an object with `update` and `hexdigest`, as hashlib's, for one of `CHECKSUMS`."""
    if checksum == "xxh3-128":
        return package("xxhash").xxh3_128()
    return package("blake3").blake3() if checksum == "blake3" else _Adler32()


class _Adler32:
    """Adler-32 with hashlib's interface."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: Any) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"
