"""Checksums of tensors, as deltas and full versions of ModelExpress have them, and the packages that these need.

The metadata of the index name their kind as ``checksum_format``, and the ``__metadata__`` of each file have the sum of
every tensor under its name: here of its bytes; in a delta, which has a ``delta_encoding``, of those that result.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weightmap.errors import ChecksumError, MissingDependencyError, quoted
from weightmap.model.parts import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

# Hexadecimal digits of each.
CHECKSUMS = {"xxh3-128": 32, "blake3": 64, "adler32": 8}


def package(name: str) -> Any:
    """Import a package of the extra ``[deltas]``."""
    try:
        return import_module(name)
    except ImportError:
        what = f"this delta needs {name}, of the extra [deltas]: pip install {name}, or '.[deltas]' in a checkout"
        raise MissingDependencyError(what) from None


def kind_in(metadata: Mapping[str, Any]) -> str | None:
    """Return which checksum the files of an index have of their own tensors; None for none, or one that is unknown."""
    kind = metadata.get("checksum_format")
    return kind if isinstance(kind, str) and kind in CHECKSUMS and "delta_encoding" not in metadata else None


def check_tensors(file: Any, kind: str) -> None:
    """Compare every tensor of a file with its checksum.

    Raises
    ------
    ChecksumError
        For another one, or none; it names the tensor.
    MissingDependencyError
    """
    stored = file.metadata
    for name, row in zip(file, rows_of(file), strict=True):
        own = new_sum(kind)
        for piece in row.source.chunks(row.offset, row.nbytes):
            own.update(piece)
        actual, expected = own.hexdigest(), str(stored.get(name))
        if actual != expected:
            error = ChecksumError(f"{kind} of tensor {quoted(name)}", actual=actual, expected=quoted(expected))
            raise error.located(path=file.path, format=file.format)


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
