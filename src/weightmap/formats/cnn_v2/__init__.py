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

from weightmap.formats._base import Format
from weightmap.formats._metadata import TEXT
from weightmap.lazy import later

MAGIC = b"CNN2"
HEADER_SIZES = {1: 16, 2: 20}
LAYOUTS = {1: "v1", 2: "v2"}
RECORD = struct.Struct("<5I")
RECORD_FIELDS = ("kernel_size", "in_channels", "out_channels", "weight_offset", "weight_count")
HALF = 2

FORMAT = Format(
    name="cnn_v2",
    title="CNN v2",
    suffixes=(".bin",),
    layouts=("v2", "v1"),
    parse=later(f"{__name__}.reading", "parse"),
    plan=later(f"{__name__}.writing", "plan"),
    carries=dict.fromkeys(("v2", "v1"), frozenset({"metadata"})),
    dtypes=dict.fromkeys(("v2", "v1"), frozenset({"float16"})),
    magic=MAGIC,
    metadata_kinds=TEXT | {"integer"},
    metadata_keys=frozenset({"version", "mip_level"}),
    layout_for=later(f"{__name__}.writing", "layout_for"),
)
