"""Reading PyTorch checkpoints: from the program and the storages to the table of tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap import kernels
from weightmap.errors import (
    FileChangedError,
    FormatError,
    LayoutError,
    LimitError,
    TruncatedError,
    UnsupportedError,
    quoted,
)
from weightmap.formats._base import Content, trailing
from weightmap.formats._zip import Archive
from weightmap.formats.torch.program import DTYPE_NAMES, Span, dtypes, error_of, run, values_of
from weightmap.index.columns import ColumnTable
from weightmap.index.rules import Rules
from weightmap.io.placement import Strided

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightmap.dtypes import DType
    from weightmap.formats._verifying import Verification
    from weightmap.io.source import Source
    from weightmap.kernels import Pickle
    from weightmap.options import Options

_PROGRAM = "data.pkl"
# Bytes of the first window of a legacy file in which its programs are run; each further one is so many times as large.
_WINDOW, _GROWTH = 1 << 16, 4
# Bytes of the folder in an archive, which torch.save calls as the file; every storage is looked up in it.
_FOLDER_MOST = 255
# Storages that are looked up at once: more would take more memory, and no less time.
_BATCH = 4096
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
# What an archive of TorchScript has and a checkpoint has not.
_SCRIPT = ("constants.pkl", "code/")
_BFLOAT16 = DTYPE_NAMES.index("bfloat16")


class _Rules(Rules):
    __slots__ = ()
    dtypes = dtypes(big=False)
    scattered = True


_SWAPPED = _Rules.varied(dtypes=dtypes(big=True))


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Run the program, and return the table of tensors."""
    return (_parse_zip if head[:1] == b"P" else _parse_legacy)(source, head, options)


# ------------------------------------------------------------------------------------------------------- zip
def _parse_zip(source: Source, head: bytes, options: Options) -> Content:
    warnings: list[str] = []
    archive = Archive(source, head, options, warnings)
    program, prefix = _find_program(archive)
    options.limits.check(
        "max_header_bytes", archive.size(program), f"size of {_PROGRAM}", offset=archive.begin(program)
    )
    _refuse_script(archive, prefix)
    big = _is_big(archive, prefix)
    _check_stored(archive, program)
    data, span = archive.read(program), Span(archive.label(program), archive.begin(program))
    pickle = run(data, span, options)
    if pickle.end != len(data):
        error = LayoutError(f"{span.name} goes on after its end", field="pickle", offset=span.offset + pickle.end)
        options.tolerate(error, warnings)
    begins = _storages_in(archive, prefix, pickle, data, span, options, warnings)
    table, has_values = _table(pickle, begins, source, big=big)
    if options.checked:
        table.check()
    crc = kernels.crc32(data)

    metadata = functools.partial(_load_metadata, source, span, len(data), crc, options)
    content = Content("zip", table, metadata, archive.verifier, warnings)
    content.sums = archive.sums
    content.has_metadata = has_values
    return content


def _find_program(archive: Archive) -> tuple[int, str]:
    """Return the entry of the program, and the folder that it lies in."""
    # All names lie one after another: no Python for each of them.
    bounds, tail, found = archive.entries.bounds, f"/{_PROGRAM}".encode(), list[int]()
    text = archive.entries.names.tobytes()
    at = text.find(tail)
    while at >= 0:
        row = int(np.searchsorted(bounds, at, "right")) - 1
        if bounds[row + 1] == at + len(tail) and b"/" not in text[bounds[row] : at]:
            found.append(row)
        at = text.find(tail, at + 1)
    if len(found) != 1:
        what = "entries <prefix>/data.pkl of the archive"
        raise LayoutError(what, field=_PROGRAM, offset=0, actual=len(found), expected=1)
    prefix = archive.names[found[0]].removesuffix(_PROGRAM)
    if len(prefix) > _FOLDER_MOST:
        what, expected = "length of the name of the archive's folder", f"at most {_FOLDER_MOST}"
        raise LimitError(what, field=_PROGRAM, offset=archive.begin(found[0]), actual=len(prefix), expected=expected)
    return found[0], prefix


def _refuse_script(archive: Archive, prefix: str) -> None:
    script = archive.names.find(f"{prefix}constants.pkl")
    if script >= 0:
        what = "this archive is a TorchScript program: save model.state_dict() of torch.jit.load(FILE) with torch.save"
        raise UnsupportedError(what, field="constants.pkl", offset=int(archive.entries.offset[script]))


def _is_big(archive: Archive, prefix: str) -> bool:
    """Say whether storages are big-endian."""
    entry = archive.names.find(f"{prefix}byteorder")
    if entry < 0:
        return False
    order = archive.read(entry) if archive.size(entry) <= len("little") else b""
    if order not in (b"little", b"big"):
        shown = repr(order) if order else f"{archive.size(entry)} bytes"
        what = "byteorder"
        raise UnsupportedError(
            what, field=what, offset=archive.begin(entry), actual=shown, expected="'little' or 'big'"
        )
    return order == b"big"


def _check_stored(archive: Archive, entry: int) -> None:
    if not archive.is_stored(entry):
        what = f"entry {quoted(archive.label(entry))} is deflated: torch.save stores its entries"
        raise UnsupportedError(what, field="method", offset=int(archive.entries.offset[entry]))


def _storages_in(
    archive: Archive, prefix: str, pickle: Pickle, data: bytes, span: Span, options: Options, warnings: list[str]
) -> NDArray[np.uint64]:
    """Return where each storage begins in the file, once its entry has been found to be as large as it claims."""
    at, lengths, claimed, _ = pickle.storages()
    entries, names = archive.entries, archive.names
    folder = f"{prefix}data/".encode()
    rows = np.empty(len(at), np.int64)
    for first in range(0, len(at), _BATCH):
        part = slice(first, first + _BATCH)
        rows[part] = names.find_spans(*_joined(folder, data, at[part], lengths[part]))
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        i = int(missing[0])
        key = bytes(data[int(at[i]) : int(at[i]) + int(lengths[i])])
        name = quoted((folder + key).decode(errors="replace"))
        raise LayoutError(
            f"the archive has no entry {name}, a storage", field="storage", offset=span.offset + int(at[i])
        )
    unstored = np.flatnonzero((entries.method[rows] != 0) | (entries.stored[rows] != entries.size[rows]))
    if len(unstored):
        _check_stored(archive, int(rows[unstored[0]]))
    sizes = entries.size[rows]
    for wrong, tolerated in ((np.flatnonzero(claimed > sizes), False), (np.flatnonzero(claimed < sizes), True)):
        if len(wrong):
            i = int(wrong[0])
            what = f"bytes that the storage {quoted(archive.label(int(rows[i])))} claims"
            error = LayoutError(
                what, field="storage", offset=span.offset + int(at[i]), actual=int(claimed[i]), expected=int(sizes[i])
            )
            if not tolerated:
                raise error
            options.tolerate(error, warnings)
    used = np.zeros(len(archive), np.bool_)
    used[rows] = True
    unused = [i for i in np.flatnonzero(~used).tolist() if names.raw(i).startswith(folder)]
    warnings.extend(f"no tensor refers to entry {quoted(archive.label(i))}" for i in unused)
    return entries.data[rows]


def _joined(
    folder: bytes, data: bytes, at: NDArray[np.uint64], lengths: NDArray[np.uint32]
) -> tuple[bytes, NDArray[np.uint32]]:
    """Return the names of the entries of storages, one after another, and their bounds."""
    count, size = len(at), len(folder)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(lengths.astype(np.int64) + size, out=bounds[1:])
    blob = np.empty(int(bounds[-1]), np.uint8)
    blob[(bounds[:-1, None] + np.arange(size)).reshape(-1)] = np.tile(np.frombuffer(folder, np.uint8), count)
    # Byte k of key i comes from at[i] + k, and goes to where its name begins, behind the folder.
    repeated = np.repeat(at.astype(np.int64) - np.cumsum(lengths.astype(np.int64)) + lengths, lengths)
    source = repeated + np.arange(len(repeated))
    target = np.arange(len(repeated)) + np.repeat(np.arange(1, count + 1) * size, lengths)
    blob[target] = np.frombuffer(data, np.uint8)[source]
    return blob.tobytes(), bounds.astype(np.uint32)


# ----------------------------------------------------------------------------------------------------- legacy
def _parse_legacy(source: Source, head: bytes, options: Options) -> Content:
    if head[:1] != b"\x80":
        expected = "that of an archive or of a pickle"
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=expected)
    warnings: list[str] = []
    window = _Window(source, head, options)
    number, _ = window.next("the pickle of the magic number")
    _expect(number, _MAGIC_NUMBER, "magic number", 0)
    version, at = window.next("the pickle of the protocol")
    _expect(version, _PROTOCOL, "protocol version", at)
    system, at = window.next("the pickle of the system")
    little = system.get("little_endian")
    if not isinstance(little, bool):
        raise UnsupportedError(
            "little_endian", field="sys_info", offset=at, actual=repr(little), expected="True or False"
        )
    pickle, span, data = window.run("the pickle of the object")
    keys, at = window.next("the pickle of the keys")
    begins, end = _storages_behind(source, window.at, keys, at, pickle, data, span)
    trailing(source, end, options, warnings)
    table, has_values = _table(pickle, begins, source, big=not little)
    if options.checked:
        table.check()
    header = window.header()
    crc, size = kernels.crc32(header), len(header)

    def verify(run: Verification) -> None:
        run.unchanged(run.read(0, size), crc, "the header")
        run.checked("header")
        run.rest()

    metadata = functools.partial(_load_metadata, source, span, pickle.end, kernels.crc32(data[: pickle.end]), options)
    content = Content("legacy", table, metadata, verify, warnings)
    content.has_metadata = has_values
    return content


class _Window:
    """The pickles at the beginning of a legacy file, run one after another in as many bytes as they take."""

    def __init__(self, source: Source, head: bytes, options: Options) -> None:
        self._source, self._options = source, options
        self._limit = min(source.size, options.limits.max_header_bytes)
        self._data = bytearray(head[: self._limit])
        self.at = 0

    def run(self, name: str) -> tuple[Pickle, Span, bytes]:
        """Run the next program; return it, where it is, and its bytes."""
        span = Span(name, self.at)
        while True:
            data = bytes(self._data[self.at :])
            pickle = kernels.Pickle(data, self._options.limits.max_tensors, self._options.limits.max_header_bytes)
            if pickle.fault is None:
                self.at += pickle.end
                return pickle, span, data
            if pickle.fault.kind != "PICKLE_END" or not self._grow():
                break
        if pickle.fault.kind == "PICKLE_END" and self._limit < self._source.size:
            self._options.limits.check("max_header_bytes", self._limit + 1, "size of the pickles")
        raise error_of(pickle.fault, data, span, self._options)

    def _grow(self) -> bool:
        size = min(max(_WINDOW, _GROWTH * len(self._data)), self._limit)
        if size <= len(self._data):
            return False
        self._data += self._source.pread(len(self._data), size - len(self._data))
        return True

    def next(self, name: str) -> tuple[dict[str, Any], int]:
        """Run the next program; return its values, and where it begins. It must not make tensors."""
        pickle, span, data = self.run(name)
        if pickle.n_tensors:
            raise LayoutError(f"{name} holds tensors", field="pickle", offset=span.offset)
        return values_of(pickle.content()[1], data, span), span.offset

    def header(self) -> bytes:
        """Return the bytes of all pickles that were run."""
        return bytes(self._data[: self.at])


def _expect(found: dict[str, Any], wanted: int, what: str, at: int) -> None:
    if found != {"": wanted}:
        shown = quoted(found.get("", "something else"))
        raise UnsupportedError(what, field="pickle", offset=at, actual=shown, expected=hex(wanted))


def _storages_behind(
    source: Source, at: int, keys: dict[str, Any], keys_at: int, pickle: Pickle, data: bytes, span: Span
) -> tuple[NDArray[np.uint64], int]:
    """Return where each storage begins in a legacy file, and where the last one ends."""
    places, lengths, claimed, items = pickle.storages()
    first: dict[bytes, int] = {}
    numbers = np.empty(len(places), np.int64)
    for i, (begin, length) in enumerate(zip(places.tolist(), lengths.tolist(), strict=True)):
        numbers[i] = first.setdefault(data[begin : begin + length], i)
    differing = np.flatnonzero(claimed != claimed[numbers])
    if len(differing):
        i = int(differing[0])
        what = "bytes that a storage claims at its second mention"
        expected = int(claimed[numbers[i]])
        raise LayoutError(
            what, field="storage", offset=span.offset + int(places[i]), actual=int(claimed[i]), expected=expected
        )
    begins = np.zeros(len(places), np.uint64)
    listed: set[int] = set()
    for key in keys.values():
        i = first.get(key.encode(), -1) if isinstance(key, str) else -1
        if i < 0 or i in listed:
            what = f"the list of keys has {quoted(key)} {'twice' if i in listed else 'which no tensor mentions'}"
            raise LayoutError(what, field="keys", offset=keys_at)
        listed.add(i)
        nbytes, item = int(claimed[i]), int(items[i])
        count = int.from_bytes(source.pread(at, 8), "little") if at + 8 <= source.size else -1
        if count < 0 or nbytes > source.size - at - 8:
            what = f"the file ends within storage {quoted(key)}: its end"
            raise TruncatedError(
                what, field="storage", offset=source.size, actual=at + 8 + nbytes, expected=f"at most {source.size}"
            )
        if count * item != nbytes:
            what = f"number of elements of storage {quoted(key)}"
            raise LayoutError(what, field="storage", offset=at, actual=count, expected=nbytes // item)
        begins[i] = at + 8
        at += 8 + nbytes
    if len(listed) != len(first):
        what = "number of keys in the list"
        raise LayoutError(
            what, field="keys", offset=keys_at, actual=len(listed), expected=f"{len(first)}, that of storages"
        )
    return begins[numbers], at


# ----------------------------------------------------------------------------------------------------- both
def _table(pickle: Pickle, begins: NDArray[np.uint64], source: Source, *, big: bool) -> tuple[ColumnTable, bool]:
    """Return the table of tensors, whose storages begin there, and whether there are other values."""
    tensors, values = pickle.content()
    codes = tensors.dtype & (kernels.PICKLE_STRIDED - 1)
    if big and bool((codes == _BFLOAT16).any()):
        raise UnsupportedError("a big-endian checkpoint has tensors of bfloat16, which numpy lacks", field="byteorder")
    where = begins[tensors.storage]
    tensors.begin += where
    tensors.end += where
    strided = tensors.dtype != codes
    columns = kernels.Columns(
        tensors.names.tobytes(),
        tensors.bounds,
        tensors.dtype,
        tensors.dims,
        tensors.dim_bounds,
        tensors.begin,
        tensors.end,
    )
    rules = (_SWAPPED if big else _Rules)(0, source.size)
    typed = _strided_types(rules, tensors.strides, tensors.dim_bounds, tensors.dtype) if strided.any() else None
    return ColumnTable(columns, rules, utf8=True, typed=typed), bool(len(values.kind))


def _strided_types(
    rules: Rules, strides: NDArray[np.uint64], bounds: NDArray[np.uint32], codes: NDArray[np.uint8]
) -> Callable[[int, DType, tuple[int, ...]], DType]:
    """Return what gives a tensor that is not row-major a data type with its strides."""

    def typed(row: int, _dtype: DType, _shape: tuple[int, ...]) -> DType:
        first, last = bounds[row : row + 2].tolist()
        element = rules.dtypes[codes.item(row) & (kernels.PICKLE_STRIDED - 1)]
        assert element is not None  # noqa: S101 - its twin has been found
        return element.placed(Strided(tuple(step * element.bits // 8 for step in strides[first:last].tolist())))

    return typed


def _load_metadata(source: Source, span: Span, size: int, crc: int, options: Options) -> dict[str, Any]:
    """Return the values that are no tensors: the program is read and run again, since it is not kept."""
    data = source.pread(span.offset, size)
    if kernels.crc32(data) != crc:
        raise FileChangedError(f"{span.name} changed after the file was opened", path=source.name)
    return values_of(run(data, span, options).content()[1], data, span)
