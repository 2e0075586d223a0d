"""CNN v2 ``.bin``: the weights of a small convolutional network, float16 packed in pairs for a GPU.

All integers are u32, little-endian. The header, with ``mip_level`` from version 2 on only::

    "CNN2" | version | num_layers | total_weights | mip_level        20 bytes in layout "v2", 16 in layout "v1"

then num_layers records of 20 bytes::

    kernel_size | in_channels | out_channels | weight_offset | weight_count

then the weights: pairs of float16 in u32, the even-numbered one in the low 16 bits. Stored little-endian, they are just
float16 one after another. So layer i is, in place, the array ``[out_channels, in_channels, kernel_size, kernel_size]``
from weight number weight_offset on, even or odd; its weight (o, i, y, x) is number
``(o * in_channels + i) * kernel_size**2 + y * kernel_size + x``.

* The magic, as a number, is 0x324E4E43; the version is 1 or 2.
* weight_offset is the sum of weight_count of the layers before; the sum over all is total_weights.
* The file has exactly the bytes of header and records, and ``2 * total_weights`` more.

Ours, where the specification is silent or contradicts itself
-------------------------------------------------------------
* An odd total_weights leaves half a pair at the end. The specification's packing fills the pair, its size check does
  not: files of both sizes are read. The spare half is written as zero; `verify` refuses another value, or with
  ``strict=False`` warns of it.
* The tensors are called "layer.0.weight", "layer.1.weight", ... The metadata is ``version`` and ``mip_level``, two
  integers; mip_level is 0 in version 1.
* weight_count is out_channels * in_channels * kernel_size**2, no factor being 0. Sums and products do not wrap around
  at 2**32, unlike the specification's own checks.
* `verify` warns of a mip_level above 3, more than 8 out_channels and an even kernel_size. A file without layers is
  legal if total_weights is 0.
* ``strict=False`` also tolerates trailing bytes, holes and overlaps of layers, and weights after the last layer.
* Writing without ``layout=`` follows the metadata's ``version``, else it writes version 2. ``layout=`` overrides a
  ``version`` in the metadata. Metadata may be integers or decimal strings, as other formats hold them.
* The specification's example counts "1296 u32 packed f16 pairs": they are 648 u32, or 1296 float16.
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap._messages import counted
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.dtypes import DTYPES
from weightmap.core.faults import cut_off
from weightmap.core.formats._base import TEXT, Content, Format, take, trailing
from weightmap.core.formats._writing import Payload, Reason, Request, Tensors, Unfit, lacking, refuse
from weightmap.core.native import access, checksums, scans
from weightmap.core.table import Rules
from weightmap.core.table.columns import ColumnTable
from weightmap.errors import EncodeError, FormatError, LayoutError, LimitError, Remedy, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.arguments import Options
    from weightmap.core.bytes.source import Source
    from weightmap.core.formats._verification import Verification

MAGIC = b"CNN2"
HEADER_SIZES = {1: 16, 2: 20}
LAYOUTS = {1: "v1", 2: "v2"}
RECORD = struct.Struct("<5I")
RECORD_FIELDS = ("kernel_size", "in_channels", "out_channels", "weight_offset", "weight_count")
HALF = 2


class _Rules(Rules):
    __slots__ = ()
    dtypes = (DTYPES["float16"],)
    min_ndim = max_ndim = 4
    alignment = unit = HALF
    # A shape that is too large shows as a wrong weight_count.
    fields = MappingProxyType(
        {"data_offset": ("weight_offset", 12), "data_size": ("weight_count", 16), "shape": ("weight_count", 16)}
    )


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check header and layer records, and return the table of layers."""
    version, num_layers, total, mip_level = _header(source, head)
    header_size = HEADER_SIZES[version]
    base = header_size + RECORD.size * num_layers
    if base > source.size:
        raise cut_off("its layer records", source.size, base, field="num_layers")
    options.limits.check("max_tensors", num_layers, "num_layers", offset=8)
    options.limits.check("max_header_bytes", base, "size of header and layer records", offset=8)
    warnings: list[str] = []
    _check_size(source, base, total, options, warnings)
    records = take(source, head, header_size, base - header_size)
    scanned = scans.scan_layers(records)
    if isinstance(scanned, access.Fault):
        _fail(scanned, header_size)
    columns, scan = scanned
    if options.checked:
        _check_total(scan, total, options, warnings)
    rules = _Rules(base, source.size, HALF * total, lax=not options.strict)
    table = ColumnTable(columns, rules, utf8=False, locate=lambda row: header_size + RECORD.size * row)
    if options.checked:
        table.check()
    crc = checksums.crc32(head[:header_size] + records)

    def verify(run: Verification) -> None:
        verify_cnn(run, crc, base, total)

    metadata = {"version": version, "mip_level": mip_level}
    return Content(LAYOUTS[version], table, lambda: metadata, verify, warnings)


def _header(source: Source, head: bytes) -> tuple[int, int, int, int]:
    """Return version, num_layers, total_weights and mip_level."""
    if head[:4] != MAGIC:
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=repr(MAGIC))
    if len(head) < 8:
        raise cut_off("its version", source.size, 8)
    (version,) = struct.unpack_from("<I", head, 4)
    if version not in HEADER_SIZES:
        raise UnsupportedError("version", field="version", offset=4, actual=version, expected="1 or 2")
    if len(head) < HEADER_SIZES[version]:
        raise cut_off("its header", source.size, HEADER_SIZES[version])
    num_layers, total = struct.unpack_from("<2I", head, 8)
    mip_level = struct.unpack_from("<I", head, 16)[0] if version == 2 else 0
    return version, num_layers, total, mip_level


def _check_size(source: Source, base: int, total: int, options: Options, warnings: list[str]) -> None:
    """Check that the file ends with its weights, or for an odd number of weights with the last pair."""
    end = base + HALF * total
    if source.size < end:
        raise cut_off("its weights", source.size, end, field="total_weights")
    if source.size != end:
        padded = total % 2 and source.size >= end + HALF
        trailing(source, end + HALF if padded else end, options, warnings)


def _check_total(scan: Any, total: int, options: Options, warnings: list[str]) -> None:
    """Check that the layers have the number of weights that the header declares.

    If a record's count contradicts its shape, the check of the table reports it, and names the layer.
    """
    if scan.counted == scan.needed and scan.counted != total:
        what, expected = "total_weights", f"{scan.counted}, the sum over the layers"
        error = LayoutError(what, field="total_weights", offset=12, actual=total, expected=expected)
        if scan.counted > total:
            raise error
        options.tolerate(error, warnings)


def _fail(fault: access.Fault, header_size: int) -> NoReturn:
    if fault.kind == "LAYER_ZERO":
        field = RECORD_FIELDS[fault.at % RECORD.size // 4]
        what, offset = f"layer {fault.row}: {field}", header_size + fault.at
        raise LayoutError(what, field=field, offset=offset, actual=0, expected="at least 1")
    what, expected = "num_layers", f"at most {fault.expected}"
    raise LimitError(what, field="num_layers", offset=8, actual=fault.actual, expected=expected)


# ----------------------------------------------------------------------------------------------------
# The checks of `TensorFile.verify` in a CNN v2 file: everything that opening leaves unread.

_MAX_MIP_LEVEL, _MAX_OUT_CHANNELS = 3, 8


def verify_cnn(run: Verification, crc: int, base: int, total: int) -> None:
    """Check that header and records are unchanged; check the values of their fields, and the padding."""
    start = run.read(0, base)
    run.unchanged(start, crc, "the header or the layer records")
    run.checked("header and layer records")
    header_size = HEADER_SIZES[start[4]]
    if header_size == 20:
        (mip_level,) = struct.unpack_from("<I", start, 16)
        if mip_level > _MAX_MIP_LEVEL:
            run.warn(f"mip_level is {mip_level}, above {_MAX_MIP_LEVEL}")
    layers = np.frombuffer(start, "<u4", offset=header_size).reshape(-1, 5)
    _warn_of(run, layers[:, 2] > _MAX_OUT_CHANNELS, f"more than {_MAX_OUT_CHANNELS} out_channels")
    _warn_of(run, layers[:, 0] % 2 == 0, "an even kernel_size")
    end = base + HALF * total
    run.until(end)
    if total % 2 and run.source.size >= end + HALF:
        if any(run.read(end, HALF)):
            run.tolerate(LayoutError("the spare half of the last pair is not zero", field="padding", offset=end))
        run.checked("padding is zero")
    run.finish()


def _warn_of(run: Verification, layers: NDArray[np.bool_], what: str) -> None:
    """Warn that the marked layers have `what`; name the first few."""
    numbers = np.flatnonzero(layers).tolist()
    if numbers:
        some = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
        run.warn(f"{counted(len(numbers), 'layer')} with {what}: {some}")


# ----------------------------------------------------------------------------------------------------
# Writing CNN v2.

_VERSIONS = {layout: version for version, layout in LAYOUTS.items()}


def layout_for(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the layout of the metadata's version. Raises `EncodeError` for a version that does not exist."""
    if metadata is None or "version" not in metadata:
        return None
    version = _integer(metadata["version"])
    if version not in LAYOUTS:
        shown = str(metadata["version"])[:80]
        msg = f"CNN v2 has versions 1 and 2, and metadata 'version' is {shown!r}"
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
        if total <= access.U32_MAX < total + count:
            reasons.append(Unfit("tensor", tensor.name, f"with it there are {total + count} weights (below 2**32)"))
        elif total <= access.U32_MAX:
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
    why = f"a name that is not {f'layer.<i>.weight, i from 0 to {last}' if last else 'layer.0.weight'}"
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
    if max(shape, default=0) > access.U32_MAX:
        problems.append(f"shape {shape} (a dimension is below 2**32)")
    return problems


def _mip_level(request: Request, reasons: list[Reason]) -> int:
    """Return the mip_level of the metadata, by default 0."""
    value = (request.metadata or {}).get("mip_level", 0)
    level = _integer(value)
    if level is None or level > access.U32_MAX:
        reasons.append(f"metadata 'mip_level': {str(value)[:80]!r} (an integer from 0 to 2**32 - 1)")
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


FORMAT = Format(
    name="cnn_v2",
    title="CNN v2",
    suffixes=(".bin",),
    layouts=("v2", "v1"),
    parse=parse,
    plan=plan,
    carries=dict.fromkeys(("v2", "v1"), frozenset({"metadata"})),
    dtypes=dict.fromkeys(("v2", "v1"), frozenset({"float16"})),
    magic=MAGIC,
    metadata_kinds=TEXT | {"integer"},
    metadata_keys=frozenset({"version", "mip_level"}),
    layout_for=layout_for,
    suffix_means="weights of convolutions in float16",
)
