"""The records of AMB files in C. Used by weightmap.formats.amb."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.kernels._columns import Columns
from weightmap.kernels._faults import Fault, fault_of
from weightmap.kernels._native import NULL, U32_MAX, ffi, from_buffer, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Most models fit into these; one that does not is walked twice. Bytes of names, tensors, dimensions.
_ROOM = (16384, 512, 1024)
# Fewest bytes of a record, of a dimension.
_RECORD, _DIM = 12, 4


class Section(NamedTuple):
    """Where the records of a file are, and what is asked of them: see wm_amb_section in kernels.h.

    Attributes
    ----------
    fd : int
        -1: the file is `data`.
    data : ndarray of uint8 or None
    begin, end : int
        Of the section, in the file.
    max_tensors, max_names : int
    bare : tuple of int
        Block size, and bytes of a scale, of blocks without a header; zeros where there are none.
    """

    fd: int
    data: NDArray[Any] | None
    begin: int
    end: int
    max_tensors: int
    max_names: int
    bare: tuple[int, int]


# Names of the field that a fault is about, by WM_AMB_ constants.
AMB_FIELDS = (
    "name_length",
    "name",
    "ndim",
    "shape",
    "dtype",
    "data_size",
    "quant_type",
    "block_size",
    "scale_type",
    "padding",
)


def amb_walk(section: Section, *, relative: bool, lax: bool) -> tuple[Columns, Any, Fault | None]:
    """Turn the records of an AMB file into columns, and say what is wrong with them.

    Parameters
    ----------
    section : Section
    relative : bool
        Padding counts from the beginning of the section, not from that of the file.
    lax : bool
        Padding that is missing or not zero is noted and no fault.

    Returns
    -------
    columns : Columns
        In file order; offsets relative to the section. Of no use with a fault.
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
            # Somebody writes to the file meanwhile.
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
