"""Writes safetensors: see the package."""

from __future__ import annotations

import json
import math

from weightmap.core.bytes.sink import WritePlan
from weightmap.core.formats import MAX_HEADER
from weightmap.core.formats._base import LENGTH
from weightmap.core.formats._writing import Reason, Request, Unfit, encodable, framed, framing, lacking, refuse
from weightmap.core.formats.safetensors import DTYPE_NAMES

_CODE = {canonical: code for code, canonical in enumerate(DTYPE_NAMES.values())}
_THEIRS = {canonical: theirs for theirs, canonical in DTYPE_NAMES.items()}


def plan(request: Request) -> WritePlan:
    """Lay out a safetensors file."""
    reasons: list[Reason] = []
    for tensor in request.tensors:
        if tensor.dtype.name not in _CODE:  # blocks that are only copied; the format has every other dtype
            reasons.append(Unfit("tensor", tensor.name, lacking(tensor.dtype.name, _CODE)))
        elif (bits := tensor.dtype.bits) < 8 and math.prod(tensor.shape) * bits % 8:  # which safetensors does not read
            reasons.append(Unfit("tensor", tensor.name, f"elements of {bits} bits that fill no whole bytes"))
        if tensor.name == "__metadata__":
            reasons.append("tensor '__metadata__': the name is taken")
        if not encodable(tensor.name):
            reasons.append(Unfit("tensor", tensor.name, "a name that is not Unicode text"))
    reasons += request.unfit_texts()
    if reasons:
        refuse("safetensors", reasons)
    metadata, align = request.metadata, request.align
    # Tensors behind one of unaligned size are unaligned: such sizes come last.
    ordered = request.tensors.arranged(lambda tensor: (tensor.nbytes % align != 0, -_CODE[tensor.dtype.name]))
    compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    # As text, entry by entry: making a dictionary for each tensor takes longer than encoding it.
    header, before, offset = bytearray(b"{"), "", 0
    if metadata is not None:
        header += f'"__metadata__":{compact(dict(sorted(metadata.items())))}'.encode()
        before = ","
    for tensor in ordered:
        name, code, shape = compact(tensor.name), _THEIRS[tensor.dtype.name], ",".join(map(str, tensor.shape))
        end = offset + tensor.nbytes
        header += f'{before}{name}:{{"dtype":"{code}","shape":[{shape}],"data_offsets":[{offset},{end}]}}'.encode()
        before, offset = ",", end
    header += b"}" + framing(len(header) + 1, align)
    if len(header) > MAX_HEADER:
        refuse("safetensors", [f"a header of {len(header)} bytes, more than {MAX_HEADER}"])
    return WritePlan(LENGTH.size + len(header) + offset, framed(header, ordered))
