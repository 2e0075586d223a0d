"""Reads an index of shards, which assigns tensors to files."""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.open_source import plain
from weightmap.core.model.internals import rows_of
from weightmap.core.table import StringTable
from weightmap.errors import ChecksumError, FormatError, MissingDependencyError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source


class Listing(NamedTuple):
    """The content of an index of shards.

    Attributes
    ----------
    names : StringTable
        The names of the tensors.
    shard : ndarray of int32
        The number of the shard of each tensor.
    shards : list
        Names of the shards in the index: strings, unless it is damaged.
    metadata : dict
    """

    names: StringTable
    shard: NDArray[np.int32]
    shards: list[Any]
    metadata: dict[str, Any]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield name and shard of each tensor."""
        return zip(self.names, (self.shards[number] for number in self.shard.tolist()), strict=True)

    def numbers_in(self, table: StringTable) -> NDArray[np.int64]:
        """Return the number of each tensor in a table of names, -1 for a missing one."""
        return table.find_spans(self.names.text, self.names.bounds)


def read_listing(source: Source, options: Options, odd: list[str] | None = None) -> Listing:
    """Read an index of shards. Raises `FormatError` when it is damaged, and `LimitError`.

    With ``strict=False`` and a list `odd`, metadata that are not an object are ignored, with a line in `odd`.
    """
    options.limits.check("max_header_bytes", source.size, "size of the index of shards")
    raw = source.pread(0, source.size)
    if not raw:
        raise TruncatedError("the file is empty", field="index of shards", offset=0)
    content = strict_json.loads(raw, "index of shards")
    where = content.get("weight_map")
    if not isinstance(where, dict):
        msg = "the index of shards has no weight_map, an object from tensor names to shard names"
        raise FormatError(msg, field="weight_map")
    options.limits.check("max_tensors", len(where), "number of tensors")
    metadata = content.get("metadata", {})
    if not isinstance(metadata, dict):
        error = FormatError("metadata of the index of shards is not an object", field="metadata")
        if odd is None:
            raise error
        options.tolerate(error, odd)
        metadata = {}
    shards, shard = _numbered(where.values())
    return Listing(StringTable.of(list(where), "tensor name"), shard, shards, metadata)


def _numbered(values: Iterable[Any]) -> tuple[list[Any], NDArray[np.int32]]:
    """Return the different shards, and the number of each: spellings such as "./a" and "a" are one shard."""
    shards: list[Any] = []
    numbers: list[int] = []
    number_of: dict[str, int] = {}
    for value in values:
        if not isinstance(value, str):  # the index is damaged
            numbers.append(len(shards))
            shards.append(value)
            continue
        if value not in number_of:
            name = plain(value)
            if name not in number_of:
                number_of[name] = len(shards)
                shards.append(name)
            number_of[value] = number_of[name]
        numbers.append(number_of[value])
    return shards, np.array(numbers, np.int32)


# ----------------------------------------------------------------------------------------------------
# Checksums of tensors in deltas and full versions of ModelExpress, and the packages that compute them.
#
# The index's metadata name the kind as ``checksum_format``. Each file's ``__metadata__`` map a tensor's name to the
# checksum of its bytes; in a delta (with ``delta_encoding``), of its new bytes.

# Kinds, and their hexadecimal digits.
CHECKSUMS = {"xxh3-128": 32, "blake3": 64, "adler32": 8}


def package(name: str) -> Any:
    """Import a package of the extra ``[deltas]``."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingDependencyError(f"this delta needs {name}: pip install '.[deltas]' in a checkout") from None


def kind_in(metadata: Mapping[str, Any]) -> str | None:
    """Return the kind of the tensors' checksums that an index names; None if it names none, or an unknown one."""
    kind = metadata.get("checksum_format")
    return kind if isinstance(kind, str) and kind in CHECKSUMS and "delta_encoding" not in metadata else None


def check_tensors(file: Any, kind: str) -> None:
    """Compare every tensor of a file with its checksum.

    Raises
    ------
    ChecksumError
        For a wrong or missing checksum; it names the tensor.
    MissingDependencyError
    """
    stored = file.metadata
    for name, row in zip(file, rows_of(file), strict=True):
        checksum = new_sum(kind)
        for piece in row.source.chunks(row.offset, row.nbytes):
            checksum.update(piece)
        actual, expected = checksum.hexdigest(), str(stored.get(name))
        if actual != expected:
            error = ChecksumError(f"{kind} of tensor {quoted(name)}", actual=actual, expected=quoted(expected))
            raise error.located(path=file.path, format=file.format)


def new_sum(checksum: str) -> Any:
    """Return an object like hashlib's, with `update` and `hexdigest`, for one of `CHECKSUMS`."""
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
