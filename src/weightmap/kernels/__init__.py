"""Kernels in C: checksums, hashes, scans, conversions, quantised blocks. Arrays in, arrays out.

Every kernel takes any C-contiguous buffer (bytes, bytearray, memoryview, mmap, numpy array), releases the GIL while it
works, and equals its plain definition to the bit on every instruction set. A buffer that is not contiguous is a
TypeError. Only this package imports the C extension. The names in `__all__` are public; the others serve the rest of
weightmap.
"""
# mypy: implicit-reexport

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    unchanged,
    will_need,
    with_temporary,
)
from weightmap.kernels._native import U32_MAX, Fault, faults
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
    row_rules,
    skip_strings,
    utf8_strings,
    walk_indexed,
    walk_strings,
)
from weightmap.lazy import on_demand

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap._kernels import Temporary
    from weightmap.kernels._adaptive import *
    from weightmap.kernels._blocks import *
    from weightmap.kernels._differ import *
    from weightmap.kernels._dlpack import *
    from weightmap.kernels._frames import *
    from weightmap.kernels._ggml import *
    from weightmap.kernels._half import *
    from weightmap.kernels._isa import *
    from weightmap.kernels._lookup import *
    from weightmap.kernels._memory import *
    from weightmap.kernels._pages import *
    from weightmap.kernels._pq import *
    from weightmap.kernels._quantize import *
    from weightmap.kernels._quantize_file import *
    from weightmap.kernels._ranges import *
    from weightmap.kernels._reading import *
    from weightmap.kernels._staging import *
    from weightmap.kernels._subwords import *

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

# Modules that opening a file does not need, imported at the first use of one of their names.
_ON_DEMAND = {
    "_adaptive": "adaptive_mask adaptive_plan decode_adaptive quantize_adaptive",
    "_blocks": "SCALE_TYPES blocks_size decode_blocks dequantize_int4 dequantize_int5",
    "_differ": "COMPARED FileComparer differing",
    "_dlpack": "dlpack_capsule",
    "_frames": "FRAME_DAMAGED FRAME_ENDED FRAME_FULL FRAME_HEAD FRAME_HUNGRY FrameDecoder frame_header",
    "_ggml": "GGML_ENCODED GGML_TYPES GgmlType decode_ggml encode_ggml ggml_size",
    "_half": "bf16_to_f32 f16_to_f32 unpack_f16_pairs widen",
    "_lookup": "CODED decode_groups look_up",
    "_isa": "available_isas cpus isa use_isa variant",
    "_memory": "check_out empty given_array",
    "_outcome": "Failed check_outcome",
    "_pages": "begin_flush cached_pages drop_pages file_system page_size read_runs resident_pages",
    "_part_sums": "PartSummer",
    "_pq": "ProductCodes",
    "_quantize": "encode_blocks encode_with_errors quantize_int4 quantize_int5 real_numbers sum_of_squares",
    "_quantize_file": "BlockEncoder Unwritten",
    "_ranges": "join_ranges",
    "_reading": "Reader",
    "_staging": "prefer_node stage",
    "_subwords": "NGRAMS_MOST Ngrams gather_rows pack_texts unit_sums",
}
__getattr__: Callable[[str], Any] = on_demand(
    __name__, globals(), {name: module for module, names in _ON_DEMAND.items() for name in names.split()}
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
