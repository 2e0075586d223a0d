"""The C module, `weightmap._kernels`, as Python calls it: one module a topic. Only this package imports it.

Here is what opening a file needs; `late` names the rest. `weightmap.kernels` has the public functions.
"""
# mypy: implicit-reexport
# No `__getattr__` here: a module that has one gives its attributes five times more slowly.

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.native._archives import (
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
from weightmap.native._native import (
    U32_MAX,
    Descriptor,
    Fault,
    advise,
    faults,
    fstat,
    is_set,
    map_file,
    new_buffer,
    populate,
    take_ownership,
    will_need,
    with_temporary,
)
from weightmap.native._scans import (
    GGUF_DEEPEST,
    GGUF_KEY_MOST,
    GGUF_TENSOR_LEAST,
    GGUF_TYPES,
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
from weightmap.native._strings import (
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
