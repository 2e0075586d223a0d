"""Kernels in C: checksums, hashes, scans, conversions, quantised blocks. Arrays in, arrays out.

Every kernel takes any C-contiguous buffer (bytes, bytearray, memoryview, mmap, numpy array), releases the GIL while it
works, and equals its plain definition to the bit on every instruction set. A buffer that is not contiguous is a
TypeError. Only this package imports the C extension. The names in `__all__` are public; the others serve the rest of
weightmap.
"""
# mypy: implicit-reexport
# No `__getattr__` here: a module that has one gives its attributes five times more slowly, which short inputs notice.
# What is imported at its first use is in late.py.

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.kernels._archives import (
    NPY_ODD,
    PICKLE_ODD,
    PICKLE_STRIDED,
    PICKLE_VALUES,
    ZIP_ENTRY_LEAST,
    NpyHeaders,
    Pickle,
    PickleStorages,
    PickleValues,
    ZipEntries,
    npy_scan,
    transient,
    zip_scan,
)
from weightmap.kernels._blocks import dequantize_int4, dequantize_int5
from weightmap.kernels._checksums import crc32, crc32_combine, fnv1a32, fnv1a32_many, fnv1a64
from weightmap.kernels._files import (
    Descriptor,
    advise,
    fstat,
    is_set,
    map_file,
    new_buffer,
    populate,
    take_ownership,
    will_need,
    with_temporary,
)
from weightmap.kernels._half import bf16_to_f32, f16_to_f32, unpack_f16_pairs
from weightmap.kernels._isa import available_isas, isa, use_isa
from weightmap.kernels._native import U32_MAX, Fault, faults
from weightmap.kernels._quantize import quantize_int4, quantize_int5
from weightmap.kernels._scans import (
    GGUF_DEEPEST,
    GGUF_KEY_MOST,
    GGUF_TENSOR_LEAST,
    GGUF_VALUE_LEAST,
    ONNX_EXTERNAL,
    ONNX_MADE,
    SECTION_FIELDS,
    GGUFHeader,
    Initialisers,
    Section,
    ggml_block,
    gguf_types,
    json_depth,
    make_numbers,
    pairs_check,
    records_bounds,
    records_check,
    records_find,
    scan_bincode,
    scan_json,
    scan_layers,
    scan_model,
    scan_section,
)
from weightmap.kernels._strings import (
    Columns,
    index_build,
    index_find_many,
    index_finder,
    placer,
    row_rules,
    skip_strings,
    utf8_strings,
    walk_indexed,
    walk_strings,
)

if TYPE_CHECKING:
    from weightmap._kernels import State, Temporary

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
