"""Writing GGUF, version 3, little-endian."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from weightmap import native
from weightmap.errors import counted
from weightmap.formats._writing import Reason, Request, Unfit, encodable, lacking, refuse
from weightmap.formats.gguf.encoding import key_values
from weightmap.formats.gguf.header import BLOCKS, CODES, DENSE, MAGIC, aligned
from weightmap.formats.gguf.values import encode_string
from weightmap.io.sink import WritePlan

if TYPE_CHECKING:
    from weightmap.formats._writing import Payload
    from weightmap.io.sink import Sink

_MAX_NDIM, _VERSION = 4, 3
# A file without tensors is padded up to this alignment: the metadata may declare one of 4 GiB.
_PADDED = 4096


def plan(request: Request) -> WritePlan:
    """Lay out a GGUF file."""
    reasons: list[Reason] = []
    for tensor in request.tensors:
        problems = _problems(tensor)
        if problems:
            reasons.append(Unfit("tensor", tensor.name, ", ".join(problems)))
    values, alignment = key_values(request, reasons)
    if reasons:
        refuse("GGUF", reasons)
    header, offset = bytearray(struct.pack("<4sI2Q", MAGIC, _VERSION, len(request.tensors), len(values))), 0
    for value in values:
        header += value
    for tensor in request.tensors:
        shape = tensor.shape[::-1]
        numbers = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, CODES[tensor.dtype.name], offset)
        header += encode_string(tensor.name.encode()) + numbers
        offset = aligned(offset + tensor.nbytes, alignment)
    if len(header) >= native.U32_MAX - 1:
        refuse("GGUF", [f"a header of {len(header)} bytes, more than positions of 32 bits"])
    base = aligned(len(header), alignment)
    padded = len(request.tensors) > 0 or alignment <= _PADDED

    def write(sink: Sink) -> None:
        sink.write(header)
        for tensor in request.tensors:
            sink.pad(-sink.position % alignment)
            tensor.write(sink)
        if padded:
            sink.pad(-sink.position % alignment)

    return WritePlan(base + offset if padded else len(header), write)


def _problems(tensor: Payload) -> list[str]:
    """Return the properties of a tensor that the format cannot express."""
    name, shape = tensor.dtype.name, tensor.shape
    problems = []
    if name not in (BLOCKS if tensor.dtype.declared else DENSE):
        problems.append(lacking(name, DENSE))
    if len(shape) > _MAX_NDIM:
        problems.append(f"{counted(len(shape), 'dimension')} (expected 0 to {_MAX_NDIM})")
    if not encodable(tensor.name):
        problems.append("a name that is not Unicode text")
    return problems
