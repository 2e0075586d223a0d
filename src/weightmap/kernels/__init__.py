"""Kernels in C: checksums, hashes, scans, conversions, quantised blocks. Arrays in, arrays out.

Every kernel takes any C-contiguous buffer (bytes, bytearray, memoryview, mmap, numpy array), releases the GIL while it
works, and gives to the bit what its plain definition gives, whatever the instruction set in use. A buffer that is not
contiguous is a TypeError. This package is the only one that touches the C extension; what it has beyond the public
names serves the rest of weightmap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# The names that are not in `__all__` serve the rest of weightmap; they are not part of the interface.
from weightmap.kernels._amb import AMB_FIELDS as AMB_FIELDS
from weightmap.kernels._amb import Section as Section
from weightmap.kernels._amb import amb_walk as amb_walk
from weightmap.kernels._checksums import crc32, crc32_combine, fnv1a32, fnv1a32_many, fnv1a64
from weightmap.kernels._columns import Columns as Columns
from weightmap.kernels._columns import row_rules as row_rules
from weightmap.kernels._faults import FAULTS as FAULTS
from weightmap.kernels._faults import Fault as Fault
from weightmap.kernels._files import Descriptor as Descriptor
from weightmap.kernels._files import advise as advise
from weightmap.kernels._files import fstat as fstat
from weightmap.kernels._files import map_file as map_file
from weightmap.kernels._files import own as own
from weightmap.kernels._files import populate as populate
from weightmap.kernels._files import unchanged as unchanged
from weightmap.kernels._files import will_need as will_need
from weightmap.kernels._files import with_temporary as with_temporary
from weightmap.kernels._finalfusion import fifu_ngrams as fifu_ngrams
from weightmap.kernels._finalfusion import fifu_skip as fifu_skip
from weightmap.kernels._memory import check_out as check_out
from weightmap.kernels._memory import empty as empty
from weightmap.kernels._memory import given_array as given_array
from weightmap.kernels._native import U32_MAX as U32_MAX
from weightmap.kernels._records import pairs_check as pairs_check
from weightmap.kernels._records import records_check as records_check
from weightmap.kernels._records import records_find as records_find
from weightmap.kernels._scans import bintensors_scan as bintensors_scan
from weightmap.kernels._scans import cnn_layers as cnn_layers
from weightmap.kernels._scans import json_depth as json_depth
from weightmap.kernels._scans import safetensors_scan as safetensors_scan
from weightmap.kernels._strings import index_build as index_build
from weightmap.kernels._strings import index_find_many as index_find_many
from weightmap.kernels._strings import index_finder as index_finder
from weightmap.kernels._strings import utf8_strings as utf8_strings
from weightmap.kernels._strings import walk_strings as walk_strings
from weightmap.lazy import on_demand

if TYPE_CHECKING:
    from weightmap._kernels import Temporary as Temporary
    from weightmap.kernels._adaptive import adaptive_counts as adaptive_counts
    from weightmap.kernels._adaptive import adaptive_mask as adaptive_mask
    from weightmap.kernels._adaptive import adaptive_plan as adaptive_plan
    from weightmap.kernels._adaptive import decode_adaptive as decode_adaptive
    from weightmap.kernels._adaptive import quantize_adaptive as quantize_adaptive
    from weightmap.kernels._blocks import SCALE_TYPES as SCALE_TYPES
    from weightmap.kernels._blocks import blocks_size as blocks_size
    from weightmap.kernels._blocks import decode_blocks as decode_blocks
    from weightmap.kernels._blocks import dequantize_int4, dequantize_int5
    from weightmap.kernels._half import bf16_to_f32, f16_to_f32, unpack_f16_pairs
    from weightmap.kernels._half import half_variants as half_variants
    from weightmap.kernels._half import widen as widen
    from weightmap.kernels._isa import available_isas, isa, use_isa
    from weightmap.kernels._isa import combine_rows_variant as combine_rows_variant
    from weightmap.kernels._isa import crc32_variant as crc32_variant
    from weightmap.kernels._isa import fnv1a32_variant as fnv1a32_variant
    from weightmap.kernels._isa import intblock_variant as intblock_variant
    from weightmap.kernels._pq import Codes as Codes
    from weightmap.kernels._quantize import encode_blocks as encode_blocks
    from weightmap.kernels._quantize import encode_with_errors as encode_with_errors
    from weightmap.kernels._quantize import quantize_int4, quantize_int5
    from weightmap.kernels._quantize import quantize_int8 as quantize_int8
    from weightmap.kernels._quantize import real_numbers as real_numbers
    from weightmap.kernels._subwords import NGRAMS_MOST as NGRAMS_MOST
    from weightmap.kernels._subwords import Ngrams as Ngrams
    from weightmap.kernels._subwords import gather_rows as gather_rows
    from weightmap.kernels._subwords import pack_texts as pack_texts
    from weightmap.kernels._subwords import unit_sums as unit_sums

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

# What opening and inspecting a file do not need: imported when a name of theirs is first asked for.
_MODULES = {
    "_adaptive": (
        "adaptive_counts",
        "adaptive_mask",
        "adaptive_plan",
        "decode_adaptive",
        "quantize_adaptive",
    ),
    "_blocks": (
        "SCALE_TYPES",
        "blocks_size",
        "decode_blocks",
        "dequantize_int4",
        "dequantize_int5",
    ),
    "_half": (
        "bf16_to_f32",
        "f16_to_f32",
        "half_variants",
        "unpack_f16_pairs",
        "widen",
    ),
    "_isa": (
        "available_isas",
        "combine_rows_variant",
        "crc32_variant",
        "fnv1a32_variant",
        "intblock_variant",
        "isa",
        "use_isa",
    ),
    "_pq": ("Codes",),
    "_quantize": (
        "encode_blocks",
        "encode_with_errors",
        "quantize_int4",
        "quantize_int5",
        "quantize_int8",
        "real_numbers",
    ),
    "_subwords": (
        "NGRAMS_MOST",
        "Ngrams",
        "gather_rows",
        "pack_texts",
        "unit_sums",
    ),
}
__getattr__ = on_demand(__name__, globals(), {name: module for module, names in _MODULES.items() for name in names})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
