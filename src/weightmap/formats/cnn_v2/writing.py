"""Writing CNN v2."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import EncodeError, Remedy, counted
from weightmap.formats._writing import Payload, Reason, Request, Unfit, lacking, refuse
from weightmap.formats.cnn_v2 import HALF, HEADER_SIZES, LAYOUTS, MAGIC, RECORD
from weightmap.io.sink import WritePlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightmap.formats._writing import Tensors
    from weightmap.io.sink import Sink

_VERSIONS = {layout: version for version, layout in LAYOUTS.items()}
_U32_MAX = (1 << 32) - 1


def layout_for(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the layout of the metadata's version. Raises `EncodeError` for a version that does not exist."""
    if metadata is None or "version" not in metadata:
        return None
    version = _integer(metadata["version"])
    if version not in LAYOUTS:
        found = str(metadata["version"])[:80]
        msg = f"CNN v2 has versions 1 and 2, and metadata 'version' is {found!r}"
        raise EncodeError(msg, remedy=Remedy("{} would decide", "layout"))
    return LAYOUTS[version]


def plan(request: Request) -> WritePlan:
    """Lay out a CNN v2 file."""
    reasons: list[Reason] = []
    tensors = _ordered(request.tensors, reasons)
    mip_level = _mip_level(request, reasons)
    records, total = [], 0
    for tensor in tensors:
        problems = _problems(tensor)
        if problems:
            reasons.append(Unfit("tensor", tensor.name, ", ".join(problems)))
            continue
        out_channels, in_channels, kernel_size, _ = tensor.shape
        count = tensor.nbytes // HALF
        if total <= _U32_MAX < total + count:
            reasons.append(Unfit("tensor", tensor.name, f"with it there are {total + count} weights (below 2**32)"))
        elif total <= _U32_MAX:
            records.append(RECORD.pack(kernel_size, in_channels, out_channels, total, count))
        total += count
    if reasons:
        refuse("CNN v2", reasons)
    version = _VERSIONS[request.layout]
    header = MAGIC + struct.pack("<4I", version, len(tensors), total, mip_level)
    start = header[: HEADER_SIZES[version]] + b"".join(records)
    padding = HALF * (total % 2)
    return WritePlan(len(start) + HALF * total + padding, lambda sink: _write(sink, start, tensors, padding))


def _write(sink: Sink, start: bytes, tensors: Sequence[Payload], padding: int) -> None:
    sink.write(start)
    for tensor in tensors:
        tensor.write(sink)
    sink.pad(padding)


def _ordered(tensors: Tensors, reasons: list[Reason]) -> list[Payload]:
    """Return the tensors by the number of their layer; misnamed ones come last."""
    numbers = {f"layer.{i}.weight": i for i in range(len(tensors))}
    last = len(tensors) - 1
    why = f"a name that is not layer.{f'<i>.weight, i from 0 to {last}' if last else '0.weight'}"
    reasons += [Unfit("tensor", tensor.name, why) for tensor in tensors if tensor.name not in numbers]
    return sorted(tensors, key=lambda tensor: numbers.get(tensor.name, len(tensors)))


def _problems(tensor: Payload) -> list[str]:
    """Return why a tensor cannot be the weights of a layer."""
    problems, shape = [], tensor.shape
    if tensor.dtype.name != "float16":
        problems.append(lacking(tensor.dtype.name, ("float16",)))
    if len(shape) != 4:
        problems.append(f"{counted(len(shape), 'dimension')} (expected 4: out, in, kernel, kernel)")
    elif shape[2] != shape[3]:
        problems.append(f"shape {shape} (a kernel is square)")
    if 0 in shape:
        problems.append(f"shape {shape} (no dimension is 0)")
    if max(shape, default=0) > _U32_MAX:
        problems.append(f"shape {shape} (a dimension is below 2**32)")
    return problems


def _mip_level(request: Request, reasons: list[Reason]) -> int:
    """Return the mip_level of the metadata, by default 0."""
    given = (request.metadata or {}).get("mip_level", 0)
    level = _integer(given)
    if level is None or level > _U32_MAX:
        reasons.append(f"metadata 'mip_level': {str(given)[:80]!r} (an integer from 0 to 2**32 - 1)")
    elif level and request.layout == "v1":
        reasons.append(f"metadata 'mip_level': {level} (layout v1 has none)")
    return level or 0


def _integer(value: Any) -> int | None:
    """Return a non-negative integer, given as such or as a decimal string; None for anything else."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) <= 10 else None
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 0:
        return int(value)
    return None
