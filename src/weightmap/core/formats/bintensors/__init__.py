"""BinTensors ``.bt``: ``u64 n | header of n bytes | data``, the header in the encoding of bincode 2.

Encoding
--------
An unsigned integer up to 250 is one byte; a byte 251, 252 or 253 precedes a little-endian u16, u32 or u64; 254 and 255
are errors. A string is its length in bytes and strict UTF-8; a list its length and its elements; a map its length and
its pairs; an optional value is a byte 0, or a byte 1 and the value.

The header has two layouts:

* "spec", of the specification and of bintensors up to 0.0.5: ``Option<Map<String, String>>`` metadata,
  ``Vec<{dtype, shape: Vec, (start, end)}>`` tensors, ``Map<String, index>`` names.
* "current", of bintensors from 0.1.0 on: ``Option<Map<String, String>>``,
  ``Vec<(name, dtype, shape: Vec, start, end)>``.

dtype: 0 BOOL, 1 U8, 2 I8, 3 F8_E5M2, 4 F8_E4M3, 5 I16, 6 U16, 7 F16, 8 BF16, 9 I32, 10 U32, 11 F32, 12 F64, 13 I64, 14
U64. Offsets count from the first byte after the header.

* n is at most 100,000,000, or ``Limits.max_header_bytes``. It counts the header's padding to a multiple of 8: fewer
  than 8 spaces (0x20).
* Names are unique. The first tensor begins at 0, each other one where the one before it ends, and the last one ends
  with the file; end - start is the product of the shape times the bytes of an element.

Ours, where the specification is silent or its implementations differ
----------------------------------------------------------------------
* Both layouts are tried, strictly, whatever ``verify=`` says; a file that fits both has the specification's layout.
  (bintensors 0.2.0 knows only the current one, and misreads some older files.)
* The map of names has each tensor once; metadata has each key once.
* `verify` warns of integers that take more bytes than they need, and of a header whose length is not a multiple of 8.
* ``strict=False`` reads with a warning what bintensors reads: padding of any bytes and length (0.2.0 and 0.0.5); a
  repeated metadata key, whose last value counts (both); a map that names one tensor twice and another not at all
  (0.0.5). It also tolerates bytes after the end of the data (neither does). An index past the list of tensors, which
  makes 0.0.5 panic, stays an error.
* Empty metadata differs from no metadata: `save` writes it for ``metadata={}``, and `convert` keeps it.
* ``weightmap.types`` in the metadata, from `convert`, records the types of texts before: see `conversion.metadata`.
* Written: tensors by dtype code, largest first, so that each is naturally aligned, then by the bytes of their names;
  metadata keys and the map of names by their bytes. The current layout equals byte for byte what bintensors 0.2.0
  writes. (0.0.5 writes its maps in random order.) The specification prints 3000 as 251, B8, B0; it is 251, B8, 0B.
* With ``align=``, integers of the header take nine bytes where one would do, so that the data begins at a multiple:
  there may be too few of them in a header of one or two tensors. Tensors whose size is a multiple come first.
* A file of the current layout that also fits the other one is refused when writing. Only crafted names cause that.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.core.arguments import Options
from weightmap.core.bytes.sink import WritePlan
from weightmap.core.dtypes import DTYPES
from weightmap.core.faults import cut_off, too_many
from weightmap.core.formats import MAX_HEADER, is_bintensors
from weightmap.core.formats._base import LENGTH, Content, Format, read_header, trailing, verifier
from weightmap.core.formats._writing import Reason, Request, Tensors, Unfit, encodable, framed, framing, lacking, refuse
from weightmap.core.native import access, scans
from weightmap.core.table import Rules
from weightmap.core.table.columns import ColumnTable
from weightmap.errors import FormatError, LayoutError, TruncatedError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightmap.core.bytes.source import Source

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
# Bits that tell a scan which layouts to try.
LAYOUTS = {"spec": 1, "current": 2}
_EITHER = LAYOUTS["spec"] | LAYOUTS["current"]


class _Rules(Rules):
    __slots__ = ()
    dtypes = tuple(DTYPES[name] for name in DTYPE_NAMES)
    fields = MappingProxyType({"data_offset": ("data_offsets", 0), "data_size": ("data_offsets", 0)})


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check the header in both layouts, and return the content of the one that fits."""
    header = read_header(source, head, options)
    strict = options if options.strict else Options(**options.keywords(strict=True))
    # A header that parses in the specification's layout and then fails a check may still have the current layout.
    readings = [(_EITHER, strict), (LAYOUTS["current"], strict)]
    if not options.strict:
        readings += [(number, options) for number in LAYOUTS.values()]
    misfits: list[tuple[int, FormatError]] = []
    for layouts, how in readings:
        reading = _Reading(source, header, layouts, how)
        try:
            return reading.content()
        except FormatError as error:
            misfits.append((reading.progress, error))
    # The error of the reading that got further is more helpful.
    raise max(misfits[-2:], key=itemgetter(0))[1]


class _Reading:
    """An attempt to read a header in one layout, or in the first that fits."""

    def __init__(self, source: Source, header: bytes, layouts: int, options: Options) -> None:
        self._source = source
        self._header = header
        self._options = options
        self._warnings: list[str] = []
        limit = options.limits.max_tensors + 1
        self._columns, self._scan, self._fault = scans.scan_bincode(header, layouts, limit)
        self.progress: int = self._scan.progress  # bytes that this attempt read

    def content(self) -> Content:
        """Return the content. Raises the `FormatError` of the first defect."""
        source, header, options, scan = self._source, self._header, self._options, self._scan
        warnings, base, aliased = self._warnings, LENGTH.size + len(header), False
        if self._fault is not None:
            aliased = not options.strict and self._fault.kind in ("BIN_ALIAS", "BIN_INDEX", "BIN_MAP")
            if not aliased:
                raise self._error(self._fault)
            self._read_aliases(self._fault)
        columns = self._columns
        options.limits.check("max_tensors", columns.count, "number of tensors")
        self._check_padding()
        trailing(source, base + scan.data_end, options, warnings, "data_offsets")
        rules = _Rules(base, source.size, scan.data_end, lax=aliased)
        table = ColumnTable(columns, rules, utf8=True, locate=None if aliased else self._locator())
        table.check()
        metadata = self._metadata()

        def load() -> dict[str, str]:
            return dict(_pairs(metadata, scan.metadata_count))

        layout = "spec" if scan.layout == LAYOUTS["spec"] else "current"
        verify = verifier(header, table)
        content = Content(layout, table, load, verify, warnings)
        content.has_metadata = scan.metadata_begin != 0
        return content

    def _error(self, fault: access.Fault) -> FormatError:
        """Return the error for a fault of the scan."""
        if fault.kind == "CAPACITY":
            self._options.limits.check("max_tensors", fault.actual, "number of tensors")
        part, field = _PARTS[self._scan.part]
        where = part.format(row=fault.row)
        offset = LENGTH.size + fault.at
        actual, expected = fault.actual, fault.expected
        if fault.kind == "BIN_END":
            return cut_off(where, offset, field=field, whole="the header")
        if fault.kind == "BIN_COUNT":
            what, limit = _COUNTS[self._scan.part].format(row=fault.row), "the bytes left in the header"
            return too_many(what, actual, expected, field=field, offset=offset, limit=limit)
        if fault.kind == "BIN_DTYPE":
            codes = ", ".join(f"{code} {name}" for code, name in enumerate(DTYPE_NAMES))
            return UnsupportedError(where, field=field, offset=offset, actual=actual, expected=f"one of {codes}")
        if fault.kind == "BIN_UTF8":
            return FormatError(f"{where}: a string is not UTF-8", field=field, offset=offset)
        what, requirement = {
            "BIN_INTEGER": (f"{where}: first byte of an integer", "at most 253"),
            "BIN_OPTION": (f"{where}: the tag of an optional value", "0 or 1"),
            "BIN_INDEX": (f"{where}: index of a tensor in entry {fault.row}", f"less than {expected}"),
            "BIN_ALIAS": (f"{where}: index of a tensor in entry {fault.row}", "one that no earlier entry has"),
            "BIN_MAP": (f"{where}: its number of entries", f"{expected}, the number of tensors"),
        }[fault.kind]
        cls = LayoutError if fault.kind in ("BIN_INDEX", "BIN_ALIAS", "BIN_MAP") else FormatError
        return cls(what, field=field, offset=offset, actual=actual, expected=requirement)

    def _check_padding(self) -> None:
        """Check the padding after the last entry, and warn of legal oddities."""
        header, scan, warnings = self._header, self._scan, self._warnings
        padding = header[scan.end :]
        if len(padding) > 7 or padding.strip(b" "):
            what, expected = "padding of the header", "fewer than 8 bytes, all of them spaces"
            actual, at = f"{counted(len(padding), 'byte')} {padding[:16]!r}", LENGTH.size + scan.end
            error = LayoutError(what, field="padding", offset=at, actual=actual, expected=expected)
            self._options.tolerate(error, warnings)
        if len(header) % 8:
            warnings.append(f"the header has {len(header)} bytes, not a multiple of 8: data is not aligned")
        if scan.wide < scan.end:
            at = LENGTH.size + scan.wide
            warnings.append(f"an integer of the header takes more bytes than it needs (at byte {at})")

    def _metadata(self) -> bytes:
        """Return the bytes of the metadata's pairs, after a check for repeated keys."""
        scan = self._scan
        raw = self._header[scan.metadata_begin : scan.metadata_end]
        if scan.keys_in_doubt:
            names: set[str] = set()
            for key, _ in _pairs(raw, scan.metadata_count):
                if key in names:
                    what, at = f"metadata has the key {quoted(key)} twice", LENGTH.size + scan.metadata_begin
                    self._options.tolerate(LayoutError(what, field="metadata", offset=at), self._warnings)
                    break
                names.add(key)
        return raw

    def _locator(self) -> Callable[[int], int | None]:
        """Return a function that finds the offset of a tensor's entry, for messages, by another scan."""
        source, size, layout = self._source, len(self._header), self._scan.layout

        def locate(row: int) -> int | None:
            fault = scans.scan_bincode(source.pread(LENGTH.size, size), layout, row)[2]
            return None if fault is None else LENGTH.size + fault.at

        return locate

    def _read_aliases(self, fault: access.Fault) -> None:
        """Make a row of each name in a map that is not a bijection, as bintensors 0.0.5 does."""
        columns, scan, count = self._columns, self._scan, self._columns.count
        position = scan.map_begin
        entries, position = _integer(self._header, position)
        names: dict[bytes, int] = {}
        for _ in range(entries):
            length, position = _integer(self._header, position)
            name, position = self._header[position : position + length], position + length
            index, position = _integer(self._header, position)
            names[name] = index
            if len(names) > count:  # a map may have millions of names
                break
        if len(names) != count:
            raise self._error(fault)
        highest = max(names.values())  # the last index of a repeated name counts
        if highest >= count:
            what = "the map of names: index of a tensor"
            raise LayoutError(what, field="index_map", actual=highest, expected=f"less than {count}")
        begin, end = columns.array(columns.begin, count, "<u8"), columns.array(columns.end, count, "<u8")
        if begin[0] or (begin[1:] != end[:-1]).any():  # check now, because rows of the new table may overlap
            raise LayoutError("the tensors do not lie one after another", field="data_offsets")
        ordered = sorted(names, key=names.__getitem__)
        self._columns = columns.take(np.array([names[name] for name in ordered]), ordered)
        scan.end, scan.wide = position, position
        self._warnings.append("the map of names has more than one name for a tensor, and none for another")


# By the part in which the scan found a fault: its name in messages, and its field.
_PARTS = (
    ("the metadata", "metadata"),
    ("the number of tensors", "tensors"),
    ("the name of tensor {row}", "name"),
    ("dtype code of tensor {row}", "dtype"),
    ("the shape of tensor {row}", "shape"),
    ("the data offsets of tensor {row}", "data_offsets"),
    ("the map of names", "index_map"),
)
# The same for a count or length that is too large; dtypes and data offsets have no counts.
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
    """Return the integer at `position` and the position behind it. Raises `TruncatedError` when it does not fit."""
    first = data[position : position + 1]
    if first and first[0] <= 250:
        return first[0], position + 1
    size = {251: 2, 252: 4, 253: 8}.get(first[0] if first else 0, 0)
    raw = data[position + 1 : position + 1 + size]
    if not size or len(raw) < size:
        msg = "the header ends within the map of names, or the map holds an invalid integer"
        raise TruncatedError(msg, field="index_map", offset=LENGTH.size + position)
    return int.from_bytes(raw, "little"), position + 1 + size


def _pairs(raw: bytes, count: int) -> Iterator[tuple[str, str]]:
    """Yield the metadata's pairs, which the scan has checked."""
    position = 0
    for _ in range(count):
        length, position = _integer(raw, position)
        key = raw[position : position + length].decode()
        position += length
        length, position = _integer(raw, position)
        yield key, raw[position : position + length].decode()
        position += length


# ----------------------------------------------------------------------------------------------------
# Writing BinTensors.

_CODE = {name: code for code, name in enumerate(DTYPE_NAMES)}

# The first integer that takes more than one byte; the number of shorter ones that `_pad` may widen, by 8 bytes each.
_WIDE, _MAX_WIDENED = 251, 7


def plan(request: Request) -> WritePlan:
    """Lay out a BinTensors file."""
    reasons: list[Reason] = []
    for tensor in request.tensors:
        if tensor.dtype.name not in _CODE:
            reasons.append(Unfit("tensor", tensor.name, lacking(tensor.dtype.name, DTYPE_NAMES)))
        if not encodable(tensor.name):
            reasons.append(Unfit("tensor", tensor.name, "a name that is not Unicode text"))
    reasons += request.unfit_texts()
    if reasons:
        refuse("BinTensors", reasons)
    metadata, align = request.metadata, request.align
    # A tensor of unaligned size misaligns the tensors after it: such sizes come last.
    tensors = request.tensors.arranged(lambda tensor: (tensor.nbytes % align != 0, -_CODE[tensor.dtype.name]))
    current = request.layout == "current"
    header, short, size = _entries(tensors, metadata, current=current)
    _pad(header, short, align)
    if len(header) > MAX_HEADER:
        refuse("BinTensors", [f"a header of {len(header)} bytes, more than {MAX_HEADER}"])
    if current and _reads_as_specification(header, size):
        ambiguous = "a file that reads as the specification's layout too: rename a tensor"
        refuse("BinTensors, layout 'current',", [ambiguous])
    return WritePlan(LENGTH.size + len(header) + size, framed(header, tensors))


def _entries(
    tensors: Tensors, metadata: Mapping[str, str] | None, *, current: bool
) -> tuple[bytearray, list[int], int]:
    """Return the header, the places of its first integers of one byte, and the bytes of all tensors."""
    header = bytearray(b"\0" if metadata is None else b"\1" + _varint(len(metadata)))
    for pair in sorted((key.encode(), value.encode()) for key, value in (metadata or {}).items()):
        for text in pair:
            header += _varint(len(text)) + text
    short, offset = [len(header)] if len(tensors) < _WIDE else [], 0
    header += _varint(len(tensors))
    for tensor in tensors:
        if current:
            name = tensor.name.encode()
            header += _varint(len(name)) + name
        header += _varint(_CODE[tensor.dtype.name])  # bincode decodes a dtype of four bytes at most
        numbers = [len(tensor.shape), *tensor.shape, offset]
        for number in numbers:
            if number < _WIDE and len(short) < _MAX_WIDENED:
                short.append(len(header))
            header += _varint(number)
        offset += tensor.nbytes
        header += _varint(offset)
    if not current:
        header += _varint(len(tensors))
        names = [tensor.name for tensor in tensors]
        for index in sorted(range(len(names)), key=names.__getitem__):
            name = names[index].encode()
            header += _varint(len(name)) + name + _varint(index)
    return header, short, offset


def _pad(header: bytearray, short: list[int], align: int) -> None:
    """Pad a header so that the data begins at a multiple of 8, or of `align` if possible.

    Only spaces up to the next multiple of 8 may follow the last entry; integers may take nine bytes instead of one.
    """
    widened = len(framing(len(header), align)) // 8
    if len(short) >= widened:
        for place in reversed(short[:widened]):
            header[place : place + 1] = b"\xfd" + header[place : place + 1].ljust(8, b"\0")
    header += framing(len(header), 8)


def _reads_as_specification(header: bytearray, data_size: int) -> bool:
    """Whether a reader would take this header for the other layout, which only crafted names cause."""
    _, scan, fault = scans.scan_bincode(header, LAYOUTS["spec"], len(header))
    return fault is None and bool(scan.complete) and scan.data_end == data_size


_SMALL = tuple(bytes([value]) for value in range(_WIDE))


def _varint(value: int) -> bytes:
    """Return an integer in bincode's shortest encoding."""
    if value < _WIDE:
        return _SMALL[value]
    if value < 1 << 16:
        return struct.pack("<BH", 251, value)
    return struct.pack("<BI", 252, value) if value < 1 << 32 else struct.pack("<BQ", 253, value)


FORMAT = Format(
    name="bintensors",
    title="BinTensors",
    suffixes=(".bt",),
    layouts=tuple(LAYOUTS),
    sniff=is_bintensors,
    parse=parse,
    plan=plan,
    carries={layout: frozenset({"metadata"}) for layout in LAYOUTS},
    dtypes={layout: frozenset(DTYPE_NAMES) for layout in LAYOUTS},
    aligns=dict.fromkeys(LAYOUTS, 64),
)
