"""The names of `weightmap.kernels` that opening a file does not need: a module is imported at the first use of one."""
# mypy: implicit-reexport

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.lazy import on_demand

if TYPE_CHECKING:
    from collections.abc import Callable

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

_ON_DEMAND = {
    "_adaptive": "adaptive_mask adaptive_plan decode_adaptive quantize_adaptive",
    "_blocks": "SCALE_TYPES blocks_size decode_blocks",
    "_differ": "COMPARED FileComparer differing",
    "_dlpack": "dlpack_capsule",
    "_frames": "Changes FRAME_DAMAGED FRAME_ENDED FRAME_FULL FRAME_HEAD FRAME_HUNGRY FrameDecoder FrameEncoder change "
    "frame_header",
    "_ggml": "GGML_ENCODED GGML_TYPES GgmlType decode_ggml encode_ggml ggml_size",
    "_half": "widen",
    "_lookup": "CODED decode_groups look_up",
    "_isa": "cpus variant",
    "_memory": "check_out empty given_array",
    "_outcome": "Failed check_outcome",
    "_pages": "begin_flush cached_pages drop_pages file_system page_size read_runs resident_pages",
    "_part_sums": "PartSummer",
    "_pq": "ProductCodes",
    "_quantize": "encode_blocks encode_with_errors real_numbers sum_of_squares",
    "_quantize_file": "BlockEncoder Unwritten",
    "_ranges": "join_ranges",
    "_reading": "Reader",
    "_staging": "prefer_node stage",
    "_subwords": "NGRAMS_MOST Ngrams gather_rows pack_texts unit_sums",
}
__getattr__: Callable[[str], Any] = on_demand(
    "weightmap.kernels", globals(), {name: module for module, names in _ON_DEMAND.items() for name in names.split()}
)
