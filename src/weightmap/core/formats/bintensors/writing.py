"""Writing BinTensors."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from weightmap.core.bytes.sink import WritePlan
from weightmap.core.formats._cursor import LENGTH
from weightmap.core.formats._recognition import MAX_HEADER
from weightmap.core.formats._writing import Reason, Request, Unfit, encodable, framed, framing, lacking, refuse
from weightmap.core.formats.bintensors import DTYPE_NAMES, LAYOUTS
from weightmap.core.native import scans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.core.formats._writing import Tensors

_CODE = {name: code for code, name in enumerate(DTYPE_NAMES)}

# Integers from here on take more than one byte; and most short ones to widen, by 8 bytes each.
_WIDE, _MOST_WIDENED = 251, 7


def plan(request: Request) -> WritePlan:
    """Lay out a BinTensors file."""
    reasons: list[Reason] = []
    for tensor in request.tensors:
        if tensor.dtype.name not in _CODE:
            reasons.append(Unfit("tensor", tensor.name, lacking(tensor.dtype.name, DTYPE_NAMES)))
        if not encodable(tensor.name):
            reasons.append(Unfit("tensor", tensor.name, "a name that is not Unicode text"))
    metadata = request.metadata
    for key, value in (metadata or {}).items():
        if not (isinstance(key, str) and isinstance(value, str) and encodable(key) and encodable(value)):
            reasons.append(Unfit("metadata", str(key), "keys and values must be strings"))
    if reasons:
        refuse("BinTensors", reasons)
    align = request.align
    # Tensors behind one of unaligned size are unaligned: such sizes come last.
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
            if number < _WIDE and len(short) < _MOST_WIDENED:
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
    """Pad a header so that the data begins at a multiple of 8, or of `align` if that can be.

    Only the spaces of padding to 8 may follow the last entry; integers may take nine bytes instead of one.
    """
    widened = len(framing(len(header), align)) // 8
    if len(short) >= widened:
        for place in reversed(short[:widened]):
            header[place : place + 1] = b"\xfd" + header[place : place + 1].ljust(8, b"\0")
    header += framing(len(header), 8)


def _reads_as_specification(header: bytearray, data_size: int) -> bool:
    """Whether a reader would take the header for one of the other layout, which only crafted names cause."""
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
