"""Scans in C: from the bytes of a header to columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.kernels._columns import Columns
from weightmap.kernels._faults import fault_of
from weightmap.kernels._native import NULL, ffi, lib

if TYPE_CHECKING:
    from weightmap.kernels._faults import Fault


# Fewest bytes of a tensor in a JSON header: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]},
_JSON_ENTRY = 48
# Dimensions a tensor to make room for; a header with more is scanned again, with room for as many as it can spell.
_DIMS = 4


def scan_json(header: bytes, dtypes: bytes, max_tensors: int) -> tuple[Columns, Any] | Fault:
    """Turn the JSON header of a safetensors file into columns, or return its first fault.

    Parameters
    ----------
    header : bytes
        From ``{`` to ``}`` and trailing spaces.
    dtypes : bytes
        The known names of dtypes, each in 16 bytes padded with zero bytes.
    max_tensors : int
        More are a fault CAPACITY.

    Returns
    -------
    columns : Columns
        In the order of the text.
    found : wm_safetensors
        See kernels.h.
    """
    size = len(header)
    count, n_dtypes = min(size // _JSON_ENTRY + 1, max_tensors), len(dtypes) // 16
    found = ffi.new("wm_safetensors *")
    columns = Columns.scratch(size, count, _DIMS * count)
    if lib.wm_safetensors_scan(header, size, dtypes, n_dtypes, columns.native, found, NULL):
        fault = ffi.new("wm_fault *")
        columns = Columns.scratch(size, count, size // 2 + 1)
        if lib.wm_safetensors_scan(header, size, dtypes, n_dtypes, columns.native, found, fault):
            return fault_of(fault)
    columns.count, columns.n_dims, columns.names_len = found.n_tensors, found.n_dims, found.names_len
    return columns, found


def json_depth(text: bytes) -> int:
    """Return how deep the objects and arrays of a JSON text are nested.

    For invalid JSON, it is at least as deep as a parser goes before the error.
    """
    depth: int = lib.wm_json_depth(text, len(text))
    return depth


# Fewest bytes of a tensor in a bincode header: an empty name, dtype, no dimensions, start, end.
_BINCODE_ENTRY = 5


def scan_bincode(header: bytes, layouts: int, max_tensors: int) -> tuple[Columns, Any, Fault | None]:
    """Turn the header of a BinTensors file into columns, and return its first fault.

    Parameters
    ----------
    header : bytes
        With its padding.
    layouts : int
        1 the specification's, 2 the current one, 3 the first of them that fits.
    max_tensors : int
        More are a fault CAPACITY, at the offset of the next one.

    Returns
    -------
    columns : Columns
        In file order.
    found : wm_bintensors
        See kernels.h.
    fault : Fault or None
    """
    size = len(header)
    columns = Columns.scratch(size, min(size // _BINCODE_ENTRY + 1, max_tensors), size)
    found, fault = ffi.new("wm_bintensors *"), ffi.new("wm_fault *")
    failed = lib.wm_bintensors_scan(header, size, layouts, columns.native, found, fault)
    columns.count, columns.n_dims, columns.names_len = found.n_tensors, found.n_dims, found.names_len
    return columns, found, fault_of(fault) if failed else None


# Room for the name of a layer, and the size of its record, in bytes.
_LAYER_NAME, _LAYER_RECORD = 32, 20


def scan_layers(records: bytes) -> tuple[Columns, Any] | Fault:
    """Turn the layer records of a CNN v2 file into columns, or return their first fault.

    Parameters
    ----------
    records : bytes
        20 for each layer.

    Returns
    -------
    columns : Columns
        Offsets in bytes, relative to the weights.
    found : wm_cnn
        See kernels.h.
    """
    count = len(records) // _LAYER_RECORD
    columns = Columns.scratch(_LAYER_NAME * count, count, 4 * count)
    found, fault = ffi.new("wm_cnn *"), ffi.new("wm_fault *")
    failed = lib.wm_cnn_layers(records, len(records), count, columns.native, found, fault)
    if failed:
        return fault_of(fault)
    columns.names_len = found.names_len
    return columns, found
