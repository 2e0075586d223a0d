"""Scans in C: from the bytes of a header to columns; records that are used where they lie, and pairs of strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.kernels._columns import Columns
from weightmap.kernels._native import NULL, U32_MAX, Fault, fault_of, ffi, from_buffer, lib

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


# Valid data allocates no wm_fault, which is a good part of a call's time. A failed check is repeated with one. If it
# then succeeds, because the file is being written to, the data counts as valid.
def pairs_check(data: bytes, count: int) -> Fault | None:
    """Check pairs of strings after their two u16 lengths: structure, UTF-8, unique keys; return a fault or None."""
    if lib.wm_pairs_check(data, len(data), count, NULL) == 0:
        return None
    fault = ffi.new("wm_fault *")
    return fault_of(fault) if lib.wm_pairs_check(data, len(data), count, fault) else None


def records_check(
    index: bytes | NDArray[np.uint8], count: int, rules: Any, data_size: int, room: int, *, lax: bool
) -> int | Fault:
    """Check `count` records of an index by a wm_rules, and the names behind them.

    Returns the bytes of the names, or the fault of a record or a name.
    """
    data = index if type(index) is bytes else from_buffer("uint8_t[]", index)
    asked = (data, len(data), count, rules, data_size, room, lax)
    used: int = lib.wm_records_check(*asked, NULL)
    if used < 0:
        fault = ffi.new("wm_fault *")
        used = lib.wm_records_check(*asked, fault)
    return fault_of(fault) if used < 0 else used


def records_find(index: bytes | NDArray[np.uint8], count: int, name: bytes) -> int:
    """Return the number of the record called `name`, or -1, by one pass over the stored hashes."""
    row: int = lib.wm_records_find(from_buffer("uint8_t[]", index), len(index), count, name, len(name))
    return row


# Room for bytes of names, tensors and dimensions. Most models fit; a larger one is scanned twice.
_ROOM = (16384, 512, 1024)
# Fewest bytes of a record and of a dimension.
_RECORD, _DIM = 12, 4


class Section:
    """A section of records in an AMB file: see wm_amb_section in scans.h."""

    __slots__ = ("bare", "begin", "data", "end", "fd", "max_names", "max_tensors")

    def __init__(
        self,
        fd: int,
        data: NDArray[Any] | None,
        begin: int,
        end: int,
        max_tensors: int,
        max_names: int,
        bare: tuple[int, int],
    ) -> None:
        self.fd = fd  # -1 if the file is `data`
        self.data = data
        self.begin = begin  # of the section in the file, like `end`
        self.end = end
        self.max_tensors = max_tensors
        self.max_names = max_names
        self.bare = bare  # block size and bytes of a scale for blocks without a header, or zeros


# The field of a fault, by the WM_AMB_ constants.
SECTION_FIELDS = (
    *("name_length", "name", "ndim", "shape", "dtype", "data_size"),
    *("quant_type", "block_size", "scale_type", "padding"),
)


def scan_section(section: Section, *, relative: bool, lax: bool) -> tuple[Columns, Any, Fault | None]:
    """Turn the records of a section into columns, and return their first fault.

    Parameters
    ----------
    section : Section
    relative : bool
        Whether padding counts from the beginning of the section instead of the file.
    lax : bool
        Whether padding that is missing or not zero is noted in `found` instead of a fault.

    Returns
    -------
    columns : Columns
        In file order; offsets relative to the section. Meaningless with a fault.
    found : wm_amb
        See kernels.h.
    fault : Fault or None
    """
    size = section.end - section.begin
    most = (size, size // _RECORD, size // _DIM)
    room = (min(_ROOM[0], most[0]), min(_ROOM[1], most[1], section.max_tensors), min(_ROOM[2], most[2]))
    columns, found, fault = _walk(section, room, relative=relative, lax=lax)
    needed = (found.names_len, found.n_tensors, found.n_dims)
    if fault is None and any(need > have for need, have in zip(needed, room, strict=True)):
        room = needed
        columns, found, fault = _walk(section, room, relative=relative, lax=lax)
        needed = (found.names_len, found.n_tensors, found.n_dims)
        if fault is None and any(need > have for need, have in zip(needed, room, strict=True)):
            # The file is being written to.
            fault = Fault(lib.WM_FAULT_AMB_READ, found.n_tensors, section.end, 0, 0)
    columns.names_len, columns.count, columns.n_dims = needed
    return columns, found, fault


def _walk(
    section: Section, room: tuple[int, int, int], *, relative: bool, lax: bool
) -> tuple[Columns, Any, Fault | None]:
    columns = Columns.scratch(*room)
    data = NULL if section.data is None else from_buffer("uint8_t[]", section.data)
    # In the order of kernels.h.
    asked = ffi.new(
        "wm_amb_section *",
        (
            section.fd,
            lax,
            data,
            0 if section.data is None else len(section.data),
            section.begin,
            section.end,
            section.begin if relative else 0,
            min(section.max_tensors, U32_MAX),
            min(section.max_names, U32_MAX - 1),
            *section.bare,
        ),
    )
    found, fault = ffi.new("wm_amb *"), ffi.new("wm_fault *")
    failed = lib.wm_amb_walk(asked, columns.native, found, fault)
    return columns, found, fault_of(fault) if failed else None
