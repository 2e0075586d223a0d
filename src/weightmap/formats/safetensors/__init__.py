"""safetensors: ``u64 n | JSON header of n bytes | data``, all little-endian. Most weights are published in it.

The header is one JSON object, ``{`` at its first byte, padded with spaces (0x20)::

    {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

* n is at most 100,000,000; a file has at least 10 bytes.
* ``data_offsets`` count from the first byte after the header. Sorted by them, the tensors follow each other from 0 to
  the end of the file without overlap or hole.
* ``dtype``: BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32
  C64 F64 I64 U64. F4 and F6 pack elements below the byte: reading gives their bytes.
* ``__metadata__`` maps strings to strings.

Ours
----
* Repeated keys are errors (safetensors 0.8.0 accepts them), and so are unknown keys in a tensor's object, numbers that
  are not plain integers, lone surrogates, and anything that is not strict JSON.
* Tensors are listed in the order of their data. They are written as safetensors writes them: larger types first, then
  by name, so that each is naturally aligned; the header is padded to a multiple of 8. With ``align=``, the data
  begins at a multiple of that in the file, and tensors whose size is a multiple come first.
* ``strict=False`` tolerates trailing bytes, holes and overlaps, as warnings.
"""

from __future__ import annotations

from weightmap.formats._base import MAX_HEADER, Format
from weightmap.lazy import later

# In the order of safetensors' own list, by which it sorts tensors: from small to large.
DTYPE_NAMES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn",
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


def sniff(head: bytes, size: int) -> bool:
    """Whether this looks like safetensors: a plausible length, then a JSON object."""
    if size < 10 or head[8:9] != b"{" or head[9:10] not in b'"} \t\n\r':
        return False
    return 2 <= int.from_bytes(head[:8], "little") <= MAX_HEADER


FORMAT = Format(
    name="safetensors",
    title="safetensors",
    suffixes=(".safetensors",),
    layouts=("safetensors",),
    sniff=sniff,
    parse=later(f"{__name__}.reading", "parse"),
    plan=later(f"{__name__}.writing", "plan"),
    carries={"safetensors": frozenset({"metadata"})},
    dtypes={"safetensors": frozenset(DTYPE_NAMES.values())},
    aligns={"safetensors": 4096},
)
