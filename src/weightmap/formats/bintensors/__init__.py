"""BinTensors ``.bt``: ``u64 n | header of n bytes | data``, the header in the encoding of bincode 2.

Encoding
--------
Unsigned integers up to 250 are one byte; 251, 252 and 253 are followed by a u16, u32 or u64, little-endian; 254 and 255
are errors. A string is its length in bytes and strict UTF-8; a list its length and its elements; a map its length and
its pairs; an optional value is a byte 0, or a byte 1 and the value.

Two layouts of the header are in use:

* "spec", of the specification and of bintensors up to 0.0.5: ``Option<Map<String, String>>`` metadata,
  ``Vec<{dtype, shape: Vec, (start, end)}>`` tensors, ``Map<String, index>`` names.
* "current", of bintensors from 0.1.0 on: ``Option<Map<String, String>>``,
  ``Vec<(name, dtype, shape: Vec, start, end)>``.

dtype: 0 BOOL, 1 U8, 2 I8, 3 F8_E5M2, 4 F8_E4M3, 5 I16, 6 U16, 7 F16, 8 BF16, 9 I32, 10 U32, 11 F32, 12 F64, 13 I64, 14
U64. Offsets count from the first byte after the header.

* n is at most 100,000,000, and counts the padding of the header: less than 8 spaces (0x20), to a multiple of 8.
* Names are unique. Tensor i begins where tensor i - 1 ended, the first one at 0; end - start is the product of the
  shape times the bytes of an element; the last one ends where the file does.

Ours, where the specification is silent or its implementations differ
----------------------------------------------------------------------
* Both layouts are tried, strictly. A file that fits both is of the specification's layout. (bintensors 0.2.0 knows the
  current one alone, and misreads some older files.) So the index is checked whatever ``verify=`` says.
* The map of names has each tensor once; metadata has each key once.
* Integers that take more bytes than they need, and a header whose length is not a multiple of 8, are warnings of
  `verify`.
* ``strict=False`` reads, with a warning, what bintensors reads: padding of any bytes and length (0.2.0 and 0.0.5), a
  repeated key of the metadata, whose last value counts (both), a map of names that names a tensor twice and another
  one not at all (0.0.5); and bytes after the end of the data (neither). An index past the list of tensors makes 0.0.5
  panic; it stays an error.
* Metadata that is there and empty differs from none: `save` writes it for ``metadata={}``, and `convert` keeps it.
* Written: tensors by dtype code, largest first, so that each is naturally aligned, then by the bytes of their names;
  keys of the metadata, and in the specification's layout the map, by their bytes. The current layout comes out byte for
  byte as bintensors 0.2.0 writes it. (0.0.5 writes its maps in random order.) The specification prints 3000 as 251, B8,
  B0; it is 251, B8, 0B.
* A file of the current layout that fits the other one too is not written. It takes names made for the purpose.
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
# Larger lengths may spell the magic bytes of another format; this one is already more than a header may have.
_PRINTABLE = 0x20202020


def sniff(head: bytes, size: int) -> bool:
    """Say whether this looks like BinTensors: a length that a header may have, then the tag of an optional value."""
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
)
