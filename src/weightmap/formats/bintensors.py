"""BinTensors ``.bt``: ``u64 n | header of n bytes | data``, the header in the encoding of bincode 2.

Encoding
--------
Unsigned integers up to 250 are one byte; 251, 252 and 253 are followed by a u16, u32 or u64, little-endian; 254 and 255
are errors. A string is its length in bytes and strict UTF-8; a list its length and its elements; a map its length and
its pairs; an optional value is a byte 0, or a byte 1 and the value.

Two layouts of the header are in use:

* "spec", of the specification and of bintensors up to 0.0.5: ``Option<Map<String, String>>`` metadata,
  ``Vec<{dtype, shape: Vec, (start, end)}>`` tensors, ``Map<String, index>`` names.
* "current", of bintensors from 0.1.0 on: ``Option<Map<String, String>>``,
  ``Vec<(name, dtype, shape: Vec, start, end)>``.

dtype: 0 BOOL, 1 U8, 2 I8, 3 F8_E5M2, 4 F8_E4M3, 5 I16, 6 U16, 7 F16, 8 BF16, 9 I32, 10 U32, 11 F32, 12 F64, 13 I64, 14
U64. Offsets count from the first byte after the header.

* n is at most 100,000,000, and counts the padding of the header: less than 8 spaces (0x20), to a multiple of 8.
* Names are unique. Tensor i begins where tensor i - 1 ended, the first one at 0; end - start is the product of the
  shape times the bytes of an element; the last one ends where the file does.

Ours, where the specification is silent or its implementations differ
----------------------------------------------------------------------
* Both layouts are tried, strictly. A file that fits both is of the specification's layout. (bintensors 0.2.0 knows the
  current one alone, and misreads some older files.) So the index is checked whatever ``verify=`` says.
* The map of names has each tensor once; metadata has each key once.
* Integers that take more bytes than they need, and a header whose length is not a multiple of 8, are warnings of
  `verify`.
* ``strict=False`` reads, with a warning, what bintensors reads: padding of any bytes and length (0.2.0 and 0.0.5), a
  repeated key of the metadata, whose last value counts (both), a map of names that names a tensor twice and another
  one not at all (0.0.5); and bytes after the end of the data (neither). An index past the list of tensors makes 0.0.5
  panic; it stays an error.
* Metadata that is there and empty differs from none: `save` writes it for ``metadata={}``, and `convert` keeps it.
* Written: tensors by dtype code, largest first, so that each is naturally aligned, then by the bytes of their names;
  keys of the metadata, and in the specification's layout the map, by their bytes. The current layout comes out byte for
  byte as bintensors 0.2.0 writes it. (0.0.5 writes its maps in random order.) The specification prints 3000 as 251, B8,
  B0; it is 251, B8, 0B.
* A file of the current layout that fits the other one too is not written. It takes names made for the purpose.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightmap import kernels
from weightmap.dtypes import DTYPES
from weightmap.errors import FormatError, LayoutError, TruncatedError, UnsupportedError, quoted
from weightmap.faults import NUMPY_MAX_NDIM
from weightmap.formats._base import Content, Format, Options, Plan, Request, encodable, refuse
from weightmap.formats._framed import LENGTH, MAX_HEADER, check_end, read_header, verifier, writer
from weightmap.table import ColumnTable, Rules, bits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightmap.source import Source

# By the format's codes.
DTYPE_NAMES = (
    "bool",
    "uint8",
    "int8",
    "float8_e5m2",
    "float8_e4m3fn",
    "int16",
    "uint16",
    "float16",
    "bfloat16",
    "int32",
    "uint32",
    "float32",
    "float64",
    "int64",
    "uint64",
)
_DTYPES = tuple(DTYPES[name] for name in DTYPE_NAMES)
_BITS = bits_of(_DTYPES)
_CODE = {name: code for code, name in enumerate(DTYPE_NAMES)}
_FIELDS = {"data_offset": ("data_offsets", 0), "data_size": ("data_offsets", 0)}
LAYOUTS = {"spec": 1, "current": 2}
_EITHER = 3
# Larger lengths may spell the magic bytes of another format; this one is already more than a header may have.
_PRINTABLE = 0x20202020


def sniff(head: bytes, size: int) -> bool:
    """Say whether this looks like BinTensors: a length that a header may have, then the tag of an optional value."""
    return size >= 10 and head[8] <= 1 and 2 <= LENGTH.unpack_from(head)[0] < _PRINTABLE


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header in both layouts, and return the content by the one that fits."""
    header = read_header(source, head, options)
    strict = options if options.strict else Options(checked=options.checked, strict=True, limits=options.limits)
    # What reads as the specification's layout and then turns out wrong may still be of the current one.
    readings = [(_EITHER, strict), (LAYOUTS["current"], strict)]
    if not options.strict:
        readings += [(number, options) for number in LAYOUTS.values()]
    misfits: list[_Misfit] = []
    for layouts, how in readings:
        reading = _Reading(source, header, layouts, how)
        try:
            return reading.content()
        except FormatError as error:
            misfits.append(_Misfit(reading.progress, error))
    # Of two reasons, that of the reading which went further.
    raise max(misfits[-2:], key=lambda misfit: misfit.progress).error


class _Misfit(NamedTuple):
    progress: int
    error: FormatError


class _Reading:
    """An attempt to read a header by one layout, or by the first that fits.

    Attributes
    ----------
    progress : int
        How far it went, for comparison with other attempts.
    """

    def __init__(self, source: Source, header: bytes, layouts: int, options: Options) -> None:
        self._source = source
        self._header = header
        self._options = options
        self._warnings: list[str] = []
        limit = options.limits.max_tensors + 1
        self._columns, self._found, self._fault = kernels.bintensors_scan(header, layouts, limit)
        self.progress: int = self._found.progress

    def content(self) -> Content:
        """Return the content. Raises the `FormatError` that the first thing wrong with it deserves."""
        source, header, options, found = self._source, self._header, self._options, self._found
        warnings, base, aliased = self._warnings, LENGTH.size + len(header), False
        if self._fault is not None:
            aliased = not options.strict and self._fault.kind in ("BIN_ALIAS", "BIN_INDEX", "BIN_MAP")
            if not aliased:
                raise self._error(self._fault)
            self._read_aliases(self._fault)
        columns = self._columns
        if columns.count > options.limits.max_tensors:
            options.limits.check("max_tensors", columns.count, "number of tensors")
        self._check_padding()
        check_end(found.data_end, base, source.size, options, warnings)
        rules = Rules(_DTYPES, _BITS, base, found.data_end, 0, NUMPY_MAX_NDIM, 1, 0, lax=aliased, fields=_FIELDS)
        table = ColumnTable(columns, rules, utf8=True, locate=None if aliased else self._locator())
        table.check()
        metadata = self._metadata()

        def load() -> dict[str, str]:
            return dict(_pairs(metadata, found.metadata_count))

        layout = "spec" if found.layout == LAYOUTS["spec"] else "current"
        verify = verifier(header, table, "BinTensors")
        has = found.metadata_begin != 0
        return Content(layout, table, load_metadata=load, has_metadata=has, verify=verify, warnings=warnings)

    def _error(self, fault: kernels.Fault) -> FormatError:
        """Return the error for a fault of the scan."""
        if fault.kind == "CAPACITY":
            self._options.limits.check("max_tensors", fault.actual, "number of tensors")
        part, field = _PARTS[self._found.part]
        where = part.format(row=fault.row)
        offset = LENGTH.size + fault.at
        actual, expected = fault.actual, fault.expected
        if fault.kind == "BIN_END":
            return TruncatedError(f"the header ends within {where}", field=field, offset=offset)
        if fault.kind == "BIN_COUNT":
            return TruncatedError(
                _COUNTS[self._found.part].format(row=fault.row),
                field=field,
                offset=offset,
                actual=actual,
                expected=f"at most {expected}, by the bytes that follow it in the header",
            )
        if fault.kind == "BIN_DTYPE":
            known = ", ".join(f"{code} {name}" for code, name in enumerate(DTYPE_NAMES))
            return UnsupportedError(where, field=field, offset=offset, actual=actual, expected=f"one of {known}")
        if fault.kind == "BIN_UTF8":
            return FormatError(f"{where}: a string is not UTF-8", field=field, offset=offset)
        what, wanted = {
            "BIN_INTEGER": (f"{where}: first byte of an integer", "at most 253"),
            "BIN_OPTION": (f"{where}: the tag of an optional value", "0 or 1"),
            "BIN_INDEX": (f"{where}: index of a tensor in entry {fault.row}", f"less than {expected}"),
            "BIN_ALIAS": (f"{where}: index of a tensor in entry {fault.row}", "one that no earlier entry has"),
            "BIN_MAP": (f"{where}: its number of entries", f"{expected}, the number of tensors"),
        }[fault.kind]
        cls = LayoutError if fault.kind in ("BIN_INDEX", "BIN_ALIAS", "BIN_MAP") else FormatError
        return cls(what, field=field, offset=offset, actual=actual, expected=wanted)

    def _check_padding(self) -> None:
        """Check what follows the last entry, and note what is legal and odd."""
        header, found, warnings = self._header, self._found, self._warnings
        padding = header[found.end :]
        if len(padding) > 7 or padding.strip(b" "):
            error = LayoutError(
                "padding of the header",
                field="padding",
                offset=LENGTH.size + found.end,
                actual=f"{len(padding)} bytes {padding[:16]!r}",
                expected="fewer than 8 bytes, all of them spaces",
            )
            self._options.odd(error, warnings)
        if len(header) % 8:
            warnings.append(f"the header has {len(header)} bytes, which is no multiple of 8: data is not aligned")
        if found.wide < found.end:
            at = LENGTH.size + found.wide
            warnings.append(f"an integer of the header takes more bytes than it needs (at byte {at})")

    def _metadata(self) -> bytes:
        """Return the bytes of the metadata's pairs, keys checked for repetition."""
        found = self._found
        raw = self._header[found.metadata_begin : found.metadata_end]
        if found.keys_in_doubt:
            seen: set[str] = set()
            for key, _ in _pairs(raw, found.metadata_count):
                if key in seen:
                    what = f"metadata: the key {quoted(key)} is there twice"
                    self._options.odd(
                        LayoutError(what, field="metadata", offset=LENGTH.size + found.metadata_begin), self._warnings
                    )
                    break
                seen.add(key)
        return raw

    def _locator(self) -> Callable[[int], int | None]:
        """Return a function that tells where the entry of a tensor begins, for messages: by scanning once more."""
        source, size, layout = self._source, len(self._header), self._found.layout

        def locate(row: int) -> int | None:
            fault = kernels.bintensors_scan(source.pread(LENGTH.size, size), layout, row)[2]
            return None if fault is None else LENGTH.size + fault.at

        return locate

    def _read_aliases(self, fault: kernels.Fault) -> None:
        """Make a row of each name of a map that has other than one name for each tensor, as bintensors 0.0.5 does."""
        columns, found, count = self._columns, self._found, self._columns.count
        position = found.map_begin
        entries, position = _integer(self._header, position)
        names: dict[bytes, int] = {}
        for _ in range(entries):
            length, position = _integer(self._header, position)
            name, position = self._header[position : position + length], position + length
            index, position = _integer(self._header, position)
            names[name] = index
            if len(names) > count:  # a map may have millions of them
                break
        if len(names) != count:
            raise self._error(fault)
        highest = max(names.values())  # of a name that is there twice, the last index counts
        if highest >= count:
            what = "the map of names: index of a tensor"
            raise LayoutError(what, field="index_map", actual=highest, expected=f"less than {count}")
        begin, end = columns.array(columns.begin, count, "<u8"), columns.array(columns.end, count, "<u8")
        if begin[0] or (begin[1:] != end[:-1]).any():  # in the table itself tensors may overlap now
            what = "the tensors do not lie one after another"
            raise LayoutError(what, field="data_offsets")
        ordered = sorted(names, key=names.__getitem__)
        self._columns = columns.take(np.array([names[name] for name in ordered]), ordered)
        found.end, found.wide = position, position
        self._warnings.append("the map of names has more than one name for a tensor, and none for another")


# What the scan was reading when it met a fault, and the name of the field.
_PARTS = (
    ("the metadata", "metadata"),
    ("the number of tensors", "tensors"),
    ("the name of tensor {row}", "name"),
    ("dtype code of tensor {row}", "dtype"),
    ("the shape of tensor {row}", "shape"),
    ("the data offsets of tensor {row}", "data_offsets"),
    ("the map of names", "index_map"),
)
# The same, for a count or length that is too large; data offsets have none.
_COUNTS = (
    "the metadata: a count or length",
    "the number of tensors",
    "the length of the name of tensor {row}",
    "",
    "the number of dimensions of tensor {row}",
    "",
    "the map of names: a count or length",
)


def _integer(data: bytes, position: int) -> tuple[int, int]:
    """Return the integer at `position` and where it ends. Raises `TruncatedError` when it does not fit."""
    first = data[position : position + 1]
    if first and first[0] <= 250:
        return first[0], position + 1
    size = {251: 2, 252: 4, 253: 8}.get(first[0] if first else 0, 0)
    raw = data[position + 1 : position + 1 + size]
    if not size or len(raw) < size:
        msg = "the header ends within the map of names, or an integer there is none"
        raise TruncatedError(msg, field="index_map", offset=LENGTH.size + position)
    return int.from_bytes(raw, "little"), position + 1 + size


def _pairs(raw: bytes, count: int) -> Iterator[tuple[str, str]]:
    """Yield the pairs of the metadata, which the scan has checked."""
    position = 0
    for _ in range(count):
        length, position = _integer(raw, position)
        key = raw[position : position + length].decode()
        position += length
        length, position = _integer(raw, position)
        yield key, raw[position : position + length].decode()
        position += length


# ------------------------------------------------------------------------------------------------------- writing
def plan(request: Request) -> Plan:
    """Lay out a BinTensors file."""
    reasons = []
    for tensor in request.tensors:
        if tensor.dtype.name not in _CODE:
            reasons.append(f"tensor {tensor.name!r}: dtype {tensor.dtype.name}")
        if not encodable(tensor.name):
            reasons.append(f"tensor {tensor.name!r}: its name is not Unicode text")
    metadata = request.metadata
    for key, value in (metadata or {}).items():
        if not (isinstance(key, str) and isinstance(value, str) and encodable(key) and encodable(value)):
            reasons.append(f"metadata {key!r}: keys and values must be strings")
    if reasons:
        refuse("BinTensors", reasons)
    tensors = [(-_CODE[tensor.dtype.name], tensor.name.encode(), tensor) for tensor in request.tensors]
    tensors.sort(key=lambda entry: entry[:2])
    parts = [b"\0"] if metadata is None else [b"\1", _varint(len(metadata))]
    for pair in sorted((key.encode(), value.encode()) for key, value in (metadata or {}).items()):
        for text in pair:
            parts += (_varint(len(text)), text)
    parts.append(_varint(len(tensors)))
    current, offset = request.layout == "current", 0
    for code, name, tensor in tensors:
        if current:
            parts += (_varint(len(name)), name)
        parts += (_varint(-code), _varint(len(tensor.shape)), *map(_varint, tensor.shape), _varint(offset))
        offset += tensor.nbytes
        parts.append(_varint(offset))
    if not current:
        parts.append(_varint(len(tensors)))
        for name, index in sorted((name, index) for index, (_, name, _) in enumerate(tensors)):
            parts += (_varint(len(name)), name, _varint(index))
    header = b"".join(parts)
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER:
        refuse("BinTensors", [f"a header of {len(header)} bytes, more than {MAX_HEADER}"])
    if current and _reads_as_specification(header, offset):
        refuse(
            "BinTensors, layout 'current',", ["a file that reads as the specification's layout too: rename a tensor"]
        )
    return Plan(LENGTH.size + len(header) + offset, writer(header, [tensor for _, _, tensor in tensors]))


def _reads_as_specification(header: bytes, data_size: int) -> bool:
    """Whether a header would be taken for one of the other layout: it takes names made for the purpose."""
    _, found, fault = kernels.bintensors_scan(header, LAYOUTS["spec"], len(header))
    return fault is None and bool(found.complete) and found.data_end == data_size


_SMALL = tuple(bytes([value]) for value in range(251))


def _varint(value: int) -> bytes:
    """Return an integer in the fewest bytes that bincode has for it."""
    if value < 251:
        return _SMALL[value]
    if value < 1 << 16:
        return struct.pack("<BH", 251, value)
    return struct.pack("<BI", 252, value) if value < 1 << 32 else struct.pack("<BQ", 253, value)


FORMAT = Format(
    name="bintensors",
    title="BinTensors",
    suffixes=(".bt",),
    layouts=tuple(LAYOUTS),
    sniff=sniff,
    parse=parse,
    plan=plan,
    carries={layout: frozenset({"metadata"}) for layout in LAYOUTS},
    dtypes={layout: frozenset(DTYPE_NAMES) for layout in LAYOUTS},
    text_metadata=True,
)
