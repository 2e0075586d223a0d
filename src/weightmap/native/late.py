"""The names of `weightmap.native` that opening a file does not need: a module is imported at the first use of one."""
# mypy: implicit-reexport

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.lazy import on_demand

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.native._adaptive import *
    from weightmap.native._blocks import *
    from weightmap.native._checksums import *
    from weightmap.native._copying import *
    from weightmap.native._differ import *
    from weightmap.native._dlpack import *
    from weightmap.native._ggml import *
    from weightmap.native._half import *
    from weightmap.native._isa import *
    from weightmap.native._lookup import *
    from weightmap.native._memory import *
    from weightmap.native._pages import *
    from weightmap.native._pq import *
    from weightmap.native._quantize import *
    from weightmap.native._quantize_file import *
    from weightmap.native._ranges import *
    from weightmap.native._reading import *
    from weightmap.native._staging import *
    from weightmap.native._subwords import *

_ON_DEMAND = {
    "_adaptive": "adaptive_mask adaptive_plan decode_adaptive quantize_adaptive",
    "_blocks": "SCALE_TYPES blocks_size decode_blocks dequantize_int4 dequantize_int5",
    "_checksums": "crc32 crc32_combine fnv1a32 fnv1a32_many fnv1a64",
    "_copying": "copy_range",
    "_differ": "COMPARED FileComparer differing",
    "_dlpack": "dlpack_capsule",
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
    "weightmap.native", globals(), {name: module for module, names in _ON_DEMAND.items() for name in names.split()}
)
