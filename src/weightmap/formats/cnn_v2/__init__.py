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

from weightmap.formats._base import TEXT, Format
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
