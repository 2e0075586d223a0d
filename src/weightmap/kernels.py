"""Kernels in C: checksums, hashes, conversions, quantised blocks. Arrays in, arrays out.

Every kernel takes any C-contiguous buffer (bytes, bytearray, memoryview, mmap, numpy array), releases the GIL while it
works, and returns the same bits as its plain definition on every instruction set. A buffer that is not contiguous
raises TypeError.
"""
# mypy: implicit-reexport
# No `__getattr__` here: it would make attributes of the module five times as slow, which short inputs would notice.

from weightmap.core.native.access import available_isas, isa, use_isa
from weightmap.core.native.checksums import crc32, crc32_combine, fnv1a32, fnv1a32_many, fnv1a64
from weightmap.core.native.floats import bf16_to_f32, f16_to_f32, unpack_f16_pairs
from weightmap.core.native.quantised import dequantize_int4, dequantize_int5, quantize_int4, quantize_int5

__all__ = [
    "available_isas",
    "bf16_to_f32",
    "crc32",
    "crc32_combine",
    "dequantize_int4",
    "dequantize_int5",
    "f16_to_f32",
    "fnv1a32",
    "fnv1a32_many",
    "fnv1a64",
    "isa",
    "quantize_int4",
    "quantize_int5",
    "unpack_f16_pairs",
    "use_isa",
]
