"""The scan in C of a section of tensor records, each followed by its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.kernels._columns import Columns
from weightmap.kernels._faults import Fault, fault_of
from weightmap.kernels._native import NULL, U32_MAX, ffi, from_buffer, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Room for bytes of names, tensors and dimensions. Most models fit; a larger one is scanned twice.
_ROOM = (16384, 512, 1024)
# Fewest bytes of a record and of a dimension.
_RECORD, _DIM = 12, 4


class Section(NamedTuple):
    """A section of records in an AMB file: see wm_amb_section in scans.h."""

    fd: int  # -1 if the file is `data`
    data: NDArray[Any] | None
    begin: int  # of the section in the file, like `end`
    end: int
    max_tensors: int
    max_names: int
    bare: tuple[int, int]  # block size and bytes of a scale for blocks without a header, or zeros


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
