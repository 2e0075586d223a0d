"""PyTorch checkpoints `.pt .pth .bin .ckpt`, read only: nothing in the file is executed, torch is not needed.

`torch.save` writes a pickle, a program that makes the saved object, with the bytes of tensors ("storages") beside it.
Here, a machine in C (csrc/formats/pickle.c) runs the program without making objects. It knows the opcodes of
`torch.save` and a fixed list of names with built-in meanings. Any other name, such as ``os.system``, raises an
`UnsupportedError`, which names it and says what to save instead. With ``strict=False``, values of other names are left
out, with a warning from `verify` for each name, and the rest is read; a file with nothing left is refused. Nothing is
imported by name, and nothing is called. Memo, stack and depth are bounded.

Layouts
-------
zip
    Since 1.6: an archive of stored entries ``<prefix>/data.pkl``, the program; ``<prefix>/data/<key>``, the storages,
    which are mapped in place; ``<prefix>/byteorder``, "little" or "big", by default little; ``<prefix>/version``. If
    all CRC-32s are 0, they were not computed, and are not compared. Names that differ only in capitals are equal, as
    for torch. `weightmap.core.formats._zip` has the rules for archives. Deflated storages, and archives of TorchScript
    and torch.export, which hold programs of another kind, raise an `UnsupportedError`.
legacy
    Five pickles: the number 0x1950a86a20f9469cfc6c, the protocol version 1001, a dictionary with the byte order of the
    machine, the object, and a list of keys. Then, for each key, ``u64 number of elements | bytes of the storage``,
    little-endian on every machine.

Tensors
-------
A tensor is a storage, an offset, a shape and strides, and lies within the storage. A storage takes exactly the bytes of
its entry. Tensors of one storage share memory: tied weights are saved once. Empty tensors lie at the beginning of their
storage. An element of ``float4_e2m1fn_x2`` is a byte with two numbers: the last dimension is doubled, as in
safetensors. These are refused or left out, because they are not views of a storage: tensors that are sparse, quantised,
nested or on the device "meta", conjugate and negative views, types that numpy lacks, and storages by themselves.

Ours
----
- Names join, with points, the keys of nested dictionaries, the attributes of ``argparse.Namespace``, and the numbers of
  items in lists, tuples and sets: "model.0.bias". A key may be a text, an integer, a truth value, None, or a tuple of
  texts, integers and None, "(1, weight)". The name of a lone tensor is "".
- Two equal names, as in ``{"a.b": x, "a": {"b": y}}``, raise a `LayoutError`; ``strict=False`` keeps the first tensor
  of the name. A tensor and a value may share a name.
- The other values in the object are the metadata, named alike: numbers, texts, None, truth values, bytes, types,
  devices, paths, and numpy's scalars and arrays. Types, devices and paths become texts, and numpy's scalars become
  Python numbers. Sets keep their stored order; ``defaultdict`` and ``Counter`` are dictionaries. Empty containers are
  left out.
- Unreferenced entries give warnings. ``strict=False`` leaves out tensors whose storage is missing, deflated, encrypted
  or too short, with a warning for each name.
- Files of ``torch.distributed.checkpoint``, an archive for each part of a tensor, raise an `UnsupportedError` that
  says how to make a checkpoint of them.
- Attributes of tensors and dictionaries, which torch sets when it loads them, are left out. The attributes "data",
  "real" and "imag", which change the values of a tensor, raise an `UnsupportedError`, and so does a state for an
  existing tensor.
- Content that `torch.save` never writes, and that readers interpret differently, is refused: a repeated key of a
  dictionary, a storage with two types, entries whose names differ only in capitals, big-endian tensors of another type
  than their storage, and big-endian scalars of numpy.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import quoted
from weightmap.core.bytes.geometry import Strided
from weightmap.core.dtypes import PAIRS, DType
from weightmap.core.faults import cut_off, trailing_bytes
from weightmap.core.formats import DISTCP, TORCH_EXPORT, is_torch
from weightmap.core.formats._base import Content, Format, trailing
from weightmap.core.formats._zip import Archive, last_begin
from weightmap.core.formats.torch.program import DTYPE_NAMES, Program, dtypes, error_of, items_of, values_of
from weightmap.core.native import access, scans
from weightmap.core.table import Rules, StringTable
from weightmap.core.table.columns import ColumnTable
from weightmap.errors import FileChangedError, FormatError, LayoutError, LimitError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification
    from weightmap.core.native.scans import Pickle, PickleStorages

# Entries that only archives of torch.export have, not checkpoints.
_EXPORTS = (b"/archive_format", TORCH_EXPORT)


_PROGRAM = "data.pkl"
# Bytes of the first window for the programs of a legacy file; each next window is `_GROWTH` times as large.
_WINDOW, _GROWTH = 1 << 16, 4
# Most bytes of the folder's name in an archive, which torch.save takes from the file; each look-up of a storage has it.
_MAX_FOLDER = 255
# Mentions of storages to look up at once: more would take more memory, but no less time.
_BATCH = 1024
# Bytes of names to search at once, in a copy.
_SEARCHED = 1 << 20
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_BFLOAT16 = DTYPE_NAMES.index("bfloat16")
_PAIRS = DTYPE_NAMES.index("float4_e2m1fn")
# A storage that has not been mentioned yet has no type.
_UNKNOWN = 255
# The beginning of unreadable storages, behind the end of every file.
_ABSENT = 1 << 62


class _Rules(Rules):
    __slots__ = ()
    dtypes = dtypes(big=False)
    scattered = True


@functools.cache
def _swapped() -> type[Rules]:
    """Return the rules of big-endian files."""
    return _Rules.varied(dtypes=dtypes(big=True))


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Run the program, and return the table of tensors."""
    return (_parse_zip if head[:1] == b"P" else _parse_legacy)(source, head, options)


# ------------------------------------------------------------------------------------------------------- zip
def _parse_zip(source: Source, head: bytes, options: Options) -> Content:
    warnings: list[str] = []
    archive = _open_archive(source, head, options, warnings)
    _refuse_export(archive)
    entry, prefix = _find_program(archive)
    begin, size = archive.begin(entry), archive.size(entry)
    options.limits.check("max_header_bytes", size, f"size of {_PROGRAM}", offset=begin)
    _refuse_script(archive, prefix)
    big = _is_big(archive, prefix)
    _check_stored(archive, entry)
    archive.check(entry)
    program, summed = Program(source, archive.label(entry), begin, size), archive.summed
    crc = archive.crc(entry) if summed else program.crc32(size)
    verifier, sums = archive.verifier, archive.sums
    pickle = program.run(options)
    if pickle.end != size:
        error = trailing_bytes(size, pickle.end, field="pickle", offset=begin + pickle.end, whole=program.name)
        options.tolerate(error, warnings)
    begins = _storages_in(archive, prefix, pickle, program, options, warnings)
    _leave_out(pickle, program, options, warnings)
    has_values = bool(pickle.n_values)
    # Free each part once it is used: the archive, the program and the table take equal amounts of memory.
    del archive
    table = _table(pickle, begins, program, options, warnings, big=big)
    del pickle, begins
    if options.checked:
        table.check()
    metadata = functools.partial(_load_metadata, program, size, crc, options)
    content = Content("zip", table, metadata, verifier, warnings)
    content.checksums = summed
    if summed:
        content.sums = sums
    content.has_metadata = has_values
    return content


def _open_archive(source: Source, head: bytes, options: Options, warnings: list[str]) -> Archive:
    """Read the directory; refuse a file that a rank of torch.distributed.checkpoint saved, with inner archives."""
    begin = 0
    try:
        if not source.name.endswith(".distcp"):
            return Archive(source, head, options, warnings, torch=True)
    except LayoutError:
        begin = last_begin(source)
        if not begin:
            raise
    what = "this file holds parts of tensors, as a rank of torch.distributed.checkpoint saved them"
    raise UnsupportedError(f"{what}: {DISTCP}", field="end record", offset=begin or None)


def _refuse_export(archive: Archive) -> None:
    """Refuse an archive of `torch.export.save`, which holds a graph."""
    for name in _EXPORTS:
        for at in _places_of(name, archive.names.text):
            row = int(archive.names.bounds.searchsorted(np.uint32(at), "right")) - 1
            what = "this archive is a program of torch.export: save torch.export.load(FILE).state_dict with torch.save"
            raise UnsupportedError(what, field=_PROGRAM, offset=int(archive.entries.offset[row]))


def _find_program(archive: Archive) -> tuple[int, str]:
    """Return the entry of the program, and its folder."""
    bounds, tail, rows = archive.names.bounds, f"/{_PROGRAM}".encode(), list[int]()
    text = archive.names.text
    for at in _places_of(tail, text):
        row = int(bounds.searchsorted(np.uint32(at), "right")) - 1
        if bounds[row + 1] == at + len(tail) and b"/" not in bytes(text[bounds[row] : at]):
            rows.append(row)
    if not rows:
        for name, error in archive.refused.items():
            if name.lower().endswith(f"/{_PROGRAM}"):
                raise error
    if len(rows) != 1:
        what = "entries <prefix>/data.pkl of the archive"
        raise LayoutError(what, field=_PROGRAM, offset=0, actual=len(rows), expected=1)
    prefix = archive.names[rows[0]].removesuffix(_PROGRAM)
    if len(prefix) > _MAX_FOLDER:
        what, expected = "length of the name of the archive's folder", f"at most {_MAX_FOLDER}"
        raise LimitError(what, field=_PROGRAM, offset=archive.begin(rows[0]), actual=len(prefix), expected=expected)
    return rows[0], prefix


def _places_of(part: bytes, text: NDArray[np.uint8]) -> Iterator[int]:
    """Yield the positions of `part` in an archive's joined names, without Python code for each name."""
    for begin in range(0, len(text), _SEARCHED):
        window = bytes(text[begin : begin + _SEARCHED + len(part) - 1])
        at = window.find(part)
        while at >= 0:
            yield begin + at
            at = window.find(part, at + 1)


def _refuse_script(archive: Archive, prefix: str) -> None:
    script = archive.names.find(f"{prefix}constants.pkl")
    if script >= 0:
        what = "this archive is a TorchScript program: save model.state_dict() of torch.jit.load(FILE) with torch.save"
        raise UnsupportedError(what, field="constants.pkl", offset=int(archive.entries.offset[script]))


def _is_big(archive: Archive, prefix: str) -> bool:
    """Whether storages are big-endian."""
    for name, error in archive.refused.items():
        if name.lower() == f"{prefix}byteorder":
            raise error
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


def _mentions(pickle: Pickle, prefix: bytes, program: Program, options: Options) -> Iterator[PickleStorages]:
    """Yield the mentions of storages, some at a time, named by `prefix` and their key."""
    for storages in pickle.storages(prefix, _BATCH):
        if isinstance(storages, access.Fault):
            raise error_of(storages, program, options)
        yield storages


def _check_types(first: NDArray[np.uint8], storages: PickleStorages | _Mentions, program: Program) -> None:
    """Refuse a storage mentioned with two types, of which torch takes the first one."""
    differing = np.flatnonzero((first != storages.type) & (storages.nbytes > 0))
    if len(differing):
        i = int(differing[0])
        what, expected = "type of a storage at its second mention", DTYPE_NAMES[int(first[i])]
        at, actual = program.offset + int(storages.at[i]), DTYPE_NAMES[int(storages.type[i])]
        raise LayoutError(what, field="storage", offset=at, actual=actual, expected=expected)


def _storage_error(archive: Archive, row: int, key: str, nbytes: int, program: Program, at: int) -> FormatError:
    """Return the error for a storage that cannot be read; `row` is its entry, or -1 without one."""
    if row < 0:
        what = f"the archive has no entry {quoted(key)}, a storage"
        return LayoutError(what, field="storage", offset=program.offset + at)
    try:
        _check_stored(archive, row)
    except FormatError as error:
        return error
    return _claim_error(archive, row, nbytes, program, at)


def _claim_error(archive: Archive, row: int, nbytes: int, program: Program, at: int) -> LayoutError:
    """Return the error for a storage whose entry has another size than it claims."""
    what, size = f"bytes that the storage {quoted(archive.label(row))} claims", archive.size(row)
    return LayoutError(what, field="storage", offset=program.offset + at, actual=nbytes, expected=size)


def _storages_in(
    archive: Archive, prefix: str, pickle: Pickle, program: Program, options: Options, warnings: list[str]
) -> NDArray[np.uint64]:
    """Check that each storage's entry has the size that it claims; return the beginnings of the storages in the file.

    ``strict=False`` puts unreadable storages at `_ABSENT`.
    """
    entries, names = archive.entries, archive.names
    folder = f"{prefix}data/".encode()
    begins = scans.transient(pickle.n_storages, np.uint64)
    used = np.zeros(len(archive), np.bool_)
    types = np.full(len(archive), _UNKNOWN, np.uint8)
    first, absent, refused = 0, dict[str, str](), {name.lower() for name in archive.refused}
    for mentions in _mentions(pickle, folder, program, options):
        rows = names.find_spans(mentions.names.lower(), mentions.bounds)
        sizes = entries.size[rows]
        readable = (rows >= 0) & (entries.method[rows] == 0) & (entries.stored[rows] == sizes)
        readable &= mentions.nbytes <= sizes
        for i in np.flatnonzero(~readable).tolist():
            key = mentions.names[int(mentions.bounds[i]) : int(mentions.bounds[i + 1])].decode(errors="replace")
            where = int(rows[i]), key, int(mentions.nbytes[i]), program, int(mentions.at[i])
            if options.strict or mentions.nbytes[i] > _ABSENT:
                raise _storage_error(archive, *where)
            if key.lower() not in refused:  # refused ones already have a warning
                absent.setdefault(key, str(_storage_error(archive, *where)))
        larger = np.flatnonzero(readable & (mentions.nbytes < sizes))
        if len(larger):
            i = int(larger[0])
            nbytes, at = int(mentions.nbytes[i]), int(mentions.at[i])
            options.tolerate(_claim_error(archive, int(rows[i]), nbytes, program, at), warnings)
        new = readable & (types[rows] == _UNKNOWN)
        types[rows[new][::-1]] = mentions.type[new][::-1]  # backwards, so that the first mention of each stays
        _check_types(np.where(readable, types[rows], mentions.type), mentions, program)
        used[rows[rows >= 0]] = True
        begins[first : first + len(rows)] = np.where(readable, entries.data[rows], _ABSENT)
        first += len(rows)
    warnings.extend(absent.values())
    unused = [i for i in np.flatnonzero(~used).tolist() if names.raw(i).startswith(folder)]
    warnings.extend(f"no tensor refers to entry {quoted(archive.label(i))}" for i in unused)
    return begins


# ----------------------------------------------------------------------------------------------------- legacy
def _parse_legacy(source: Source, head: bytes, options: Options) -> Content:
    if head[:1] != b"\x80":
        expected = "the first bytes of an archive or a pickle"
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=expected)
    warnings: list[str] = []
    programs = _Programs(source, options)
    number, _ = programs.values("the pickle of the magic number")
    _expect(number, _MAGIC_NUMBER, "magic number", 0)
    version, at = programs.values("the pickle of the protocol")
    _expect(version, _PROTOCOL, "protocol version", at)
    programs.values("the pickle of the system")
    pickle, program = programs.run("the pickle of the object")
    begins, end = _storages_behind(programs, pickle, program, options)
    trailing(source, end, options, warnings)
    _leave_out(pickle, program, options, warnings)
    has_values, size = bool(pickle.n_values), pickle.end
    table = _table(pickle, begins, program, options, warnings, big=False)
    del pickle, begins
    if options.checked:
        table.check()
    header = Program(source, "the header", 0, programs.at)
    crc = header.crc32(header.size)

    def verify(run: Verification) -> None:
        run.unchanged(run.read(0, header.size), crc, header.name)
        run.checked("header")
        run.finish()

    metadata = functools.partial(_load_metadata, program, size, program.crc32(size), options)
    content = Content("legacy", table, metadata, verify, warnings)
    content.has_metadata = has_values
    return content


class _Programs:
    """The pickles at the beginning of a legacy file, run one after another.

    The end of a pickle is known only after running it: each attempt takes more bytes than the last one.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self._options = source, options
        self._limit = min(source.size, options.limits.max_header_bytes)
        self._window = _WINDOW
        self.at = 0

    def run(self, name: str) -> tuple[Pickle, Program]:
        """Run the next program."""
        while True:
            end = min(self._window, self._limit)
            program = Program(self._source, name, self.at, end - self.at)
            pickle = program.attempt(self._options)
            fault = pickle.fault
            if fault is None:
                self.at += pickle.end
                return pickle, program
            if fault.kind != "PICKLE_END" or end == self._limit:
                break
            del pickle  # before the next attempt, which needs the same memory
            self._window *= _GROWTH
        if fault.kind == "PICKLE_END" and self._limit < self._source.size:
            self._options.limits.check("max_header_bytes", self._limit + 1, "size of the pickles")
        raise error_of(fault, program, self._options)

    def values(self, name: str) -> tuple[dict[str, Any], int]:
        """Run the next program; return its values, and its position. It must not make tensors."""
        pickle, program = self.run(name)
        _refuse_tensors(pickle, program)
        return values_of(pickle, program, self._options), program.offset


def _refuse_tensors(pickle: Pickle, program: Program) -> None:
    if pickle.n_tensors:
        raise LayoutError(f"{program.name} holds tensors", field="pickle", offset=program.offset)


def _expect(values: dict[str, Any], expected: int, what: str, at: int) -> None:
    if values != {"": expected}:
        shown = quoted(values.get("", "something else"))
        raise UnsupportedError(what, field="pickle", offset=at, actual=shown, expected=hex(expected))


class _Mentions:
    """All mentions of storages in a legacy file, where only the key identifies a storage.

    Attributes
    ----------
    keys : StringTable
    at, nbytes, item, type : ndarray
        See `PickleStorages`.
    first : ndarray of int64
        For each mention, the number of the first mention of the same storage.
    """

    def __init__(self, pickle: Pickle, program: Program, options: Options) -> None:
        count = pickle.n_storages
        text, bounds, first = bytearray(), scans.transient(count + 1, np.uint32), 0
        bounds[0] = 0
        self.at, self.nbytes = (scans.transient(count, np.uint64) for _ in range(2))
        self.item, self.type = (scans.transient(count, np.uint8) for _ in range(2))
        for storages in _mentions(pickle, b"", program, options):
            last = first + len(storages.at)
            bounds[first + 1 : last + 1] = storages.bounds[1:] + np.uint32(len(text))
            text += storages.names
            for name in ("at", "nbytes", "item", "type"):
                getattr(self, name)[first:last] = getattr(storages, name)
            first = last
        self.keys = StringTable(text, bounds, 0, "key of a storage")
        self.first = scans.transient(count, np.int64)
        for begin in range(0, count, _BATCH):
            part = bounds[begin : begin + _BATCH + 1]
            names = bytes(text[part[0] : part[-1]])
            self.first[begin : begin + _BATCH] = self.keys.find_spans(names, part - part[0])


def _storages_behind(
    programs: _Programs, pickle: Pickle, program: Program, options: Options
) -> tuple[NDArray[np.uint64], int]:
    """Run the pickle of keys; return the beginnings of the storages behind it, and the end of the last one."""
    keys, at, offset = _keys(programs, options)
    source, mentions = program.source, _Mentions(pickle, program, options)
    first, nbytes = mentions.first, mentions.nbytes
    differing = np.flatnonzero(nbytes != nbytes[first])
    if len(differing):
        i = int(differing[0])
        what, expected = "bytes that a storage claims at its second mention", int(nbytes[first[i]])
        mention = program.offset + int(mentions.at[i])
        raise LayoutError(what, field="storage", offset=mention, actual=int(nbytes[i]), expected=expected)
    _check_types(mentions.type[first], mentions, program)
    begins = scans.transient(len(first), np.uint64)
    listed = np.zeros(len(first), np.bool_)
    find = mentions.keys.finder
    for _, key in keys:
        i = find(key) if isinstance(key, str) else -1
        if i < 0 or listed[i]:
            what = f"the list of keys has {quoted(key)} {'which no tensor mentions' if i < 0 else 'twice'}"
            raise LayoutError(what, field="keys", offset=offset)
        listed[i] = True
        size, item = int(nbytes[i]), int(mentions.item[i])
        count = int.from_bytes(source.pread(at, 8), "little") if at + 8 <= source.size else -1
        if count < 0 or size > source.size - at - 8:
            raise cut_off(f"storage {quoted(key)}", source.size, at + 8 + size, field="storage")
        if count * item != size:
            what = f"number of elements of storage {quoted(key)}"
            raise LayoutError(what, field="storage", offset=at, actual=count, expected=size // item)
        begins[i] = at + 8
        at += 8 + size
    count, distinct = int(listed.sum()), int((first == np.arange(len(first))).sum())
    if count != distinct:
        what, storages = "number of keys in the list", f"{distinct}, the number of storages"
        raise LayoutError(what, field="keys", offset=offset, actual=count, expected=storages)
    begins[:] = begins[first]
    return begins, at


def _keys(programs: _Programs, options: Options) -> tuple[Iterator[tuple[str, Any]], int, int]:
    """Run the pickle of keys; return the keys, and the end and the beginning of the pickle."""
    pickle, program = programs.run("the pickle of the keys")
    _refuse_tensors(pickle, program)
    return items_of(pickle, program, options), programs.at, program.offset


# ----------------------------------------------------------------------------------------------------- both
def _leave_out(pickle: Pickle, program: Program, options: Options, warnings: list[str]) -> None:
    """Warn of each tensor that ``strict=False`` leaves out. Refuse a checkpoint if no tensor is left."""
    if options.strict:
        return
    before = len(warnings)
    values = values_of(pickle, program, options, warnings)
    if not values and not pickle.n_tensors and len(warnings) > before:
        raise UnsupportedError(f"{program.name}: nothing is left of it: {warnings[before]}", field="pickle")


def _first_of_each(
    columns: scans.Columns, strides: NDArray[np.uint64] | None, warnings: list[str]
) -> tuple[scans.Columns, NDArray[np.uint64] | None]:
    """Leave out tensors whose name an earlier tensor has."""
    bounds = columns.array(columns.bounds, columns.count + 1, "<u4")
    names, first = StringTable(columns.text(), bounds, 0, "tensor name"), dict[bytes, int]()
    if not names.duplicates()[0]:
        return columns, strides
    for i in range(columns.count):
        name = names.raw(i)
        if first.setdefault(name, i) != i:
            shown = quoted(name.decode(errors="replace"))
            warnings.append(
                f'a second tensor called {shown} is left out: rename a key ("." joins keys of dictionaries)'
            )
    return _selected(columns, strides, np.array(list(first.values()), np.intp))


def _table(
    pickle: Pickle,
    begins: NDArray[np.uint64],
    program: Program,
    options: Options,
    warnings: list[str],
    *,
    big: bool,
) -> ColumnTable:
    """Return the table of tensors in storages with these beginnings."""
    tensors = pickle.tensors(begins)
    if isinstance(tensors, access.Fault):
        raise error_of(tensors, program, options)
    columns, strides = tensors
    if not options.strict:
        columns, strides = _without_absent(*_first_of_each(columns, strides, warnings), warnings)
    if big and (columns.array(columns.dtype, columns.count, "u1") & (scans.PICKLE_STRIDED - 1) == _BFLOAT16).any():
        raise UnsupportedError("a big-endian checkpoint has tensors of bfloat16, which numpy lacks", field="byteorder")
    if big and pickle.n_retyped:
        what = "a big-endian checkpoint has tensors of another type than their storage, by whose type torch swaps bytes"
        raise UnsupportedError(what, field="byteorder")
    columns, strides = _without_pairs(columns, strides, options, warnings)
    rules = (_swapped() if big else _Rules)(0, program.source.size)
    typed = None if strides is None else _strided(rules, strides, columns)
    return ColumnTable(columns, rules, utf8=True, typed=typed)


def _without_absent(
    columns: scans.Columns, strides: NDArray[np.uint64] | None, warnings: list[str]
) -> tuple[scans.Columns, NDArray[np.uint64] | None]:
    """Leave out tensors whose storage cannot be read."""
    absent = columns.array(columns.begin, columns.count, "<u8") >= _ABSENT
    if not absent.any():
        return columns, strides
    for row in np.flatnonzero(absent).tolist():
        name = quoted(columns.name(row).decode(errors="replace"))
        warnings.append(f"tensor {name} is left out: its storage cannot be read")
    return _selected(columns, strides, np.flatnonzero(~absent))


def _without_pairs(
    columns: scans.Columns, strides: NDArray[np.uint64] | None, options: Options, warnings: list[str]
) -> tuple[scans.Columns, NDArray[np.uint64] | None]:
    """Give float4 tensors the shape of their numbers; leave out tensors whose pairs do not lie in rows."""
    codes = columns.array(columns.dtype, columns.count, "u1")
    pairs = np.flatnonzero((codes & (scans.PICKLE_STRIDED - 1)) == _PAIRS)
    if not len(pairs):
        return columns, strides
    bounds, dims = columns.array(columns.dim_bounds, columns.count + 1, "<u4"), columns.dims
    left_out = pairs[(codes[pairs] >= scans.PICKLE_STRIDED) | (bounds[pairs] == bounds[pairs + 1])]
    for row in left_out.tolist():
        name = quoted(columns.name(row).decode(errors="replace"))
        what = f"tensor {name} of {PAIRS} is not row-major, or has no dimension: save tensor.contiguous()"
        options.tolerate(UnsupportedError(what, field="pickle"), warnings)
    for row in np.setdiff1d(pairs, left_out).tolist():
        dims[bounds[row + 1] - 1] *= 2
    if not len(left_out):
        return columns, strides
    return _selected(columns, strides, np.setdiff1d(np.arange(columns.count), left_out))


def _selected(
    columns: scans.Columns, strides: NDArray[np.uint64] | None, rows: NDArray[np.intp]
) -> tuple[scans.Columns, NDArray[np.uint64] | None]:
    """Return these rows, and their strides."""
    if strides is not None:
        dims = columns.array(columns.dim_bounds, columns.count + 1, "<u4").tolist()
        strides = np.concatenate([strides[:0], *(strides[dims[i] : dims[i + 1]] for i in rows.tolist())])
    return columns.take(rows), strides


def _strided(
    rules: Rules, strides: NDArray[np.uint64], columns: scans.Columns
) -> Callable[[int, tuple[int, ...]], tuple[DType, Strided]]:
    """Return the object that gives tensors in another order than row-major their data type and strides."""

    def typed(row: int, _shape: tuple[int, ...]) -> tuple[DType, Strided]:
        first, last = columns.dim_bounds[row], columns.dim_bounds[row + 1]
        element = rules.dtypes[columns.dtype[row] & (scans.PICKLE_STRIDED - 1)]
        assert element is not None  # noqa: S101 - its twin has been found
        return element, Strided(tuple(step * element.bits // 8 for step in strides[first:last].tolist()))

    return typed


def _load_metadata(program: Program, size: int, crc: int, options: Options) -> dict[str, Any]:
    """Return the values that are not tensors, by running the program again: opening keeps nothing of it."""
    if program.crc32(size) != crc:
        raise FileChangedError(f"{program.name} changed after the file was opened", path=program.source.name)
    return values_of(program.run(options), program, options)


FORMAT = Format(
    name="torch",
    title="PyTorch",
    suffixes=(".pt", ".pth", ".bin", ".ckpt"),
    layouts=("zip", "legacy"),
    parse=parse,
    sniff=is_torch,
    leads=b"P\x80",
    nested=True,
    checksums=frozenset({"zip"}),
)
