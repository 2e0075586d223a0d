"""Pieces of files copied to a staging buffer, in C and by several threads; memory on the node of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightmap.native._native import as_input, as_items, as_output, ffi, lib, thread_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def stage(
    source: int | NDArray[np.uint8],
    pieces: tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]],
    out: NDArray[np.uint8],
    *,
    crcs: NDArray[np.uint32] | None = None,
    threads: int = 1,
) -> tuple[int, int]:
    """Copy pieces of a file or of memory to a buffer.

    Parameters
    ----------
    source : int or ndarray of uint8
        The descriptor of a file, or bytes that nobody can take away.
    pieces : three ndarrays of uint64, shape (n,)
        Where each begins in the source and in `out`, and its bytes.
    out : ndarray of uint8
    crcs : ndarray of uint32, shape (n,), optional
        Filled with the CRC-32 of each piece, as it is in `out`.
    threads : int

    Returns
    -------
    (int, int)
        -1 and 0 when all was copied; else the number of a piece that was not, and an errno, or 0 when the file ends
        within it.

    Raises
    ------
    ValueError
        When columns have different lengths, or a piece does not lie within the source or `out`.
    """
    count = len(pieces[0])
    if any(len(column) != count for column in pieces) or (crcs is not None and len(crcs) != count):
        raise ValueError("the columns of pieces differ in length")
    columns = [as_items("uint64_t[]", column) for column in pieces]
    memory = ffi.NULL if isinstance(source, int) else as_input(source)
    room = as_output(out, "uint8_t[]")
    fd, size = (source, 0) if isinstance(source, int) else (-1, len(memory))
    staging = ffi.new("wm_staging *", (fd, memory, size, *columns, room, len(room)))
    sums = ffi.NULL if crcs is None else as_output(crcs, "uint32_t[]")
    error = ffi.new("int *")
    failed: int = lib.wm_stage(staging, count, sums, thread_count(threads), error)
    if error[0] < 0:
        raise ValueError(f"piece {failed} does not lie within its source or the buffer")
    return failed, error[0]


def prefer_node(memory: NDArray[np.uint8], node: int) -> int:
    """Ask that memory lies on a NUMA node, and move there what is in use of it. Returns 0, or an errno."""
    room = as_output(memory, "uint8_t[]")
    error: int = lib.wm_prefer_node(room, len(room), node)
    return error
