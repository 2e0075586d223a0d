"""BinTensors ``.bt``: ``u64 n | header of n bytes | data``, the header in the encoding of bincode 2.

Encoding
--------
An unsigned integer up to 250 is one byte; a byte 251, 252 or 253 precedes a little-endian u16, u32 or u64; 254 and 255
are errors. A string is its length in bytes and strict UTF-8; a list its length and its elements; a map its length and
its pairs; an optional value is a byte 0, or a byte 1 and the value.

The header has two layouts:

* "spec", of the specification and of bintensors up to 0.0.5: ``Option<Map<String, String>>`` metadata,
  ``Vec<{dtype, shape: Vec, (start, end)}>`` tensors, ``Map<String, index>`` names.
* "current", of bintensors from 0.1.0 on: ``Option<Map<String, String>>``,
  ``Vec<(name, dtype, shape: Vec, start, end)>``.

dtype: 0 BOOL, 1 U8, 2 I8, 3 F8_E5M2, 4 F8_E4M3, 5 I16, 6 U16, 7 F16, 8 BF16, 9 I32, 10 U32, 11 F32, 12 F64, 13 I64, 14
U64. Offsets count from the first byte after the header.

* n is at most 100,000,000. It counts the header's padding to a multiple of 8: fewer than 8 spaces (0x20).
* Names are unique. The first tensor begins at 0, each other one where the one before it ends, and the last one ends
  with the file; end - start is the product of the shape times the bytes of an element.

Ours, where the specification is silent or its implementations differ
----------------------------------------------------------------------
* Both layouts are tried, strictly, whatever ``verify=`` says; a file that fits both has the specification's layout.
  (bintensors 0.2.0 knows only the current one, and misreads some older files.)
* The map of names has each tensor once; metadata has each key once.
* `verify` warns of integers that take more bytes than they need, and of a header whose length is not a multiple of 8.
* ``strict=False`` reads with a warning what bintensors reads: padding of any bytes and length (0.2.0 and 0.0.5); a
  repeated metadata key, whose last value counts (both); a map that names one tensor twice and another not at all
  (0.0.5). It also tolerates bytes after the end of the data (neither does). An index past the list of tensors, which
  makes 0.0.5 panic, stays an error.
* Empty metadata differs from no metadata: `save` writes it for ``metadata={}``, and `convert` keeps it.
* Written: tensors by dtype code, largest first, so that each is naturally aligned, then by the bytes of their names;
  metadata keys and the map of names by their bytes. The current layout equals byte for byte what bintensors 0.2.0
  writes. (0.0.5 writes its maps in random order.) The specification prints 3000 as 251, B8, B0; it is 251, B8, 0B.
* With ``align=``, integers of the header take nine bytes where one would do, so that the data begins at a multiple:
  there may be too few of them in a header of one or two tensors. Tensors whose size is a multiple come first.
* A file of the current layout that also fits the other one is refused when writing. Only crafted names cause that.
"""

from __future__ import annotations

from weightmap.formats._base import Format
from weightmap.lazy import later

# By the format's codes.
DTYPE_NAMES = (
    "bool",
    "uint8",
    "int8",
    "float8_e5m2",
    "float8_e4m3fn",
    "int16",
    "uint16",
    "float16",
    "bfloat16",
    "int32",
    "uint32",
    "float32",
    "float64",
    "int64",
    "uint64",
)
LAYOUTS = {"spec": 1, "current": 2}
# A larger length may spell another format's magic bytes; this one is already beyond the limit of a header.
_PRINTABLE = 0x20202020


def sniff(head: bytes, size: int) -> bool:
    """Whether this looks like BinTensors: a plausible length, then the tag of an optional value."""
    return size >= 10 and head[8] <= 1 and 2 <= int.from_bytes(head[:8], "little") < _PRINTABLE


FORMAT = Format(
    name="bintensors",
    title="BinTensors",
    suffixes=(".bt",),
    layouts=tuple(LAYOUTS),
    sniff=sniff,
    parse=later(f"{__name__}.reading", "parse"),
    plan=later(f"{__name__}.writing", "plan"),
    carries={layout: frozenset({"metadata"}) for layout in LAYOUTS},
    dtypes={layout: frozenset(DTYPE_NAMES) for layout in LAYOUTS},
    aligns=dict.fromkeys(LAYOUTS, 64),
)
