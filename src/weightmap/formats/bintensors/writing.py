"""Writing BinTensors."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from weightmap import kernels
from weightmap.formats._base import MAX_HEADER
from weightmap.formats._cursor import LENGTH
from weightmap.formats._writing import Plan, Reason, Request, Unfit, encodable, framed, framing, lacking, refuse
from weightmap.formats.bintensors import DTYPE_NAMES, LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.formats._writing import Payload

_CODE = {name: code for code, name in enumerate(DTYPE_NAMES)}

# Parts of the header among which integers are looked for that can take more bytes: those of some ten tensors.
_FIRST = 64


def plan(request: Request) -> Plan:
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
    tensors = [(-_CODE[tensor.dtype.name], tensor.name.encode(), tensor) for tensor in request.tensors]
    # Behind a tensor whose size is no multiple of the alignment, none is aligned: such tensors come last.
    tensors.sort(key=lambda entry: (entry[2].nbytes % request.align != 0, *entry[:2]))
    current = request.layout == "current"
    parts, numbers, size = _entries(tensors, metadata, current=current)
    header = _padded(parts, numbers, request.align)
    if len(header) > MAX_HEADER:
        refuse("BinTensors", [f"a header of {len(header)} bytes, more than {MAX_HEADER}"])
    if current and _reads_as_specification(header, size):
        ambiguous = "a file that reads as the specification's layout too: rename a tensor"
        refuse("BinTensors, layout 'current',", [ambiguous])
    return Plan(LENGTH.size + len(header) + size, framed(header, [tensor for _, _, tensor in tensors]))


def _entries(
    tensors: list[tuple[int, bytes, Payload]], metadata: Mapping[str, str] | None, *, current: bool
) -> tuple[list[bytes], list[int], int]:
    """Return the parts of the header, the places of integers among the first ones, and the bytes of all tensors."""
    parts = [b"\0"] if metadata is None else [b"\1", _varint(len(metadata))]
    for pair in sorted((key.encode(), value.encode()) for key, value in (metadata or {}).items()):
        for text in pair:
            parts += (_varint(len(text)), text)
    numbers, offset, first = [len(parts)], 0, len(parts) + _FIRST
    parts.append(_varint(len(tensors)))
    for code, name, tensor in tensors:
        if current:
            parts += (_varint(len(name)), name)
        at = len(parts)
        parts += (_varint(-code), _varint(len(tensor.shape)), *map(_varint, tensor.shape), _varint(offset))
        if at < first:
            numbers += range(at + 1, len(parts))  # bincode decodes a dtype of four bytes at most
        offset += tensor.nbytes
        parts.append(_varint(offset))
    if not current:
        parts.append(_varint(len(tensors)))
        for name, index in sorted((name, index) for index, (_, name, _) in enumerate(tensors)):
            parts += (_varint(len(name)), name, _varint(index))
    return parts, numbers, offset


def _padded(parts: list[bytes], numbers: list[int], align: int) -> bytes:
    """Join the parts of a header, and pad it so that the data begins at a multiple of 8, or of `align` if that can be.

    Only the spaces of padding to 8 may follow the last entry; integers may take nine bytes instead of one.
    """
    header = b"".join(parts)
    padding = framing(len(header), align)
    short = [place for place in numbers if len(parts[place]) == 1][: len(padding) // 8]
    if len(short) == len(padding) // 8:
        for place in short:
            parts[place] = b"\xfd" + parts[place].ljust(8, b"\0")
        header = b"".join(parts)
    return header + framing(len(header), 8)


def _reads_as_specification(header: bytes, data_size: int) -> bool:
    """Whether a reader would take the header for one of the other layout, which only crafted names cause."""
    _, found, fault = kernels.scan_bincode(header, LAYOUTS["spec"], len(header))
    return fault is None and bool(found.complete) and found.data_end == data_size


_SMALL = tuple(bytes([value]) for value in range(251))


def _varint(value: int) -> bytes:
    """Return an integer in bincode's shortest encoding."""
    if value < 251:
        return _SMALL[value]
    if value < 1 << 16:
        return struct.pack("<BH", 251, value)
    return struct.pack("<BI", 252, value) if value < 1 << 32 else struct.pack("<BQ", 253, value)
