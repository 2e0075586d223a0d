"""CNN v2 ``.bin``: the weights of a small convolutional network, halves (float16) packed for a GPU.

All integers are u32, little-endian. The header, with ``mip_level`` from version 2 on only::

    "CNN2" | version | num_layers | total_weights | mip_level        20 bytes in layout "v2", 16 in layout "v1"

then num_layers records of 20 bytes::

    kernel_size | in_channels | out_channels | weight_offset | weight_count

then the weights: pairs of halves in u32, the one of the even number in the low 16 bits. Stored little-endian, that is
nothing but halves one after another, so layer i is the array ``[out_channels, in_channels, kernel_size, kernel_size]``
from half number weight_offset on, in place, be that number even or odd. Weight (o, i, y, x) of a layer is its half
number ``(o * in_channels + i) * kernel_size**2 + y * kernel_size + x``.

* The magic, as a number, is 0x324E4E43; the version is 1 or 2.
* weight_offset is the sum of weight_count of the layers before; the sum over all is total_weights.
* The size of the file is that of header, records and ``2 * total_weights`` bytes.

Ours, where the specification is silent or contradicts itself
-------------------------------------------------------------
* An odd total_weights fills half a pair at the end. By its packing a file has whole pairs, by its size check it has
  not: both sizes are read. The spare half is written, as zero; another value is found by `verify`: an error, or with
  ``strict=False`` a warning.
* The tensors are called "layer.0.weight", "layer.1.weight", ... The metadata is ``version`` and ``mip_level``, two
  integers; mip_level is 0 in version 1.
* weight_count is out_channels * in_channels * kernel_size**2, none of which is 0. Sums and products do not wrap around
  at 2**32, as those of the specification's own checks do.
* A mip_level above 3, more than 8 out_channels and an even kernel_size are warnings of `verify`. No layers at all are
  legal when total_weights is 0.
* ``strict=False`` also lets pass: trailing bytes, holes and overlaps of layers, weights after the last one.
* What is written without ``layout=`` follows the metadata's ``version``, else it is version 2. With ``layout=``, a
  ``version`` in the metadata is not looked at. Metadata may be integers or decimal strings, as other formats hold them.
* The specification's example counts "1296 u32 packed f16 pairs": those are 648 u32, 1296 halves.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weightmap import kernels
from weightmap.dtypes import DTYPES
from weightmap.errors import EncodeError, FormatError, LayoutError, LimitError, TruncatedError, UnsupportedError
from weightmap.formats import _base
from weightmap.formats._base import Content, Format, Options, Payload, Plan, Request, Verification
from weightmap.table import ColumnTable, Rules, bits_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.saving import Sink
    from weightmap.source import Source

MAGIC = b"CNN2"
HEADER_SIZES = {1: 16, 2: 20}
LAYOUTS = {1: "v1", 2: "v2"}
_VERSIONS = {layout: version for version, layout in LAYOUTS.items()}
RECORD = struct.Struct("<5I")
RECORD_FIELDS = ("kernel_size", "in_channels", "out_channels", "weight_offset", "weight_count")
# What tables call these two, and where they lie in a record. A shape too large contradicts its weight_count.
_FIELDS = {"data_offset": ("weight_offset", 12), "data_size": ("weight_count", 16), "shape": ("weight_count", 16)}
_DTYPES = (DTYPES["float16"],)
_BITS = bits_of(_DTYPES)
_HALF = 2
U32_MAX = (1 << 32) - 1
MAX_MIP_LEVEL, MAX_OUT_CHANNELS = 3, 8


def sniff(head: bytes, size: int) -> bool:
    """Say whether the file begins with the magic bytes."""
    del size
    return head[:4] == MAGIC


def parse(source: Source, head: bytes, options: Options) -> Content:
    """Check header and layer records, and return the table of layers."""
    version, num_layers, total, mip_level = _header(source, head)
    header_size = HEADER_SIZES[version]
    base = header_size + RECORD.size * num_layers
    # Before anything is read or allocated for them.
    if base > source.size:
        what = "the file ends before its layer records do: its size"
        raise TruncatedError(what, field="num_layers", offset=8, actual=source.size, expected=f"at least {base}")
    options.limits.check("max_tensors", num_layers, "num_layers", offset=8)
    options.limits.check("max_header_bytes", base, "size of header and layer records", offset=8)
    warnings: list[str] = []
    _check_size(source, base, total, options, warnings)
    records = _base.take(source, head, header_size, base - header_size)
    scanned = kernels.cnn_layers(records)
    if isinstance(scanned, kernels.Fault):
        _fail(scanned, header_size)
    columns, found = scanned
    if options.checked:
        _check_total(found, total, options, warnings)
    rules = Rules(_DTYPES, _BITS, base, _HALF * total, 4, 4, _HALF, lax=not options.strict, fields=_FIELDS, unit=_HALF)
    table = ColumnTable(columns, rules, utf8=False, locate=lambda row: header_size + RECORD.size * row)
    if options.checked:
        table.check()
    seal = kernels.crc32(head[:header_size] + records)

    def verify(run: Verification) -> None:
        _verify(run, seal, base, total)

    return Content(
        LAYOUTS[version],
        table,
        load_metadata=lambda: {"version": version, "mip_level": mip_level},
        verify=verify,
        warnings=warnings,
    )


def _header(source: Source, head: bytes) -> tuple[int, int, int, int]:
    """Return version, num_layers, total_weights and mip_level."""
    if head[:4] != MAGIC:
        raise FormatError("magic", field="magic", offset=0, actual=repr(head[:4]), expected=repr(MAGIC))
    if len(head) >= 8:
        (version,) = struct.unpack_from("<I", head, 4)
        if version not in HEADER_SIZES:
            raise UnsupportedError("version", field="version", offset=4, actual=version, expected="1 or 2")
        if len(head) >= HEADER_SIZES[version]:
            num_layers, total = struct.unpack_from("<2I", head, 8)
            mip_level = struct.unpack_from("<I", head, 16)[0] if version == 2 else 0
            return version, num_layers, total, mip_level
    what = "the file ends within its header: its size"
    raise TruncatedError(what, offset=source.size, actual=source.size, expected="at least 16, or 20 in version 2")


def _check_size(source: Source, base: int, total: int, options: Options, warnings: list[str]) -> None:
    """Check that the file ends where its weights do, or, when they are odd in number, with the pair of the last one."""
    end = base + _HALF * total
    if source.size < end:
        what = "the file ends before its weights do: its size"
        raise TruncatedError(what, field="total_weights", offset=12, actual=source.size, expected=f"at least {end}")
    if source.size != end:
        padded = total % 2 and source.size >= end + _HALF
        _base.trailing(source, end + _HALF if padded else end, options, warnings)


def _check_total(found: Any, total: int, options: Options, warnings: list[str]) -> None:
    """Check that the layers have as many weights as the header says.

    Where the records contradict themselves, the check of the table has the better answer: which one, and how.
    """
    if found.counted == found.needed != total:
        what, expected = "total_weights", f"{found.counted}, the sum over the layers"
        error = LayoutError(what, field="total_weights", offset=12, actual=total, expected=expected)
        if found.counted > total:
            raise error
        options.odd(error, warnings)


def _fail(fault: kernels.Fault, header_size: int) -> NoReturn:
    if fault.kind == "LAYER_ZERO":
        field = RECORD_FIELDS[fault.at % RECORD.size // 4]
        what, offset = f"layer {fault.row}: {field}", header_size + fault.at
        raise LayoutError(what, field=field, offset=offset, actual=0, expected="at least 1")
    what, expected = "num_layers", f"at most {fault.expected}"
    raise LimitError(what, field="num_layers", offset=8, actual=fault.actual, expected=expected)


# --------------------------------------------------------------------------------------------------------- verifying
def _verify(run: Verification, seal: int, base: int, total: int) -> None:
    """Check all that opening leaves unread."""
    start = run.read(0, base)
    if kernels.crc32(start) != seal:
        msg = "header or layer records changed after the file was opened"
        raise LayoutError(msg, offset=0)
    run.checked("header and layer records")
    header_size = HEADER_SIZES[start[4]]
    if header_size == 20:
        (mip_level,) = struct.unpack_from("<I", start, 16)
        if mip_level > MAX_MIP_LEVEL:
            run.warn(f"mip_level is {mip_level}, above {MAX_MIP_LEVEL}")
    layers = np.frombuffer(start, "<u4", offset=header_size).reshape(-1, 5)
    _warn_of(run, layers[:, 2] > MAX_OUT_CHANNELS, f"more than {MAX_OUT_CHANNELS} out_channels")
    _warn_of(run, layers[:, 0] % 2 == 0, "an even kernel_size")
    end = base + _HALF * total
    for _ in run.chunks(base, end - base):
        pass
    run.checked("every byte is readable (CNN v2 has no checksums)")
    if total % 2 and run.source.size >= end + _HALF:
        if any(run.read(end, _HALF)):
            run.odd(LayoutError("the spare half of the last pair is not zero", field="padding", offset=end))
        run.checked("padding is zero")


def _warn_of(run: Verification, layers: NDArray[np.bool_], what: str) -> None:
    """Warn of the layers that have something, and name the first few."""
    found = np.flatnonzero(layers).tolist()
    if found:
        some = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
        run.warn(f"{len(found)} layer{'' if len(found) == 1 else 's'} with {what}: {some}")


# ----------------------------------------------------------------------------------------------------------- writing
def layout_for(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the layout of the metadata's version. Raises `EncodeError` for a version that does not exist."""
    if metadata is None or "version" not in metadata:
        return None
    version = _integer(metadata["version"])
    if version not in LAYOUTS:
        found = str(metadata["version"])[:80]
        msg = f"CNN v2 has versions 1 and 2, and metadata 'version' is {found!r}; layout= would decide"
        raise EncodeError(msg)
    return LAYOUTS[version]


def plan(request: Request) -> Plan:
    """Lay out a file."""
    reasons: list[str] = []
    tensors = _ordered(request.tensors, reasons)
    mip_level = _mip_level(request, reasons)
    records, total = [], 0
    for tensor in tensors:
        problems = _problems(tensor)
        if problems:
            reasons.append(f"tensor {tensor.name[:80]!r}: {', '.join(problems)}")
            continue
        out_channels, in_channels, kernel_size, _ = tensor.shape
        count = tensor.nbytes // _HALF
        if total <= U32_MAX < total + count:
            reasons.append(f"tensor {tensor.name[:80]!r}: with it there are {total + count} weights (below 2**32)")
        elif total <= U32_MAX:
            records.append(RECORD.pack(kernel_size, in_channels, out_channels, total, count))
        total += count
    if reasons:
        _base.refuse("CNN v2", reasons)
    version = _VERSIONS[request.layout]
    header = MAGIC + struct.pack("<4I", version, len(tensors), total, mip_level)
    start = header[: HEADER_SIZES[version]] + b"".join(records)
    padding = _HALF * (total % 2)
    return Plan(len(start) + _HALF * total + padding, lambda sink: _write(sink, start, tensors, padding))


def _write(sink: Sink, start: bytes, tensors: Sequence[Payload], padding: int) -> None:
    sink.write(start)
    for tensor in tensors:
        for chunk in tensor.chunks():
            sink.write(chunk)
    sink.pad(padding)


def _ordered(tensors: Sequence[Payload], reasons: list[str]) -> list[Payload]:
    """Return the tensors by the number of their layer; those with another name come last."""
    numbers = {f"layer.{i}.weight": i for i in range(len(tensors))}
    wanted = f"layer.<i>.weight, with i from 0 to {len(tensors) - 1}"
    reasons += [f"tensor {tensor.name[:80]!r}: its name ({wanted})" for tensor in tensors if tensor.name not in numbers]
    return sorted(tensors, key=lambda tensor: numbers.get(tensor.name, len(tensors)))


def _problems(tensor: Payload) -> list[str]:
    """Say what keeps a tensor from being the weights of a layer."""
    problems, shape = [], tensor.shape
    if tensor.dtype.name != "float16":
        problems.append(f"dtype {tensor.dtype.name} (it has float16; convert with dtype='float16')")
    if len(shape) != 4:
        problems.append(f"{len(shape)} dimensions (it has 4: out, in, kernel, kernel)")
    elif shape[2] != shape[3]:
        problems.append(f"shape {shape} (a kernel is square)")
    if 0 in shape:
        problems.append(f"shape {shape} (no dimension is 0)")
    if max(shape, default=0) > U32_MAX:
        problems.append(f"shape {shape} (a dimension is below 2**32)")
    return problems


def _mip_level(request: Request, reasons: list[str]) -> int:
    """Return the mip_level of the metadata, 0 where there is none."""
    given = (request.metadata or {}).get("mip_level", 0)
    level = _integer(given)
    if level is None or level > U32_MAX:
        reasons.append(f"metadata 'mip_level': {str(given)[:80]!r} (an integer from 0 to 2**32 - 1)")
    elif level and request.layout == "v1":
        reasons.append(f"metadata 'mip_level': {level} (layout v1 has none)")
    return level or 0


def _integer(value: Any) -> int | None:
    """Return a non-negative integer, also one that is written as a decimal string; None for anything else."""
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
    sniff=sniff,
    parse=parse,
    plan=plan,
    carries=dict.fromkeys(("v2", "v1"), frozenset({"metadata"})),
    dtypes=dict.fromkeys(("v2", "v1"), frozenset({"float16"})),
    magic=MAGIC,
    metadata_keys=frozenset({"version", "mip_level"}),
    layout_for=layout_for,
)
