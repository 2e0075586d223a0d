"""Reads an index of shards, which assigns tensors to files; reads a large one without a string per tensor."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes import strict_json
from weightmap.core.bytes.open_source import plain
from weightmap.core.model.internals import rows_of
from weightmap.core.table import StringTable
from weightmap.errors import ChecksumError, FormatError, MissingDependencyError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source

# Bytes of an index parsed at once: Python's objects for them take several times as much memory.
_PIECE = 1 << 20
_MAP = re.compile(rb'"weight_map"[ \t\n\r]*:[ \t\n\r]*\{')


class Listing(NamedTuple):
    """The content of an index of shards.

    Attributes
    ----------
    names : bytes
        The names of the tensors, back to back, in UTF-8.
    bounds : ndarray of uint32
        Start of each name, and the end of the last.
    shard : ndarray of int32
        The number of the shard of each tensor.
    shards : list
        Names of the shards in the index: strings, unless it is damaged.
    metadata : dict
    """

    names: bytes
    bounds: NDArray[np.uint32]
    shard: NDArray[np.int32]
    shards: list[Any]
    metadata: dict[str, Any]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield name and shard of each tensor."""
        names = StringTable(self.names, self.bounds, 0, "tensor name")
        return zip(names, (self.shards[number] for number in self.shard.tolist()), strict=True)

    def numbers_in(self, table: StringTable) -> NDArray[np.int64]:
        """Return the number of each tensor in a table of names, -1 for a missing one."""
        return table.find_spans(self.names, self.bounds)


def read_listing(source: Source, options: Options, odd: list[str] | None = None) -> Listing:
    """Read an index of shards. Raises `FormatError` when it is damaged, and `LimitError`.

    With ``strict=False`` and a list `odd`, metadata that are not an object are ignored, with a line in `odd`.
    """
    options.limits.check("max_header_bytes", source.size, "size of the index of shards")
    raw = source.pread(0, source.size)
    if not raw:
        raise TruncatedError("the file is empty", field="index of shards", offset=0)
    listing = _in_pieces(raw)
    if listing is None:
        content = strict_json.loads(raw, "index of shards")
        where = content.get("weight_map")
        if not isinstance(where, dict):
            msg = "the index of shards has no weight_map, an object from tensor names to shard names"
            raise FormatError(msg, field="weight_map")
        listing = _Columns(), content
        listing[0].add(list(where), [value if isinstance(value, str) else _NotText(value) for value in where.values()])
    columns, content = listing
    options.limits.check("max_tensors", len(columns), "number of tensors")
    metadata = content.get("metadata", {})
    if not isinstance(metadata, dict):
        error = FormatError("metadata of the index of shards is not an object", field="metadata")
        if odd is None:
            raise error
        options.tolerate(error, odd)
        metadata = {}
    return columns.listing(metadata)


class _NotText:
    """A value of a map that is not a string, and perhaps not hashable."""

    def __init__(self, value: object) -> None:
        self.value = value


class _Columns:
    """The names and shards of an index, as they are read."""

    def __init__(self) -> None:
        self._names: list[bytes] = []
        self._lengths: list[NDArray[np.uint32]] = []
        self._shards: list[NDArray[np.int32]] = []
        self._numbers: defaultdict[Any, int] = defaultdict(count().__next__)
        self._count = 0

    def add(self, names: list[str], shards: list[Any]) -> None:
        """Add tensors."""
        text = "".join(names)
        whole = text.encode()
        lengths = map(len, names if len(whole) == len(text) else (name.encode() for name in names))
        self._names.append(whole)
        self._lengths.append(np.fromiter(lengths, np.uint32, len(names)))
        self._shards.append(np.fromiter(map(self._numbers.__getitem__, shards), np.int32, len(shards)))
        self._count += len(names)

    def __len__(self) -> int:
        return self._count

    def listing(self, metadata: dict[str, Any]) -> Listing:
        """Return all of it."""
        zero = [np.zeros(1, np.uint32)]
        bounds = np.cumsum(np.concatenate(zero + self._lengths), dtype=np.uint32)
        shard = np.concatenate([np.empty(0, np.int32), *self._shards])
        shards: list[Any] = []
        number_of: dict[str, int] = {}  # spellings such as "./a" and "a" are one shard
        numbers = np.empty(len(self._numbers), np.int32)
        for i, name in enumerate(self._numbers):
            shard_name = plain(name) if isinstance(name, str) else name
            numbers[i] = number_of.setdefault(shard_name, len(shards)) if isinstance(shard_name, str) else len(shards)
            if numbers[i] == len(shards):
                shards.append(shard_name.value if isinstance(shard_name, _NotText) else shard_name)
        return Listing(b"".join(self._names), bounds, numbers[shard], shards, metadata)


def _in_pieces(raw: bytes) -> tuple[_Columns, dict[str, Any]] | None:
    """Parse a large index piece by piece; None for one that is small, damaged, or written in an unusual way.

    Without escapes, each quotation mark begins or ends a string: so commas between strings are known.
    """
    match = _MAP.search(raw)
    if len(raw) < _PIECE or b"\\" in raw or match is None or raw.count(b'"weight_map"') != 1:
        return None
    columns, at = _Columns(), match.end()
    try:
        end = _outside(raw, b"}", at, len(raw))
        content = strict_json.loads(raw[:at] + raw[end:], "index of shards")
        if content.get("weight_map") != {}:  # the map lies within another object
            return None
        stop = -1
        while stop < end:  # a comma before `end` leaves an empty last piece, which is refused
            stop = end if end - at <= _PIECE else _outside(raw, b",", at, end, at + _PIECE)
            pairs = strict_json.loads(b"{%b}" % raw[at:stop], "index of shards")
            if not pairs or not all(isinstance(value, str) for value in pairs.values()):
                return None
            columns.add(list(pairs), list(pairs.values()))
            at = stop + 1
    except (FormatError, ValueError):  # the parser of the whole index names defect and place
        return None
    whole = columns.listing({})
    return None if StringTable(whole.names, whole.bounds, 0, "tensor name").duplicates()[0] else (columns, content)


def _outside(raw: bytes, what: bytes, start: int, end: int, minimum: int | None = None) -> int:
    """Return the first place of a character outside strings, from `minimum` on; `start` must lie outside strings."""
    at = start if minimum is None else minimum
    quotes = raw.count(b'"', start, at)
    while True:
        position = raw.index(what, at, end)
        quotes += raw.count(b'"', at, position)
        if quotes % 2 == 0:
            return position
        at = position + 1


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
