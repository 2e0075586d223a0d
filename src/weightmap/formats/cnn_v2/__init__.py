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
* The size of the file is that of header, records and ``2 * total_weights`` bytes.

Ours, where the specification is silent or contradicts itself
-------------------------------------------------------------
* An odd total_weights leaves half a pair at the end. The specification's packing has whole pairs, its size check has
  not: both sizes are read. The spare half is written as zero; `verify` refuses another value, or with ``strict=False``
  warns of it.
* The tensors are called "layer.0.weight", "layer.1.weight", ... The metadata is ``version`` and ``mip_level``, two
  integers; mip_level is 0 in version 1.
* weight_count is out_channels * in_channels * kernel_size**2, none of them 0. Sums and products do not wrap around at
  2**32, as they do in the specification's own checks.
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

from weightmap import native
from weightmap.dtypes import DTYPES
from weightmap.errors import FormatError, LayoutError, LimitError, UnsupportedError, cut_off
from weightmap.formats._base import TEXT, Content, Format, take, trailing
from weightmap.index import Rules
from weightmap.index.columns import ColumnTable
from weightmap.lazy import later
from weightmap.native import late

if TYPE_CHECKING:
    from weightmap.formats._verification import Verification
    from weightmap.io.source import Source
    from weightmap.options import Options

MAGIC = b"CNN2"
HEADER_SIZES = {1: 16, 2: 20}
LAYOUTS = {1: "v1", 2: "v2"}
RECORD = struct.Struct("<5I")
RECORD_FIELDS = ("kernel_size", "in_channels", "out_channels", "weight_offset", "weight_count")
HALF = 2
_verify = later(f"{__name__}.verify", "verify_cnn")


class _Rules(Rules):
    __slots__ = ()
    dtypes = (DTYPES["float16"],)
    min_ndim = max_ndim = 4
    alignment = unit = HALF
    # A shape that is too large contradicts its weight_count.
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
    scanned = native.scan_layers(records)
    if isinstance(scanned, native.Fault):
        _fail(scanned, header_size)
    columns, found = scanned
    if options.checked:
        _check_total(found, total, options, warnings)
    rules = _Rules(base, source.size, HALF * total, lax=not options.strict)
    table = ColumnTable(columns, rules, utf8=False, locate=lambda row: header_size + RECORD.size * row)
    if options.checked:
        table.check()
    crc = late.crc32(head[:header_size] + records)

    def verify(run: Verification) -> None:
        _verify(run, crc, base, total)

    def load_metadata() -> dict[str, Any]:
        return {"version": version, "mip_level": mip_level}

    return Content(LAYOUTS[version], table, load_metadata, verify, warnings)


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
        raise cut_off("its header", source.size, HEADER_SIZES[version])
    raise cut_off("its version", source.size, 8)


def _check_size(source: Source, base: int, total: int, options: Options, warnings: list[str]) -> None:
    """Check that the file ends with its weights or, for an odd number of them, with the last pair."""
    end = base + HALF * total
    if source.size < end:
        raise cut_off("its weights", source.size, end, field="total_weights")
    if source.size != end:
        padded = total % 2 and source.size >= end + HALF
        trailing(source, end + HALF if padded else end, options, warnings)


def _check_total(found: Any, total: int, options: Options, warnings: list[str]) -> None:
    """Check that the layers have as many weights as the header declares.

    Records that contradict themselves are left to the check of the table, which names the layer.
    """
    if found.counted == found.needed != total:
        what, expected = "total_weights", f"{found.counted}, the sum over the layers"
        error = LayoutError(what, field="total_weights", offset=12, actual=total, expected=expected)
        if found.counted > total:
            raise error
        options.tolerate(error, warnings)


def _fail(fault: native.Fault, header_size: int) -> NoReturn:
    if fault.kind == "LAYER_ZERO":
        field = RECORD_FIELDS[fault.at % RECORD.size // 4]
        what, offset = f"layer {fault.row}: {field}", header_size + fault.at
        raise LayoutError(what, field=field, offset=offset, actual=0, expected="at least 1")
    what, expected = "num_layers", f"at most {fault.expected}"
    raise LimitError(what, field="num_layers", offset=8, actual=fault.actual, expected=expected)


FORMAT = Format(
    name="cnn_v2",
    title="CNN v2",
    suffixes=(".bin",),
    layouts=("v2", "v1"),
    parse=parse,
    plan=later(f"{__name__}.writing", "plan"),
    carries=dict.fromkeys(("v2", "v1"), frozenset({"metadata"})),
    dtypes=dict.fromkeys(("v2", "v1"), frozenset({"float16"})),
    magic=MAGIC,
    metadata_kinds=TEXT | {"integer"},
    metadata_keys=frozenset({"version", "mip_level"}),
    layout_for=later(f"{__name__}.writing", "layout_for"),
    suffix_means="weights of convolutions in float16",
)
